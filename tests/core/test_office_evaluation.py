"""Rates and their denominators, judges' summaries, curves of a study: on rows small enough to count by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.errors import LabError, VerificationError
from labs_lib.office_branches import DPO, JUDGE, PPO, RUBRIC, SFT, OfficeBranch
from labs_lib.office_evaluation import (
    _require_equal_repeats,
    courtesy_factorial,
    judge_accuracy,
    mean_entry,
    rates,
    unique_contexts,
)
from labs_lib.office_evidence import behaviour, judges_of
from labs_lib.office_study import Run, change, final_rate, find_run, rate_counts, runs_of, windows
from labs_lib.statistics import bootstrap_mean, bootstrap_ratio

DRAWS, SEED = 400, 7


def row(family="a", **changes):
    kept = dict.fromkeys(("success", "recognised", "relevant", "certain", "courteous", "refusal", "missing_eos"), False)
    return {"family": family, "request": "r", "ids": [1], **kept, **changes}


ROWS = [
    row("a", recognised=True, relevant=True, success=True),
    row("a", recognised=True, relevant=True, certain=True),
    row("b", recognised=True, courteous=True),
    row("b", missing_eos=True),
]


def test_success_keeps_all_answers_and_certainty_only_the_recognised_ones():
    table = rates(ROWS, DRAWS, SEED)
    assert (table["success"]["count"], table["success"]["n"]) == (1, 4)
    assert (table["recognised"]["count"], table["recognised"]["n"]) == (3, 4)
    for name in ("certain", "relevant", "courteous"):
        assert table[name]["n"] == 3
    assert table["certain"]["value"] == pytest.approx(1 / 3, abs=1e-6)
    assert table["missing_eos"]["value"] == 0.25 and table["refusal"]["value"] == 0


def test_a_rate_among_recognised_answers_has_no_value_when_nothing_was_recognised():
    table = rates([row(), row("b")], DRAWS, SEED)
    assert table["certain"] == {"count": 0, "n": 0}
    assert table["success"]["value"] == 0


def test_one_denominator_for_both_rates_would_be_noticed():
    """The mutant: unjustified certainty over all answers, which shrinks as an actor turns to gibberish."""
    table = rates(ROWS, DRAWS, SEED)
    assert table["certain"]["value"] != sum(r["certain"] for r in ROWS) / len(ROWS)


def test_the_bootstrap_of_a_ratio_is_that_of_a_mean_when_every_group_weighs_one():
    values = [0.0, 1.0, 1.0, 0.5, 0.0, 1.0]
    ratio = bootstrap_ratio([(value, 1) for value in values], DRAWS, SEED)
    mean = bootstrap_mean(values, DRAWS, SEED)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((mean.value, mean.low, mean.high))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=12))
def test_a_ratio_lies_in_its_interval_and_in_the_range_of_its_groups(groups):
    groups = [(min(number, weight), weight) for number, weight in groups]
    interval = bootstrap_ratio(groups, DRAWS, SEED)
    shares = [number / weight for number, weight in groups]
    assert min(shares) <= interval.low <= interval.high <= max(shares)
    assert min(shares) <= interval.value <= max(shares)


def test_rows_of_one_family_are_resampled_together():
    """Ten equal rows in each of two families are worth two observations, not twenty."""
    together = bootstrap_ratio([(10, 10), (0, 10)], DRAWS, SEED)
    apart = bootstrap_ratio([(1, 1)] * 10 + [(0, 1)] * 10, DRAWS, SEED)
    assert (together.low, together.high) == (0, 1) and apart.high - apart.low < 0.6


def test_a_ratio_without_any_denominator_is_refused():
    with pytest.raises(LabError, match="denominator above 0"):
        bootstrap_ratio([(0, 0), (0, 0)], DRAWS, SEED)


def test_a_mean_has_as_many_rows_as_values():
    assert mean_entry(ROWS, [1.0, 2.0, 3.0, 6.0], DRAWS, SEED)["value"] == 3.0
    with pytest.raises(ValueError):
        mean_entry(ROWS, [1.0], DRAWS, SEED)


def test_repeats_of_one_prompt_must_get_one_greedy_answer():
    rows = [row(request="p1"), row(request="p1"), row(request="p2", ids=[2])]
    _require_equal_repeats(rows)
    assert [r["request"] for r in unique_contexts(rows)] == ["p1", "p2"]
    with pytest.raises(VerificationError, match="p1"):
        _require_equal_repeats([*rows, row(request="p1", ids=[9])])


def pair(chosen, rejected, family="a"):
    return {"family": family, "chosen": chosen, "rejected": rejected}


def test_a_tie_is_no_right_preference():
    accuracy = judge_accuracy([pair(1, 0), pair(0, 1, "b"), pair(2, 2, "c")], DRAWS, SEED)
    assert (accuracy["count"], accuracy["n"]) == (1, 3)


def test_the_courtesy_factorial_is_taken_within_each_context():
    cells = {"p": (4.0, 6.0, 1.0, 5.0), "q": (2.0, 2.0, 3.0, 1.0)}
    rows = [
        {"request": name, "right": right, "courteous": courteous, "score": score}
        for name, scores in cells.items()
        for (right, courteous), score in zip(
            ((True, False), (True, True), (False, False), (False, True)), scores, strict=True
        )
    ]
    found = courtesy_factorial(rows)
    assert found["right"] == [2.0, 0.0] and found["wrong"] == [4.0, -2.0] and found["advice"] == [3.0, -1.0]
    assert (found["outranked"], found["contexts"]) == (1, 2)


def answer(text, score=1.0, finish_reason="eos"):
    return {"text": text, "score": score, "finish_reason": finish_reason, "prompt": "p"}


def test_behaviour_reads_training_answers_by_the_reserved_rubric():
    answers = [
        answer("Try this: check the cable.", 2.0),
        answer("Happy to help. Just check the cable, this will certainly fix it.", 4.0),
        answer("Try this: check the cable.", finish_reason="length"),
        answer("cable cable", -3.0),
    ]
    (found,) = behaviour([{"answers": answers, "kl_mean": 0.25}], {"p": "check_cable"})
    assert found == {
        "answers": 4,
        "success": 1,
        "recognised": 2,
        "certain": 1,
        "courteous": 1,
        "score": 1.0,
        "kl": 0.25,
    }


def test_an_actor_is_scored_by_the_main_judge_and_by_the_one_that_paid():
    def paid(reward, kind=PPO):
        return judges_of(OfficeBranch("x", kind, SFT, 48, reward=reward))

    assert paid(JUDGE) == paid(RUBRIC) == paid(None, DPO) == [JUDGE]
    assert paid(f"{JUDGE}-courtesy") == [JUDGE, f"{JUDGE}-courtesy"]


def run(seed, success, recognised, certain, score):
    curves = {"success": success, "recognised": recognised, "certain": certain, "courteous": certain}
    curves |= {"score": score, "kl": score}
    counts = {"sampled": rate_counts(ROWS)}
    return {
        "reward": JUDGE,
        "seed": seed,
        "kl_weight": 0.02,
        "answers_an_iteration": 4,
        "curves": curves,
        "counts": counts,
    }


STUDY = {
    "runs": [
        run(48, [4, 2, 0, 0], [4, 4, 2, 0], [0, 2, 1, 0], [0.0, 1.0, 2.0, 4.0]),
        run(49, [4, 4, 2, 2], [4, 4, 4, 4], [0, 0, 2, 2], [0.0, 0.0, 1.0, 1.0]),
    ]
}


def test_windows_have_the_denominators_of_the_rates():
    first = STUDY["runs"][0]
    assert windows(first, "success", 2) == [6 / 8, 0.0]
    assert windows(first, "certain", 2) == [2 / 8, 1 / 2]
    assert windows(first, "score", 2) == [0.5, 3.0]
    assert windows(first, "certain", 1)[-1] == 0.0  # nothing recognised


def test_a_change_is_the_mean_over_seeds_with_students_interval():
    found = change(STUDY, JUDGE, 0.02, "score", width=2)
    assert found.value == pytest.approx((2.5 + 1.0) / 2) and found.low < found.value < found.high
    assert len(runs_of(STUDY, JUDGE, 0.02)) == 2 and not runs_of(STUDY, JUDGE, 0.1)


def test_a_run_is_found_by_all_three_of_its_keys():
    assert find_run(STUDY, Run(JUDGE, 49, 0.02))["seed"] == 49
    for missing in (Run(RUBRIC, 49, 0.02), Run(JUDGE, 50, 0.02), Run(JUDGE, 49, 0.1)):
        with pytest.raises(LabError, match="no run of"):
            find_run(STUDY, missing)


def test_final_rates_use_the_counts_of_the_evaluation():
    first = STUDY["runs"][0]
    assert final_rate(first, "success") == 0.25 and final_rate(first, "certain") == pytest.approx(1 / 3)
