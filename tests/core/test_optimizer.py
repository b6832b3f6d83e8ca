"""AdamW and its schedule against numbers worked out by hand."""

from math import sqrt

import pytest
import torch

from labs_lib.config import Optimizer
from labs_lib.errors import CheckpointError, VerificationError
from labs_lib.training.optimizer import Schedule, ScheduledAdamW

SETTINGS = Optimizer(weight_decay=0.01, max_grad_norm=1.0, warmup_fraction=0.1, final_fraction=0.1)


def rates(schedule):
    return [schedule.learning_rate(update) for update in range(schedule.total)]


def is_the_protocols(rates):
    """48 updates of peak 1: 10 % are 4.8, so five updates rise by a fifth each; 43 fall linearly to a tenth."""
    rise = [0.2, 0.4, 0.6, 0.8, 1.0]
    fall = [1 - 0.9 * k / 43 for k in range(1, 44)]
    return rates == pytest.approx(rise + fall)


def test_the_warm_starts_48_rates():
    assert is_the_protocols(rates(Schedule(48, 1.0, 0.1, 0.1)))
    assert Schedule(48, 2e-5, 0.1, 0.1).learning_rate(47) == pytest.approx(2e-6)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda k: min(1.0, k / 5) if k < 5 else 1 - 0.9 * (k - 4) / 43,  # starts at rate 0
        lambda k: (k + 1) / 5 if k < 5 else 1 - (k - 4) / 43,  # ends at 0
        lambda k: (k + 1) / 5 if k < 5 else 1.0,  # never falls
        lambda k: (k + 1) / 5 if k < 5 else 1 - 0.9 * (k - 5) / 43,  # stays at the peak for two updates
    ],
)
def test_other_schedules_are_noticed(mutant):
    assert not is_the_protocols([mutant(update) for update in range(48)])


@pytest.mark.parametrize("total", [1, 2, 7, 200, 218])
def test_every_length_rises_to_the_peak_once_and_ends_at_a_tenth(total):
    values = rates(Schedule(total, 1.0, 0.1, 0.1))
    top = values.index(max(values))
    assert max(values) == 1.0 and top == max(1, round(total / 10)) - 1
    assert values[:top] == sorted(values[:top]) and values[top:] == sorted(values[top:], reverse=True)
    assert values[-1] == pytest.approx(0.1 if total > 1 else 1.0)


class OneWeight(torch.nn.Module):
    def __init__(self, value=1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([value], dtype=torch.float64))


def stepped(gradients, total=10, peak=0.5):
    model = OneWeight()
    optimizer = ScheduledAdamW(model, SETTINGS, total, peak)
    used = []
    for gradient in gradients:
        model.weight.grad = torch.tensor([gradient], dtype=torch.float64)
        used.append(optimizer.step())
    return model, optimizer, used


def adamw_by_hand(gradients, total=10, peak=0.5, clip=1.0):
    """Loshchilov and Hutter (2019), algorithm 2: the decay is not part of the gradient."""
    weight, mean, square = 1.0, 0.0, 0.0
    for k, gradient in enumerate(gradients):
        rate = Schedule(total, peak, 0.1, 0.1).learning_rate(k)
        gradient *= min(1.0, clip / abs(gradient))
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        corrected = mean / (1 - 0.9 ** (k + 1)) / (sqrt(square / (1 - 0.999 ** (k + 1))) + 1e-8)
        weight -= rate * 0.01 * weight + rate * corrected
    return weight


@pytest.mark.parametrize("gradients", [[0.3], [4.0], [0.3, -0.2, 7.0, 0.1]])
def test_updates_are_clipped_decayed_and_scheduled(gradients):
    model, _, used = stepped(gradients)
    assert model.weight.item() == pytest.approx(adamw_by_hand(gradients), rel=1e-6)
    assert [row["gradient_norm"] for row in used] == pytest.approx([abs(g) for g in gradients])
    assert [row["learning_rate"] for row in used] == rates(Schedule(10, 0.5, 0.1, 0.1))[: len(gradients)]


def test_a_missing_clip_would_be_noticed():
    gradients = [0.3, -0.2, 7.0, 0.1]
    unclipped = adamw_by_hand(gradients, clip=1e9)
    assert stepped(gradients)[0].weight.item() != pytest.approx(unclipped, rel=1e-3)


def test_a_step_clears_the_gradient():
    assert stepped([0.3])[0].weight.grad is None


@pytest.mark.parametrize("gradient", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_is_refused_before_the_update(gradient):
    model, optimizer, _ = stepped([0.3])
    before = model.weight.detach().clone(), {k: v.clone() for k, v in optimizer.tensors().items()}
    model.weight.grad = torch.tensor([gradient], dtype=torch.float64)
    with pytest.raises(VerificationError, match="update 2"):
        optimizer.step()
    assert torch.equal(model.weight, before[0])
    assert all(torch.equal(tensor, before[1][name]) for name, tensor in optimizer.tensors().items())


def continued(restore):
    """Two updates, a restore into a fresh optimiser by `restore`, two more: must equal four in a row."""
    gradients = [0.3, -0.2, 0.7, 0.1]
    expected, whole, _ = stepped(gradients)
    model, first, _ = stepped(gradients[:2])
    second = ScheduledAdamW(model, SETTINGS, 10, 0.5)
    restore(second, {name: tensor.clone() for name, tensor in first.tensors().items()}, 2)
    for gradient in gradients[2:]:
        model.weight.grad = torch.tensor([gradient], dtype=torch.float64)
        second.step()
    same_moments = all(torch.equal(tensor, whole.tensors()[name]) for name, tensor in second.tensors().items())
    return torch.equal(model.weight, expected.weight) and same_moments


def test_restored_moments_continue_exactly():
    assert continued(ScheduledAdamW.restore)


@pytest.mark.parametrize("forgotten", ["exp_avg", "exp_avg_sq", "step"])
def test_a_forgotten_moment_is_noticed(forgotten):
    def forgetful(optimizer, tensors, updates):
        key = f"adamw.{forgotten}.weight"
        optimizer.restore({**tensors, key: torch.zeros_like(tensors[key])}, updates)

    assert not continued(forgetful)


def test_a_forgotten_schedule_position_is_noticed():
    def forgetful(optimizer, tensors, updates):
        optimizer.restore(tensors, updates)
        optimizer.updates = 0

    assert not continued(forgetful)


def test_a_state_without_a_moment_is_refused_by_name():
    _, optimizer, _ = stepped([0.3])
    tensors = optimizer.tensors()
    del tensors["adamw.exp_avg_sq.weight"]
    with pytest.raises(CheckpointError, match=r"adamw\.exp_avg_sq\.weight"):
        optimizer.restore(tensors, 1)


def test_restored_moments_are_copies():
    model, optimizer, _ = stepped([0.3])
    tensors = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    optimizer.restore(tensors, 1)
    model.weight.grad = torch.ones(1, dtype=torch.float64)
    optimizer.step()
    assert all(torch.equal(tensors[name], kept[name]) for name in kept)
