"""Plausible wrong answers to the exercises of lab 02, by exercise; the check has to reject each of them."""

import torch

# --- 2.1 answer_mask


def loses_eos(lengths, width):
    return torch.arange(width) < lengths.unsqueeze(1) - 1


def one_pad_too_many(lengths, width):
    return torch.arange(width) <= lengths.unsqueeze(1)


def shifted_right(lengths, width):
    places = torch.arange(width)
    return (places > 0) & (places <= lengths.unsqueeze(1))


def left_padded(lengths, width):
    return torch.arange(width) >= width - lengths.unsqueeze(1)


def everything(lengths, width):
    return torch.ones(len(lengths), width, dtype=torch.bool)


def zeros_and_ones(lengths, width):
    return (torch.arange(width) < lengths.unsqueeze(1)).int()


def longest_for_all(lengths, width):
    return (torch.arange(width) < lengths.max()).expand(len(lengths), width)


MASKS = [loses_eos, one_pad_too_many, shifted_right, left_padded, everything, zeros_and_ones, longest_for_all]

# --- 2.2 advantages_of_groups


def _scaled(rewards, epsilon, correction=0, dim=1):
    deviation = rewards - rewards.mean(dim=dim, keepdim=True)
    constant = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    std = rewards.std(dim=dim, correction=correction, keepdim=True)
    return torch.where(constant, 0.0, deviation / (std + epsilon))


def flipped_sign(rewards, epsilon=1e-8):
    return -_scaled(rewards, epsilon)


def sample_std(rewards, epsilon=1e-8):
    return _scaled(rewards, epsilon, correction=1)


def over_the_prompts(rewards, epsilon=1e-8):
    return torch.nan_to_num(_scaled(rewards, epsilon, dim=0))


def over_the_batch(rewards, epsilon=1e-8):
    constant = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    return torch.where(constant, 0.0, (rewards - rewards.mean()) / (rewards.std(correction=0) + epsilon))


def naive(rewards, epsilon=1e-8):
    return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, correction=0, keepdim=True) + epsilon)


def not_divided(rewards, epsilon=1e-8):
    constant = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    return torch.where(constant, 0.0, rewards - rewards.mean(dim=1, keepdim=True))


def epsilon_in_the_root(rewards, epsilon=1e-8):
    deviation = rewards - rewards.mean(dim=1, keepdim=True)
    constant = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    return torch.where(constant, 0.0, deviation / (rewards.var(dim=1, correction=0, keepdim=True) + epsilon).sqrt())


def all_zero_if_one_group_is_constant(rewards, epsilon=1e-8):
    if (rewards == rewards[:, :1]).all(dim=1).any():
        return torch.zeros_like(rewards)
    return _scaled(rewards, epsilon)


def flattened(rewards, epsilon=1e-8):
    return _scaled(rewards, epsilon).flatten()


def no_advantage(rewards, epsilon=1e-8):
    return torch.zeros_like(rewards)


ADVANTAGES = [flipped_sign, sample_std, over_the_prompts, over_the_batch, naive, not_divided, epsilon_in_the_root]
ADVANTAGES += [all_zero_if_one_group_is_constant, flattened, no_advantage]

# --- 2.3 clipped_loss


def _products(logprobs, old_logprobs, advantages, clip):
    ratio, weights = (logprobs - old_logprobs).exp(), advantages.unsqueeze(1)
    return ratio * weights, ratio.clamp(1 - clip, 1 + clip) * weights


def to_maximise(logprobs, old_logprobs, advantages, clip=0.2):
    return torch.minimum(*_products(logprobs, old_logprobs, advantages, clip))


def larger_product(logprobs, old_logprobs, advantages, clip=0.2):
    return -torch.maximum(*_products(logprobs, old_logprobs, advantages, clip))


def clipped_on_both_sides(logprobs, old_logprobs, advantages, clip=0.2):
    return -_products(logprobs, old_logprobs, advantages, clip)[1]


def never_clipped(logprobs, old_logprobs, advantages, clip=0.2):
    return -_products(logprobs, old_logprobs, advantages, clip)[0]


