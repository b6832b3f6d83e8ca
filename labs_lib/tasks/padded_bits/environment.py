"""PaddedBits: pads, then the bits of a key, then a stop; the reward ignores the length.

Vocabulary P = 0 (pad), B0 = 1, B1 = 2, S = 3 (stop). A prompt is a key of one or more bits. An answer is right when
the tokens just before its first S are the key's bits: for key 0, [B0, S] and [P, P, B0, S] both earn 1. An answer
without S within `MAX_TOKENS` earns 0.
"""

from collections.abc import Iterator
from itertools import product

import torch

from labs_lib.errors import LabError

P, B0, B1, S = range(4)
VOCABULARY = 4
NAMES = ("P", "B0", "B1", "S")
MAX_TOKENS = 8
GOES_ON = (P, B0, B1)


def key_bits(key: int, bits: int) -> tuple[int, ...]:
    """The tokens that answer `key` (0 .. 2**bits - 1), most significant bit first.

    Raises LabError for a key that the number of bits does not have.
    """
    if not 1 <= bits < MAX_TOKENS or not 0 <= key < 2**bits:
        raise LabError(f"There is no key {key} of {bits} bits: keys are 0 to 2**bits - 1, bits 1 to {MAX_TOKENS - 1}.")
    return tuple(B1 if key >> place & 1 else B0 for place in reversed(range(bits)))


def is_right(answer: tuple[int, ...], key: int, bits: int = 1) -> bool:
    """The rule for one answer, in plain code."""
    if S not in answer:
        return False
    before = answer[: answer.index(S)]
    return before[-bits:] == key_bits(key, bits)


def rewards(answers: torch.Tensor, keys: torch.Tensor, bits: int = 1) -> torch.Tensor:
    """The fast verifier: 1 for right answers, else 0; no Python loop over answers.

    Args:
        answers: (..., T) int64 tokens; what stands after the first S is not read.
        keys: (...) int64.

    Returns:
        (...) float64.
    """
    ended = answers == S
    stop = torch.where(ended.any(dim=-1), ended.int().argmax(dim=-1), -1)  # the first S; -1: none
    right = stop >= bits
    for place in range(bits):  # most significant bit first
        at = (stop - bits + place).clamp(min=0)
        token = answers.gather(-1, at.unsqueeze(-1)).squeeze(-1)
        right = right & (token == B0 + (keys >> (bits - 1 - place) & 1))
    return right.double()


def answer_mask(answers: torch.Tensor) -> torch.Tensor:
    """(..., T) tokens -> (..., T) bool: True up to and including the first S, everywhere without one."""
    stops = (answers == S).int()
    return stops.cumsum(dim=-1) - stops == 0


def possible_answers() -> Iterator[tuple[int, ...]]:
    """Every answer that can be sampled: up to the first S, or `MAX_TOKENS` tokens without S; 9,841 of them."""
    for length in range(MAX_TOKENS):
        yield from ((*before, S) for before in product(GOES_ON, repeat=length))
    yield from product(GOES_ON, repeat=MAX_TOKENS)


def as_tensor(answers: list[tuple[int, ...]]) -> torch.Tensor:
    """Answers side by side, (A, `MAX_TOKENS`) int64; after the end stand pads."""
    return torch.tensor([[*answer, *[P] * (MAX_TOKENS - len(answer))] for answer in answers])
