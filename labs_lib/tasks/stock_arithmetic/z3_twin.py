"""The rule of StockArithmetic-v1 stated in Z3, and what follows from it for *all* inputs.

A claim is proved by showing that its negation has no solution. Where it has one, the claim is refuted and the
solution is the counterexample: always the lexicographically smallest, so that every machine prints the same.
The solver and the verifier enter as the real Python functions, run on Z3 integers (see `symbolic`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import z3

from labs_lib.errors import VerificationError
from labs_lib.tasks.stock_arithmetic.problem import (
    FINAL_STOCK_MAX,
    OPERAND_MAX,
    Problem,
    ProblemError,
    solve,
)
from labs_lib.tasks.stock_arithmetic.symbolic import explore, term_of
from labs_lib.tasks.stock_arithmetic.verifier import Reason, judge_value

PROVED, COUNTEREXAMPLE = "proved", "counterexample"
# Z3's own count of steps, so that giving up does not depend on the machine's speed; the claims need a tenth.
STEP_LIMIT = 500_000


@dataclass(frozen=True)
class Result:
    """A claim and what Z3 says of it: "proved", or "counterexample" with the values that refute it."""

    claim: str
    status: str
    counterexample: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SymbolicProblem:
    """Five integer unknowns in the roles of a problem; `prefix` keeps two problems in one formula apart."""

    prefix: str = ""

    @property
    def operands(self) -> list[z3.ArithRef]:
        names = ("initial", "delivery_1", "delivery_2", "withdrawal_1", "withdrawal_2")
        return [z3.Int(self.prefix + name) for name in names]

    def stocks(self) -> list[z3.ArithRef]:
        """The five stocks, in order: `Problem.stocks` itself, on unknowns."""
        return as_problem(*self.operands).stocks()

    def bounded(self) -> z3.BoolRef:
        return z3.And(*(z3.And(0 <= operand, operand <= OPERAND_MAX) for operand in self.operands))

    def valid(self) -> z3.BoolRef:
        """Operands 0..100, and no intermediate stock is negative."""
        return z3.And(self.bounded(), *(stock >= 0 for stock in self.stocks()))

    def key(self) -> list[z3.ArithRef]:
        """The normalised key: initial, sorted deliveries, sorted withdrawals."""
        i, a, b, c, d = self.operands
        return [i, *_sorted_pair(a, b), *_sorted_pair(c, d)]


def as_problem(i: object, a: object, b: object, c: object, d: object) -> Problem:
    """Five operands (integers or Z3 terms) as a `Problem`."""
    return Problem(i, (a, b), (c, d))


def _sorted_pair(x: z3.ArithRef, y: z3.ArithRef) -> list[z3.ArithRef]:
    return [z3.If(x <= y, x, y), z3.If(x <= y, y, x)]


def final_stock_expression(operands: list[z3.ArithRef]) -> z3.ArithRef:
    """The answer as one formula: initial + deliveries − withdrawals."""
    i, a, b, c, d = operands
    return i + a + b - c - d


def verifier_rule(value: z3.ArithRef, problem: SymbolicProblem) -> z3.BoolRef:
    """When an integer answer deserves pay: it is in 0..300 and equals the final stock."""
    return z3.And(0 <= value, value <= FINAL_STOCK_MAX, value == final_stock_expression(problem.operands))


def prove(claim: str, premise: z3.BoolRef, conclusion: z3.BoolRef, unknowns: list[z3.ArithRef]) -> Result:
    """Decide whether `premise` implies `conclusion` for all values of the `unknowns` (integers).

    Raises VerificationError when Z3 cannot decide within `STEP_LIMIT` of its steps.
    """
    solver = z3.Solver()
    solver.set("rlimit", STEP_LIMIT)
    solver.add(premise, z3.Not(conclusion))
    status = solver.check()
    if status == z3.unsat:
        return Result(claim, PROVED)
    if status == z3.unknown:
        raise VerificationError(f"Z3 cannot decide this claim within its step limit: {claim}.")
    return Result(claim, COUNTEREXAMPLE, _smallest_solution(solver.assertions(), unknowns))


def _smallest_solution(formulas: z3.AstVector, unknowns: list[z3.ArithRef]) -> dict[str, int]:
    # One unknown after the other, each as small as the earlier ones allow: which solution an unguided
    # search meets first may differ from one build of Z3 to another.
    optimizer = z3.Optimize()
    optimizer.add(*formulas)
    for unknown in unknowns:
        optimizer.minimize(unknown)
    if optimizer.check() != z3.sat:
        raise VerificationError("Z3 found a counterexample but not its smallest one.")
    model = optimizer.model()
    return {str(unknown): model.eval(unknown, model_completion=True).as_long() for unknown in unknowns}


def final_stock_in_range() -> Result:
    p = SymbolicProblem()
    final = final_stock_expression(p.operands)
    in_range = z3.And(0 <= final, final <= FINAL_STOCK_MAX)
    return prove("the final stock of a valid problem is in 0..300", p.valid(), in_range, p.operands)


def permutations_change_nothing() -> Result:
    """Swapping the deliveries, the withdrawals or both keeps key, validity and answer."""
    p = SymbolicProblem()
    i, a, b, c, d = p.operands
    same = []
    for swapped in ([i, b, a, c, d], [i, a, b, d, c], [i, b, a, d, c]):
        substitution = list(zip(p.operands, swapped, strict=True))
        for term in (*p.key(), final_stock_expression(p.operands), p.valid()):
            same.append(z3.substitute(term, *substitution) == term)
    claim = "permuted movements keep the key, the validity and the final stock"
    return prove(claim, p.bounded(), z3.And(*same), p.operands)


def same_key_same_answer() -> Result:
    """Stronger than the permutations: *any* two problems with one key agree."""
    p, q = SymbolicProblem("p_"), SymbolicProblem("q_")
    same_key = z3.And(*(x == y for x, y in zip(p.key(), q.key(), strict=True)))
    same_answer = final_stock_expression(p.operands) == final_stock_expression(q.operands)
    conclusion = z3.And(same_answer, p.valid() == q.valid())
    premise = z3.And(p.bounded(), q.bounded(), same_key)
    return prove("two problems with one key have one answer", premise, conclusion, p.operands + q.operands)


def final_stock_decides_validity() -> Result:
    """With all deliveries before all withdrawals, the stock falls only at the end: its last value decides."""
    p = SymbolicProblem()
    conclusion = p.valid() == (final_stock_expression(p.operands) >= 0)
    claim = "a bounded problem is valid exactly if its final stock is not negative"
    return prove(claim, p.bounded(), conclusion, p.operands)


def right_total_means_valid(order: tuple[int, ...] = (3, 4, 1, 2)) -> Result:
    """The tempting claim that a right final stock vouches for the way there, in another order of movements.

    `order` lists the movements (1, 2 deliveries; 3, 4 withdrawals) as they happen; by default the goods leave
    before they arrive. Z3 refutes it: the total is a valid problem's, yet an intermediate stock is negative.
    """
    p = SymbolicProblem()
    changes = [None, *p.operands[1:3], *(-withdrawal for withdrawal in p.operands[3:])]
    stocks = [p.operands[0]]
    for movement in order:
        stocks.append(stocks[-1] + changes[movement])
    premise = z3.And(p.valid(), stocks[-1] == final_stock_expression(p.operands))
    conclusion = z3.And(*(stock >= 0 for stock in stocks))
    claim = f"in the order {order} a right final stock means that no stock was negative"
    return prove(claim, premise, conclusion, p.operands)


def stocks_follow_the_formula() -> Result:
    """The step-by-step sum of `Problem.stocks`, in real Python, ends at the closed formula."""
    p = SymbolicProblem()
    conclusion = p.stocks()[-1] == final_stock_expression(p.operands)
    return prove("the step-by-step stock ends at the formula", z3.BoolVal(True), conclusion, p.operands)


def _on_every_path(function: Callable, terms: list, agrees: Callable[[object], z3.BoolRef]) -> z3.BoolRef:
    """The function's paths leave no input out, and on each of them its result `agrees`."""
    paths = explore(function, *terms)
    cases = [z3.Implies(path.condition, agrees(path.result)) for path in paths]
    return z3.And(z3.Or(*(path.condition for path in paths)), *cases)


