"""How a session starts: processor pins before torch is imported, threads, determinism, versions.

Every lab's first cell calls `start`. On a profile with `pin_cpu`, torch, MKL, oneDNN and numpy's OpenBLAS are held to
one instruction set, so that results are equal on every x86-64 machine, at about twice the time of the fastest code.
"""

import os
import platform
import sys
from dataclasses import replace
from importlib.metadata import version

from labs_lib.config import Profile, load_profile
from labs_lib.cores import lab_threads
from labs_lib.errors import LabError
from labs_lib.reduced import budget_note, reduced

CPU_PINS = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    # numpy's products, in the bias bench.
    "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1",
    # Spinning threads make a busy two-core machine crawl.
    "OMP_WAIT_POLICY": "passive",
}
# Large tensors in pages of two megabytes: a quarter of a real model's iteration goes into zeroing small ones.
LARGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
_session = {"note": ""}
SHOWN_VERSIONS = ("torch", "transformers", "safetensors", "z3-solver", "matplotlib")


def pin_cpu() -> None:
    """Set `CPU_PINS` in the environment; they act only before torch and numpy are first imported.

    Raises LabError when one of them was imported earlier without them.
    """
    early = [name for name in ("torch", "numpy") if name in sys.modules]
    if early and any(os.environ.get(key) != value for key, value in CPU_PINS.items()):
        raise LabError(
            f"{early[0]} was imported before labs_lib.runtime.start: restart the kernel and run the first cells first."
        )
    os.environ.update(CPU_PINS)


def start(profile_name: str, seed: int | None = None, budget: float = 1.0) -> Profile:
    """Load a profile and prepare this process for it; call it before anything else of the library.

    Args:
        profile_name: a file name in `configs/` without its ending.
        seed: replaces the profile's seed when given.
        budget: share of the protocol's counts; below 1 the run is a reduced one, and says so.

    Raises:
        LabError: an unknown profile, torch imported too early, or a CUDA profile without CUDA.
    """
    profile = reduced(load_profile(profile_name), budget)
    _session["note"] = budget_note(profile.protocol_share)
    if seed is not None:
        profile = replace(profile, seed=seed)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # cuBLAS is deterministic only with a fixed workspace, chosen before CUDA starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if profile.pin_cpu:
        pin_cpu()
    else:
        os.environ |= {key: os.environ.get(key, value) for key, value in LARGE_PAGES.items()}
    import torch

    if profile.device == "cuda" and not torch.cuda.is_available():
        raise LabError(
            f"Profile {profile.name} needs a CUDA GPU and torch finds none: use PROFILE=tiny, or install "
            "a CUDA build of torch on a machine with an NVIDIA GPU."
        )
    torch.set_num_threads(lab_threads(profile.threads))
    # The same as use_deterministic_algorithms(True), without its import of the compiler: seconds and 100 MB a process.
    torch.set_deterministic_debug_mode("error")
    # Deterministic mode also fills every new tensor with NaN, a debugging aid that costs a tenth of the time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return profile


def session_note() -> str:
    """What every table of this session has to say of the run: that its budget is reduced, or nothing."""
    return _session["note"]


def describe(profile: Profile) -> str:
    """Versions, profile and device in a few lines, equal on every machine with the pinned requirements."""
    versions = ", ".join(f"{name} {version(name).split('+')[0]}" for name in SHOWN_VERSIONS)
    note = budget_note(profile.protocol_share)
    return (
        f"Python {platform.python_version_tuple()[0]}.x, {versions}\n"
        f"profile {profile.name}, device {profile.device}, {profile.dtype}, seed {profile.seed}"
        + (f"\n{note} The text was written for all of them: results that it names need not be yours." if note else "")
    )
