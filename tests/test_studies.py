"""The recorded study: it speaks for the code of today, or the test says which command records it again."""

from dataclasses import asdict, replace

import pytest

from labs_lib import studies
from labs_lib.config import load_profile
from labs_lib.errors import LabError
from labs_lib.statistics import mean_over_seeds
from labs_lib.storage import atomic_write_json, read_json

PROFILE = load_profile("tiny")


def counts(correct):
    return {kind: {"ALL": {"correct": correct, "n": 200}} for kind in ("greedy", "sampled")}


def row(policy, seed, correct):
    return {"policy": policy, "seed": seed, "correct": counts(correct), "mixed_groups": 0.4}


def study(verified=(60, 62, 64), shuffled=(40, 41, 42)):
    rows = [row("warmstart", None, 50)]
    for seed, one, other in zip(PROFILE.grpo_control.seeds, verified, shuffled, strict=False):
        rows += [row("grpo", seed, one), row("grpo-shuffled", seed, other)]
    return {"profile": "tiny", "identity": studies.study_identity(PROFILE), "rows": rows}


# --- What is recorded --------------------------------------------------------------------------------


def test_the_recorded_study_is_of_this_config_code_data_and_base():
    studies.STUDY.load(PROFILE)  # its error says what differs and which command to run


def test_the_recorded_study_holds_every_seed_and_the_weak_base():
    recorded = read_json(studies.STUDY.path)["tiny"]
    wanted = [("warmstart", None), ("warmstart-weak", None), ("grpo-weak", PROFILE.seed)]
    wanted += [(policy, seed) for seed in PROFILE.grpo_control.seeds for policy in ("grpo", "grpo-shuffled")]
    assert len(PROFILE.grpo_control.seeds) >= 3
    for policy, seed in wanted:
        found = studies.find_row(recorded, policy, seed)
        assert found["correct"]["greedy"]["ALL"]["n"] == 200
        assert found["correct"]["sampled"]["ALL"]["n"] == 800
        assert 0 < len(found["fingerprint"]) == 64
    prints = {r["fingerprint"] for r in recorded["rows"]}
    assert len(prints) == len(recorded["rows"]), "two policies of the study are the same"


# --- What is refused ---------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    """The study's file, elsewhere and not there yet."""
    return replace(studies.STUDY, path=tmp_path / "study.json")


def test_a_study_is_kept_and_read_back_beside_others(file):
    atomic_write_json(file.path, {"other": {"profile": "other"}})
    file.record(study())
    assert file.load(PROFILE) == study()
    assert read_json(file.path)["other"] == {"profile": "other"}


@pytest.mark.parametrize("key", ["config", "code", "data", "base", "base-weak"])
def test_a_study_made_with_something_else_is_refused_with_the_command(file, key):
    changed = study()
    changed["identity"][key] = "0" * 64
    file.record(changed)
    with pytest.raises(LabError, match=f"another {key}: run `make studies PROFILE=tiny`"):
        file.load(PROFILE)


def test_a_missing_study_is_refused_with_the_command(file):
    with pytest.raises(LabError, match="run `make studies PROFILE=tiny`"):
        file.load(PROFILE)


def test_a_missing_row_is_named():
    with pytest.raises(LabError, match="grpo with seed 7"):
        studies.find_row(study(), "grpo", 7)


def test_a_profile_without_a_study_is_shown_the_default_ones_and_compares_nothing(file):
    file.record(study())
    assert file.to_show(load_profile("smollm2-135m")) == (study(), False)
    assert file.to_show(PROFILE) == (study(), True)
    assert file.to_show(replace(PROFILE, seed=1)) == (study(), False)


# --- What is said ------------------------------------------------------------------------------------


def test_gains_are_against_the_warm_start_and_pairs_are_by_seed():
    assert studies.gains(study(), "grpo", "greedy") == pytest.approx([0.05, 0.06, 0.07])
    differences, interval = studies.paired_difference(study(), "sampled")
    assert differences == pytest.approx([0.10, 0.105, 0.11])
    assert interval.value == pytest.approx(0.105)


def test_the_interval_over_seeds_is_students():
    # mean 2, sample deviation 1: 4.303 / sqrt(3) on both sides
    interval = mean_over_seeds([1.0, 2.0, 3.0])
    assert (interval.low, interval.high) == pytest.approx((2 - 2.4843, 2 + 2.4843), abs=1e-3)
    for unusable in ([1.0], [0.0] * 32):
        with pytest.raises(LabError):
            mean_over_seeds(unusable)


@pytest.mark.parametrize(
    ("verified", "expected"),
    [
        ((60, 62, 64), "gains more than its shuffled control"),
        ((20, 22, 23), "does worse than its shuffled control"),
        ((30, 60, 42), "do not tell GRPO from its shuffled control"),
        ((40, 41, 42), "do not tell GRPO from its shuffled control"),
    ],
)
def test_the_words_follow_the_interval(verified, expected):
    assert expected in studies.verdict(studies.paired_difference(study(verified), "greedy")[1], "greedy")


def test_branches_of_the_study_differ_in_seed_and_rewards_only():
    one, other = (studies.control_branch(PROFILE, policy, 49) for policy in ("grpo", "grpo-shuffled"))
    differing = {key for key, value in asdict(one).items() if asdict(other)[key] != value}
    assert differing == {"name", "shuffle_rewards"}
    assert one.seed == 49 and one.start == "warmstart" and one.grpo == PROFILE.grpo
