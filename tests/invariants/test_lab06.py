"""Every error to diagnose of lab 06 trips its invariant, and the right thing does not; its definitions run here."""

import sys

import pytest
import torch

from labs_lib.bench.losses import VARIANTS, advantages_of
from labs_lib.bench.outcomes import run_study
from labs_lib.bench.training import Plan
from labs_lib.paths import NOTEBOOKS, ROOT
from labs_lib.tasks.padded_bits.environment import is_right, possible_answers
from labs_lib.tools.notebooks import code_cells, read_notebook

sys.path.insert(0, str(ROOT / "tests"))
from notebook_definitions import notebook_definitions

LAB = NOTEBOOKS / "06_bias_bench.ipynb"
SEEDS = [48, 49, 50]
TWO = {name: VARIANTS[name] for name in ("grpo", "constant")}


@pytest.fixture(scope="module")
def lab():
    space = notebook_definitions(LAB)
    space.update(P=0, B0=1, B1=2, S=3, SEEDS=SEEDS)  # what its functions read
    return space


def study(**changes):
    return run_study(TWO, SEEDS, Plan(iterations=3, **changes))


@pytest.fixture(scope="module")
def right():
    return study()


@pytest.mark.diagnoses("cell-007", "last_bit", "plain_reward")
def test_the_plain_rule_is_the_librarys_and_the_last_bit_is_not(lab):
    for key in (0, 1):
        answers = list(possible_answers())
        expected = [is_right(answer, key) for answer in answers]
        assert [bool(lab["plain_reward"](answer, key)) for answer in answers] == expected
        assert [bool(lab["last_bit"](answer, key)) for answer in answers] != expected


@pytest.mark.diagnoses("cell-020", "square")
def test_advantages_over_bessels_deviation_have_another_mean_square(lab, capsys):
    (cell,) = [cell for cell in code_cells(read_notebook(LAB)) if "torch's default" in cell.source]
    exec(cell.source, lab)
    right, wrong = capsys.readouterr().out.splitlines()
    assert right == "population: holds" and "caught" in wrong
    for winners in range(1, 8):
        rewards = torch.tensor([[[1.0] * winners + [0.0] * (8 - winners)]], dtype=torch.float64)  # (seeds, groups, G)
        square = advantages_of(rewards, VARIANTS["grpo"]).square().mean()
        assert square == pytest.approx(1, abs=1e-6)
        assert (square * rewards.var(correction=0) / rewards.var()).item() == pytest.approx(7 / 8, abs=1e-6)


@pytest.mark.diagnoses("cell-035", "require_clip_can_act")
def test_old_log_probs_that_are_recomputed_are_noticed(lab, right):
    assert lab["require_clip_can_act"](right, "grpo") > 0
    with pytest.raises(AssertionError, match="'old' is recomputed"):
        lab["require_clip_can_act"](study(recompute_old=True), "grpo")


def test_lengths_part_by_what_is_between_the_gaps(lab, right):
    found = lab["parted"](right, "constant", 2)
    by_hand = [
        (right.curve("length_wrong", "grpo")[2, s] - right.curve("length_right", "grpo")[2, s])
        - (right.curve("length_wrong", "constant")[2, s] - right.curve("length_right", "constant")[2, s])
        for s in range(3)
    ]
    assert torch.allclose(found, torch.stack(by_hand)) and not lab["parted"](right, "grpo", 2).any()


def test_later_is_what_the_constant_knows_more_after_two_pads_and_more(lab, right):
    found = lab["later"](right, "constant", 2)
    by_hand = (
        right.curve("after_pads", "constant")[2, 0, 2:].mean() - right.curve("after_pads", "grpo")[2, 0, 2:].mean()
    )
    assert found.shape == (3,) and found[0] == pytest.approx(by_hand.item())
