"""Run plain Python integer code on Z3 integers: every path, each with the condition under which it is taken.

Z3 cannot look into `if`; but a comparison of a `SymbolicInt` asks the explorer, which follows both answers in
turn (those that the path so far leaves possible). What comes back is the *real* function, as a finite list of
cases, so that a statement about it can be proved for all integers instead of sampled. This works because the
code at hand has no loop whose length depends on a value. (King 1976, "Symbolic execution and program
testing".)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import z3

# The value that C code sees where it takes an int without asking, as list indexing does: too large to be used.
_STAND_IN = 1 << 200


@dataclass(frozen=True)
class Path:
    """One way through the function: `condition` (a Z3 formula) implies that it returned `result`."""

    condition: z3.BoolRef
    result: object


class SymbolicInt(int):
    """An integer that stands for a Z3 term; a subclass of int because the code under test insists on one."""

    def __new__(cls, term: z3.ArithRef, explorer: "Explorer"):
        self = super().__new__(cls, _STAND_IN)
        self.term, self.explorer = term, explorer
        return self

    def __add__(self, other):
        return SymbolicInt(self.term + term_of(other), self.explorer)

    __radd__ = __add__

    def __sub__(self, other):
        return self + -other

    def __rsub__(self, other):
        return -self + other

    def __neg__(self):
        return SymbolicInt(-self.term, self.explorer)

    def __lt__(self, other):
        return self.explorer.decide(self.term < term_of(other))

    def __le__(self, other):
        return self.explorer.decide(self.term <= term_of(other))

    def __gt__(self, other):
        return self.explorer.decide(self.term > term_of(other))

    def __ge__(self, other):
        return self.explorer.decide(self.term >= term_of(other))

    def __eq__(self, other):
        return self.explorer.decide(self.term == term_of(other))

    def __ne__(self, other):
        return not self == other

    __hash__ = None  # a dict or set would compare the stand-in

    def __bool__(self):
        return self != 0

    def __repr__(self):
        return str(self.term)


def _unsupported(self, *_):
    raise TypeError("this operation is not modelled: it would silently use the stand-in value")


# What int would otherwise do with the stand-in value must fail, or a proof would speak of another function.
for _name in ("mul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and", "or", "xor"):
    setattr(SymbolicInt, f"__{_name}__", _unsupported)
    setattr(SymbolicInt, f"__r{_name}__", _unsupported)
for _name in ("abs", "pos", "invert", "int", "index", "float", "round", "trunc", "floor", "ceil"):
    setattr(SymbolicInt, f"__{_name}__", _unsupported)


def term_of(value: int) -> z3.ArithRef:
    """The Z3 term of a symbolic or an ordinary integer."""
    return value.term if isinstance(value, SymbolicInt) else z3.IntVal(value)


def explore(function: Callable[..., object], *terms: z3.ArithRef) -> list[Path]:
    """All feasible paths of `function`, called with a `SymbolicInt` for each term (an unbounded integer).

    An error that the function raises is part of its behaviour only if the function itself turns it into a
    result; otherwise it ends the exploration.
    """
    explorer = Explorer()
    return list(explorer.paths(lambda: function(*(SymbolicInt(term, explorer) for term in terms))))


class Explorer:
    """Decides comparisons so that repeated runs of one function take all of its feasible paths in turn."""

    def __init__(self) -> None:
        self._plan: list[bool] = []  # answers to give before new ground is reached
        self._taken: list[bool] = []
        self._conditions: list[z3.BoolRef] = []
        self._pending: list[list[bool]] = [[]]

    def decide(self, condition: z3.BoolRef) -> bool:
        """The answer to one comparison on the current path; the other answer, if possible, waits its turn."""
        depth = len(self._taken)
        if depth < len(self._plan):
            answer = self._plan[depth]
        else:
            answer = self._possible(condition)
            if answer and self._possible(z3.Not(condition)):
                self._pending.append([*self._taken, False])
        self._taken.append(answer)
        self._conditions.append(condition if answer else z3.Not(condition))
        return answer

    def _possible(self, condition: z3.BoolRef) -> bool:
        solver = z3.Solver()
        solver.add(*self._conditions, condition)
        return solver.check() != z3.unsat  # an undecided branch is followed: sound, at worst superfluous

    def paths(self, run: Callable[[], object]) -> Iterator[Path]:
        """Run again and again until no answer is left untried; one `Path` a run."""
        while self._pending:
            self._plan, self._taken, self._conditions = self._pending.pop(), [], []
            result = run()
            yield Path(z3.And(*self._conditions), result)
