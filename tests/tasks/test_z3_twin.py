"""The rule in Z3: what is proved, what is refuted, and that a false claim cannot pass."""

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_lib.errors import VerificationError
from labs_lib.tasks.stock_arithmetic import z3_twin
from labs_lib.tasks.stock_arithmetic.gallery import WORKED_PROBLEM
from labs_lib.tasks.stock_arithmetic.problem import Problem, ProblemError, solve
from labs_lib.tasks.stock_arithmetic.symbolic import SymbolicInt, explore, term_of
from labs_lib.tasks.stock_arithmetic.verifier import Reason, judge_value
from labs_lib.tasks.stock_arithmetic.z3_twin import COUNTEREXAMPLE, PROVED, SymbolicProblem, prove

P = SymbolicProblem()


@pytest.mark.parametrize("claim", [c for c in z3_twin.CLAIMS if c is not z3_twin.right_total_means_valid])
def test_claims_that_hold(claim):
    assert claim().status == PROVED


def test_a_right_total_hides_a_negative_stock():
    result = z3_twin.right_total_means_valid()
    assert result.status == COUNTEREXAMPLE
    i, a, b, c, d = result.counterexample.values()
    valid = solve({"initial": i, "deliveries": [a, b], "withdrawals": [c, d]})
    withdrawals_first = [i - c, i - c - d, i - c - d + a, i - c - d + a + b]
    assert withdrawals_first[-1] == valid and min(withdrawals_first) < 0
    # The series' worked problem is another: 12 - 9 - 11 is -8 on the way to the right 27.
    assert 12 - 9 - 11 < 0 and WORKED_PROBLEM.final_stock == 27


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (2, 1, 3, 4), (1, 2, 4, 3), (2, 1, 4, 3)])
def test_with_deliveries_first_no_order_can_hide_it(order):
    assert z3_twin.right_total_means_valid(order).status == PROVED


def test_check_all_lists_every_claim_once_and_in_order():
    results = z3_twin.check_all()
    assert [r.status for r in results] == [PROVED] * (len(results) - 1) + [COUNTEREXAMPLE]
    assert len({r.claim for r in results}) == len(results)


# Claims that are false by one: had the proof procedure a hole, these would pass.
def test_mutant_range_is_refuted_with_the_extreme_problem():
    final = z3_twin.final_stock_expression(P.operands)
    result = prove("at most 299", P.valid(), final <= 299, P.operands)
    assert result.status == COUNTEREXAMPLE
    assert list(result.counterexample.values()) == [100, 100, 100, 0, 0]


def test_mutant_without_validity_is_refuted():
    final = z3_twin.final_stock_expression(P.operands)
    result = prove("never negative", P.bounded(), final >= 0, P.operands)
    assert list(result.counterexample.values()) == [0, 0, 0, 0, 1]


def test_mutant_key_that_forgets_a_delivery_is_refuted():
    p, q = SymbolicProblem("p_"), SymbolicProblem("q_")
    same = z3.And(*(x == y for n, (x, y) in enumerate(zip(p.key(), q.key(), strict=True)) if n != 2))
    finals = [z3_twin.final_stock_expression(problem.operands) for problem in (p, q)]
    premise = z3.And(p.valid(), q.valid(), same)
    assert prove("key", premise, finals[0] == finals[1], p.operands).status == COUNTEREXAMPLE


def mutant_no_range(value, problem):
    return Reason.CORRECT if value >= problem.final_stock else Reason.WRONG_VALUE


def mutant_strict_range(value, problem):
    return judge_value(value, problem) if 0 <= value < 300 else Reason.OUT_OF_RANGE


def mutant_initial(value, problem):
    return Reason.CORRECT if value == problem.initial else Reason.WRONG_VALUE


@pytest.mark.parametrize("mutant", [mutant_no_range, mutant_strict_range, mutant_initial])
def test_mutant_verifiers_are_refuted_by_a_real_difference(mutant):
    result = z3_twin.verifier_equivalence(mutant)
    assert result.status == COUNTEREXAMPLE
    *operands, value = result.counterexample.values()
    problem = z3_twin.as_problem(*operands)
    rule = 0 <= value <= 300 and value == problem.final_stock
    assert (mutant(value, problem) == Reason.CORRECT) != rule


def mutant_solver_last_only(i, a, b, c, d):
    stocks = Problem(i, (a, b), (c, d)).stocks()
    return None if stocks[-1] < 0 else stocks[-1]


def mutant_solver_swaps(i, a, b, c, d):
    try:
        return solve({"initial": i, "deliveries": [a, c], "withdrawals": [b, d]})
    except ProblemError:
        return None


@pytest.mark.parametrize("mutant", [mutant_solver_last_only, mutant_solver_swaps])
def test_mutant_solvers_are_refuted(mutant):
    assert z3_twin.solver_equivalence(mutant).status == COUNTEREXAMPLE


def test_undecided_is_an_error_and_not_a_proof():
    x, y, z, n = z3.Ints("x y z n")
    fermat = z3.Implies(z3.And(x > 0, y > 0, z > 0, n > 2), x**n + y**n != z**n)
    with pytest.raises(VerificationError, match="cannot decide"):
        prove("Fermat", z3.BoolVal(True), fermat, [x, y, z, n])


operands = st.integers(0, 100)


@settings(max_examples=25, deadline=None)
@given(operands, operands, operands, operands, operands)
def test_python_and_z3_agree_on_points(i, a, b, c, d):
    # The proofs say so for all inputs; the points guard the link between Python values and Z3 terms.
    values = [z3.IntVal(v) for v in (i, a, b, c, d)]
    at = list(zip(P.operands, values, strict=True))
    problem = Problem(i, (a, b), (c, d))
    assert [z3.simplify(z3.substitute(s, *at)).as_long() for s in P.stocks()[1:]] == problem.stocks()[1:]
    key = [z3.simplify(z3.substitute(k, *at)).as_long() for k in P.key()]
    assert key == [i, *problem.key()[1], *problem.key()[2]]
    assert z3.is_true(z3.simplify(z3.substitute(P.valid(), *at))) == (min(problem.stocks()) >= 0)


def test_explore_finds_all_paths_and_only_possible_ones():
    x = z3.Int("x")

    def sign(v):
        if v > 0:
            return "+"
        return "impossible" if v > 5 else ("0" if v == 0 else "-")

    assert sorted(path.result for path in explore(sign, x)) == ["+", "-", "0"]
    paths = explore(lambda v: max(3, 1 - v) + (v if v else 0), x)
    solver = z3.Solver()
    solver.add(z3.Not(z3.Or(*(path.condition for path in paths))))
    assert solver.check() == z3.unsat
    assert all(isinstance(term_of(path.result), z3.ArithRef) for path in paths)


@pytest.mark.parametrize("use", [abs, float, hash, lambda v: v * 2, lambda v: 2 // v, lambda v: [0][v], round])
def test_what_is_not_modelled_fails_loudly(use):
    with pytest.raises((TypeError, IndexError)):
        explore(use, z3.Int("x"))
    assert issubclass(SymbolicInt, int)  # the reason for the danger: int would answer with the stand-in