def _solve_or_none(i: int, a: int, b: int, c: int, d: int) -> int | None:
    try:
        return solve({"initial": i, "deliveries": [a, b], "withdrawals": [c, d]})
    except ProblemError:
        return None


def solver_equivalence(solver: Callable[..., int | None] = _solve_or_none) -> Result:
    """For all integers: `solve` accepts exactly the valid problems and returns the formula's value."""
    p = SymbolicProblem()
    final = final_stock_expression(p.operands)

    def agrees(result: int | None) -> z3.BoolRef:
        return z3.Not(p.valid()) if result is None else z3.And(p.valid(), term_of(result) == final)

    conclusion = _on_every_path(solver, p.operands, agrees)
    claim = "Python's solve accepts exactly the valid problems and returns the formula's value"
    return prove(claim, z3.BoolVal(True), conclusion, p.operands)


def key_equivalence() -> Result:
    """For all integers: Python's `Problem.key` is the key stated in Z3."""
    p = SymbolicProblem()

    def agrees(key: tuple) -> z3.BoolRef:
        initial, deliveries, withdrawals = key
        parts = zip((initial, *deliveries, *withdrawals), p.key(), strict=True)
        return z3.And(*(term_of(part) == stated for part, stated in parts))

    conclusion = _on_every_path(lambda *operands: as_problem(*operands).key(), p.operands, agrees)
    return prove("Python's Problem.key is the sorted key", z3.BoolVal(True), conclusion, p.operands)


def verifier_equivalence(judge: Callable[[int, Problem], Reason] = judge_value) -> Result:
    """For all bounded problems and *every* integer answer: the verifier pays exactly when the rule does."""
    p, value = SymbolicProblem(), z3.Int("value")
    terms = [*p.operands, value]

    def agrees(reason: Reason) -> z3.BoolRef:
        return z3.BoolVal(reason == Reason.CORRECT) == verifier_rule(value, p)

    conclusion = _on_every_path(lambda *t: judge(t[-1], as_problem(*t[:-1])), terms, agrees)
    claim = "the verifier pays an integer answer exactly when the rule in Z3 does"
    return prove(claim, p.bounded(), conclusion, terms)


CLAIMS = (
    final_stock_in_range,
    final_stock_decides_validity,
    permutations_change_nothing,
    same_key_same_answer,
    key_equivalence,
    stocks_follow_the_formula,
    solver_equivalence,
    verifier_equivalence,
    right_total_means_valid,
)


def check_all() -> list[Result]:
    """Every claim of lab 01; all are proved but the last, which Z3 refutes."""
    return [claim() for claim in CLAIMS]
