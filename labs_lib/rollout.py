"""Sampling answers from a policy, with the log-probabilities that the policy gave while sampling.

All prompts and answers are sampled in one batch with a key-value cache: each prompt is read once, its cache is
expanded over its group, and finished rows leave the batch. The draws are uniforms from a CPU generator, laid out
by answer and position before sampling starts, so a plain one-answer loop can use the same draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

from labs_lib.errors import LabError, VerificationError
from labs_lib.kernels.logprobs import selected_logprobs
from labs_lib.models.unembedding import logits_of

EOS, LENGTH = "eos", "length"


@dataclass(frozen=True)
class Rollout:
    """Answers in prompt-major order; A = prompts x group_size, T = longest answer.

    Attributes:
        ids: (A, T) int64, filled with `pad_id` after the end.
        mask: (A, T) bool, by position: True up to and including EOS (or the last token when there was none).
        logprobs: (A, T) float32 in nats, captured while sampling; 0 where the mask is False.
        finish_reasons: per answer, "eos" or "length".
        first_logits: (P, V) float32, logits of each prompt's first answer token: the probe of whole distributions.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    logprobs: torch.Tensor
    finish_reasons: tuple[str, ...]
    first_logits: torch.Tensor

    def answer_ids(self, row: int) -> list[int]:
        """The ids of one answer, its EOS included."""
        return self.ids[row, self.mask[row]].tolist()


def answer_draws(generator: torch.Generator, answers: int, tokens: int) -> torch.Tensor:
    """Uniforms in [0, 1), (answers, tokens) FP64 on the CPU: one for every token that could be sampled."""
    return torch.rand(answers, tokens, generator=generator, dtype=torch.float64)


def choose_tokens(logits: torch.Tensor, draws: torch.Tensor | None) -> torch.Tensor:
    """Inverse-CDF sampling at temperature 1 over the full vocabulary, or the most probable token without draws.

    Args:
        logits: (A, V) float.
        draws: (A,) FP64 uniforms, or None for greedy decoding.

    Returns:
        (A,) int64. A token of probability zero is never chosen.
    """
    if draws is None:
        return logits.argmax(dim=-1)
    # On the CPU in FP64 whatever the device, so that a profile samples alike everywhere.
    probabilities = logits.detach().to("cpu", torch.float64).softmax(dim=-1)
    cumulative = probabilities.cumsum(dim=-1)
    # Scaling by the last value keeps a draw near 1 from falling beyond a sum that rounding left below 1.
    chosen = torch.searchsorted(cumulative, draws[:, None] * cumulative[:, -1:], right=True)[:, 0]
    last_possible = probabilities.shape[-1] - 1 - (probabilities > 0).flip(-1).int().argmax(dim=-1)
    return torch.minimum(chosen, last_possible).to(logits.device)


