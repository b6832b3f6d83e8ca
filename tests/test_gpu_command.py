"""`make gpu`: what it computes from times, and what it says where there is no GPU."""

import subprocess

import pytest
import torch

from labs_lib.config import load_profile
from labs_lib.errors import LabError
from labs_lib.models.base import check_base
from labs_lib.paths import ROOT
from labs_lib.tools import gpu
from labs_lib.tools.gpu_numbers import (
    Timing,
    backward_bytes,
    bandwidth_line,
    copy_bytes,
    forward_bytes,
    operations_line,
    product_operations,
    tokens_line,
)


def test_bytes_that_must_be_moved():
    logits = 512 * 151_936
    assert copy_bytes(logits, 2) == 4 * logits
    # The forward reads two tensors, the backward reads two and writes one.
    assert forward_bytes(512, 151_936, 2) == 4 * logits and forward_bytes(512, 151_936, 4) == 8 * logits
    assert backward_bytes(512, 151_936, 2) == 6 * logits and backward_bytes(512, 151_936, 4) == 12 * logits


def test_operations_of_products():
    assert product_operations(3, 5, 7, products=2) == 2 * 2 * 3 * 5 * 7


def test_a_timing_is_its_median_with_its_spread():
    timing = Timing([0.004, 0.001, 0.002])
    assert timing.median == 0.002 and str(timing).split() == ["2.000", "ms", "(1.000", "to", "4.000)"]


def test_lines_give_rates_by_the_median():
    timing = Timing([0.001, 0.5, 0.002])
    assert bandwidth_line("forward", 4_000_000_000, timing).endswith("2000 GB/s")
    assert bandwidth_line("forward", 4_000_000_000, timing, 2.5e12).endswith("2000 GB/s, 80% of the copy's")
    line = operations_line("forward", 6 * 10**11, timing, 64 << 20)
    assert line.endswith("300.0 TFLOP/s, 64 MiB beside the inputs")
    assert tokens_line("64 answers", 64, timing).endswith("32000 tokens/s")


def test_the_random_model_is_the_profiles():
    model = gpu.random_model("bfloat16", device="meta")
    check_base(model, load_profile(gpu.PROFILE).base)
    assert model.dtype == torch.bfloat16 and model.config._attn_implementation == "eager"


def test_a_machine_without_a_gpu_is_told_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "run_tests", lambda: pytest.fail("nothing may run"))
    with pytest.raises(LabError, match="make gpu needs a CUDA GPU and torch finds none: run it on"):
        gpu.main([])
    with pytest.raises(LabError, match="--repeats is 0"):
        gpu.main(["--repeats", "0"])


def test_make_calls_it():
    command = ["make", "--no-print-directory", "--dry-run", "gpu", "ARGS=--repeats 3"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.strip().endswith("-m labs_lib.tools.gpu --repeats 3")


@pytest.mark.gpu
def test_every_measurement_runs_on_cuda(monkeypatch):
    monkeypatch.setattr(gpu, "VOCABULARY", 1024)
    monkeypatch.setattr(gpu, "ROWS", (8,))
    monkeypatch.setattr(gpu, "CONFIGURATION", {**gpu.CONFIGURATION, "vocab_size": 1024, "num_hidden_layers": 2})
    shown = "\n".join(gpu.measurements(2))
    assert shown.count("GB/s") == 6 and shown.count("TFLOP/s") == 8 and shown.count("tokens/s") == 2
