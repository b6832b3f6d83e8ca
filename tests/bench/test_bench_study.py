"""The recorded bias study: it speaks for the code of today, and reads back as what was trained."""

from dataclasses import replace

import pytest
import torch

from labs_lib.bench import study as bias_study
from labs_lib.bench.losses import VARIANTS
from labs_lib.bench.outcomes import run_study
from labs_lib.bench.training import Plan
from labs_lib.config import load_profile
from labs_lib.errors import LabError
from labs_lib.storage import read_json

PROFILE = load_profile("tiny")
TWO = {name: VARIANTS[name] for name in ("grpo", "dr_grpo")}
SHORT = Plan(iterations=2, prompts=4)


def test_the_recorded_study_is_of_this_code_and_seed():
    bias_study.STUDY.load(PROFILE)  # its error says what differs and which command to run


def test_the_recorded_study_holds_every_variant_for_thirty_seeds_and_a_hundred_iterations():
    recorded = read_json(bias_study.STUDY.path)["tiny"]
    assert set(recorded["curves"]) == set(VARIANTS) and recorded["iterations"][-1] == 100
    assert len(set(recorded["seeds"])) == 30
    outcome = bias_study.recorded_outcome(recorded)
    for name in bias_study.KEPT:
        for variant in VARIANTS:
            curve = outcome.curve(name, variant)
            assert curve.shape == (len(bias_study.AT), 30) and curve.isfinite().all()
    assert (outcome.curve("success", "grpo")[-1] > 0.99).all()
    assert not torch.equal(outcome.curve("success", "grpo"), outcome.curve("success", "clip_higher"))


@pytest.fixture
def small(monkeypatch):
    """A study of two variants, three seeds and two iterations."""
    for name, value in {"VARIANTS": TWO, "SEEDS": 3, "AT": (0, 2), "Plan": lambda: SHORT}.items():
        monkeypatch.setattr(bias_study, name, value)
    return bias_study.run_bias_study(PROFILE)


def test_what_is_kept_is_what_was_trained(small):
    whole, kept = run_study(TWO, [48, 49, 50], SHORT), bias_study.recorded_outcome(small)
    assert kept.seeds == (48, 49, 50) and kept.variants == tuple(TWO)
    for name in bias_study.KEPT:
        for variant in TWO:
            torch.testing.assert_close(kept.curve(name, variant), whole.curve(name, variant)[[0, 2]], rtol=0, atol=1e-9)
    assert kept.paired("success", *TWO).value == pytest.approx(whole.paired("success", *TWO).value, abs=1e-8)
    assert not torch.equal(kept.curve("success", "grpo"), kept.curve("success", "dr_grpo"))


@pytest.mark.parametrize("key", ["code", "seed"])
def test_a_study_made_with_something_else_is_refused_with_the_command(small, tmp_path, key):
    file = replace(bias_study.STUDY, path=tmp_path / "study.json")
    file.record(small)
    assert file.load(PROFILE) == small
    file.record(small | {"identity": small["identity"] | {key: "another"}})
    with pytest.raises(LabError, match=f"another {key}: run `make studies PROFILE=tiny`"):
        file.load(PROFILE)


def test_the_fingerprint_covers_what_the_trainer_imports():
    """Every module of the bench, the kernels and the task that training runs through."""
    import ast

    package = bias_study.ROOT / "labs_lib"
    needed, known = {"bench/training.py", "bench/behaviour.py"}, set(bias_study.CODE)
    for name in sorted(known):
        for node in ast.walk(ast.parse((package / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("labs_lib."):
                needed.add(node.module.removeprefix("labs_lib.").replace(".", "/") + ".py")
    assert needed - known <= {"errors.py", "statistics.py"}
