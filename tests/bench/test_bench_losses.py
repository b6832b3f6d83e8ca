"""The variants of the loss: each against sums written out by hand, and each other in nothing but its term."""

from dataclasses import asdict, replace
from itertools import combinations
from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_bench import normal

from labs_lib.bench.losses import GRPO, VARIANTS, Variant, advantages_of, answer_weights, bench_loss
from labs_lib.bench.plain import plain_loss

# One group of four answers, of 1, 3, 2 and 8 tokens: ratio of each token, and what each answer earned. There are ratios
# within and beyond every bound, and on both sides of each sign of the advantage.
RATIOS = [[1.25], [1.4, 0.9, 1.1], [0.7, 1.3], [0.75, 1.5, 1.0, 0.9, 1.1, 1.22, 0.6, 1.05]]
REWARDS = [1.0, 0.0, 1.0, 0.0]
LONG = [1.0, 1.0, 1.0, 0.0]
EACH = pytest.mark.parametrize("name", VARIANTS)
PAID = pytest.mark.parametrize("rewards", [REWARDS, LONG], ids=["two_right", "three_right"])


# --- Sums by hand, which know the variants by their names only ----------------------------------------------------


def by_hand(name, logprobs, old, rewards):
    """The loss of one variant over lists of scalar tensors, and no field of `Variant` is read."""
    mean = sum(rewards) / len(rewards)
    spread = sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards)) + 1e-8
    tokens = sum(map(len, logprobs))
    total = 0.0
    for row, old_row, reward in zip(logprobs, old, rewards, strict=True):
        gain = reward - mean if name in ("no_std", "dr_grpo") else (reward - mean) / spread
        divisor = {"constant": 8 * len(rewards), "dr_grpo": 8 * len(rewards), "token_mean": tokens}.get(
            name, len(row) * len(rewards)
        )
        ratios = [(now - then).exp() for now, then in zip(row, old_row, strict=True)]
        if name == "gspo":
            whole = torch.ones(()).double()
            for ratio in ratios:
                whole = whole * ratio
            ratios = [whole ** (1 / len(row))] * len(row)
        lowest, highest = torch.tensor([0.8, 1.28 if name == "clip_higher" else 1.2], dtype=torch.float64)
        for ratio in ratios:
            bounded = min(max(ratio, lowest), highest)
            total = total - min(ratio * gain, bounded * gain) / divisor
    return total


def case(rewards):
    """logprobs (requires grad), old, mask (1, 4, 8) and rewards (1, 1, 4); off the mask stands what must not matter."""
    mask = torch.zeros(1, 4, 8, dtype=torch.bool)
    old = -2.0 + 0.1 * normal(1, 4, 8, name="old")
    now = old + normal(1, 4, 8, name="off")
    for answer, row in enumerate(RATIOS):
        mask[0, answer, : len(row)] = True
        now[0, answer, : len(row)] = old[0, answer, : len(row)] + torch.tensor(row, dtype=torch.float64).log()
    return now.requires_grad_(), old, mask, torch.tensor([[rewards]], dtype=torch.float64)


def hand_results(name, rewards):
    now, old, *_ = case(rewards)
    rows = [[[t[0, a, n] for n in range(len(row))] for a, row in enumerate(RATIOS)] for t in (now, old)]
    loss = by_hand(name, *rows, rewards)
    return [loss.detach(), torch.autograd.grad(loss, now)[0]]


def loss_of(logprobs, old, advantages, mask, stopped, variant):
    """The loss (M,) of models side by side, (M, A, T) and (M, A) each, and the surrogate."""
    weights = answer_weights(mask.sum(dim=-1), stopped, variant)
    tokens = (t.flatten(0, 1) for t in (logprobs, old, advantages, mask, weights))
    parts, surrogate = bench_loss(*tokens, variant)
    return parts.view_as(stopped).sum(dim=1), surrogate


def bench_results(variant, rewards):
    now, old, mask, paid = case(rewards)
    loss, _ = loss_of(now, old, advantages_of(paid, variant).flatten(1), mask, torch.ones(1, 4).bool(), variant)
    return [loss[0].detach(), torch.autograd.grad(loss[0], now)[0]]


def plain_results(variant, rewards):
    """The same by the plain loop's own formulas."""
    now, old, mask, paid = case(rewards)
    loss = plain_loss(variant, now[0], old[0], advantages_of(paid, variant).flatten(), mask[0])
    return [loss.detach(), torch.autograd.grad(loss, now)[0]]


