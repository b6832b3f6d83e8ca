"""Named generators: same name, same draws; other name, other draws; a state continues exactly."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.errors import ConfigError, VerificationError
from labs_lib.seeding import derived_seed, generator_state, named_generator, restore_generator


def _draws(generator):
    return torch.rand(4, generator=generator, dtype=torch.float64).tolist()


def test_the_derivation_is_fixed_for_ever():
    # printf '48/grpo/rollout' | sha256sum, first 16 digits: recorded runs depend on it.
    assert derived_seed(48, "grpo/rollout") == 0x74BA736E6E7EC6E0


def test_names_and_seeds_separate_streams():
    streams = [_draws(named_generator(seed, name)) for seed in (48, 49) for name in ("a", "b", "a/b")]
    assert len({tuple(stream) for stream in streams}) == len(streams)
    assert _draws(named_generator(48, "a")) == streams[0]


def test_the_global_generator_plays_no_part():
    torch.manual_seed(1)
    first = _draws(named_generator(48, "a"))
    before = torch.get_rng_state()
    assert _draws(named_generator(48, "a")) == first
    assert torch.equal(torch.get_rng_state(), before)


@given(st.integers(0, 20), st.integers(0, 5))
def test_a_restored_generator_continues_exactly(uniform, normal):
    generator = named_generator(48, "resume")
    torch.rand(uniform, generator=generator)
    torch.randn(normal, generator=generator)
    state = generator_state(generator)
    assert state.dtype == torch.uint8
    copy = restore_generator(state)
    assert torch.equal(generator_state(copy), state)
    assert _draws(copy) == _draws(generator)
    assert torch.equal(torch.randn(3, generator=copy), torch.randn(3, generator=generator))


def test_a_saved_state_is_a_copy():
    generator = named_generator(48, "copy")
    state = generator_state(generator)
    expected = _draws(generator)
    assert _draws(restore_generator(state)) == expected
    assert _draws(restore_generator(state)) == expected


@pytest.mark.parametrize(("seed", "name"), [(True, "a"), ("48", "a"), (4.0, "a"), (48, "")])
def test_bad_arguments_are_refused(seed, name):
    with pytest.raises(ConfigError):
        named_generator(seed, name)


@pytest.mark.parametrize("state", [torch.zeros(3, dtype=torch.uint8), torch.zeros(5056)])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(VerificationError, match="generator state"):
        restore_generator(state)
