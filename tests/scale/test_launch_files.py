"""The launch files say to accelerate and TRL what they mean, and a mistake in them is seen."""

import pytest
import yaml

from labs_lib.config import load_profile
from labs_lib.errors import ConfigError, LabError
from labs_lib.scale.launch import (
    LAUNCH_FILES,
    PROCESSES_FILE,
    Launch,
    launch_command,
    launch_of,
    processes_for,
    threads_of,
)
from labs_lib.scale.launch_files import FSDP_FILE, VLLM_FILES, fsdp_plugin, launch_environment, trl_file
from labs_lib.scale.settings import share_of

TINY, QWEN = load_profile("tiny"), load_profile("qwen2.5-0.5b")


def changed(tmp_path, file, **changes):
    """A copy of a launch file with other values; a dotted name goes into its section, None leaves a key out."""
    values = yaml.safe_load(file.read_text())
    for name, value in changes.items():
        section, key = (values[name.split("__")[0]], name.split("__")[1]) if "__" in name else (values, name)
        section[key] = value
    (tmp_path / file.name).write_text(yaml.safe_dump(values))
    return tmp_path / file.name


def test_every_file_is_checked_here():
    assert {*LAUNCH_FILES.glob("*.yaml")} == {PROCESSES_FILE, FSDP_FILE, *VLLM_FILES}


# --- accelerate ----------------------------------------------------------------------------------------


@pytest.mark.engine
def test_processes_side_by_side_have_no_shards_and_no_mixed_precision():
    told = launch_environment(PROCESSES_FILE)
    assert told["ACCELERATE_MIXED_PRECISION"] == "no" and "ACCELERATE_USE_FSDP" not in told


@pytest.mark.engine
def test_fsdp_shards_parameters_in_version_2_with_checkpoints():
    told = launch_environment(FSDP_FILE)
    assert told["ACCELERATE_USE_FSDP"] == "true" and told["ACCELERATE_MIXED_PRECISION"] == "bf16"
    plugin = fsdp_plugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward, plugin.activation_checkpointing) == (2, True, True)
    assert plugin.auto_wrap_policy is not None
    # With another type `Trainer.save_model` writes nothing, and the trained policy is lost.
    assert "FULL_STATE_DICT" in str(plugin.state_dict_type)


@pytest.mark.engine
def test_mistakes_in_accelerates_files_are_seen(tmp_path):
    with pytest.raises(LabError, match=r"accelerate refuses processes.yaml.*num_procs"):
        launch_environment(changed(tmp_path, PROCESSES_FILE, num_procs=2))
    with pytest.raises(ConfigError, match=r"fsdp_config fsdp_ofload_params; did you mean fsdp_offload_params"):
        launch_environment(changed(tmp_path, FSDP_FILE, fsdp_config__fsdp_ofload_params=True))
    with pytest.raises(LabError, match="mixed_precision"):
        launch_environment(changed(tmp_path, FSDP_FILE, mixed_precision="bf8"))
    whole = changed(tmp_path, FSDP_FILE, fsdp_config__fsdp_activation_checkpointing=False)
    assert not fsdp_plugin(whole).activation_checkpointing


# --- TRL -------------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("file", VLLM_FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("profile", [TINY, QWEN], ids=["tiny", "qwen2.5-0.5b"])
def test_vllm_files_change_the_rollouts_and_leave_the_protocol(file, profile):
    config = trl_file(profile, file, 1, use_cpu=True)
    assert config.use_vllm and config.vllm_mode == file.stem.removeprefix("vllm-")
    assert (config.num_generations, config.num_iterations, config.beta) == (4, 2, 0.02)
    assert config.vllm_importance_sampling_correction and config.bf16
    assert config.vllm_max_model_length in (None, profile.budget.total_tokens)


@pytest.mark.engine
def test_mistakes_in_trls_files_are_seen(tmp_path):
    server = VLLM_FILES[1]
    with pytest.raises(ConfigError, match="unknown TRL key vllm_hots"):
        trl_file(TINY, changed(tmp_path, server, vllm_hots="x"), 1)
    with pytest.raises(LabError, match="TRL refuses vllm-server.yaml"):
        trl_file(TINY, changed(tmp_path, server, vllm_importance_sampling_clip_min=5.0), 1)


# --- Starting ----------------------------------------------------------------------------------------------


def test_the_command_names_file_processes_and_threads():
    command = launch_command(PROCESSES_FILE, 2, 1, "a.module", "job.json")
    assert command[1:3] == ["-m", "accelerate.commands.launch"]
    assert command[3:] == [
        *("--config_file", str(PROCESSES_FILE), "--num_processes", "2", "--num_cpu_threads_per_process", "1"),
        *("--module", "a.module", "job.json"),
    ]


def test_a_launch_is_named_by_its_files():
    assert launch_of(None, None) == Launch() and Launch().name == "" and Launch().changes == {}
    other = launch_of("fsdp2.yaml", "vllm-server.yaml")
    assert (other.file, other.settings) == (FSDP_FILE.resolve(), VLLM_FILES[1].resolve())
    assert other.name == "fsdp2-vllm-server" and other.changes["vllm_mode"] == "server"
    assert launch_of(None, str(VLLM_FILES[0])).name == "vllm-colocate"
    with pytest.raises(LabError, match=r"no launch file fdsp2.yaml; configs/launch has fsdp2.yaml, processes.yaml"):
        launch_of("fdsp2.yaml", None)


@pytest.mark.parametrize("profile", [TINY, QWEN], ids=["tiny", "qwen2.5-0.5b"])
@pytest.mark.parametrize("file", [PROCESSES_FILE, FSDP_FILE], ids=lambda file: file.stem)
def test_the_processes_of_a_file_can_share_the_prompts(file, profile):
    assert share_of(profile, yaml.safe_load(file.read_text())["num_processes"]) >= 1


def test_two_processes_on_the_cpu_and_gpus_that_share_the_prompts(monkeypatch):
    import torch

    assert processes_for(TINY) == 2 and threads_of(TINY, 2) == 1
    for devices, expected in ((0, 1), (1, 1), (2, 2), (3, 2), (8, 4)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda devices=devices: devices)
        assert processes_for(QWEN) == expected
