"""What lab 06's exercises ask for is what the bench trains with."""

from dataclasses import replace

import torch

from labs_lib.bench.losses import VARIANTS, Variant, advantages_of, answer_weights, bench_loss
from labs_lib.exercises import lab06 as exercises


def test_the_bench_passes_the_check_of_advantages():
    def of_the_bench(rewards, divide):
        return advantages_of(rewards.unsqueeze(0), Variant(std=divide)).squeeze(0)

    assert exercises.BATCH_ADVANTAGES.evaluate(of_the_bench).status == "right"


def test_the_bench_passes_the_check_of_the_loss():
    def of_the_bench(logprobs, old_logprobs, advantages, mask, clip_low, clip_high):
        variant = replace(VARIANTS["token_mean"], clip_low=clip_low, clip_high=clip_high)
        lengths, stopped = mask.sum(dim=1).unsqueeze(0), torch.ones(1, len(mask), dtype=torch.bool)
        weights = answer_weights(lengths, stopped, variant).squeeze(0)
        return bench_loss(logprobs, old_logprobs.detach(), advantages, mask, weights, variant)[0].sum()

    assert exercises.DAPO_LOSS.evaluate(of_the_bench).status == "right"
