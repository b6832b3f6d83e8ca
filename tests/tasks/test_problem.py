"""The problem, its solver's refusals and its words."""

import json

import pytest

from labs_lib.tasks.stock_arithmetic.problem import Problem, ProblemError, parse_problem, solve
from labs_lib.tasks.stock_arithmetic.statements import INSTRUCTION, PATTERNS, statement, target

GOOD = {"initial": 12, "deliveries": [30, 5], "withdrawals": [9, 11]}


def test_worked_problem_step_by_step():
    problem = parse_problem(GOOD)
    assert problem.stocks() == [12, 42, 47, 38, 27]
    assert solve(GOOD) == problem.final_stock == 27
    assert problem.as_dict() == GOOD
    assert parse_problem(problem.as_dict()) == problem


def test_extremes_are_accepted():
    assert solve({"initial": 100, "deliveries": [100, 100], "withdrawals": [0, 0]}) == 300
    assert solve({"initial": 0, "deliveries": [0, 0], "withdrawals": [0, 0]}) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"initial": True}, "initial must be an integer, not True (bool)"),
        ({"initial": 12.0}, "initial must be an integer, not 12.0 (float)"),
        ({"initial": "12"}, "initial must be an integer, not '12' (str)"),
        ({"initial": None}, "initial must be an integer, not None"),
        ({"initial": -1}, "initial is -1, outside 0..100"),
        ({"deliveries": [30, 101]}, "deliveries[1] is 101, outside 0..100"),
        ({"deliveries": [30, False]}, "deliveries[1] must be an integer, not False (bool)"),
        ({"deliveries": [30]}, "deliveries must be a list of exactly 2"),
        ({"deliveries": [30, 5, 0]}, "deliveries must be a list of exactly 2"),
        ({"withdrawals": "ab"}, "withdrawals must be a list of exactly 2"),
        ({"withdrawals": {9: 1, 11: 1}}, "withdrawals must be a list of exactly 2"),
        ({"withdrawals": [48, 0]}, "the stock becomes -1 after movement 3"),
        ({"withdrawals": [40, 8]}, "the stock becomes -1 after movement 4"),
        ({"note": 1}, "exactly the keys initial, deliveries, withdrawals"),
    ],
)
def test_everything_else_is_refused_with_its_name(change, words):
    with pytest.raises(ProblemError) as refusal:
        solve(GOOD | change)
    assert words in str(refusal.value)


@pytest.mark.parametrize("data", [None, [], 27, "{}", {}, {"initial": 1}])
def test_not_a_problem_at_all(data):
    with pytest.raises(ProblemError):
        parse_problem(data)


def test_key_ignores_order_within_a_kind_and_nothing_else():
    key = Problem(12, (30, 5), (9, 11)).key()
    assert key == Problem(12, (5, 30), (11, 9)).key()
    assert key != Problem(12, (9, 11), (5, 30)).key()
    assert key != Problem(30, (12, 5), (9, 11)).key()


def test_every_pattern_tells_all_five_numbers_in_order():
    problem = Problem(1, (22, 333), (4444, 55555))
    for pattern in range(len(PATTERNS)):
        words = "".join(c if c.isdigit() else " " for c in statement(problem, pattern)).split()
        assert words == ["1", "22", "333", "4444", "55555"]
    assert len({statement(problem, pattern) for pattern in range(len(PATTERNS))}) == len(PATTERNS)


def test_target_is_the_compact_json_of_the_instruction():
    assert target(27) == '{"final_stock":27}' == json.dumps({"final_stock": 27}, separators=(",", ":"))
    assert "final_stock" in INSTRUCTION
