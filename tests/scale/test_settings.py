"""A profile in TRL's words: every key has an entry, every word is TRL's, and TRL still means what was compared."""

import dataclasses
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.config import load_profile
from labs_lib.errors import ConfigError, LabError
from labs_lib.scale import settings
from labs_lib.scale.settings import SECTIONS, TRL, counterparts, grpo_config, micro_batch, share_of, trl_settings

PROFILES = ("tiny", "smollm2-135m", "qwen2.5-0.5b")


# --- The table ---------------------------------------------------------------------------------------


def without_an_entry(profile, table):
    """Keys of a profile that can change a GRPO run's numbers, or steer it, and that `table` says nothing about."""
    told = [key for entry in table for key in entry.ours.split(", ")]
    wanted = {f"{section}.{item.name}" for section, kind in SECTIONS.items() for item in dataclasses.fields(kind)}
    wanted |= {key for key in profile.numeric_items(without=("office",)) if not key.startswith(settings.NO_PART)}
    return wanted - set(told)


@pytest.mark.parametrize("name", PROFILES)
def test_every_key_of_ours_has_an_entry(name):
    table = counterparts(load_profile(name), 2)
    assert without_an_entry(load_profile(name), table) == set()
    own = [entry.ours for entry in table if not entry.ours.startswith("(")]
    assert len(own) == len(set(own))
    for entry in table:
        assert (entry.theirs is None) == (entry.engine == settings.NONE)
        assert entry.difference or entry.theirs, f"{entry.ours} has no counterpart and no word about it"


@pytest.mark.parametrize("key", ["grpo.clip_high", "kl_block", "grpo.interrupt_at"])
def test_a_key_without_an_entry_would_be_seen(key):
    profile = load_profile("tiny")
    assert without_an_entry(profile, [e for e in counterparts(profile, 2) if e.ours != key]) == {key}


def test_a_changed_profile_changes_its_entry():
    profile = load_profile("tiny")
    before = {entry.ours: entry.value for entry in counterparts(profile, 2)}
    changed = replace(profile, grpo=replace(profile.grpo, clip_high=0.28, updates_per_iteration=3))
    after = {entry.ours: entry.value for entry in counterparts(changed, 2)}
    differing = {key for key in before if before[key] != after[key]}
    expected = {"grpo.clip_high", "grpo.iterations", "grpo.updates_per_iteration", "grpo.checkpoint_every"}
    assert differing == expected | {"optimizer.warmup_fraction", "optimizer.final_fraction"}


@given(prompts=st.integers(1, 24), size=st.integers(2, 8), at_once=st.integers(1, 24), processes=st.integers(1, 8))
def test_the_processes_share_all_answers_of_an_iteration_or_are_refused(prompts, size, at_once, processes):
    profile = load_profile("tiny")
    grpo = replace(profile.grpo, prompts_per_iteration=prompts, group_size=size, micro_batch_prompts=at_once)
    profile = replace(profile, grpo=grpo)
    if prompts % processes:
        with pytest.raises(LabError, match="cannot be shared evenly"):
            trl_settings(profile, processes)
        return
    made = trl_settings(profile, processes)
    batch, parts = made["per_device_train_batch_size"], made["gradient_accumulation_steps"]
    assert processes * batch * parts == prompts * size
    assert batch % size == 0, "a group is cut"
    assert batch <= max(1, at_once) * size
    assert micro_batch(profile, processes) * parts == share_of(profile, processes)


def test_no_processes_are_refused():
    with pytest.raises(LabError, match="by 0 processes"):
        share_of(load_profile("tiny"), 0)


# --- Against the installed TRL -----------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("name", PROFILES)
def test_every_word_is_one_of_trls(name):
    from trl import GRPOConfig

    known = {item.name for item in dataclasses.fields(GRPOConfig)}
    table = counterparts(load_profile(name), 2)
    assert {entry.theirs for entry in table if entry.engine == TRL} <= known
    settings.require_known(trl_settings(load_profile(name), 2))


@pytest.mark.engine
def test_an_unknown_word_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="unknown TRL key num_generation; did you mean num_generations"):
        grpo_config(load_profile("tiny"), 1, str(tmp_path), num_generation=4)


@pytest.mark.engine
def test_trl_takes_the_profiles_settings(tmp_path):
    config = grpo_config(load_profile("tiny"), 1, str(tmp_path))
    assert (config.generation_batch_size, config.steps_per_generation) == (16, 1)
    assert (config.epsilon, config.epsilon_high, config.beta) == (0.2, 0.2, 0.02)
    assert (config.max_steps, config.num_iterations, config.max_completion_length) == (200, 2, 64)
    assert not config.bf16 and config.loss_type == "grpo"


# What lab 07 says that TRL means when nothing is set. Another value is another definition: read the release notes,
# measure the parity again (tests/scale/test_parity.py), then change the lab.
DEFAULTS = {
    "loss_type": "dapo",
    "scale_rewards": "group",
    "beta": 0.0,
    "use_bias_correction_kl": True,
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "num_iterations": 1,
    "num_generations": 8,
    "steps_per_generation": None,
    "importance_sampling_level": "token",
    "mask_truncated_completions": False,
    "multi_objective_aggregation": "sum_then_normalize",
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "max_completion_length": 512,
    "learning_rate": 1e-6,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "lr_scheduler_type": "linear",
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "gradient_checkpointing": True,
    "remove_unused_columns": False,
    "shuffle_dataset": True,
    "disable_dropout": False,
    "use_vllm": False,
    "vllm_mode": "colocate",
    "vllm_importance_sampling_correction": True,
}


@pytest.mark.engine
@pytest.mark.parametrize("key", DEFAULTS)
def test_trls_defaults_are_those_that_the_lab_speaks_of(key):
    from trl import GRPOConfig

    found = {item.name: item.default for item in dataclasses.fields(GRPOConfig)}
    assert found[key] == DEFAULTS[key]


@pytest.mark.engine
def test_its_learning_rate_is_ours_one_update_late(tmp_path):
    import torch
    from transformers import get_scheduler

    from labs_lib.training.optimizer import Schedule

    profile = load_profile("tiny")
    config = grpo_config(profile, 1, str(tmp_path))
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=config.learning_rate)
    schedule = get_scheduler(
        config.lr_scheduler_type,
        optimizer,
        config.get_warmup_steps(config.max_steps),
        config.max_steps,
        config.lr_scheduler_kwargs,
    )
    theirs = []
    for _ in range(config.max_steps):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    rates = profile.optimizer
    ours = Schedule(config.max_steps, profile.grpo.learning_rate, rates.warmup_fraction, rates.final_fraction)
    expected = [ours.learning_rate(update) for update in range(config.max_steps)]
    # Theirs warms up from the rate that it ends with, ours from one part in twenty of the peak.
    assert theirs[20:] == pytest.approx([expected[19], *expected[20:-1]])
    assert theirs[0] == pytest.approx(rates.final_fraction * profile.grpo.learning_rate)
    assert expected[0] == pytest.approx(profile.grpo.learning_rate / 20) and max(theirs) == pytest.approx(max(expected))