def equal(found, expected):
    return all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(found, expected, strict=True))


@EACH
@PAID
@pytest.mark.parametrize("results", [bench_results, plain_results], ids=["bench", "plain"])
def test_value_and_gradient_are_those_of_the_sums_by_hand(name, rewards, results):
    assert equal(results(VARIANTS[name], rewards), hand_results(name, rewards))


@pytest.mark.parametrize("one, other", list(combinations(VARIANTS, 2)))
def test_taking_one_variant_for_another_is_rejected(one, other):
    assert not equal(bench_results(VARIANTS[one], LONG), hand_results(other, LONG))


def test_one_value_to_check_with_a_pencil():
    """Rewards 1, 0: advantages 1 and -1. Ratios 1.5 of one token, clipped to 1.2; 1 and 0.5 of two, 0.5 to 0.8."""
    old = torch.zeros(1, 2, 2).double()
    now = torch.tensor([[[1.5, 1.0], [1.0, 0.5]]]).double().log()
    mask = torch.tensor([[[True, False], [True, True]]])
    gains, stopped = torch.tensor([[1.0, -1.0]]).double(), torch.ones(1, 2).bool()
    expected = {"grpo": (-1.2 + 0.9) / 2, "constant": 0.6 / 8 / 2, "token_mean": 0.6 / 3, "clip_higher": -0.38 / 2}
    expected["gspo"] = (-1.2 + 0.8) / 2  # the second answer's ratio is sqrt(0.5), below 0.8
    for name, value in expected.items():
        loss, surrogate = loss_of(now, old, gains, mask, stopped, VARIANTS[name])
        assert loss.item() == pytest.approx(value, abs=1e-14), name
        clipped = [[True, False], [True, True]] if name == "gspo" else [[True, False], [False, True]]
        assert surrogate.clip_active.tolist() == clipped


def test_each_variant_changes_what_it_is_named_after():
    changed = {
        name: {field: value for field, value in asdict(v).items() if value != asdict(GRPO)[field]}
        for name, v in VARIANTS.items()
    }
    assert changed == {
        "grpo": {},
        "no_std": {"std": False},
        "constant": {"length": 8},
        "dr_grpo": {"std": False, "length": 8},
        "token_mean": {"length": "batch"},
        "clip_higher": {"clip_high": 0.28},
        "gspo": {"ratio": "sequence"},
    }
    assert asdict(GRPO) == {
        "length": "answer",
        "std": True,
        "clip_low": 0.2,
        "clip_high": 0.2,
        "ratio": "token",
        "overlong": "counts",
        "entropy_bonus": 0.0,
    }


# --- Advantages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right, above, below", [(1, 2.65, -0.38), (2, 1.73, -0.58), (4, 1, -1), (7, 0.38, -2.65)])
def test_the_spread_is_the_populations(right, above, below):
    paid = torch.tensor([[[1.0] * right + [0.0] * (8 - right)]]).double()
    values = advantages_of(paid, GRPO)[0, 0]
    assert values[0].item() == pytest.approx(above, abs=0.005) and values[-1].item() == pytest.approx(below, abs=0.005)
    raw = advantages_of(paid, VARIANTS["dr_grpo"])[0, 0]
    assert raw[0].item() == pytest.approx(1 - right / 8) and raw[-1].item() == pytest.approx(-right / 8)
    bessel = (paid - paid.mean()) / paid.std()  # mutant
    assert abs(bessel[0, 0, 0].item() - above) > 0.005


@pytest.mark.parametrize("std", [True, False])
def test_groups_do_not_mix_and_constant_ones_are_exactly_zero(std):
    paid = torch.tensor([[[0.1] * 3, [1.0, 0.0, 0.0]], [[1.0] * 3, [0.0, 0.0, 1.0]]]).double()
    values = advantages_of(paid, Variant(std=std))
    assert (values[:, 0] == 0).all() and (values[:, 1] != 0).all() and values.shape == paid.shape
    assert torch.equal(values[0, 1], values[1, 1].flip(0))


# --- What is divided by -------------------------------------------------------------------------------------------


def ones_case(advantages, lengths, width):
    """Ratios all 1, so that an answer's token loss is minus its advantage."""
    old = torch.full((1, len(lengths), width), -1.0).double()
    mask = torch.arange(width) < torch.tensor(lengths).view(1, -1, 1)
    return old.clone(), old, torch.tensor([advantages]).double(), mask


