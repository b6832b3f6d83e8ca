"""Exact KL from hidden states at a large vocabulary, with its gradients: block by block against the dense formula."""

from collections.abc import Iterator

from labs_lib.tools.benchmarks.kl import BLOCK, BLOCKWISE, DENSE, HIDDEN, VOCABULARY, kl_case
from labs_lib.tools.benchmarks.measuring import Comparison, Measured
from labs_lib.tools.benchmarks.options import Options

ROWS, TURNS = 512, 3
SPEED, MEMORY_SHARE = 0.67, 0.05  # at most 1.5 times the dense formula's time
MEGABYTE = 1 << 20


def compare(options: Options) -> Iterator[Comparison]:
    """One comparison; the memory is what a way needs beside its inputs and the gradients that it returns."""
    threads = options.threads or 1
    found = kl_case(ROWS, options.turns(TURNS), threads=threads)
    dense, blockwise = (
        Measured(way, tuple(found[way].seconds), found[way].peak_extra_bytes / MEGABYTE) for way in (DENSE, BLOCKWISE)
    )
    yield Comparison(
        work=f"exact KL and gradients, {ROWS} rows of {HIDDEN}, vocabulary {VOCABULARY:,}, blocks of {BLOCK}, FP32, "
        f"{threads} thread{'s' * (threads > 1)}; memory beside inputs and gradients, freed blocks given back at once",
        unit="call",
        usual=dense,
        ours=blockwise,
        faster=SPEED,
        memory_share=MEMORY_SHARE,
    )
