"""Starting a session: pins before torch, one sentence for what is missing, and text equal on every machine."""

import os
import platform

import pytest
import torch

from labs_lib import runtime
from labs_lib.errors import ConfigError, LabError


def test_the_tiny_profile_pins_processor_and_threads():
    profile = runtime.start("tiny")
    assert {key: os.environ[key] for key in runtime.CPU_PINS} == runtime.CPU_PINS
    assert torch.get_num_threads() == profile.threads == 1
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cpu.get_cpu_capability() == "AVX2" or platform.machine() != "x86_64"
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.parametrize("key", runtime.CPU_PINS)
def test_torch_without_a_pin_is_refused(monkeypatch, key):
    monkeypatch.delenv(key)
    with pytest.raises(LabError, match="restart the kernel"):
        runtime.start("tiny")
    assert key not in os.environ  # setting it now would only hide that it never acted


def test_a_seed_replaces_the_profiles():
    assert runtime.start("tiny").seed == 48 and runtime.start("tiny", seed=7).seed == 7
    assert runtime.start("tiny", seed=0).seed == 0


def test_an_unknown_profile_is_refused_with_the_list():
    with pytest.raises(ConfigError, match="tiny"):
        runtime.start("tinny")


def test_a_cuda_profile_without_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LabError, match=r"qwen2\.5-0\.5b needs a CUDA GPU.*PROFILE=tiny"):
        runtime.start("qwen2.5-0.5b")


def test_the_description_names_nothing_of_this_machine():
    text = runtime.describe(runtime.start("tiny"))
    assert "profile tiny, device cpu, float32, seed 48" in text and "torch 2." in text
    for private in (platform.node(), platform.python_version(), os.getcwd(), "+cpu", "+cu"):
        assert private not in text
