"""Plausible wrong answers to the exercises of lab 06, by exercise; the check has to reject each of them."""

from dataclasses import replace

import torch

from exercises.mutants import named
from labs_lib.bench.losses import GRPO, VARIANTS, Variant

# --- the division


def advantages_with(correction=0, epsilon=1e-8, sign=1, power=1, dim=1, centre=True, guard=True, always=None):
    """The right function with one thing changed."""

    def function(rewards, divide):
        deviations = sign * (rewards - rewards.mean(dim=dim, keepdim=True)) if centre else rewards
        spread = rewards.std(dim=1, correction=correction, keepdim=True)
        if divide if always is None else always:
            deviations = deviations / (spread + epsilon) ** power
        constant = (rewards == rewards[:, :1]).all(dim=1, keepdim=True) & guard
        return torch.where(constant, 0.0, deviations)

    return function


def single_precision(rewards, divide):
    return advantages_with()(rewards, divide).float()


def spread_of_the_batch(rewards, divide):
    deviations = advantages_with()(rewards, False)
    return deviations / rewards.std(correction=0) if divide else deviations


# --- DAPO's loss


def token_mean(values, mask):
    return values.sum() / mask.sum()


def answer_mean(values, mask):
    return (values.sum(dim=1) / mask.sum(dim=1)).mean()


def dapo_with(
    reduce=token_mean,
    bounds=lambda low, high: (1 - low, 1 + high),
    choose=torch.minimum,
    sign=-1,
    now=lambda logprobs: logprobs,
    old=lambda old, logprobs: old.detach(),
    ratio=lambda difference, mask: torch.where(mask, difference, 0.0).exp(),
    rows=lambda advantages: advantages.unsqueeze(1),
):
    """The right function with one thing changed."""

    def function(logprobs, old_logprobs, advantages, mask, clip_low, clip_high):
        r = ratio(now(logprobs) - old(old_logprobs, logprobs), mask)
        a = rows(advantages)
        surrogate = choose(r * a, r.clamp(*bounds(clip_low, clip_high)) * a)
        return sign * reduce(torch.where(mask, surrogate, 0.0), mask)

    return function


def masked_with_a_product(logprobs, old_logprobs, advantages, mask, clip_low, clip_high):
    ratio = ((logprobs - old_logprobs.detach()) * mask).exp()
    a = advantages.unsqueeze(1)
    surrogate = torch.minimum(ratio * a, ratio.clamp(1 - clip_low, 1 + clip_high) * a) * mask
    return -surrogate.sum() / mask.sum()


def over_the_unclipped(logprobs, old_logprobs, advantages, mask, clip_low, clip_high):
    ratio = torch.where(mask, logprobs - old_logprobs.detach(), 0.0).exp()
    inside = mask & (ratio >= 1 - clip_low) & (ratio <= 1 + clip_high)
    a = advantages.unsqueeze(1)
    surrogate = torch.minimum(ratio * a, ratio.clamp(1 - clip_low, 1 + clip_high) * a)
    return -torch.where(mask, surrogate, 0.0).sum() / inside.sum()


def ratio_of_the_answer(difference, mask):
    mean = torch.where(mask, difference, 0.0).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)
    return mean.exp().expand(mask.shape)


def never_learns(logprobs, old_logprobs, advantages, mask, clip_low, clip_high):
    return torch.where(mask, logprobs, 0.0).sum() * 0


# --- the sweep


def sweep_with(field="clip_high", base=GRPO, name=str, keep=lambda bounds: bounds):
    def function(clip_highs):
        return {name(bound): replace(base, **{field: bound}) for bound in keep(clip_highs)}

    return function


def both_bounds(clip_highs):
    return {str(bound): Variant(clip_low=bound, clip_high=bound) for bound in clip_highs}


def a_list(clip_highs):
    return [Variant(clip_high=bound) for bound in clip_highs]


def upper_limits(clip_highs):
    return {str(bound): Variant(clip_high=1 + bound) for bound in clip_highs}


# --- when a curve passes


def steps_with(over=lambda curve: curve.mean(dim=1), above=torch.gt, take=lambda found: found[0], none=None, shift=0):
    """The right function with one thing changed."""

    def function(curve, level):
        found = above(over(curve), torch.full_like(curve[:, 0], level)).nonzero().flatten().tolist()
        return take(found) + shift if found else none

    return function


def stays_above(curve, level):
    below = (curve.mean(dim=1) <= level).nonzero().flatten().tolist()
    first = below[-1] + 1 if below else 0
    return first if first < len(curve) else None


def as_tensor(curve, level):
    found = (curve.mean(dim=1) > level).nonzero().flatten()
    return found[0] if len(found) else None


def largest_iteration(curve, level):
    return len(curve) - 1


# --- falls


def best_to_last(curve):
    return curve.amax(dim=0) - curve[-1]


def range_of(curve):
    return curve.amax(dim=0) - curve.amin(dim=0)


