"""Launch files for several GPUs and for vLLM: read by the tools that they are for, without either."""

import os
import tempfile
from pathlib import Path
from typing import Any

import yaml

from labs_lib.config import Profile, check_names
from labs_lib.errors import LabError
from labs_lib.scale.engine import require_engine
from labs_lib.scale.launch import LAUNCH_FILES
from labs_lib.scale.settings import grpo_config

FSDP_FILE = LAUNCH_FILES / "fsdp2.yaml"
VLLM_FILES = (LAUNCH_FILES / "vllm-colocate.yaml", LAUNCH_FILES / "vllm-server.yaml")


def launch_environment(file: Path) -> dict[str, str]:
    """What `accelerate launch --config_file` of this file tells its processes, by accelerate's own reading of it.

    Raises LabError for a file that accelerate refuses, and ConfigError for an FSDP key that it would ignore.
    """
    require_engine()
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    parser = launch_command_parser()
    try:
        arguments, _, _ = _validate_launch_command(parser.parse_args(["--config_file", str(file), "train.py"]))
        environment = prepare_multi_gpu_env(arguments)
    except (ValueError, TypeError, OSError) as error:
        raise LabError(f"accelerate refuses {file.name}: {' '.join(str(error).split())}") from error
    options = {action.dest for action in parser._actions}
    check_names(yaml.safe_load(file.read_text()).get("fsdp_config", {}), options, "key of fsdp_config")
    told = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    return {name: value for name, value in told.items() if name.startswith(("ACCELERATE_", "FSDP_"))}


def fsdp_plugin(file: Path = FSDP_FILE) -> Any:
    """The plugin that accelerate makes of an FSDP file in each process."""
    from accelerate.utils import FullyShardedDataParallelPlugin, patch_environment

    with patch_environment(**launch_environment(file)):
        return FullyShardedDataParallelPlugin()


def trl_file(profile: Profile, file: Path, processes: int, **here: Any) -> Any:
    """TRL's configuration of the profile's run with what a file of `configs/launch` changes.

    Args:
        here: changes for this machine, such as `use_cpu` where a CUDA profile's file is only read.

    Raises ConfigError for a key that TRL does not know, and LabError for a value that it refuses.
    """
    require_engine()
    changes = yaml.safe_load(file.read_text(encoding="utf-8")) | here
    with tempfile.TemporaryDirectory() as folder:
        try:
            return grpo_config(profile, processes, folder, **changes)
        except (ValueError, TypeError) as error:
            raise LabError(f"TRL refuses {file.name}: {' '.join(str(error).split())}") from error
