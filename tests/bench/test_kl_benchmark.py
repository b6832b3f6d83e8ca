"""What the bench compares for the KL: both ways give the same gradients, and take turns in processes of their own."""

import pytest
import torch

from labs_lib.tools.benchmarks import kl


@pytest.mark.parametrize("both_gradients", [True, False])
def test_both_ways_do_the_same_work(both_gradients):
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(*shape, generator=generator) for shape in ((5, 8), (70, 8), (5, 8), (70, 8))]
    dense, blockwise = (kl._gradients(way, tensors, both_gradients) for way in kl.WAYS)
    assert len(dense) == len(blockwise) == 1 + both_gradients
    for usual, ours in zip(dense, blockwise, strict=True):
        torch.testing.assert_close(ours, usual, rtol=1e-5, atol=1e-6)


def test_turns_and_the_largest_peak(monkeypatch):
    calls, peaks = [], iter([10, 1, 30, 3, 20, 2])

    def in_a_process(way, arguments):
        calls.append((way, arguments))
        return {"seconds": float(len(calls)), "peak_extra_bytes": next(peaks)}

    monkeypatch.setattr(kl, "_in_a_process", in_a_process)
    found = kl.kl_case(rows=7, repeats=3, both_gradients=False, vocabulary=50, threads=2)
    assert calls == [(way, (7, 50, 0, 2)) for _ in range(3) for way in ("dense", "blockwise")]
    assert found["dense"] == kl.Measured([1.0, 3.0, 5.0], 30)
    assert found["blockwise"] == kl.Measured([2.0, 4.0, 6.0], 3)


def test_a_measurement_gives_seconds_and_bytes():
    found = kl.measure("blockwise", rows=4, vocabulary=100, both_gradients=True, threads=1)
    assert found["seconds"] > 0 and set(found) == {"seconds", "peak_extra_bytes"}
