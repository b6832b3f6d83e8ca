"""Compiles the kernels for CUDA, which needs no GPU, and prints as JSON what became of each; arguments: 80, 90, ...

Run by test_triton_kl.py in a process of its own: where kernels are interpreted they cannot be compiled.
"""

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from labs_lib.kernels import triton_kl
from labs_lib.kernels.triton_kl import Tile

FLOATS = {"fp32": "*fp32", "bf16": "*bf16"}
PER_ROW = ("states", "upstream", "logprobs", "kl", "entropy", "normalisers")
# Where contiguous calls have a 1, and where V = 151,936 and H = 896 give multiples of 16: Triton is told both.
ONES = ("policy_step", "reference_step", "gradient_step", "hidden_step", "matrix_step", "reference_matrix_step")
ODD = ("rows", "inner", "splits")


def source(kernel, data: str, constants: dict[str, object]) -> ASTSource:
    """The kernel as a training step calls it: `data` is the type of pointers to logits, states and unembeddings."""
    signature, divisible = {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants or name in ONES:
            signature[name] = "constexpr"
            continue
        number = name in (*ODD, "columns", "width", "first", "depth", "reference_depth")
        number = number or name.endswith(("_outer", "_inner", "_row"))
        signature[name] = "i32" if number else "*fp32" if name in PER_ROW else "*i64" if name == "ids" else data
        if name not in ODD:
            divisible[(place,)] = [["tt.divisibility", 16]]
    ones = {name: 1 for name in ONES if name in kernel.arg_names}
    return ASTSource(kernel, signature, constants | ones, divisible)


def sources(kind: str) -> dict[str, tuple[ASTSource, int]]:
    """Every kernel for operands of one kind, with its number of warps."""
    data, logits = FLOATS[kind], triton_kl.FROM_LOGITS
    hidden: Tile = triton_kl.FROM_HIDDEN_SINGLE if kind == "fp32" else triton_kl.FROM_HIDDEN_HALF
    tile = {"ROWS": logits.rows, "COLUMNS": logits.columns}
    tile_of_products = {"ROWS": hidden.rows, "COLUMNS": hidden.columns, "DEPTH": hidden.depth}
    upcasts = dict.fromkeys(("UPCAST", "REFERENCE_UPCAST"), kind == "fp32")
    return {
        "logits": (source(triton_kl._logits_kernel, data, tile), logits.warps),
        "gradient": (source(triton_kl._gradient_kernel, data, tile), logits.warps),
        "hidden": (source(triton_kl._hidden_kernel, data, tile_of_products | upcasts), hidden.warps),
        "merge": (source(triton_kl._merge_kernel, data, {"ROWS": triton_kl.MERGED_ROWS}), 4),
    }


def described(built) -> dict[str, object]:
    """What a test can ask of compiled code."""
    ptx = built.asm["ptx"]
    return {
        "shared": built.metadata.shared,
        "wide_loads": "ld.global.v4" in ptx,
        "tensor_cores": "mma.sync" in ptx or "wgmma" in ptx,
        "tf32": "tf32" in ptx,
        "atomics": bool(re.search(r"\b(atom|red)\.", ptx)),
    }


def main(capabilities: list[int]) -> None:
    found = {}
    for capability in capabilities:
        for kind in FLOATS:
            for name, (kernel, warps) in sources(kind).items():
                built = triton.compile(kernel, GPUTarget("cuda", capability, 32), {"num_warps": warps})
                found[f"sm_{capability} {name} {kind}"] = described(built)
    print(json.dumps(found))


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
