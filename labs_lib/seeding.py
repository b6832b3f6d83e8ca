"""Named random generators: every random draw of the project comes from one made here.

A name fixes a stream (`"grpo/rollout"`, `"sft/permutation"`), so that adding or moving a draw in one
place cannot shift the numbers of another. The generators live on the CPU whatever the device is, so a
profile draws the same numbers on a laptop and on a GPU machine.
"""

import hashlib

import torch

from labs_lib.errors import ConfigError, VerificationError


def derived_seed(seed: int, name: str) -> int:
    """The 64-bit seed of stream `name`: the first eight bytes of SHA-256("seed/name"), big endian."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"A seed must be an integer, got {seed!r}.")
    if not name:
        raise ConfigError("A random generator needs a name that says what it is for.")
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big")


def named_generator(seed: int, name: str) -> torch.Generator:
    """A fresh CPU generator for stream `name`; the same two arguments always give the same draws.

    torch's CPU Mersenne Twister keeps the low 32 bits of a seed, so two names collide with probability
    2**-32 a pair: name streams by what they are for, and do not open one for each single draw.
    """
    generator = torch.Generator(device="cpu")
    generator.manual_seed(derived_seed(seed, name))
    return generator


def generator_state(generator: torch.Generator) -> torch.Tensor:
    """A copy of the generator's whole state, (bytes,) uint8, fit for a checkpoint's tensors."""
    return generator.get_state().clone()


def restore_generator(state: torch.Tensor) -> torch.Generator:
    """A CPU generator that continues exactly where `generator_state` was taken.

    Raises VerificationError when `state` is not such a state.
    """
    generator = torch.Generator(device="cpu")
    try:
        generator.set_state(state.clone())
    except (RuntimeError, TypeError) as error:
        raise VerificationError(f"A saved random generator state is unusable: {error}.") from error
    return generator
