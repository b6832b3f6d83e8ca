"""Exact KL from hidden states, forward and backward: block by block against the dense formula, time and peak memory.

Every measurement is a process of its own, since the peak of a process's memory never goes down again.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from labs_lib.paths import ROOT
from labs_lib.runtime import CPU_PINS

DENSE, BLOCKWISE = "dense", "blockwise"
WAYS = (DENSE, BLOCKWISE)
VOCABULARY, HIDDEN, BLOCK = 151_936, 896, 4096  # those of the profile qwen2.5-0.5b
# glibc keeps freed blocks of a few megabytes for later, and the blockwise way, which needs 43 MB, is seen with up to
# 146 MB. Told that such blocks are large, it gives them back at once, for a few percent of the time; so for both ways.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes


@dataclass(frozen=True)
class Measured:
    """One way of computing: seconds of each repeat, and the most memory beside the inputs and the gradients."""

    seconds: list[float]
    peak_extra_bytes: int


def kl_case(
    rows: int = 512, repeats: int = 3, both_gradients: bool = True, vocabulary: int = VOCABULARY, threads: int = 1
) -> dict[str, Measured]:
    """Time and peak memory of KL(policy || reference) and its gradient, FP32, by way: "dense" and "blockwise".

    Args:
        rows: tokens; each way gets the same hidden states (rows, 896) and unembeddings (vocabulary, 896).
        repeats: how often each is measured, in turns.
        both_gradients: by hidden states and unembedding, or (False) by hidden states alone.

    The processor is not pinned as on `tiny`: a vocabulary of this size belongs to the other profiles.
    """
    arguments = (rows, vocabulary, int(both_gradients), threads)
    found: dict[str, list[dict]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            found[way].append(_in_a_process(way, arguments))
    return {
        way: Measured([one["seconds"] for one in ones], max(one["peak_extra_bytes"] for one in ones))
        for way, ones in found.items()
    }


def _in_a_process(way: str, arguments: Sequence[int]) -> dict:
    environment = {name: value for name, value in os.environ.items() if name not in CPU_PINS} | GIVE_BACK
    command = [sys.executable, "-m", __name__, way, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def measure(way: str, rows: int, vocabulary: int, both_gradients: bool, threads: int) -> dict:
    """Measure one call in this process, which must not have held more memory before."""
    import torch

    torch.set_num_threads(threads)
    # Filled in place: a temporary copy would raise the peak before the measurement begins.
    generator = torch.Generator().manual_seed(1)
    shapes = ((rows, HIDDEN), (vocabulary, HIDDEN)) * 2
    scales = (1.0, HIDDEN**-0.5) * 2
    tensors = [torch.empty(*s).normal_(0, scale, generator=generator) for s, scale in zip(shapes, scales, strict=True)]
    # The first call loads what torch loads late; a few rows of it need no memory that counts.
    _gradients(way, [tensor[:64].clone() for tensor in tensors], both_gradients)
    before = _peak_bytes()
    began = perf_counter()
    gradients = _gradients(way, tensors, both_gradients)
    seconds = perf_counter() - began
    kept = sum(gradient.numel() * gradient.element_size() for gradient in gradients)
    return {"seconds": seconds, "peak_extra_bytes": _peak_bytes() - before - kept}


def _gradients(way: str, tensors, both_gradients: bool):
    import torch

    from labs_lib.kernels.kl import exact_kl_reference, prefix_statistics_from_hidden

    hidden, matrix, reference_hidden, reference_matrix = tensors
    leaves = [tensor.requires_grad_() for tensor in tensors[: 1 + both_gradients]]
    if way == DENSE:
        kl = exact_kl_reference(hidden @ matrix.T, reference_hidden @ reference_matrix.T)
    else:
        ids = torch.zeros(len(hidden), dtype=torch.int64)
        kl = prefix_statistics_from_hidden(*tensors, ids, BLOCK, use_triton=False).kl
    return torch.autograd.grad(kl.mean(), leaves)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def main() -> int:
    """One measurement, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    for name in ("rows", "vocabulary", "both_gradients", "threads"):
        parser.add_argument(name, type=int)
    options = parser.parse_args()
    found = measure(options.way, options.rows, options.vocabulary, bool(options.both_gradients), options.threads)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
