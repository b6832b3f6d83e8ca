"""The gallery: the strict verifier pays exactly the deserving, each naive one is caught paying others."""

import json

import pytest

from labs_lib.tasks.stock_arithmetic import gallery
from labs_lib.tasks.stock_arithmetic.gallery import GALLERY, VERIFIERS, WORKED_PROBLEM, judge, verdict_table
from labs_lib.tasks.stock_arithmetic.naive_verifiers import NAIVE_VERIFIERS
from labs_lib.tasks.stock_arithmetic.problem import parse_problem
from labs_lib.tasks.stock_arithmetic.verifier import verify


def test_worked_example():
    assert WORKED_PROBLEM.final_stock == 27
    rewards = [verify(answer, "eos", WORKED_PROBLEM, True).reward for answer in gallery.WORKED_ANSWERS]
    assert tuple(rewards) == gallery.WORKED_REWARDS == (1, 0, 1, 0)


def test_size_and_shape():
    assert sum(completion.problem == WORKED_PROBLEM for completion in GALLERY) >= 60
    rows = [(str(type(c.text)), c.text, c.finish_reason, c.ids_known, c.problem) for c in GALLERY]
    assert len(set(rows)) == len(GALLERY), "a completion is in the gallery twice"
    for completion in GALLERY:
        assert parse_problem(completion.problem.as_dict()) == completion.problem


@pytest.mark.parametrize("completion", GALLERY, ids=lambda c: f"{c.category}-{ascii(c.text)[:30]}")
def test_the_strict_verifier_pays_exactly_the_deserving(completion):
    verdict = verify(completion.text, completion.finish_reason, completion.problem, completion.ids_known)
    assert verdict.reward == completion.deserves


def test_table_and_counts_agree():
    table, counts = verdict_table(), gallery.verdict_counts()
    assert [row["number"] for row in table] == list(range(1, len(GALLERY) + 1))
    assert counts["strict"] == {
        "paid": sum(c.deserves for c in GALLERY),
        "wrongly_paid": 0,
        "wrongly_refused": 0,
        "raised": 0,
    }
    for name in NAIVE_VERIFIERS:
        wrong = [row for row in table if row[name].reward and not row["deserves"]]
        assert counts[name]["wrongly_paid"] == len(wrong) > 0
    assert list(VERIFIERS) == ["strict", "digits", "isinstance", "first object"]


def test_every_row_can_be_shown_and_stored():
    for row in verdict_table():
        assert row["shown"].isprintable() and row["shown"].isascii() and len(row["shown"]) <= 60
        json.dumps([row["shown"], row["strict"].reason]).encode()


def paid_by(name):
    verifier = NAIVE_VERIFIERS[name]
    return {(c.category, c.text) for c in GALLERY if judge(verifier, c).reward and not c.deserves}


@pytest.mark.parametrize(
    ("name", "hole"),
    [
        ("digits", ("text around", "The final stock is 27.")),
        ("digits", ("out of range", '{"final_stock":-27}')),
        ("digits", ("other scripts", '{"final_stock":２７}')),
        ("isinstance", ("bool for 1", '{"final_stock":true}')),
        ("isinstance", ("duplicate field", '{"final_stock":29,"final_stock":27}')),
        ("first object", ("two answers", '{"final_stock":27}{"final_stock":29}')),
        ("first object", ("not an integer", '{"final_stock":27.0}')),
        *[(name, ("cut off", '{"final_stock":27}')) for name in NAIVE_VERIFIERS],
        *[(name, ("unknown id", '{"final_stock":27}')) for name in NAIVE_VERIFIERS],
    ],
)
def test_each_naive_verifier_has_its_known_holes(name, hole):
    assert hole in paid_by(name)


def test_first_object_is_wrong_in_both_orders():
    first = NAIVE_VERIFIERS["first object"]
    right_first, wrong_first = (
        '{"final_stock":27}{"final_stock":29}',
        '{"final_stock":29}\n{"final_stock":27}',
    )
    assert first(right_first, "eos", WORKED_PROBLEM, True).reward == 1
    assert first(wrong_first, "eos", WORKED_PROBLEM, True).reward == 0
    assert NAIVE_VERIFIERS["digits"](wrong_first, "eos", WORKED_PROBLEM, True).reward == 1
    for text in (right_first, wrong_first):
        assert verify(text, "eos", WORKED_PROBLEM, True).reward == 0