def one_iteration(curve):
    return (curve[:-1] - curve[1:]).clamp(min=0).amax(dim=0)


def one_for_all(curve):
    return (curve.cummax(dim=0).values - curve).max()


def of_the_mean(curve):
    mean = curve.mean(dim=1)
    return (mean.cummax(dim=0).values - mean).max().expand(curve.shape[1])


def best_of_all_seeds(curve):
    best = curve.amax(dim=1, keepdim=True).cummax(dim=0).values
    return (best - curve).amax(dim=0)


def from_the_start(curve):
    return (curve[0] - curve).amax(dim=0)


def negative(curve):
    return (curve - curve.cummax(dim=0).values).amin(dim=0)


def no_fall(curve):
    return torch.zeros(curve.shape[1], dtype=curve.dtype)


MUTANTS = {
    "batch_advantages": [
        named("sample_deviation", advantages_with(correction=1)),
        named("variance", advantages_with(power=2)),
        named("large_epsilon", advantages_with(epsilon=1e-4)),
        named("sign_flipped", advantages_with(sign=-1)),
        named("not_centred", advantages_with(centre=False)),
        named("mean_over_groups", advantages_with(dim=0)),
        named("always_divides", advantages_with(always=True)),
        named("never_divides", advantages_with(always=False)),
        named("constant_groups_unseen", advantages_with(guard=False)),
        single_precision,
        spread_of_the_batch,
    ],
    "dapo_loss": [
        named("mean_of_answers", dapo_with(reduce=answer_mean)),
        named("padding_in_the_denominator", dapo_with(reduce=lambda values, mask: values.mean())),
        named("over_answers", dapo_with(reduce=lambda values, mask: values.sum() / len(mask))),
        named("over_a_constant", dapo_with(reduce=lambda values, mask: values.sum() / len(mask) / mask.shape[1])),
        named("not_divided", dapo_with(reduce=lambda values, mask: values.sum())),
        named("one_per_answer", dapo_with(reduce=lambda values, mask: values.sum(dim=1) / mask.sum())),
        named("one_bound_for_both", dapo_with(bounds=lambda low, high: (1 - low, 1 + low))),
        named("bounds_swapped", dapo_with(bounds=lambda low, high: (1 - high, 1 + low))),
        named("default_bounds", dapo_with(bounds=lambda low, high: (0.8, 1.28))),
        named("two_sided", dapo_with(choose=lambda free, clipped: clipped)),
        named("no_clip", dapo_with(choose=lambda free, clipped: free)),
        named("the_larger", dapo_with(choose=torch.maximum)),
        named("sign_flipped", dapo_with(sign=1)),
        named("detached", dapo_with(now=torch.Tensor.detach)),
        named("old_recomputed", dapo_with(old=lambda old, logprobs: logprobs.detach())),
        named("old_keeps_its_graph", dapo_with(old=lambda old, logprobs: old)),
        named("log_ratio", dapo_with(ratio=lambda difference, mask: 1 + torch.where(mask, difference, 0.0))),
        named("masked_after_the_exponential", dapo_with(ratio=lambda difference, mask: difference.exp())),
        named("sequence_ratio", dapo_with(ratio=ratio_of_the_answer)),
        named("advantages_along_tokens", dapo_with(rows=lambda advantages: advantages)),
        masked_with_a_product,
        over_the_unclipped,
        never_learns,
    ],
    "sweep": [
        named("lower_bound", sweep_with(field="clip_low")),
        named("from_dr_grpo", sweep_with(base=VARIANTS["dr_grpo"])),
        named("from_token_mean", sweep_with(base=VARIANTS["token_mean"])),
        named("float_names", sweep_with(name=float)),
        named("one_name", sweep_with(name=lambda bound: "clip_higher")),
        named("sorted", sweep_with(keep=sorted)),
        named("always_the_same", sweep_with(keep=lambda bounds: (0.25, 0.28, 0.5))),
        both_bounds,
        upper_limits,
        a_list,
    ],
    "steps_to": [
        named("any_seed", steps_with(over=lambda curve: curve.amax(dim=1))),
        named("all_seeds", steps_with(over=lambda curve: curve.amin(dim=1))),
        named("median", steps_with(over=lambda curve: curve.median(dim=1).values)),
        named("sum", steps_with(over=lambda curve: curve.sum(dim=1))),
        named("touches", steps_with(above=torch.ge)),
        named("below", steps_with(above=torch.lt)),
        named("last", steps_with(take=lambda found: found[-1])),
        named("one_based", steps_with(shift=1)),
        named("minus_one_for_never", steps_with(none=-1)),
        stays_above,
        as_tensor,
        largest_iteration,
    ],
    "largest_fall": [
        best_to_last,
        range_of,
        one_iteration,
        one_for_all,
        of_the_mean,
        best_of_all_seeds,
        from_the_start,
        negative,
        no_fall,
    ],
}
