"""Intervals and tests against published or hand-counted values, and the coverage that they promise."""

import random
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.errors import LabError
from labs_lib.statistics import bootstrap_mean, compare_paired, difference_of_seeds, mean_over_seeds, sign_test, wilson

# Correct, n, low, high: Newcombe (1998), "Two-sided confidence intervals for the single proportion", table I,
# method 3 (score without continuity correction).
NEWCOMBE = [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]


def agrees_with_newcombe(interval):
    return all(interval(correct, n) == pytest.approx((low, high), abs=5e-5) for correct, n, low, high in NEWCOMBE)


def wilson_bounds(correct, n):
    found = wilson(correct, n)
    return found.low, found.high


def wald_bounds(correct, n):
    rate = correct / n
    half = 1.96 * (rate * (1 - rate) / n) ** 0.5
    return rate - half, rate + half


def test_wilson_gives_the_published_intervals():
    assert agrees_with_newcombe(wilson_bounds)
    assert not agrees_with_newcombe(wald_bounds)


@given(st.integers(1, 1000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_stays_inside_and_mirrors(pair):
    correct, n = pair
    found, mirrored = wilson(correct, n), wilson(n - correct, n)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert (1 - found.high, 1 - found.low) == pytest.approx((mirrored.low, mirrored.high), abs=1e-12)


@pytest.mark.parametrize("correct, n", [(1, 0), (-1, 5), (6, 5)])
def test_impossible_shares_are_refused(correct, n):
    with pytest.raises(LabError, match=f"{correct} in {n}"):
        wilson(correct, n)


def covered(interval_of, rate, problems, trials=200):
    """How often the interval over `problems` 0/1 values drawn at `rate` holds `rate`."""
    rng = random.Random(48)
    hits = 0
    for trial in range(trials):
        low, high = interval_of([float(rng.random() < rate) for _ in range(problems)], trial)
        hits += low <= rate <= high
    return hits / trials


def bootstrap_bounds(values, seed):
    found = bootstrap_mean(values, 400, seed)
    return found.low, found.high


def halved_bounds(values, seed):
    """The believable bug: a standard error taken for half of a 95 % interval."""
    found = bootstrap_mean(values, 400, seed)
    return found.value - (found.value - found.low) / 2, found.value + (found.high - found.value) / 2


def test_the_bootstrap_covers_about_95_percent():
    assert 0.90 <= covered(bootstrap_bounds, 0.4, 60) <= 0.99
    assert covered(halved_bounds, 0.4, 60) < 0.8


def test_the_bootstrap_resamples_problems_not_answers():
    """Four equal answers to a problem are one piece of information: the interval must not shrink by half."""
    shares = [0.0, 1.0] * 20
    by_problem = bootstrap_mean(shares, 1000, 48)
    by_answer = bootstrap_mean([share for share in shares for _ in range(4)], 1000, 48)
    assert (by_problem.high - by_problem.low) > 1.6 * (by_answer.high - by_answer.low)


def test_the_bootstrap_is_a_function_of_its_seed():
    values = [number**0.5 for number in range(40)]
    found = bootstrap_mean(values, 500, 48)
    assert found == bootstrap_mean(values, 500, 48) != bootstrap_mean(values, 500, 49)
    assert found.value == pytest.approx(sum(values) / 40) and found.low < found.value < found.high


def test_a_bootstrap_of_equal_values_has_no_width():
    found = bootstrap_mean([0.25] * 7, 100, 48)
    assert (found.value, found.low, found.high) == (0.25, 0.25, 0.25)


def test_a_bootstrap_of_nothing_is_refused():
    with pytest.raises(LabError, match="at least one"):
        bootstrap_mean([], 100, 48)


# wins, losses, p: 2 * (1 + 5) / 32, 2 * 1 / 32, 2 * (1 + 10 + 45) / 1024, and the even ones.
BY_HAND = [(4, 1, 12 / 32), (5, 0, 2 / 32), (8, 2, 112 / 1024), (3, 3, 1.0), (0, 0, 1.0), (1, 0, 1.0)]


@pytest.mark.parametrize("wins, losses, expected", BY_HAND)
def test_the_sign_test_by_hand(wins, losses, expected):
    assert sign_test(wins, losses) == sign_test(losses, wins) == pytest.approx(expected)
    one_sided = sum(comb(wins + losses, k) for k in range(min(wins, losses) + 1)) / 2 ** (wins + losses)
    if expected < 1:
        assert one_sided != pytest.approx(expected)


def test_ties_play_no_part_and_large_counts_do_not_overflow():
    found = compare_paired([0, 1, 1, 0, 1], [1, 1, 1, 0, 0], 200, 48)
    assert (found.only_first, found.only_second, found.p_value) == (1, 1, 1.0)
    assert 0 <= sign_test(3000, 1000) < 1e-100


def test_a_paired_comparison_is_second_minus_first():
    found = compare_paired([0.0, 0.25, 1.0, 0.5], [1.0, 0.5, 1.0, 0.25], 500, 48)
    assert found.difference.value == pytest.approx(0.25)
    assert (found.only_first, found.only_second) == (1, 2)
    assert found.difference.low <= 0.25 <= found.difference.high


def test_pairing_removes_what_the_problems_share():
    """Alike on hard and easy problems: the paired interval is 0 wide, two separate ones are not."""
    shares = [0.0, 1.0] * 20
    assert compare_paired(shares, shares, 200, 48).difference.high == 0
    separate = bootstrap_mean(shares, 200, 48)
    assert separate.high - separate.low > 0.2


def test_unequal_numbers_of_problems_are_refused():
    with pytest.raises(LabError, match="3 and 2"):
        compare_paired([1, 2, 3], [1, 2], 100, 48)


# --- Over seeds ----------------------------------------------------------------------------------------

# Cushny and Peebles (1905), the sleep data of Student (1908): hours gained by ten patients with each of two drugs.
SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)


def test_two_groups_of_seeds_have_students_interval():
    """Not paired, as R's t.test(extra ~ group, var.equal = TRUE) prints it; paired, it is much narrower."""
    found = difference_of_seeds(*SLEEP)
    assert (found.value, found.low, found.high) == pytest.approx((1.58, -0.203874, 3.363874), abs=1e-3)
    paired = mean_over_seeds(b - a for a, b in zip(*SLEEP, strict=True))
    assert (paired.value, paired.low, paired.high) == pytest.approx((1.58, 0.700114, 2.459886), abs=1e-3)


values = st.lists(st.floats(-10, 10), min_size=2, max_size=10)


@given(values, values, st.floats(-5, 5))
def test_a_difference_of_seeds_turns_around_and_moves_with_its_groups(first, second, shift):
    there, back = difference_of_seeds(first, second), difference_of_seeds(second, first)
    assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low), abs=1e-9)
    moved = difference_of_seeds(first, [value + shift for value in second])
    assert moved.low - there.low == pytest.approx(shift, abs=1e-6)
    assert there.low <= there.value <= there.high


@pytest.mark.parametrize("sizes", [(1, 5), (5, 0), (20, 20)])
def test_groups_without_an_interval_are_refused(sizes):
    with pytest.raises(LabError, match="2 or more in each group"):
        difference_of_seeds(*([0.5] * size for size in sizes))
