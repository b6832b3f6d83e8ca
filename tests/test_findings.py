"""Verdicts follow from the interval, and from nothing easier: known-wrong rules disagree on the same cases."""

import json
from statistics import fmean, pstdev, stdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.bench.findings import NOT_REPRODUCED, REPRODUCED, finding, record_findings
from labs_lib.config import load_profile
from labs_lib.errors import LabError
from labs_lib.paths import OUTPUTS_VARIABLE, verdicts_path

# Extra sleep of ten patients under two drugs (Student 1908), with the interval that R prints in its help of t.test.
SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
SLEEP_MEAN, SLEEP_LOW, SLEEP_HIGH = 1.58, 0.7001142, 2.4598858

# Values for each seed, the least effect that counts, whether the mechanism shows.
CASES = [
    (SLEEP, 0.0, True),
    (SLEEP, 0.69, True),
    (SLEEP, 0.71, False),  # the mean is above it, the interval not
    ([-value for value in SLEEP], 0.0, False),
    ([1.0, 2.0], 0.0, False),  # both above 0; two seeds are not enough to say so
    ([0.6, 2.2, 0.8], 0.0, False),  # 1.2 with a standard error of 0.503: above it twice, and 4.303 times are needed
    ([0.1, 0.5, 0.2, 0.4], 0.0, True),  # 0.3 with a standard error of 0.0913, 3.182 times
    ([0.0] * 30, 0.0, False),  # two variants that are one and the same
    ([0.5] * 30, 0.5, False),  # not above the least effect
    ([0.25], 0.0, True),
    ([0.25], 0.25, False),
    ([-0.25], 0.0, False),
]


def by_the_library(values, smallest):
    return finding("name", "claim", values, smallest).verdict == REPRODUCED


def bound(values, width, deviation=stdev):
    """The mean less so many standard errors."""
    return fmean(values) - width * (deviation(values) / len(values) ** 0.5 if len(values) > 1 else 0.0)


MUTANTS = {
    "the effect alone": lambda values, smallest: fmean(values) > smallest,
    "the bound may touch the least effect": lambda values, smallest: finding("", "", values).effect.low >= smallest,
    "the sign turned": lambda values, smallest: by_the_library([-value for value in values], smallest),
    "either sign": lambda values, smallest: by_the_library([abs(value) for value in values], smallest),
    "the upper bound": lambda values, smallest: finding("", "", values).effect.high > smallest,
    "the least effect left out": lambda values, smallest: by_the_library(values, 0.0),
    "every seed above it": lambda values, smallest: min(values) > smallest,
    "one standard error": lambda values, smallest: bound(values, 1.0) > smallest,
    "the normal distribution": lambda values, smallest: bound(values, 1.96) > smallest,
    "no root of the seeds": lambda values, smallest: bound(values, 2.262 * len(values) ** 0.5) > smallest,
    "the population's deviation": lambda values, smallest: bound(values, 4.303, pstdev) > smallest,
    "a single value has no verdict": lambda values, smallest: len(values) > 1 and by_the_library(values, smallest),
}


def wrong_on(rule):
    """The cases that a rule decides otherwise."""
    return [number for number, (values, smallest, shows) in enumerate(CASES) if rule(values, smallest) != shows]


def test_the_verdict_follows_from_the_interval():
    assert wrong_on(by_the_library) == []


@pytest.mark.parametrize("name", MUTANTS)
def test_easier_rules_are_told_apart(name):
    assert wrong_on(MUTANTS[name])


def test_the_interval_is_the_published_one():
    effect = finding("sleep", "claim", SLEEP).effect
    assert (effect.value, effect.low, effect.high) == pytest.approx((SLEEP_MEAN, SLEEP_LOW, SLEEP_HIGH), abs=2e-4)


VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=31)


@given(VALUES, st.floats(0, 1e6))
def test_a_claim_and_its_opposite_never_both_show(values, smallest):
    effect, opposite = (finding("name", "claim", signed, smallest) for signed in (values, [-v for v in values]))
    assert {effect.verdict, opposite.verdict} != {REPRODUCED}
    assert (opposite.effect.low, opposite.effect.high) == (-effect.effect.high, -effect.effect.low)
    assert effect.effect.low <= effect.effect.value <= effect.effect.high


def test_an_entry_says_what_the_verdict_follows_from():
    entry = finding("sleep", "They sleep longer.", torch.tensor(SLEEP, dtype=torch.float64), 0.5).entry()
    assert entry["claim"] == "They sleep longer." and entry["verdict"] == REPRODUCED
    assert (entry["smallest"], entry["seeds"], entry["values"]) == (0.5, 10, SLEEP)
    assert entry["low"] < entry["effect"] < entry["high"]
    exact = finding("factor", "It is 2.", [2]).entry()
    assert (exact["effect"], exact["low"], exact["high"], exact["seeds"]) == (2.0, 2.0, 2.0, 1)
    assert finding("factor", "It is 2.", [2], 2).entry()["verdict"] == NOT_REPRODUCED


def test_what_cannot_be_judged_is_refused():
    with pytest.raises(LabError, match="length has no measured value"):
        finding("length", "claim", torch.tensor([]))
    with pytest.raises(LabError, match="2 to 31 of them, got 32"):
        finding("length", "claim", [1.0] * 32).entry()


def test_verdicts_are_recorded_under_their_names(tmp_path, monkeypatch):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    profile = load_profile("tiny")
    found = [finding("sleep", "They sleep longer.", SLEEP), finding("factor", "It is 2.", [2.0], 2.0)]
    record_findings(profile, iter(found))
    path = verdicts_path("tiny")
    assert path.is_relative_to(tmp_path)
    assert json.loads(path.read_text()) == {one.name: one.entry() for one in found}
    with pytest.raises(LabError, match="Two findings are called sleep"):
        record_findings(profile, [*found, finding("sleep", "Another claim.", [1.0])])
    assert sorted(json.loads(path.read_text())) == ["factor", "sleep"]
    record_findings(profile, found[:1])
    assert sorted(json.loads(path.read_text())) == ["sleep"]
