"""Behaviour computed over states is behaviour summed over all 9,841 answers; what a study keeps, and how to read it."""

from math import exp, log

import pytest
import torch
from small_bench import PLAN, plain_states, random_table

from labs_lib.bench import outcomes
from labs_lib.bench.behaviour import after_pads, behaviour
from labs_lib.bench.losses import VARIANTS
from labs_lib.bench.outcomes import run_study
from labs_lib.bench.policies import Tabular, table_of
from labs_lib.errors import LabError
from labs_lib.statistics import mean_over_seeds
from labs_lib.tasks.padded_bits.environment import B0, B1, P, is_right, key_bits, possible_answers

BITS = pytest.mark.parametrize("bits", [1, 2])


def table_for(bits):
    return random_table(2, 2**bits, name="behaviour")


def listed(rows, bits):
    """Every (answer, key, probability) of one model; a key's probabilities sum to 1."""
    return [
        (answer, key, exp(sum(rows[state][token] for state, token in zip(states, answer, strict=True))))
        for key in range(2**bits)
        for answer in possible_answers()
        for states in [plain_states(answer, key)]
    ]


def by_brute_force(cases, bits):
    keys = 2**bits
    right = [(len(a), p / keys) for a, key, p in cases if is_right(a, key, bits)]
    wrong = [(len(a), p / keys) for a, key, p in cases if not is_right(a, key, bits)]
    success, failure = (sum(p for _, p in side) for side in (right, wrong))
    means = [sum(n * p for n, p in side) for side in (right, wrong)]
    return {
        "success": success,
        "inverted": sum(p for a, key, p in cases if is_right(a, keys - 1 - key, bits)) / keys,
        "length": sum(means),
        "length_right": means[0] / success,
        "length_wrong": means[1] / failure,
        "entropy": sum(-p * log(p) for *_, p in cases) / keys,
        "after_pads": [sum(bits_after(cases, n, key, bits) for key in range(keys)) / keys for n in range(8 - bits)],
    }


def bits_after(cases, pads, key, bits):
    """P(the key's bits | `pads` pads and then as many bits), of one key: a product, a bit at a time.

    Each factor is conditional on a bit coming next, after the key's earlier ones.
    """
    share = 1.0
    for place in range(bits):
        begun = (*[P] * pads, *key_bits(key, bits)[:place])
        following = [(a[len(begun)], p) for a, k, p in cases if k == key and a[: len(begun)] == begun != a]
        found = [(token, p) for token, p in following if token in (B0, B1)]
        share *= sum(p for token, p in found if token == key_bits(key, bits)[place]) / sum(p for _, p in found)
    return share


@BITS
def test_behaviour_is_the_sum_over_every_answer(bits):
    table = table_for(bits)
    found = behaviour(table, bits)
    for model, rows in enumerate(table.tolist()):
        cases = listed(rows, bits)
        assert sum(p for *_, p in cases) == pytest.approx(2**bits, abs=1e-12)
        expected = by_brute_force(cases, bits)
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert found[name][model].tolist() == pytest.approx(value, abs=1e-12, rel=0), name


def test_taking_one_key_for_both_is_rejected():
    """Mutant: what a policy does with key 0 alone."""
    table = table_for(1)
    swapped = torch.cat([table[:, :22], table[:, :22]], dim=1)
    found, right = behaviour(swapped), behaviour(table)
    assert all(not torch.allclose(found[name], right[name], atol=1e-6, rtol=0) for name in found)


def test_after_pads_by_definition():
    """Key 0 takes its bit three times as often as the other after two pads; everywhere else both are as likely."""
    chances = torch.full((1, 44, 4), 0.25).double()
    chances[0, 4] = torch.tensor([0.4, 0.3, 0.1, 0.2])  # key 0, position 2, last token P
    found = after_pads(chances)[0]
    assert found.tolist() == pytest.approx([0.5, 0.5, (0.75 + 0.5) / 2, 0.5, 0.5, 0.5, 0.5])


def test_the_untrained_tabular_policy_is_known_in_closed_form():
    found = behaviour(table_of(Tabular(1)))
    stop = 1 / (torch.e + 3)  # of a bit, too
    going = [(1 - stop) ** n for n in range(8)]
    assert found["success"].item() == pytest.approx(stop * stop * sum(going[:7]))
    assert found["length"].item() == pytest.approx(sum(going))
    assert found["after_pads"][0].tolist() == pytest.approx([0.5] * 7)


# --- Outcomes -----------------------------------------------------------------------------------------------------

NAMES = ("grpo", "dr_grpo")
SEEDS = (2, 7, 9)


@pytest.fixture(scope="module")
def outcome():
    return run_study({name: VARIANTS[name] for name in NAMES}, SEEDS, PLAN)


@pytest.mark.parametrize(
    "name, shape",
    [
        ("success", (PLAN.iterations + 1, 3)),
        ("after_pads", (PLAN.iterations + 1, 3, 7)),
        ("sampled", (PLAN.iterations, 3)),
        ("constant_groups", (PLAN.iterations, 3)),
        ("clip_share", (PLAN.iterations * 8, 3)),
        ("largest_ratio", (PLAN.iterations * 8, 3)),
        ("gradient_norm", (PLAN.iterations * 8, 3)),
    ],
)
def test_shapes_of_curves(outcome, name, shape):
    assert outcome.curve(name, "dr_grpo").shape == shape
    assert (outcome.variants, outcome.seeds) == (NAMES, SEEDS)


def test_curves_belong_to_their_variant_and_seed(outcome):
    success = [outcome.curve("success", name) for name in NAMES]
    assert torch.equal(success[0][0], success[1][0])  # they start alike
    assert not torch.isclose(success[0][-1], success[1][-1]).any()
    assert len(success[0][0].unique()) == len(SEEDS)
    alone = run_study({"dr_grpo": VARIANTS["dr_grpo"]}, SEEDS[1:2], PLAN)
    torch.testing.assert_close(alone.curve("success", "dr_grpo")[:, 0], success[1][:, 1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("at", [-1, 1])
def test_pairs_are_second_minus_first_by_seed(outcome, at):
    first, second = (outcome.curve("length", name)[at].tolist() for name in NAMES)
    expected = mean_over_seeds([b - a for a, b in zip(first, second, strict=True)])
    assert outcome.paired("length", *NAMES, at=at) == expected
    mirrored = outcome.paired("length", *reversed(NAMES), at=at)
    assert mirrored.value == -expected.value and mirrored.low == pytest.approx(-expected.high)


@pytest.mark.parametrize("name, variant", [("sucess", "grpo"), ("success", "gspo")])
def test_what_a_study_does_not_have_is_refused_with_what_it_has(outcome, name, variant):
    with pytest.raises(LabError, match=f"no '{name}' of '{variant}': it has .*success.* of grpo, dr_grpo"):
        outcome.curve(name, variant)


def test_one_seed_makes_no_interval(outcome):
    one = outcomes.Outcome(NAMES, (2,), {"length": outcome.iterations["length"][..., :1]}, {})
    with pytest.raises(LabError, match="interval over seeds needs 2"):
        one.paired("length", *NAMES)
