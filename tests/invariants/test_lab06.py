"""Every error to diagnose of lab 06 trips its invariant, and the right thing does not; its definitions run here."""

import sys

import pytest
import torch

from labs_lib.bench.losses import VARIANTS
from labs_lib.bench.outcomes import run_study
from labs_lib.bench.training import Plan
from labs_lib.paths import NOTEBOOKS, ROOT
from labs_lib.tasks.padded_bits.environment import is_right, possible_answers

sys.path.insert(0, str(ROOT / "tests"))
from notebook_definitions import notebook_definitions

SEEDS = [48, 49, 50]
TWO = {name: VARIANTS[name] for name in ("grpo", "constant")}


@pytest.fixture(scope="module")
def lab():
    space = notebook_definitions(NOTEBOOKS / "06_bias_bench.ipynb")
    space.update(P=0, B0=1, B1=2, S=3, SEEDS=SEEDS)  # what its functions read
    return space


def study(**changes):
    return run_study(TWO, SEEDS, Plan(iterations=3, **changes))


@pytest.fixture(scope="module")
def right():
    return study()


def test_the_plain_rule_is_the_librarys_and_the_last_bit_is_not(lab):
    for key in (0, 1):
        answers = list(possible_answers())
        expected = [is_right(answer, key) for answer in answers]
        assert [bool(lab["plain_reward"](answer, key)) for answer in answers] == expected
        assert [bool(lab["last_bit"](answer, key)) for answer in answers] != expected


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
