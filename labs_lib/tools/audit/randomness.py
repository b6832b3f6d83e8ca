"""The random streams of a run, drawn again in plain Python: torch's CPU generator and numpy's default one.

With them the audit replays the order of examples and prompts, the shuffled rewards, the draws behind a probed
token, and the resamples behind a bootstrap interval.
"""

import hashlib
import random
from collections.abc import Iterator
from itertools import islice

MASK32, MASK64, MASK128 = (1 << 32) - 1, (1 << 64) - 1, (1 << 128) - 1


def derived_seed(seed: int, name: str) -> int:
    """The 64-bit seed of the stream `name`: the first eight bytes of SHA-256("seed/name"), big endian."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big")


class TorchGenerator:
    """torch's CPU generator: the Mersenne Twister MT19937 (Matsumoto and Nishimura 1998), seeded by one word."""

    def __init__(self, seed: int):
        words = [seed & MASK32]
        for index in range(1, 624):
            words.append((1812433253 * (words[-1] ^ (words[-1] >> 30)) + index) & MASK32)
        # Python's own generator is the same twister; only its way of seeding differs.
        self._words = random.Random()
        self._words.setstate((3, (*words, 624), None))

    def permutation(self, n: int) -> list[int]:
        """`torch.randperm(n)`: Fisher-Yates, one word for each place but the last."""
        order = list(range(n))
        for place in range(n - 1):
            other = place + self._words.getrandbits(32) % (n - place)
            order[place], order[other] = order[other], order[place]
        return order

    def uniforms(self, count: int) -> list[float]:
        """`torch.rand(count, dtype=torch.float64)`: 53 bits of two words each."""
        bits = self._words.getrandbits
        return [(((bits(32) << 32) | bits(32)) & ((1 << 53) - 1)) / (1 << 53) for _ in range(count)]


def torch_stream(seed: int, name: str) -> TorchGenerator:
    """The generator of a named stream of a run with `seed`."""
    return TorchGenerator(derived_seed(seed, name))


def numpy_indices(seed: int, n: int, count: int) -> list[int]:
    """`numpy.random.default_rng(seed).integers(0, n, count)`, by Lemire's method (2019) on 32-bit words."""
    if n == 1:
        return [0] * count
    words, threshold = _pcg64_words32(seed), (MASK32 - (n - 1)) % n
    accepted = (product >> 32 for product in (word * n for word in words) if (product & MASK32) >= threshold)
    return list(islice(accepted, count))


def _pcg64_words32(seed: int) -> Iterator[int]:
    """32-bit words of PCG64, XSL-RR output (O'Neill 2014): each 64-bit word gives its low half first."""
    high, low, increment_high, increment_low = _seed_sequence(seed)
    multiplier = 0x2360ED051FC65DA44385DF649FCCF645
    increment = (((increment_high << 64 | increment_low) << 1) | 1) & MASK128
    state = (increment + (high << 64 | low)) & MASK128
    state = (state * multiplier + increment) & MASK128
    while True:
        state = (state * multiplier + increment) & MASK128
        mixed, turn = (state >> 64) ^ (state & MASK64), state >> 122
        word = ((mixed >> turn) | (mixed << (64 - turn))) & MASK64
        yield word & MASK32
        yield word >> 32


def _seed_sequence(seed: int) -> list[int]:
    """Four 64-bit words out of one seed below 2^128, as numpy's SeedSequence mixes them."""
    constant = 0x43B0D7E5

    def hashed(value: int) -> int:
        nonlocal constant
        value ^= constant
        constant = constant * 0x931E8875 & MASK32
        value = value * constant & MASK32
        return value ^ value >> 16

    pool = [hashed(seed >> 32 * index & MASK32) for index in range(4)]
    for source in range(4):
        for target in range(4):
            if source != target:
                mixed = (0xCA01F9DD * pool[target] - 0x4973F715 * hashed(pool[source])) & MASK32
                pool[target] = mixed ^ mixed >> 16
    constant, words = 0x8B51F9DD, []
    for index in range(8):
        value = pool[index % 4] ^ constant
        constant = constant * 0x58F38DED & MASK32
        value = value * constant & MASK32
        words.append(value ^ value >> 16)
    return [words[index] | words[index + 1] << 32 for index in range(0, 8, 2)]
