"""Exercises of lab 03: schedule, micro-batch losses, a state's contents, pass@1, mixed groups."""

from collections.abc import Callable
from typing import Any

import torch

from labs_lib.exercises.check import Comparison, Exercise, Property, all_hold, close

# --- 1: learning rate --------------------------------------------------------------------------------

Rate = Callable[..., float]


def _warmup(rate: Rate) -> Comparison:
    """200 updates, 20 of warm-up: update 9 is half way up, update 19 at the peak."""
    return all_hold(close(rate(update, 200, 2e-5), 2e-5 * (update + 1) / 20, 1e-12) for update in (0, 9, 19))


def _decrease(rate: Rate) -> Comparison:
    expected = {109: 2e-5 * (1 - 0.9 * 90 / 180), 199: 2e-6}
    return all_hold(close(rate(update, 200, 2e-5), value, 1e-12) for update, value in expected.items())


def _other_fractions(rate: Rate) -> Comparison:
    found = [rate(update, 10, 1.0, 0.5, 0.2) for update in range(10)]
    expected = [0.2, 0.4, 0.6, 0.8, 1.0, 0.84, 0.68, 0.52, 0.36, 0.2]
    return all_hold(close(float(value), wanted, 1e-9) for value, wanted in zip(found, expected, strict=True))


LEARNING_RATE = Exercise(
    "learning_rate",
    (
        Property("the warm-up is linear, its first update already learns and its last one has the peak", _warmup),
        Property("after the warm-up it falls linearly, to a tenth of the peak at the last update", _decrease),
        Property("other fractions of warm-up and of the final rate are respected", _other_fractions),
        Property(
            "a run too short for a share of warm-up has one update of it", lambda rate: close(rate(0, 3, 1.0), 1.0)
        ),
    ),
)

# --- 2: a loss from micro-batches --------------------------------------------------------------------

Losses = Callable[..., list[torch.Tensor]]
LOGPROBS = -torch.tensor([[0.5, 1.5, 0.25], [2.0, 0.125, 4.0], [1.0, 3.0, 0.75]])
MASK = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])


def _parts(splits: list[slice], filler: float = 0.0) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    values = LOGPROBS.masked_fill(~MASK, filler)
    return [values[part] for part in splits], [MASK[part] for part in splits]


def _expected() -> float:
    return float(-LOGPROBS[MASK].sum() / MASK.sum())


def _total(losses: Losses, splits: list[slice], filler: float = 0.0) -> Comparison:
    found = losses(*_parts(splits, filler))
    if len(found) != len(splits):
        return Comparison("there is not one loss for each part")
    return close(torch.stack([torch.as_tensor(loss) for loss in found]).sum(), torch.tensor(_expected()), 1e-6)


def _gradient(losses: Losses) -> Comparison:
    whole = LOGPROBS.masked_fill(~MASK, torch.nan).requires_grad_()
    found = losses([whole[:1], whole[1:]], [MASK[:1], MASK[1:]])
    total = torch.stack([torch.as_tensor(loss) for loss in found]).sum()
    if not total.requires_grad:
        return Comparison("no gradient flows to the log-probabilities; something is detached")
    (gradient,) = torch.autograd.grad(total, whole)
    return close(gradient, torch.where(MASK, -1.0 / int(MASK.sum()), 0.0), 1e-6)


MICRO_BATCH_LOSSES = Exercise(
    "micro_batch_losses",
    (
        Property("for one part it is the mean negative log-probability", lambda f: _total(f, [slice(0, 3)])),
        Property(
            "the losses of any split add up to that of the whole batch",
            lambda f: all_hold(_total(f, s) for s in ([slice(0, 1), slice(1, 3)], [slice(0, 2), slice(2, 3)])),
        ),
        Property(
            "what stands off the mask does not count, not even NaN",
            lambda f: all_hold(_total(f, [slice(0, 3)], filler) for filler in (7.0, torch.nan)),
        ),
        Property("the gradients add up to that of the whole batch, padding of NaN included", _gradient),
    ),
)

# --- 3: what a state must hold -----------------------------------------------------------------------

ENTRIES = ("exp_avg", "exp_avg_sq", "step")
RECORD = ("iterations", "updates", "order", "cursor", "history")
PARAMETERS, GENERATORS = ["embed.weight", "norm.weight"], ["prompts", "draws"]


