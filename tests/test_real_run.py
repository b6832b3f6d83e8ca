"""The recorded run of a real model: kept whole or not at all, and shown with its budget and its costs."""

import json

import pytest

from labs_lib import real_run
from labs_lib.config import load_profile
from labs_lib.errors import LabError
from labs_lib.paths import OUTPUTS_VARIABLE
from labs_lib.reduced import reduced

PROFILE = reduced(load_profile("tiny"), 0.25)


def rate(count, n):
    return {"count": count, "n": n} | ({"value": count / n, "low": 0.125, "high": 0.5} if n else {})


STOCK = {
    "updates": 10,
    "answers": 80,
    "accuracy": {
        "greedy": {"ALL": {"correct": 3, "n": 50, "low": 0.01, "high": 0.2}},
        "sampled": {"ALL": {"correct": 9, "n": 200, "low": 0.02, "high": 0.1}},
    },
    "quality": {"greedy": {"mean_tokens": 8.125, "n": 50}, "sampled": {"valid_json": 190, "n": 200}},
    "mixed_groups": 0.25,
    "seconds": {"total": 90.0},
    "state_sha256": {"continuous": "a"},
    "checkpoints": {"continuous": "branches/grpo"},
}
ACTOR = {
    "task": "office-help",
    "rubric_success": rate(20, 45),
    "recognised_share": rate(40, 45),
    "unjustified_certainty": rate(0, 0),
    "mean_predicted_reward": {"judge": {"value": 1.5, "low": 1.25, "high": 1.75}},
    "seconds": {"total": 30.0},
}
JUDGE = {"task": "office-help", "accuracy": {"test": rate(30, 45)}, "seconds": {"total": 120.0}}
LABS = [
    {"name": "02_group_advantages", "status": "FAILED", "peak_rss_mb": 99_000},  # trains nothing that is recorded
    {"name": "03_grpo_training", "status": "ok", "peak_rss_mb": 9_900},
    {"name": "04_sft_and_reward_model", "status": "up to date", "peak_rss_mb": 450},
    {"name": "05_ppo_gae", "status": "ok", "peak_rss_mb": 9_000},
]


@pytest.fixture
def reported(tmp_path, monkeypatch):
    """A function that writes a run's report; the record goes to a folder of the test."""
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    monkeypatch.setattr(real_run, "RECORD", tmp_path / "real_runs.json")

    def write(labs=LABS):
        branches = {"warmstart": STOCK | {"mixed_groups": None}, "grpo": STOCK, "ppo": ACTOR, "judge": JUDGE}
        (tmp_path / PROFILE.name).mkdir(exist_ok=True)
        (tmp_path / PROFILE.name / "report.json").write_text(json.dumps({"labs": labs, "branches": branches}))

    return write


def test_a_run_is_recorded_with_what_made_it_and_shown_with_its_costs(reported):
    reported()
    run = real_run.record_run(PROFILE, cores=2)
    assert real_run.load_run("tiny") == run
    assert (run["budget"], run["config"]) == (0.25, PROFILE.fingerprint())
    assert not any(key in entry for entry in run["branches"].values() for key in real_run.DROPPED)
    assert real_run.describe_run(run) == (
        "tiny, recorded once: 2 cores, at most 9.9 GB a lab. Reduced budget: 25 % of the protocol's counts.\n"
        "learning rates: warmstart 0.0006, sft 0.0001, grpo 2e-05, office.sft 0.001, office.judge 0.001, "
        "office.ppo actor 0.0006, office.ppo critic 0.001, office.dpo 0.0003"
    )
    assert real_run.stock_rows(run, ["warmstart", "grpo"]) == [
        ["warmstart", "10, 80", "3/50 [1.0, 20.0] %", "9/200 [2.0, 10.0] %", "190/200", "8.12", "none sampled", "1.5"],
        ["grpo", "10, 80", "3/50 [1.0, 20.0] %", "9/200 [2.0, 10.0] %", "190/200", "8.12", "25 %", "1.5"],
    ]
    assert len(real_run.stock_rows(run, ["grpo"])[0]) == len(real_run.STOCK_COLUMNS) + 1
    row = ["ppo", "20/45 [12.5, 50.0] %", "40/45 [12.5, 50.0] %", "0/0", "1.50 [1.25, 1.75]", "0.5"]
    assert real_run.office_rows(run, ["ppo"]) == [row] and len(row) == len(real_run.OFFICE_COLUMNS) + 1
    assert real_run.judge_rows(run, ["judge"]) == [["judge", "30/45 [12.5, 50.0] %", "2.0"]]
    reported([*LABS[:-1], {"name": "05_ppo_gae", "status": "ok", "peak_rss_mb": 1}])
    assert real_run.record_run(PROFILE, cores=2)["peak_memory_mb"]["05_ppo_gae"] == 1  # a later run replaces it


def test_no_record_without_a_report_or_of_a_run_that_failed(reported):
    with pytest.raises(LabError, match=r"no report of tiny-budget-0\.25"):
        real_run.record_run(PROFILE, cores=2)
    reported([*LABS[:-1], {"name": "05_ppo_gae", "status": "FAILED", "peak_rss_mb": 1}])
    with pytest.raises(LabError, match="05_ppo_gae did not end well"):
        real_run.record_run(PROFILE, cores=2)
    reported(LABS[:-1])
    with pytest.raises(LabError, match="05_ppo_gae did not end well"):
        real_run.record_run(PROFILE, cores=2)
    assert real_run.load_run("tiny") is None


def test_a_lab_runs_also_before_anything_is_recorded_and_shows_what_there_is(reported):
    assert real_run.describe_run(None).startswith("No run of smollm2-135m is recorded: run `make run-all PROFILE=")
    rows = (real_run.stock_rows, real_run.office_rows, real_run.judge_rows)
    assert [shown(None, ["grpo"]) for shown in rows] == [[], [], []]
    reported()
    run = real_run.record_run(PROFILE, cores=2)
    assert [row[0] for row in real_run.stock_rows(run, ["warmstart", "never-run"])] == ["warmstart"]


def test_an_interval_of_no_width_is_not_shown_as_one(reported):
    reported()
    run = real_run.record_run(PROFILE, cores=2)
    alike = {"count": 8, "n": 10, "value": 0.8, "low": 0.8, "high": 0.8}
    run["branches"]["judge"]["accuracy"]["test"] = alike
    run["branches"]["grpo"]["accuracy"]["sampled"]["ALL"] = {"correct": 0, "n": 40, "low": 0.0, "high": 0.0}
    run["branches"]["ppo"]["mean_predicted_reward"]["judge"] = {"value": 1.5, "low": 1.5, "high": 1.5}
    assert real_run.judge_rows(run, ["judge"])[0][1] == "8/10, no spread"
    assert real_run.office_rows(run, ["ppo"])[0][4] == "1.50, no spread"
    assert real_run.stock_rows(run, ["grpo"])[0][3] == "0/40, no spread"
