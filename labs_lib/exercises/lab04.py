"""Exercises of lab 04: a merged adapter, the state a judge reads, the preference loss, rubric rates, a factorial."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from labs_lib.exercises.check import Comparison, Exercise, Property, all_hold, close, gradients

# --- 1: merging an adapter ---------------------------------------------------------------------------

WEIGHT = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0], [2.0, 0.0, 1.5], [-1.0, 0.5, 4.0]])  # (4 out, 3 in)
A = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]])  # (2, 3)
B = torch.tensor([[1.0, 0.0], [-0.5, 2.0], [0.25, -1.0], [3.0, 0.5]])  # (4, 2)
ALPHA = 5.0
# By hand: B A, first row 1 * (0.5, -1, 2); scaled by 5 / 2.
UPDATE = torch.tensor([[0.5, -1.0, 2.0], [2.75, 1.0, -2.0], [-1.375, -0.5, 1.0], [2.25, -2.875, 5.75]])
SMALL = 2.0**-10  # an update that BF16 loses beside a weight of 1


def _merged_gradient(merged: Callable[..., torch.Tensor]) -> Comparison:
    found = gradients(lambda a, b: merged(WEIGHT, a, b, ALPHA), A, B)
    expected = (2.5 * B.sum(0).unsqueeze(1).expand_as(A), 2.5 * A.sum(1).unsqueeze(0).expand_as(B))
    return all_hold(
        close(gradient, wanted.contiguous(), 1e-5) for gradient, wanted in zip(found, expected, strict=True)
    )


def _keeps_small_updates(merged: Callable[..., torch.Tensor]) -> Comparison:
    weight = torch.ones(2, 2, dtype=torch.bfloat16)
    found = merged(weight, torch.full((1, 2), SMALL), torch.ones(2, 1), 1.0)
    return close(found, torch.full((2, 2), 1 + SMALL), 1e-7)


MERGED_WEIGHT = Exercise(
    "merged_weight",
    (
        Property(
            "one product with it does what the frozen layer and its branch do, alpha / rank included",
            lambda f: close(f(WEIGHT, A, B, ALPHA), WEIGHT + 2.5 * UPDATE, 1e-5),
        ),
        Property(
            "an adapter whose B is zero changes nothing",
            lambda f: close(f(WEIGHT, A, torch.zeros_like(B), ALPHA), WEIGHT, 1e-7),
        ),
        Property("the gradient reaches A and B", _merged_gradient),
        Property("a BF16 weight plus a small branch is given in FP32, or the branch is lost", _keeps_small_updates),
    ),
)

# --- 2: the state a judge reads ----------------------------------------------------------------------

HIDDEN = torch.arange(1.0, 25.0).reshape(3, 4, 2)  # (answers, tokens, H)
ANSWERED = torch.tensor([[True, True, False, False], [True, True, True, True], [True, False, False, False]])


def _read(hidden: torch.Tensor) -> torch.Tensor:
    return torch.stack([hidden[0, 1], hidden[1, 3], hidden[2, 0]])


def _ignores_what_follows(states: Callable[..., torch.Tensor]) -> Comparison:
    filled = HIDDEN.masked_fill(~ANSWERED.unsqueeze(-1), torch.nan)
    return close(states(filled, ANSWERED), _read(HIDDEN), 1e-7)


def _state_gradient(states: Callable[..., torch.Tensor]) -> Comparison:
    (found,) = gradients(lambda hidden: states(hidden, ANSWERED), HIDDEN)
    expected = torch.zeros_like(HIDDEN)
    expected[0, 1], expected[1, 3], expected[2, 0] = 1.0, 1.0, 1.0
    return close(found, expected, 1e-7)


LAST_ANSWER_STATES = Exercise(
    "last_answer_states",
    (
        Property(
            "an answer that fills its row is read at its last place",
            lambda f: close(f(HIDDEN[1:2], ANSWERED[1:2]), HIDDEN[1:2, 3], 1e-7),
        ),
        Property("every row is read at its own last active token", lambda f: close(f(HIDDEN, ANSWERED), _read(HIDDEN))),
        Property("what stands after the end does not enter, not even NaN", _ignores_what_follows),
        Property("the gradient reaches the states that are read, and no others", _state_gradient),
    ),
)

# --- 3: the preference loss --------------------------------------------------------------------------

CHOSEN, REJECTED = torch.tensor([1.5, -0.5, 0.25, 2.0]), torch.tensor([0.5, 1.0, 0.25, -1.0])


def _negative_log_sigmoid(difference: float) -> float:
    return math.log1p(math.exp(-abs(difference))) + max(0.0, -difference)


def _preference_gradient(loss: Callable[..., torch.Tensor]) -> Comparison:
    found = gradients(loss, CHOSEN, REJECTED)
    wrong = torch.sigmoid(REJECTED - CHOSEN) / len(CHOSEN)
    return all_hold(close(gradient, wanted, 1e-6) for gradient, wanted in zip(found, (-wrong, wrong), strict=True))


def _far_apart(loss: Callable[..., torch.Tensor]) -> Comparison:
    right, wrong = torch.tensor([300.0]), torch.tensor([-300.0])
    (gradient, _) = gradients(loss, wrong, right)
    return all_hold(
        (
            close(loss(wrong, right), torch.tensor(600.0), 1e-3),
            close(loss(right, wrong), torch.tensor(0.0)),
            close(gradient, torch.tensor([-1.0]), 1e-6),
        )
    )


PREFERENCE_LOSS = Exercise(
    "preference_loss",
    (
        Property(
            "two equal scores cost log 2",
            lambda f: close(f(torch.tensor([0.7]), torch.tensor([0.7])), torch.tensor(math.log(2)), 1e-6),
        ),
        Property(
            "it is the mean over the pairs of -log sigmoid(chosen - rejected)",
            lambda f: close(
                f(CHOSEN, REJECTED),
                torch.tensor(sum(_negative_log_sigmoid(float(d)) for d in CHOSEN - REJECTED) / 4),
                1e-6,
            ),
        ),
        Property("the gradient pushes hardest where the judge is wrong, and both scores", _preference_gradient),
        Property("differences of hundreds give no infinity, and still a gradient", _far_apart),
    ),
)

# --- 4: rubric rates ---------------------------------------------------------------------------------

NAMES = ("success", "recognised", "relevant", "certain", "courteous")
# Ten answers: seven recognised, of which five relevant, two certain, three courteous; four successes.
_READ = (
    (True, False, True),
    (True, False, True),
    (True, False, False),
    (True, False, False),
    (True, True, False),
    (False, True, True),
    (False, False, False),
)


def _row(read: tuple[bool, bool, bool] | None) -> dict[str, bool]:
    relevant, certain, courteous = read or (False, False, False)
    values = (relevant and not certain, read is not None, relevant, certain, courteous)
    return dict(zip(NAMES, values, strict=True))


ROWS = [_row(read) for read in (*_READ[:3], None, *_READ[3:], None, None)]


def _rates(rows: Sequence[Mapping[str, bool]], expected: Mapping[str, float | None], *names: str):
    def holds(function: Callable[..., dict[str, float | None]]) -> Comparison:
        found = function([dict(row) for row in rows])
        if not isinstance(found, dict) or set(found) != set(NAMES):
            return Comparison("the result is not a dict with the five rates")
        return all_hold(_same_rate(found[name], expected[name]) for name in names)

    return holds


def _same_rate(found: Any, expected: float | None) -> Comparison:
    if expected is None:
        return Comparison(None if found is None else "a rate without any answer to count is not None")
    return close(found, expected, 1e-9)


_EXPECTED = {"success": 0.4, "recognised": 0.7, "relevant": 5 / 7, "certain": 2 / 7, "courteous": 3 / 7}
_NOTHING_READ = {"success": 0.0, "recognised": 0.0, "relevant": None, "certain": None, "courteous": None}
RUBRIC_RATES = Exercise(
    "rubric_rates",
    (
        Property(
            "every answer counts in the success rate and in the recognised share",
            _rates(ROWS, _EXPECTED, "success", "recognised"),
        ),
        Property(
            "only a recognised answer can be relevant, certain or courteous",
            _rates(ROWS, _EXPECTED, "relevant", "certain", "courteous"),
        ),
        Property(
            "where nothing was recognised there is no such rate, and success is 0",
            _rates([_row(None)] * 3, _NOTHING_READ, *NAMES),
        ),
    ),
)

# --- 5: the factorial --------------------------------------------------------------------------------

EFFECTS = ("courtesy", "advice", "interaction")
# Per context: right plain, right courteous, wrong plain, wrong courteous.
_SQUARES = {"a": (1.0, 3.0, 0.5, 1.5), "b": (2.0, 2.5, -1.0, 1.0)}


def _cells(order: Sequence[int] = (0, 1, 2, 3)) -> list[dict[str, Any]]:
    return [
        {"request": name, "right": place < 2, "courteous": place % 2 == 1, "score": square[place]}
        for place in order
        for name, square in _SQUARES.items()
    ]


def _factorial(expected: Mapping[str, float], rows: Sequence[Mapping[str, Any]], *names: str):
    def holds(function: Callable[..., dict[str, float]]) -> Comparison:
        found = function([dict(row) for row in rows])
        if not isinstance(found, dict) or set(found) != set(EFFECTS):
            return Comparison("the result is not a dict with the three effects")
        return all_hold(close(found[name], expected[name], 1e-9) for name in names)

    return holds


# By hand: courtesy adds 2, 0.5 (right) and 1, 2 (wrong); right advice adds 0.5, 3 (plain) and 1.5, 1.5 (courteous).
_EFFECTS = {"courtesy": 1.375, "advice": 1.625, "interaction": -0.25}
FACTORIAL_EFFECTS = Exercise(
    "factorial_effects",
    (
        Property(
            "courtesy's effect is averaged over right and wrong advice", _factorial(_EFFECTS, _cells(), "courtesy")
        ),
        Property("the advice's effect is averaged over plain and courteous", _factorial(_EFFECTS, _cells(), "advice")),
        Property(
            "the interaction says how much more courtesy adds to right advice than to wrong",
            _factorial(_EFFECTS, _cells(), "interaction"),
        ),
        Property("the order of the rows does not matter", _factorial(_EFFECTS, _cells((3, 1, 0, 2)), *EFFECTS)),
    ),
)