def needed_names(parameters: list[str], generators: list[str]) -> list[str]:
    """Every name of a resumable GRPO state."""
    return [
        *(f"policy.{name}" for name in parameters),
        *(f"adamw.{entry}.{name}" for name in parameters for entry in ENTRIES),
        *(f"generator.{name}" for name in generators),
        *(f"record.{key}" for key in RECORD),
    ]


def _lacks(*names: str) -> Callable[[Any], Comparison]:
    def holds(missing: Callable[..., list[str]]) -> Comparison:
        saved = [name for name in reversed(needed_names(PARAMETERS, GENERATORS)) if name not in names]
        found = missing(PARAMETERS, GENERATORS, [*saved, "record.note"])
        if not isinstance(found, list):
            return Comparison("the result is not a list")
        return Comparison(None if found == sorted(names) else "other names are returned, or in another order")

    return holds


MISSING_FROM_STATE = Exercise(
    "missing_from_state",
    (
        Property("a complete state lacks nothing", _lacks()),
        Property(
            "missing weights and moments are named", _lacks("policy.norm.weight", "adamw.exp_avg_sq.embed.weight")
        ),
        Property(
            "Adam's first moments and step counters decide the next step too",
            _lacks("adamw.exp_avg.norm.weight", "adamw.step.norm.weight", "adamw.step.embed.weight"),
        ),
        Property("a generator that starts anew draws other answers", _lacks("generator.draws", "generator.prompts")),
        Property(
            "counters, permutation, cursor and history are part of the state",
            _lacks(*(f"record.{key}" for key in RECORD)),
        ),
    ),
)

# --- 4: pass@1 ---------------------------------------------------------------------------------------


def _rows() -> list[dict[str, Any]]:
    """Three ID50 problems and one OOD100 problem with four samples each; two answers are no valid JSON."""
    rewards = {"a": (1, 1, 0, 1), "b": (0, 0, 0, 1), "c": (0, 0, 0, 0), "d": (0, 1, 0, 0)}
    rows = [
        {"problem": name, "population": "OOD100" if name == "d" else "ID50", "reward": reward}
        for name, values in rewards.items()
        for reward in values
    ]
    for place, row in enumerate(rows):
        row["reason"] = "not_json" if place in (5, 12) else ("correct" if row["reward"] else "wrong_value")
    return rows


def _pass_at_1(expected: dict[str, float], rows: list[dict[str, Any]]) -> Callable[[Any], Comparison]:
    def holds(function: Callable[..., dict[str, float]]) -> Comparison:
        found = function(rows)
        if not isinstance(found, dict):
            return Comparison("the result is not a dict")
        if set(found) != set(expected):
            return Comparison("the keys are not the populations that occur and ALL")
        return all_hold(close(found[key], value, 1e-9) for key, value in expected.items())

    return holds


_ONE = [row for row in _rows() if row["population"] == "ID50"]
PASS_AT_1 = Exercise(
    "pass_at_1",
    (
        Property(
            "every sample of every problem counts, right or not, valid or not",
            _pass_at_1({"ID50": 4 / 12, "ALL": 4 / 12}, _ONE),
        ),
        Property(
            "ALL is the share over all answers, whatever the sizes of the populations",
            _pass_at_1({"ID50": 4 / 12, "OOD100": 1 / 4, "ALL": 5 / 16}, _rows()),
        ),
    ),
)

# --- 5: mixed groups ---------------------------------------------------------------------------------

MIXED_SHARE = Exercise(
    "mixed_share",
    (
        Property("two answers differ with probability 2p(1 - p)", lambda f: close(f(0.3, 2), 0.42, 1e-9)),
        Property(
            "right and wrong play the same part",
            lambda f: all_hold(close(float(f(p, 5)), 1 - 0.8**5 - 0.2**5, 1e-9) for p in (0.2, 0.8)),
        ),
        Property(
            "a policy that is always wrong, or always right, has no mixed group",
            lambda f: all_hold(close(float(f(p, 4)), 0.0, 1e-12) for p in (0.0, 1.0)),
        ),
        Property("a larger group is mixed more often", lambda f: close(f(0.1, 8), 1 - 0.9**8 - 0.1**8, 1e-9)),
    ),
)
