"""Small studies and plain walks that the bench's tests share."""

import torch

from labs_lib.bench.policies import STATES_PER_KEY
from labs_lib.bench.training import Plan
from labs_lib.seeding import named_generator
from labs_lib.tasks.padded_bits.environment import MAX_TOKENS, P

# Eight updates an iteration, large enough steps for the clip to act within an iteration.
PLAN = Plan(iterations=3, prompts=8, group_size=8, minibatch=32, learning_rate=0.02)


def normal(*shape, name):
    return torch.randn(shape, generator=named_generator(6, f"test/{name}"), dtype=torch.float64)


def random_table(models, keys=2, name="table"):
    """Log-probabilities (M, states, 4) of policies that nobody trained."""
    return (1.5 * normal(models, keys * STATES_PER_KEY, 4, name=name)).log_softmax(dim=-1)


def plain_states(answer, key):
    """The state before each token of one answer, numbered as the states are met when they are written down in order."""
    numbers = {}
    for one_key in range(key + 1):
        for position in range(MAX_TOKENS):
            for last in range(3) if position else (P,):
                numbers[one_key, position, last] = len(numbers)
    return [numbers[key, position, last] for position, last in enumerate((P, *answer[:-1]))]
