"""Learning rates: every rate is tried from the same start, the best is carried on, and no test file is opened."""

import json
from dataclasses import replace

import pytest
from small_model import PROFILE, small_model, tokenizer

from labs_lib import branches, rate_search
from labs_lib.config import Budget, load_profile
from labs_lib.errors import LabError, LearningScopeError
from labs_lib.models import roles
from labs_lib.models.base import LoadedBase
from labs_lib.paths import OUTPUTS_VARIABLE
from labs_lib.rate_search import STAGES, rates, scaled, search
from labs_lib.tools import rates as command

FEW = {"examples": 4, "batch_size": 4, "micro_batch_size": 4, "epochs": 1, "learning_rate": 1e-3}
RUN = {"iterations": 2, "prompts_per_iteration": 2, "interrupt_at": 1}
OFFICE = PROFILE.office
SMALL = replace(
    PROFILE,
    protocol_share=0.02,  # of the validation problems
    budget=Budget(prompt_tokens=256, answer_tokens=40, total_tokens=296),
    warmstart=replace(PROFILE.warmstart, **FEW),
    grpo=replace(PROFILE.grpo, group_size=2, learning_rate=1e-3, **RUN),
    office=replace(
        OFFICE,
        sft=replace(OFFICE.sft, **FEW),
        judge=replace(OFFICE.judge, **FEW),
        ppo=replace(OFFICE.ppo, **RUN),
    ),
)


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    for module in (branches, roles):
        monkeypatch.setattr(
            module, "load_base", lambda profile, weak=False: LoadedBase(small_model(), tokenizer(), "0")
        )


def test_a_stage_begins_from_the_best_run_of_the_one_before(small, monkeypatch):
    begun, real = [], rate_search.branch_trainer

    def begin(profile, branch, source):
        begun.append((branch.name, source.fingerprint))
        return real(profile, branch, source)

    monkeypatch.setattr(rate_search, "branch_trainer", begin)
    rows = search(SMALL, ["grpo"], factors=(1.0, 100.0, 0.01))
    assert [row["stage"] for row in rows] == ["warmstart"] * 3 + ["grpo"] * 3
    assert [rate for row in rows[:3] for rate in row["rates"].values()] == [1e-3, 0.1, 1e-5]
    for stage in (rows[:3], rows[3:]):
        scores = [next(iter(row["measured"].values())) for row in stage]
        assert sum(row["chosen"] for row in stage) == 1 and stage[scores.index(max(scores))]["measured"] == next(
            row["measured"] for row in stage if row["chosen"]
        )
    assert {fingerprint for name, fingerprint in begun if name == "warmstart"} == {None}
    starts = {fingerprint for name, fingerprint in begun if name == "grpo"}
    assert len(starts) == 1 and None not in starts  # one policy, and not the base


def test_equal_runs_are_told_apart_by_the_next_number_and_then_by_their_order(small, monkeypatch):
    measured = iter([(0.1, 0.0), (0.1, 0.5), (0.1, 0.5)])
    stage = replace(STAGES["warmstart"], measure=lambda *_: dict(zip("ab", next(measured), strict=True)))
    monkeypatch.setattr(rate_search, "STAGES", {"warmstart": stage})
    assert [row["chosen"] for row in search(SMALL, ["warmstart"], factors=(1.0, 2.0, 3.0))] == [False, True, False]


def test_a_profile_has_the_rates_that_were_chosen_for_it():
    for file, rows in json.loads(command.RECORDED.read_text()).items():
        chosen = [row for row in rows if row["chosen"]]
        assert {row["stage"] for row in chosen} == set(STAGES)
        for row in chosen:
            assert rates(load_profile(file), row["rates"]) == row["rates"]


def test_ppos_two_rates_move_together_and_it_is_paid_by_the_best_judge(small):
    rows = search(SMALL, ["office.ppo"], factors=(1.0, 2.0))
    assert [row["stage"] for row in rows[::2]] == ["office.sft-office", "office.judge", "office.ppo"]
    first, second = (row["rates"] for row in rows[-2:])
    assert len(first) == 2 and all(second[key] == pytest.approx(2 * first[key]) for key in first)
    assert {"mean reward at the end", "minus KL per token"} == set(rows[-1]["measured"])


def test_a_measure_that_opens_a_test_file_while_training_is_refused(small, monkeypatch):
    from labs_lib.tasks.stock_arithmetic.corpus import load_split

    real = rate_search.branch_trainer
    peeking = lambda *given: (load_split("test", labels=True), real(*given))[1]  # noqa: E731
    monkeypatch.setattr(rate_search, "branch_trainer", peeking)
    with pytest.raises(LearningScopeError):
        search(SMALL, ["warmstart"], factors=(1.0,))


def test_rates_are_scaled_by_their_paths_and_nothing_else_changes():
    profile = load_profile("smollm2-135m")
    keys = STAGES["office.ppo"].keys
    more = scaled(profile, keys, 3.0)
    assert rates(more, keys) == {key: pytest.approx(3 * rate) for key, rate in rates(profile, keys).items()}
    changed = {key for key, value in more.numeric_items().items() if profile.numeric_items()[key] != value}
    assert changed == set(keys)
    with pytest.raises(LabError, match="Unknown stage 'gropo'; the stages are: warmstart"):
        search(profile, ["gropo"])


def test_the_command_records_each_stage_once(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "RECORDED", tmp_path / "rates.json")
    monkeypatch.setattr(command, "start", lambda name, budget: SMALL)
    row = {
        "stage": "sft",
        "rates": {"sft.learning_rate": 1e-4},
        "measured": {"minus validation NLL": -1.5},
        "chosen": True,
    }
    for _ in range(2):
        monkeypatch.setattr(rate_search, "search", lambda profile, names: [row])
        assert command.main(["sft"]) == 0
    assert "chosen  minus validation NLL -1.5" in capsys.readouterr().out
    assert json.loads((tmp_path / "rates.json").read_text()) == {SMALL.file: [row | {"budget": 0.02}]}
