"""Policies of the bias bench, many models side by side: one with a row of logits per state, and one MLP that shares.

A policy chooses the next token from its *state*: key, position and last token. There are few of them, so a policy is
asked for the logits of states and never of sequences: 22 states for each key.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Protocol

import torch

from labs_lib.bench.products import batched_product
from labs_lib.tasks.padded_bits.environment import GOES_ON, MAX_TOKENS, VOCABULARY, P

STATES_PER_KEY = 1 + (MAX_TOKENS - 1) * len(GOES_ON)
START_BIAS = 1.0  # on the pad's logit, so that padding happens
HIDDEN = 64


def state_of(key, position, last):
    """The number of a state; before the first token the last one is P. Works on ints and on tensors."""
    return key * STATES_PER_KEY + 3 * position + last - 2 * (position > 0)


def states_of(answers: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The state before each token: answers (..., T) int64, keys (...) -> (..., T) int64, valid where the mask is."""
    last = torch.nn.functional.pad(answers[..., :-1], (1, 0), value=P).clamp(max=GOES_ON[-1])
    return state_of(keys.unsqueeze(-1), torch.arange(answers.shape[-1]), last)


def state_features(keys: int) -> torch.Tensor:
    """One-hot key, position and last token of every state: (states, keys + 8 + 4) float64."""
    rows = torch.zeros(keys * STATES_PER_KEY, keys + MAX_TOKENS + VOCABULARY, dtype=torch.float64)
    for key in range(keys):
        for position in range(MAX_TOKENS):
            for last in GOES_ON if position else (P,):
                rows[state_of(key, position, last), [key, keys + position, keys + MAX_TOKENS + last]] = 1
    return rows


class Policies(Protocol):
    """M models side by side; each parameter's first dimension counts them."""

    parameters: list[torch.Tensor]
    keys: int

    def logits(self, states: torch.Tensor, models: torch.Tensor | None = None) -> torch.Tensor:
        """states (M, K) int64 -> (M, K, 4); with `models` (M',) of those models alone, states (M', K)."""


def _of(parameters: list[torch.Tensor], models: torch.Tensor | None) -> list[torch.Tensor]:
    """The parameters of some models, in the order of `models`; of all for None."""
    return parameters if models is None else [parameter.index_select(0, models) for parameter in parameters]


class Tabular:
    """A row of four logits for every state: nothing learned in one state is known in another."""

    def __init__(self, models: int, keys: int = 2):
        table = torch.zeros(models, keys * STATES_PER_KEY, VOCABULARY, dtype=torch.float64)
        table[..., P] = START_BIAS
        self.parameters, self.keys = [table.requires_grad_()], keys

    def logits(self, states: torch.Tensor, models: torch.Tensor | None = None) -> torch.Tensor:
        (table,) = _of(self.parameters, models)
        return table.gather(1, states.unsqueeze(-1).expand(-1, -1, VOCABULARY))


def initial_mlp(seed: int, keys: int = 2) -> torch.nn.Sequential:
    """One FP32 MLP, 14 -> 64 -> 64 -> 4 for one bit, by torch's initialisation; last bias 0, but `START_BIAS` on P."""
    # What torch.nn.Linear draws after torch.manual_seed(seed), from a generator that no other thread shares.
    generator = torch.Generator().manual_seed(seed)
    inputs = keys + MAX_TOKENS + VOCABULARY
    layers = []
    for size in ((inputs, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, VOCABULARY)):
        layer = torch.nn.utils.skip_init(torch.nn.Linear, *size)
        torch.nn.init.kaiming_uniform_(layer.weight, a=sqrt(5), generator=generator)
        torch.nn.init.uniform_(layer.bias, -1 / sqrt(size[0]), 1 / sqrt(size[0]), generator=generator)
        layers.append(layer)
    first, second, last = layers
    with torch.no_grad():
        last.bias.zero_()
        last.bias[P] = START_BIAS
    return torch.nn.Sequential(first, torch.nn.Tanh(), second, torch.nn.Tanh(), last)


class Mlp:
    """The MLPs of `seeds`, stacked and in FP64: what is learned at one position is known at all."""

    def __init__(self, seeds: Sequence[int], keys: int = 2):
        models = [initial_mlp(seed, keys) for seed in seeds]
        columns = zip(*(model.parameters() for model in models), strict=True)
        stacked = [torch.stack([p.detach().double() for p in column]) for column in columns]
        # weight (M, out, in) -> (M, in, out), bias (M, out) -> (M, 1, out): as the products need them.
        shaped = [p.transpose(1, 2).contiguous() if p.ndim == 3 else p.unsqueeze(1).clone() for p in stacked]
        self.parameters, self.keys = [p.requires_grad_() for p in shaped], keys
        self.features = state_features(keys)

    def logits(self, states: torch.Tensor, models: torch.Tensor | None = None) -> torch.Tensor:
        w1, b1, w2, b2, w3, b3 = _of(self.parameters, models)
        first = torch.tanh(batched_product(self.features[states], w1) + b1)
        second = torch.tanh(batched_product(first, w2) + b2)
        return batched_product(second, w3) + b3


def visited(models: torch.Tensor, states: torch.Tensor, count: int, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The states that occur in each model, each once: what a policy need be asked.

    Args:
        models, states: (R,) int64, pairs of which model is in which state.
        count: how many models there are; total: how many states.

    Returns:
        occurring (M, K), padded with states that do not occur, and where each of the R is among its model's, (R,).
    """
    seen = torch.zeros(count, total, dtype=torch.bool)
    seen[models, states] = True
    most = max([1, *seen.sum(dim=1).tolist()])
    occurring = (~seen).int().argsort(dim=1, stable=True)[:, :most]
    return occurring, (seen.cumsum(dim=1) - 1)[models, states]


def token_logprobs(
    policies: Policies, models: torch.Tensor, states: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities (A, T) of `tokens` (A, T) in their `states` under the model of each answer, 0 off the mask.

    Args:
        models: (A,) int64, the model that each answer is asked of.

    Returns:
        also the mean entropy in nats over the states that occur, of each model that is asked, in their order;
        gradients flow through both.
    """
    asked, owner = models.unique(return_inverse=True)  # late in a training few models have anything to learn from
    rows = torch.where(mask, states, states[:, :1])  # no state that is only padding
    owners = owner.unsqueeze(-1).expand_as(rows)
    occurring, where = visited(owners.flatten(), rows.flatten(), len(asked), policies.keys * STATES_PER_KEY)
    table = policies.logits(occurring, asked).log_softmax(dim=-1)  # (M', K, 4)
    flat = (owners * occurring.shape[1] + where.view_as(rows)) * VOCABULARY + tokens
    chosen = table.flatten().gather(0, flat.flatten()).view_as(rows)
    used = torch.zeros(len(asked), dtype=torch.int64).scatter_reduce_(0, owners.flatten(), where + 1, "amax")
    counted = torch.arange(occurring.shape[1]) < used.unsqueeze(1)  # the rest pads other models
    entropy = -(table.exp() * table).sum(dim=-1)
    return torch.where(mask, chosen, 0.0), (entropy * counted).sum(dim=1) / used


@torch.no_grad()
def table_of(policies: Policies) -> torch.Tensor:
    """Log-probabilities of every token in every state, (M, states, 4)."""
    models, states = len(policies.parameters[0]), policies.keys * STATES_PER_KEY
    return policies.logits(torch.arange(states).expand(models, states)).log_softmax(dim=-1)