@pytest.mark.parametrize("length, expected", [("answer", 1.5), ("batch", 1.75), (4, 7 / 8)])
def test_lengths_one_and_three_with_token_losses_one_and_two(length, expected):
    case = ones_case([-1.0, -2.0], [1, 3], 3)
    loss, _ = loss_of(*case, torch.ones(1, 2).bool(), Variant(length=length))
    assert loss.item() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    "length, masked, dropped",
    [
        ("answer", (1 + 2) / 3, (1 + 2) / 2),
        ("batch", (1 + 2 * 3) / (1 + 3 + 8), (1 + 2 * 3) / (1 + 3)),
        (8, (1 + 2 * 3) / 8 / 3, (1 + 2 * 3) / 8 / 2),
    ],
)
def test_an_answer_without_stop_leaves_the_numerator_or_the_denominator_too(length, masked, dropped):
    """Known fault 18: a filtered answer that stays in the denominator shrinks everything else."""
    case = ones_case([-1.0, -2.0, -5.0], [1, 3, 8], 8)
    stopped = torch.tensor([[True, True, False]])
    found = {
        overlong: loss_of(*case, stopped, Variant(length=length, overlong=overlong))[0].item()
        for overlong in ("counts", "masked", "dropped")
    }
    assert found["masked"] == pytest.approx(masked, abs=1e-15)
    assert found["dropped"] == pytest.approx(dropped, abs=1e-15) != pytest.approx(masked)
    assert found["counts"] > found["dropped"]  # five more for each of its tokens
    alone = [t[:, :2] for t in case]  # as if it had never been sampled
    expected = loss_of(*alone, stopped[:, :2], Variant(length=length))[0].item()
    assert found["dropped"] == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("length", ["answer", "batch", 8])
@pytest.mark.parametrize("overlong", ["masked", "dropped"])
def test_a_batch_without_any_stop_teaches_nothing(length, overlong):
    now, *rest = ones_case([-1.0, 2.0], [8, 8], 8)
    now.requires_grad_()
    loss, _ = loss_of(now, *rest, torch.zeros(1, 2).bool(), Variant(length=length, overlong=overlong))
    loss.sum().backward()
    assert loss.item() == 0 and (now.grad == 0).all()


@pytest.mark.parametrize("length", ["answer", "batch", 8])
def test_without_an_overlong_answer_the_filters_are_alike(length):
    results = [bench_results(Variant(length=length, overlong=o), REWARDS) for o in ("counts", "masked", "dropped")]
    assert all(equal(result, results[0]) for result in results)


# --- Many models, gradients ---------------------------------------------------------------------------------------


def random_case(seed):
    """Three models, five answers of 1 to 6 tokens, ratios within a factor of 1.5."""
    old = -1 - normal(3, 5, 6, name=f"random/old{seed}").abs()
    now = old + 0.4 * torch.tanh(normal(3, 5, 6, name=f"random/now{seed}"))
    lengths = 1 + (torch.arange(15).view(3, 5, 1) * 7 + seed) % 6
    stopped = (torch.arange(15).view(3, 5) + seed) % 4 > 0
    return now, old, normal(3, 5, name=f"random/gain{seed}"), torch.arange(6) < lengths, stopped


ALL = VARIANTS | {
    f"{overlong}_{name}": replace(variant, overlong=overlong)
    for name, variant in VARIANTS.items()
    for overlong in ("masked", "dropped")
}


@given(st.sampled_from(sorted(ALL)), st.integers(0, 1000))
def test_models_side_by_side_are_the_models_alone(name, seed):
    case = random_case(seed)
    together, _ = loss_of(*case, ALL[name])
    alone = [loss_of(*(t[m : m + 1] for t in case), ALL[name])[0] for m in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-14)


def away_from_kinks(now, old, mask, variant):
    """Whether no ratio is so near to a bound that a finite difference could cross it."""
    log_ratio = torch.where(mask, now - old, 0.0)
    if variant.ratio == "sequence":
        log_ratio = log_ratio.sum(dim=-1, keepdim=True) / mask.sum(dim=-1, keepdim=True)
    ratio = log_ratio.exp()
    return all((ratio - bound).abs().min() > 1e-4 for bound in (1 - variant.clip_low, 1 + variant.clip_high))


@pytest.mark.parametrize("name", ALL)
def test_gradients_are_those_of_finite_differences(name):
    now, *rest = random_case(1)
    assert away_from_kinks(now, rest[0], rest[2], ALL[name])
    assert torch.autograd.gradcheck(lambda logprobs: loss_of(logprobs, *rest, ALL[name])[0], now.requires_grad_())
