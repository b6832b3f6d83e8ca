"""Immediate feedback on a student's function: not attempted, right, or wrong with the property that failed.

An exercise is a list of *properties*, each a sentence and a predicate on the function. A check runs them
in order and prints one line:

    ○ not attempted: group_advantages
    ✓ group_advantages
    ✗ group_advantages: equal rewards give advantages that are exactly zero (the result contains NaN)

It tells which property failed and how the result's form differs, never the right values, and never
raises because of what the student wrote. A predicate passes only by returning True or a fulfilled
`Comparison`: a truthy tuple or a tensor of one is not a pass.

The function under test is called through a guard, which reports what a comparison of values overlooks:
arguments changed in place, other results for equal arguments, and prints (dropped here).
"""

import contextlib
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from labs_lib.errors import LabError
from labs_lib.exercises.snapshot import fresh, same, snapshot

Status = Literal["not attempted", "right", "wrong"]
NOT_ATTEMPTED = ...
_LONGEST_MESSAGE = 160


class _Untouched(Exception):
    """The stub was called and is still a stub."""


class _Violation(Exception):
    """The guard saw what no function of any exercise may do; the text is shown to the student."""


@dataclass(frozen=True)
class Comparison:
    """The outcome of `close`: true if equal within tolerance, else `reason` says what differs in form."""

    reason: str | None = None

    def __bool__(self) -> bool:
        return self.reason is None


@dataclass(frozen=True)
class Property:
    """One thing that must hold: `hint` states it to the student, `holds` tests it on their function."""

    hint: str
    holds: Callable[[Any], "bool | Comparison"]


@dataclass(frozen=True)
class Result:
    """What a check found; `line` is what it printed."""

    name: str
    status: Status
    hint: str | None = None

    @property
    def line(self) -> str:
        """The one line that the student sees."""
        if self.status == "not attempted":
            return f"○ not attempted: {self.name}"
        return f"✓ {self.name}" if self.status == "right" else f"✗ {self.name}: {self.hint}"

    def _ipython_display_(self) -> None:
        """Show nothing as the last expression of a cell: `check` has printed the line."""


@dataclass(frozen=True)
class Exercise:
    """A named list of properties.

    The function is called twice each time and must give the same result twice, unless `deterministic` is
    False: for one that draws random numbers without being given a generator. It must leave its arguments
    as they are, unless `mutates` is True: for one whose purpose is to update something (called once then).
    """

    name: str
    properties: tuple[Property, ...]
    deterministic: bool = True
    mutates: bool = False

    def __post_init__(self) -> None:
        if not self.properties:
            raise LabError(f"Exercise {self.name} has no property: its check would pass everything.")

    def check(self, answer: Any) -> Result:
        """Test a student's function, or plain value, and print the line."""
        result = self.evaluate(answer)
        print(result.line)
        return result

    def evaluate(self, answer: Any) -> Result:
        """The same without printing."""
        if answer is NOT_ATTEMPTED:
            return Result(self.name, "not attempted")
        guarded = _Guard(answer, self.deterministic, self.mutates) if callable(answer) else answer
        for item in self.properties:
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    outcome = item.holds(guarded)
            except _Untouched:
                return Result(self.name, "not attempted")
            except _Violation as violation:
                return Result(self.name, "wrong", f"{item.hint} ({violation})")
            except (Exception, SystemExit) as error:  # whatever a student can write
                return Result(self.name, "wrong", f"{item.hint} ({_one_line(error)})")
            if outcome is not True and not (isinstance(outcome, Comparison) and outcome):
                reason = outcome.reason if isinstance(outcome, Comparison) else None
                return Result(self.name, "wrong", f"{item.hint} ({reason})" if reason else item.hint)
        return Result(self.name, "right")


class _Guard:
    """Calls the student's function; raises _Untouched for a stub and _Violation for a bad habit."""

    def __init__(self, function: Callable[..., Any], deterministic: bool, mutates: bool) -> None:
        self._function = function
        self._deterministic = deterministic
        self._mutates = mutates
        self.__name__ = getattr(function, "__name__", "answer")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._mutates:
            return self._call(*args, **kwargs)
        original = (args, kwargs)
        # A copy, because the exercise uses the same tensors for its next property and its next check.
        args, kwargs = arguments = fresh(original)
        generators = [item for item in [*args, *kwargs.values()] if isinstance(item, torch.Generator)]
        states = [generator.get_state() for generator in generators]
        before = snapshot(arguments)
        result = self._call(*args, **kwargs)
        if not same(snapshot(arguments), before):
            raise _Violation("it changes its arguments in place; work on a copy")
        if self._deterministic:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            first = snapshot(result)
            args, kwargs = fresh(original)
            if not same(snapshot(self._call(*args, **kwargs)), first):
                raise _Violation("two calls with equal arguments give different results")
        return result

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            result = self._function(*args, **kwargs)
        except NotImplementedError as error:
            # torch raises the same type, with a message, for what a dtype or device cannot do.
            if error.args:
                raise
            raise _Untouched from None
        if result is NOT_ATTEMPTED:
            raise _Untouched
        return result


