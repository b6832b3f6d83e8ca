"""The plan on paper: exact where it counts, and held to the memory of runs that were really made."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.branches import policy_source
from labs_lib.config import load_profile
from labs_lib.models.base import meta_model
from labs_lib.models.fingerprint import unique_parameters
from labs_lib.models.locations import base_location
from labs_lib.paths import ROOT
from labs_lib.scale import plan
from labs_lib.scale.memory import activations_measured, cache_measured, state_measured
from labs_lib.scale.parity import fixed_batch
from labs_lib.scale.plan import IN_FP32, MIXED, SHAPES, Counts, Shape, shape_of

TINY, SMOLLM2 = load_profile("tiny"), load_profile("smollm2-135m")
LAB = Counts(4, 4, 57, 9, 2, 16)
SMOLLM2_SHAPE = Shape("smollm2-135m", 30, 576, 1536, 9, 3, 64, 49_152, True, False)
PUBLISHED = {"0.5 B": 494_032_768, "7 B": 7_615_616_512, "70 B": 70_553_706_496}
# README, Speed: peaks of `make bench`, in GB, one iteration of 4 x 4 answers of 9 tokens, prompts of 57.
MEASURED_OURS, MEASURED_TRL, MEASURED_PROCESS = 3.73, 5.46, 0.45


# --- Parameters ----------------------------------------------------------------------------------------


def test_parameters_are_those_that_are_published():
    assert {shape.name: shape.parameters for shape in SHAPES} == PUBLISHED
    assert SMOLLM2_SHAPE.parameters == SMOLLM2.base.parameters


def test_the_shape_of_a_configuration_has_its_models_parameters():
    model = meta_model(ROOT / base_location(TINY))
    shape = shape_of("tiny", model.config)
    assert shape.parameters == unique_parameters(model) == TINY.base.parameters


@pytest.mark.parametrize(
    "change", [{"tied": False}, {"attention_bias": False}, {"kv_heads": 4}, {"layers": 5}, {"head_size": 16}]
)
def test_every_part_of_a_shape_counts(change):
    shape = shape_of("tiny", meta_model(ROOT / base_location(TINY)).config)
    assert replace(shape, **change).parameters != TINY.base.parameters


# --- Memory --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
    source = policy_source(TINY, "base")
    start = source.load()
    return source, start, fixed_batch(TINY, start, 0).batch, shape_of("tiny", start.model.config)


def test_the_states_are_those_of_a_real_update(tiny):
    source, _, batch, shape = tiny
    assert state_measured(TINY, source, batch) == plan.state_bytes(shape, IN_FP32)


def test_the_cache_is_that_of_a_real_one(tiny):
    _, start, batch, shape = tiny
    measured, tokens = cache_measured(start, batch.prompt_ids * 3)
    assert measured == plan.cache_bytes(shape, 3, tokens, IN_FP32)


def test_activations_are_those_of_a_real_forward_pass(tiny):
    _, start, batch, shape = tiny
    measured, tokens, keys = activations_measured(start, batch)
    assert plan.activation_bytes(shape, tokens, keys, IN_FP32) == pytest.approx(measured, rel=0.1)
    without_the_mlp = replace(shape, intermediate=0)
    assert plan.activation_bytes(without_the_mlp, tokens, keys, IN_FP32) != pytest.approx(measured, rel=0.1)


def test_the_plan_meets_the_peaks_that_make_bench_measured():
    """Ours reads each prompt once for its group: 4 x 57 + 16 x 8 tokens, one row a prompt.

    States and process are most of a peak, so what is left of it is compared: activations, to a quarter.
    """
    states = sum(plan.state_bytes(SMOLLM2_SHAPE, IN_FP32).values()) / plan.GB
    row = LAB.prompt_tokens + LAB.group_size * (LAB.answer_tokens - 1)
    ours = plan.activation_bytes(SMOLLM2_SHAPE, LAB.prompts * row, row, IN_FP32) / plan.GB
    assert ours == pytest.approx(MEASURED_OURS - states - MEASURED_PROCESS, rel=0.25)
    # TRL's batch is full sequences; a third of what it holds beside the states is not accounted for.
    usual = plan.memory(SMOLLM2_SHAPE, LAB, IN_FP32)["peak"] / plan.GB - states
    assert 0.6 < usual / (MEASURED_TRL - states - MEASURED_PROCESS) < 1


SMALL = Shape("by hand", 2, 8, 16, 4, 2, 2, 10, True, False)  # 2 x 592 + 88 parameters
FEW = Counts(2, 3, 5, 7, 2, 1)


def test_a_peak_by_hand():
    """Sampling holds 16 numbers a token and sequence; an update of one answer 12 tokens."""
    parameters = 10 * 8 + 2 * (2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16 + 2 * 8) + 8
    assert SMALL.parameters == parameters
    found = plan.memory(SMALL, FEW, MIXED)
    assert found["KV cache"] == 2 * 2 * 2 * 2 * (6 * 12) * 2
    assert found["activations"] == 2 * 12 * (6 * 8 + 4 * 4 * 2 + 4 * 12 + 4 * 16) * 2
    states = parameters * (4 + 2 + 4 + 8)
    learning, sampling = states + found["activations"], states - 4 * parameters + 2 * parameters + found["KV cache"]
    assert found["peak"] == max(learning, sampling) == learning
    many = plan.memory(SMALL, replace(FEW, prompts=200), MIXED)
    assert many["peak"] == states - 4 * parameters + 2 * parameters + many["KV cache"]


@pytest.mark.parametrize(("size", "copy"), [(IN_FP32, 0), (MIXED, 2 * 1272)])
def test_only_mixed_numbers_need_a_copy_to_sample_with(size, copy):
    assert plan.memory(SMALL, FEW, size)["sampler's copy"] == copy


def test_checkpointing_keeps_a_hidden_state_a_layer_and_one_layer_in_full():
    without, with_it = (plan.activation_bytes(SHAPES[1], 1_000, 500, MIXED, kept) for kept in (False, True))
    layers = SHAPES[1].layers
    assert with_it == pytest.approx(without / layers + 2 * 1_000 * layers * SHAPES[1].hidden)


# --- Time ----------------------------------------------------------------------------------------------


def test_a_decoding_step_by_hand():
    """7.6 billion BF16 weights at 0.6 x 3.35 TB/s: 7.6 ms a step, whether for one sequence or for sixteen."""
    one, sixteen = (plan.decode_seconds(SHAPES[1], n, 0, 1) for n in (1, 16))
    assert one == sixteen == pytest.approx(2 * PUBLISHED["7 B"] / (0.6 * 3.35e12))
    assert plan.tokens_per_second(SHAPES[1], 16, 0, 1) == pytest.approx(16 / one)


@given(st.sampled_from(SHAPES), st.integers(0, 7), st.integers(1, 4096), st.integers(1, 16))
def test_more_answers_at_once_never_lower_the_speed_nor_raise_the_share_of_sampling(shape, doubling, tokens, devices):
    few, many = 2**doubling, 2 ** (doubling + 1)
    speeds = [plan.tokens_per_second(shape, n, tokens, devices) for n in (few, many)]
    assert speeds[1] >= speeds[0] * (1 - 1e-12)
    shares = [
        plan.iteration_seconds(shape, Counts(n, 2, 256, tokens, 2, 2), devices).rollout_share for n in (few, many)
    ]
    assert 0 < shares[1] <= shares[0] * (1 + 1e-12) < 1


def test_devices_are_counted_up():
    device = plan.H100
    assert plan.devices_needed(1) == 1
    assert plan.devices_needed(plan.FILLED * device.memory) == 1
    assert plan.devices_needed(plan.FILLED * device.memory + 1) == 2


@pytest.mark.parametrize(("checkpointing", "passes"), [(False, 3), (True, 4)])
def test_an_iteration_by_hand(checkpointing, passes):
    """1 device of 1 operation and 1 byte a second; six answers of seven tokens to two prompts of five."""
    device = plan.Device("slow", 1, 1, 1, 1, 1)
    found = plan.iteration_seconds(SMALL, FEW, 1, device, checkpointing)
    step = max(1272 * 2 + 6 * 16 * 2 * (5 + 3.5), 2 * 1272 * 6)
    assert found.sampling == 2 * 1272 * 2 * 5 + 7 * step
    assert found.scoring == 2 * (2 * 1272 * 6 * 12)
    assert found.updating == 2 * passes * (2 * 1272 * 6 * 12)
