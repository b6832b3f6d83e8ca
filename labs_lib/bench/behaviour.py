"""What a policy does, exactly: no answer is sampled, every probability is summed over the states."""

from functools import partial

import torch

from labs_lib.bench.policies import STATES_PER_KEY, state_of
from labs_lib.tasks.padded_bits.environment import B0, B1, GOES_ON, MAX_TOKENS, P, S, key_bits


def behaviour(table: torch.Tensor, bits: int = 1) -> dict[str, torch.Tensor]:
    """Success, lengths and entropy of policies, the mean over all keys.

    Args:
        table: log-probabilities (M, 22 * 2**bits, 4).

    Returns:
        by name: "success"; "inverted", the same by the keys with every bit turned; "length" and its means among right
        and wrong answers; "entropy" in nats per answer, (M,) each; "after_pads" (M, 8 - bits): see `after_pads`.
    """
    keys, chances = range(2**bits), table.exp()
    lengths = torch.arange(MAX_TOKENS + 1, dtype=table.dtype)
    right, turned, ended, entropy = [], [], [], []
    for key in keys:
        at = partial(_row, table.view(len(table), -1, STATES_PER_KEY, len(GOES_ON) + 1)[:, key])
        reach = _reach(at)
        right.append(_right_at(at, reach, key_bits(key, bits)))
        turned.append(_right_at(at, reach, key_bits(2**bits - 1 - key, bits)))
        stops = [sum(here * at(t, last)[:, S].exp() for last, here in row.items()) for t, row in enumerate(reach[:-1])]
        ended.append(_by_length([*stops[:-1], stops[-1] + sum(reach[-1].values())], first=1))
        entropy.append(
            sum(here * _entropy(at(t, last)) for t, row in enumerate(reach[:-1]) for last, here in row.items())
        )
    right, turned, ended = (torch.stack(parts).mean(dim=0) for parts in (right, turned, ended))
    wrong = ended - right
    return {
        "success": right.sum(dim=1),
        "inverted": turned.sum(dim=1),
        "length": ended @ lengths,
        "length_right": right @ lengths / right.sum(dim=1),
        "length_wrong": wrong @ lengths / wrong.sum(dim=1),
        "entropy": torch.stack(entropy).mean(dim=0),
        "after_pads": after_pads(chances, bits),
    }


def _row(rows: torch.Tensor, position: int, last: int) -> torch.Tensor:
    return rows[:, state_of(0, position, last)]


def _entropy(row: torch.Tensor) -> torch.Tensor:
    return -(row.exp() * row).sum(dim=-1)


def _reach(at) -> list[dict[int, torch.Tensor]]:
    """Probability (M,) of being at each position with each last token and no stop yet; one row more than positions."""
    reach = [{P: torch.ones_like(at(0, P)[:, 0])}]
    for position in range(MAX_TOKENS):
        here = reach[-1].items()
        reach.append({token: sum(p * at(position, last)[:, token].exp() for last, p in here) for token in GOES_ON})
    return reach


def _right_at(at, reach: list[dict[int, torch.Tensor]], answer: tuple[int, ...]) -> torch.Tensor:
    """Probability that an answer ends in `answer` and a stop, by its length: (M, 9)."""
    found = []
    for begins in range(MAX_TOKENS - len(answer)):
        chance, (first, *later) = 0.0, (*answer, S)
        for last, here in reach[begins].items():
            chance = chance + here * at(begins, last)[:, first].exp()
        for offset, token in enumerate(later, start=1):
            chance = chance * at(begins + offset, answer[offset - 1])[:, token].exp()
        found.append(chance)
    return _by_length(found, first=len(answer) + 1)


def _by_length(chances: list[torch.Tensor], first: int) -> torch.Tensor:
    """Probabilities of lengths first, first + 1, ... as (M, 9), 0 for shorter ones."""
    return torch.nn.functional.pad(torch.stack(chances, dim=1), (first, 0))


def after_pads(chances: torch.Tensor, bits: int = 1) -> torch.Tensor:
    """P(the key's bits | as many bits come next) after 0, 1, ... pads and nothing else, the mean over all keys.

    Args:
        chances: probabilities (M, 22 * 2**bits, 4).

    Returns:
        (M, 8 - bits).
    """
    columns = []
    for pads in range(MAX_TOKENS - bits):
        shares = []
        for key in range(2**bits):
            share, last = 1.0, P
            for offset, token in enumerate(key_bits(key, bits)):
                row = chances[:, state_of(key, pads + offset, last)]
                share, last = share * row[:, token] / (row[:, B0] + row[:, B1]), token
            shares.append(share)
        columns.append(torch.stack(shares).mean(dim=0))
    return torch.stack(columns, dim=1)