def _one_line(error: BaseException) -> str:
    message = " ".join(str(error).split())
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 1] + "…"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


# --- For writing properties --------------------------------------------------------------------------


def close(actual: Any, expected: torch.Tensor | float | int | bool, atol: float = 1e-6) -> Comparison:
    """Whether a student's tensor or number equals `expected`: kind, shape, dtype, finiteness, values.

    Values differ by at most `atol`, which has to be small against the largest expected one, since a loose
    tolerance lets a result of zeros pass (LabError, for whoever writes the exercise). The reason tells
    what is wrong in form and never what the values should be.
    """
    if actual is None:
        return Comparison("the result is None; is a `return` missing?")
    if isinstance(expected, torch.Tensor):
        return _close_tensors(actual, expected, atol)
    return _close_numbers(actual, expected, atol)


def _close_numbers(actual: Any, expected: float | int | bool, atol: float) -> Comparison:
    # An exact 0 or 1 where a float is due is right; True is a bool and never a number.
    if type(actual) is not type(expected) and not (type(actual) is int and type(expected) is float):
        return Comparison(f"the result is {_kind(actual)} and should be {_kind(expected)}")
    if type(expected) is not float:
        return Comparison(None if actual == expected else "the value differs")
    return _close_tensors(
        torch.tensor(float(actual), dtype=torch.float64), torch.tensor(expected, dtype=torch.float64), atol
    )


def _close_tensors(actual: Any, expected: torch.Tensor, atol: float) -> Comparison:
    if not isinstance(actual, torch.Tensor):
        return Comparison(f"the result is {_kind(actual)} and should be a tensor")
    if actual.shape != expected.shape:
        return Comparison(f"the shape is {tuple(actual.shape)} and should be {tuple(expected.shape)}")
    if actual.dtype != expected.dtype:
        return Comparison(f"the dtype is {actual.dtype} and should be {expected.dtype}")
    if not expected.is_floating_point():
        return Comparison(None if torch.equal(actual, expected) else "some values differ")
    _refuse_loose(expected, atol)
    actual, expected = actual.detach(), expected.detach()
    if bool(torch.isnan(actual).any()) and not bool(torch.isnan(expected).any()):
        return Comparison("the result contains NaN")
    infinite = torch.isinf(expected)
    if not torch.equal(torch.where(torch.isinf(actual), actual, 0), torch.where(infinite, expected, 0)):
        return Comparison("infinite values are missing or in the wrong places")
    differences = (actual - expected).masked_fill(infinite, 0).abs()
    return Comparison(None if bool((differences <= atol).all()) else "some values differ")


def _refuse_loose(expected: torch.Tensor, atol: float) -> None:
    finite = expected.detach()[torch.isfinite(expected)].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    if largest and atol > 0.01 * largest:
        raise LabError(f"A tolerance of {atol} cannot tell the expected values (at most {largest:.3g}) from zero.")


def all_hold(comparisons: Iterable[Comparison]) -> Comparison:
    """The first comparison that fails, or one that holds."""
    return next((comparison for comparison in comparisons if not comparison), Comparison())


def gradients(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Gradients of the sum of `function(*inputs)` with respect to every floating-point input.

    Raises what the student reads as a reason: a result that is detached, or does not use an input.
    """
    leaves = [x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    result = function(*leaves)
    if not isinstance(result, torch.Tensor):
        raise _Violation(f"the result is {_kind(result)} and should be a tensor")
    if not result.requires_grad:
        raise _Violation("no gradient flows from the result to the inputs; something is detached")
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = torch.autograd.grad(result.sum(), wanted, allow_unused=True)
    if any(gradient is None for gradient in found):
        raise _Violation("no gradient flows to one of the inputs")
    return tuple(found)


def _kind(value: Any) -> str:
    names = {bool: "a bool", int: "an int", float: "a float", str: "text", torch.Tensor: "a tensor"}
    return names.get(type(value), f"of type {type(value).__name__}")


# --- For testing exercises ---------------------------------------------------------------------------


def assert_discriminates(
    exercise: Exercise,
    solution: Any,
    stub: Any,
    mutants: Sequence[Any],
) -> None:
    """Fail unless the check passes the solution, calls the stub not attempted and rejects every mutant.

    Needs at least three mutants: plausible wrong answers (a flipped sign, a shifted mask, a wrong
    denominator, zeros, a detached tensor).
    """
    assert len(mutants) >= 3, f"{exercise.name} needs at least three mutants, got {len(mutants)}"
    result = exercise.evaluate(solution)
    assert result.status == "right", f"the solution is rejected: {result.line}"
    result = exercise.evaluate(stub)
    assert result.status == "not attempted", f"the untouched stub is called {result.status}: {result.line}"
    for mutant in mutants:
        result = exercise.evaluate(mutant)
        name = getattr(mutant, "__name__", repr(mutant))
        assert result.status == "wrong", f"{exercise.name} lets the mutant {name} through: {result.line}"
        assert result.hint, f"{exercise.name} rejects the mutant {name} without a hint"