def left_pad(prompts: Sequence[Sequence[int]], pad: int, device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompts side by side with their ends aligned: ids, attention mask and position ids, each (P, S) int64."""
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), pad)
    attention = torch.zeros(len(prompts), width, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        attention[row, width - len(prompt) :] = 1
    positions = (attention.cumsum(dim=1) - 1).clamp(min=0)
    return ids.to(device), attention.to(device), positions.to(device)


def require_sampling_mode(policy: PreTrainedModel) -> None:
    """Dropout would make captured and recomputed log-probabilities disagree."""
    if any(module.training for module in policy.modules()):
        raise VerificationError("The policy is in train() mode, where dropout may act: call policy.eval() first.")


def answer_place(row: int, group_size: int, position: int) -> str:
    """Where in a batch of prompt-major answers something is, in words for an error."""
    return f"prompt {row // group_size}, answer {row % group_size}, answer position {position}"


def _require_draws(draws: torch.Tensor | None, answers: int, prompts: int, max_tokens: int) -> None:
    if draws is None and answers != prompts:
        raise LabError("Greedy decoding gives the same answer every time: use group_size 1, or pass draws.")
    if draws is not None and draws.shape != (answers, max_tokens):
        raise LabError(f"draws has shape {tuple(draws.shape)}: make ({answers}, {max_tokens}) with answer_draws.")


@torch.no_grad()
def generate(
    policy: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    max_tokens: int,
    eos_id: int,
    pad_id: int,
    draws: torch.Tensor | None,
) -> Rollout:
    """Sample `group_size` answers to each prompt (one each, greedily, when `draws` is None).

    Args:
        prompts: P lists of ids.
        draws: (P * group_size, max_tokens) from `answer_draws`, or None.

    Raises:
        VerificationError: train() mode, or logits without a distribution (names prompt, answer and position).
        LabError: draws of another shape, or several greedy answers to one prompt.
    """
    require_sampling_mode(policy)
    _require_draws(draws, len(prompts) * group_size, len(prompts), max_tokens)
    ids, attention, positions = left_pad(prompts, pad_id, policy.device)
    cache = DynamicCache(config=policy.config)
    out = policy.model(input_ids=ids, attention_mask=attention, position_ids=positions, cache=cache)
    first_logits = logits_of(policy, out.last_hidden_state[:, -1])
    cache.batch_repeat_interleave(group_size)
    state = _Decoding(
        attention.repeat_interleave(group_size, dim=0),
        positions[:, -1].repeat_interleave(group_size),
        group_size,
        max_tokens,
        eos_id,
        pad_id,
    )
    logits = first_logits.repeat_interleave(group_size, dim=0)
    for position in range(max_tokens):
        running = state.take(logits, position, draws)
        if not len(running.rows):
            break
        if len(running.kept) < len(logits):
            cache.batch_select_indices(running.kept)
        out = policy.model(
            input_ids=running.tokens[:, None],
            attention_mask=state.attention,
            position_ids=state.positions[:, None],
            cache=cache,
        )
        logits = logits_of(policy, out.last_hidden_state[:, -1])
    return state.rollout(first_logits)


@dataclass(frozen=True)
class _Running:
    rows: torch.Tensor  # original row numbers that go on
    kept: torch.Tensor  # their places in the batch before the finished ones left
    tokens: torch.Tensor  # the tokens they just took


class _Decoding:
    """The answers under construction: which rows still run, and what every row has so far."""

    def __init__(self, attention, last_positions, group_size: int, max_tokens: int, eos_id: int, pad_id: int):
        answers, device = len(attention), attention.device
        self.attention, self.positions, self.group_size = attention, last_positions, group_size
        self.eos_id, self.max_tokens = eos_id, max_tokens
        self.rows = torch.arange(answers, device=device)
        self.ids = torch.full((answers, max_tokens), pad_id, device=device)
        self.mask = torch.zeros(answers, max_tokens, dtype=torch.bool, device=device)
        self.logprobs = torch.zeros(answers, max_tokens, device=device)
        self.finished_by_eos = torch.zeros(answers, dtype=torch.bool, device=device)

    def take(self, logits: torch.Tensor, position: int, draws: torch.Tensor | None) -> _Running:
        """Choose one token for every running row; rows that end leave."""
        self._require_distributions(logits, position)
        tokens = choose_tokens(logits, None if draws is None else draws[self.rows.cpu(), position])
        self.ids[self.rows, position] = tokens
        self.mask[self.rows, position] = True
        self.logprobs[self.rows, position] = selected_logprobs(logits, tokens).float()
        ended = tokens == self.eos_id
        self.finished_by_eos[self.rows[ended]] = True
        goes_on = ~ended if position + 1 < self.max_tokens else torch.zeros_like(ended)
        kept = goes_on.nonzero()[:, 0]
        self.rows, self.positions = self.rows[kept], self.positions[kept] + 1
        grown = torch.nn.functional.pad(self.attention[kept], (0, 1), value=1)
        self.attention = grown
        return _Running(self.rows, kept, tokens[kept])

    def _require_distributions(self, logits: torch.Tensor, position: int) -> None:
        unusable = ~logits.logsumexp(dim=-1).isfinite()
        if unusable.any():
            place = answer_place(int(self.rows[unusable][0]), self.group_size, position)
            raise VerificationError(f"NaN or infinite logits at {place}: the policy diverged or was loaded wrongly.")

    def rollout(self, first_logits: torch.Tensor) -> Rollout:
        longest = int(self.mask.sum(dim=1).max())
        reasons = tuple(EOS if ended else LENGTH for ended in self.finished_by_eos.tolist())
        kept = (tensor[:, :longest].contiguous() for tensor in (self.ids, self.mask, self.logprobs))
        return Rollout(*kept, reasons, first_logits)