def difference_for_ratio(logprobs, old_logprobs, advantages, clip=0.2):
    ratio, weights = 1 + logprobs - old_logprobs, advantages.unsqueeze(1)
    return -torch.minimum(ratio * weights, ratio.clamp(1 - clip, 1 + clip) * weights)


def inverse_ratio(logprobs, old_logprobs, advantages, clip=0.2):
    return -torch.minimum(*_products(old_logprobs, logprobs, advantages, clip))


def advantages_along_tokens(logprobs, old_logprobs, advantages, clip=0.2):
    ratio = (logprobs - old_logprobs).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def detached_ratio(logprobs, old_logprobs, advantages, clip=0.2):
    return to_maximise(logprobs, old_logprobs, advantages, clip).detach().neg() + 0 * logprobs


def recomputed_old(logprobs, old_logprobs, advantages, clip=0.2):
    return -torch.minimum(*_products(logprobs, logprobs.detach(), advantages, clip))


LOSSES = [to_maximise, larger_product, clipped_on_both_sides, never_clipped, difference_for_ratio, inverse_ratio]
LOSSES += [advantages_along_tokens, detached_ratio, recomputed_old]

# --- 2.4 exact_kl


def _kl(logp, logq):
    return (logp.exp() * (logp - logq)).sum(-1)


def other_direction(z, y):
    return _kl(y.log_softmax(-1), z.log_softmax(-1))


def block_by_block(z, y):
    halves = zip(z.split(2, dim=-1), y.split(2, dim=-1), strict=True)
    return sum(_kl(a.log_softmax(-1), b.log_softmax(-1)) for a, b in halves)


def not_normalised(z, y):
    return _kl(z, y)


def mean_over_vocabulary(z, y):
    return _kl(z.log_softmax(-1), y.log_softmax(-1)) / z.shape[-1]


def overflowing(z, y):
    p, q = z.exp() / z.exp().sum(-1, keepdim=True), y.exp() / y.exp().sum(-1, keepdim=True)
    return (p * (p.log() - q.log())).sum(-1)


def detached_weights(z, y):
    logp, logq = z.log_softmax(-1), y.log_softmax(-1)
    return (logp.detach().exp() * (logp - logq)).sum(-1)


def detached(z, y):
    return _kl(z.log_softmax(-1), y.log_softmax(-1)).detach()


def summed_over_rows(z, y):
    return _kl(z.log_softmax(-1), y.log_softmax(-1)).sum()


def flipped_kl(z, y):
    return -_kl(z.log_softmax(-1), y.log_softmax(-1))


def no_kl(z, y):
    return 0 * z.sum(-1)


KLS = [other_direction, block_by_block, not_normalised, mean_over_vocabulary, overflowing, detached_weights]
KLS += [detached, summed_over_rows, flipped_kl, no_kl]

# --- 2.5 answer_mean_loss


def mean_over_tokens(values, mask):
    return torch.where(mask, values, 0.0).sum() / mask.sum()


def divided_by_the_width(values, mask):
    return torch.where(mask, values, 0.0).mean()


def constant_length(values, mask):
    return torch.where(mask, values, 0.0).sum(1).mean() / 4


def masked_by_product(values, mask):
    return ((values * mask).sum(1) / mask.sum(1)).mean()


def without_eos(values, mask):
    kept = mask & mask.roll(-1, dims=1)
    return (torch.where(kept, values, 0.0).sum(1) / kept.sum(1).clamp(min=1)).mean()


def per_answer(values, mask):
    return torch.where(mask, values, 0.0).sum(1) / mask.sum(1)


def as_a_number(values, mask):
    return per_answer(values, mask).mean().item()


def detached_mean(values, mask):
    return per_answer(values, mask).mean().detach()


MEANS = [mean_over_tokens, divided_by_the_width, constant_length, masked_by_product, without_eos, per_answer]
MEANS += [as_a_number, detached_mean]

MUTANTS = {
    "answer_mask": MASKS,
    "advantages_of_groups": ADVANTAGES,
    "clipped_loss": LOSSES,
    "exact_kl": KLS,
    "answer_mean_loss": MEANS,
}
