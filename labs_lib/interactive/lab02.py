"""Lab 02 to play with: the rewards of a group and what becomes of them, and one token under clip and KL."""

from dataclasses import replace

import torch

from labs_lib.bench.losses import GRPO, advantages_of
from labs_lib.figures.lab02 import TokenCurve, TokenForces, group_figure, token_forces_figure
from labs_lib.interactive.play import Choice, Play, Slider, View
from labs_lib.kernels.advantages import constant_groups, group_advantages
from labs_lib.kernels.kl import exact_kl_reference
from labs_lib.kernels.logprobs import selected_logprobs
from labs_lib.kernels.surrogate import clipped_surrogate

UNDIVIDED = "nothing"
STABILISERS = {"std + 1e-8": 1e-8, "std + 0.1": 0.1}  # what is added to the standard deviation
OTHERS = 2  # tokens beside the one that was sampled
RATIOS = (0.05, 2.55)  # of the token's probability to 1/3, so up to 0.85
CURVE_POINTS = 251


# --- Rewards and advantages --------------------------------------------------------------------------


def group_of_answers() -> Play:
    """A group of 4 to 8 answers: how many are right, a bonus for one of them, and what is divided by."""
    controls = {
        "group_size": Slider("answers in the group", 4, 4, 8, 1),
        "right": Slider("right answers", 2, 0, 8, 1),
        "bonus": Slider("bonus for answer 1", 0.0, 0.0, 0.5, 0.05),
        "divided_by": Choice("divided by", "std + 1e-8", [*STABILISERS, UNDIVIDED]),
    }
    alt = (
        "Two rows of bars over the answers of a group: what each is paid, with the mean of the group as a dashed line, "
        "and the advantage that becomes of it, above zero for answers paid better than the mean and below it for the "
        "others."
    )
    return Play(_group, controls, "02-play-group", alt)


def advantages_at(rewards: torch.Tensor, divided_by: str) -> torch.Tensor:
    """(P, G) rewards -> (P, G) advantages, divided by one of `STABILISERS` or by nothing."""
    if divided_by == UNDIVIDED:
        return advantages_of(rewards.unsqueeze(0), replace(GRPO, std=False))[0]
    return group_advantages(rewards, STABILISERS[divided_by])


def group_rewards(group_size: int, right: int, bonus: float) -> torch.Tensor:
    """(1, G) FP64: 1 for the first `right` answers (all, if there are fewer), and the bonus for the first."""
    rewards = (torch.arange(group_size) < right).double()
    rewards[0] += bonus
    return rewards.unsqueeze(0)


def _group(group_size: int, right: int, bonus: float, divided_by: str) -> View:
    rewards = group_rewards(group_size, right, bonus)
    advantages = advantages_at(rewards, divided_by)[0].tolist()
    kind = "constant" if constant_groups(rewards).item() else "mixed"
    paid = rewards[0].tolist()
    numbers = (
        f"{kind} group, mean {rewards.mean():.3f}, std {rewards.std(correction=0):.3f}\n"
        f"rewards    {' '.join(f'{reward:5.2f}' for reward in paid)}\n"
        f"advantages {' '.join(f'{advantage:+z5.2f}' for advantage in advantages)}  sum {sum(advantages):z.2f}"
    )
    return View(group_figure(paid, advantages, f"a {kind} group, divided by {divided_by}"), numbers)


# --- One token: clip and KL --------------------------------------------------------------------------


def one_token(clip_low: float, clip_high: float) -> Play:
    """One of three tokens, sampled at 1/3: its loss and gradient by its ratio, under clip and KL."""
    controls = {
        "sign": Choice("advantage", "+1", ["+1", "-1"]),
        "ratio": Slider("ratio ρ", 1.0, *RATIOS, 0.05),
        "kl_weight": Slider("KL weight β", 1.0, 0.0, 3.0, 0.1),
        "clip_low": Slider("ε low", clip_low, 0.0, 0.9, 0.02),
        "clip_high": Slider("ε high", clip_high, 0.0, 1.0, 0.02),
    }
    alt = (
        "Loss and gradient of one token by its ratio: the clipped surrogate, which is flat where the clip acts, the "
        "weighted KL, which grows with the distance from 1, and their sum, with a mark at the chosen ratio."
    )
    return Play(_token, controls, "02-play-clip-and-kl", alt)


def token_forces(
    ratios: torch.Tensor, advantage: float, kl_weight: float, clip_low: float, clip_high: float
) -> TokenForces:
    """Losses of one token, and their gradients by its logit, at each ratio.

    The token had probability 1/3 when it was sampled, as each of the two others, and so it has in the reference; the
    others share equally what it leaves.

    Args:
        ratios: (N,) FP64, above 0 and below 3.
    """
    share = ratios / (1 + OTHERS)
    rest = ((1 - share) / OTHERS).unsqueeze(1).expand(-1, OTHERS)
    logits = torch.cat([share.unsqueeze(1), rest], dim=1).log().requires_grad_()  # (N, 3)
    reference = torch.zeros_like(logits)
    ids = torch.zeros(len(ratios), dtype=torch.int64)
    now, old = (selected_logprobs(z, ids).unsqueeze(1) for z in (logits, reference))  # (N, 1)
    advantages = torch.full_like(ratios, advantage)
    surrogate = clipped_surrogate(now, old, advantages, clip_low, clip_high).loss[:, 0]
    kl = exact_kl_reference(logits, reference)
    losses = surrogate, kl_weight * kl, surrogate + kl_weight * kl
    gradients = (torch.autograd.grad(loss.sum(), logits, retain_graph=True)[0][:, 0] for loss in losses)
    curves = [TokenCurve(*(part.tolist() for part in pair)) for pair in zip(losses, gradients, strict=True)]
    return TokenForces(ratios.tolist(), kl.tolist(), *curves)


def _token(sign: str, ratio: float, kl_weight: float, clip_low: float, clip_high: float) -> View:
    settings = float(sign), kl_weight, clip_low, clip_high
    curve = token_forces(torch.linspace(*RATIOS, CURVE_POINTS, dtype=torch.float64), *settings)
    here = token_forces(torch.tensor([ratio], dtype=torch.float64), *settings)
    slope = here.total.gradient[0]
    then = "goes up" if slope < -1e-9 else "goes down" if slope > 1e-9 else "stays"
    numbers = (
        f"A = {sign}, ratio {ratio:.2f}, probability {ratio / (1 + OTHERS):.3f}, KL {here.kl[0]:z.4f} nats\n"
        f"loss      surrogate {here.surrogate.loss[0]:+z.3f}, β KL {here.penalty.loss[0]:+z.3f}\n"
        f"gradient  surrogate {here.surrogate.gradient[0]:+z.3f}, β KL {here.penalty.gradient[0]:+z.3f}, "
        f"sum {slope:+z.3f}: token {then}"
    )
    return View(token_forces_figure(curve, here, (1 - clip_low, 1 + clip_high)), numbers)
