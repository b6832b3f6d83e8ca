"""Tables of the labs: what is aligned how, and what stays in one line."""

import pytest

from labs_lib.showing import seconds, show_table


def rules(*row):
    """The alignment of a table's columns whose first row is plain numbers and whose second is this one."""
    header = [f"column {place}" for place in range(len(row))]
    return show_table(header, [["1"] * len(row), row]).data.splitlines()[1].strip("| ").split(" | ")


NUMBERS = (7, 0.5, -0.25, "", "1,024", "≈0.34", "+0.485 [+0.443, +0.528]", "≈4 → ≈3.5 %", "≈61/200 = ≈30.5 %", "-3.5")


@pytest.mark.parametrize("cell", NUMBERS, ids=str)
def test_columns_of_numbers_are_aligned_to_the_right(cell):
    assert rules("grpo", cell) == ["---", "---:"]


@pytest.mark.parametrize("cell", ["NOT_REPRODUCED", "dividing by 2 weakens", "-", "equal"])
def test_columns_with_words_are_aligned_to_the_left(cell):
    assert rules("grpo", cell, 1) == ["---", "---", "---:"]


def test_a_number_stays_with_its_unit():
    row = show_table(["run", "time", "share"], [["8 of 9 runs", seconds(4.75), "≈30.5 %"]]).data.splitlines()[-1]
    assert row == "| 8\xa0of 9\xa0runs | ≈4.75\xa0s | ≈30.5\xa0% |"


def test_a_table_without_rows_is_a_header():
    assert show_table(["a", "b"], []).data.splitlines() == ["| a | b |", "| --- | ---: |"]
