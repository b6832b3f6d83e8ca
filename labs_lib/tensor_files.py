"""safetensors written and read tensor by tensor: a state of 1.6 GB needs no second copy in memory, packed or not.

The library builds and parses whole files in memory, several copies of them, which takes longer than all the hashing
and packing together. The format is its own (huggingface/safetensors, README, "Format"): the header's length in eight
bytes, little-endian; the header, JSON from name to dtype, shape and data_offsets; the elements, row-major, no gaps.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import torch

from labs_lib.errors import CheckpointError

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
PIECE = 1 << 24  # bytes handed on at a time
ALIGNMENT = 8


def tensor_view(tensor: torch.Tensor) -> memoryview:
    """The elements of `tensor` in row-major order as bytes, whatever its device or strides; copied only if need be."""
    return memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def pieces(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None, last: str | tuple[str, ...] = ()
) -> Iterator[memoryview]:
    """A safetensors file in pieces; equal tensors and metadata give equal bytes, whatever the order of insertion.

    Args:
        last: names that begin so come after all others.

    Raises:
        CheckpointError: two tensors share storage (the file would hold it twice), or a dtype has no name.
    """
    order = sorted(tensors, key=lambda name: (name.startswith(last), name))
    contiguous = {name: tensors[name].detach().contiguous() for name in order}
    _require_own_storage(contiguous)
    yield memoryview(_header(contiguous, metadata))
    for tensor in contiguous.values():
        view = tensor_view(tensor)
        for start in range(0, len(view), PIECE):
            yield view[start : start + PIECE]


def _require_own_storage(tensors: Mapping[str, torch.Tensor]) -> None:
    owners: dict[int, str] = {}
    for name, tensor in tensors.items():
        if tensor.numel() and (first := owners.setdefault(tensor.untyped_storage().data_ptr(), name)) != name:
            raise CheckpointError(
                f"These tensors cannot be stored once each; pass them through untied_state_dict: {first} and {name} "
                "share storage."
            )


def _header(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None) -> bytes:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(sorted(metadata.items()))}
    offset = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise CheckpointError(f"{name} has dtype {tensor.dtype}, which states do not keep: convert it first.")
        end = offset + tensor.numel() * tensor.element_size()
        entry = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        header[name], offset = entry, end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def read_tensors(file: BinaryIO, prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors of an open safetensors file whose names begin with `prefix`, on the CPU.

    `file` may unpack as it is read; it is read up to the last of them.

    Raises:
        ValueError: not such a file, cut short, or, where it is read to its end, longer than its header says.
        OSError, zlib.error: what `file` raises when it cannot be unpacked.
    """
    header = json.loads(_exactly(file, int.from_bytes(_exactly(file, 8), "little")))
    header.pop("__metadata__", None)
    left = sum(name.startswith(prefix) for name in header)
    tensors, offset = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if not left:
            return tensors
        tensor = torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
        if entry["data_offsets"] != [offset, offset + tensor.nbytes]:
            raise ValueError(f"{name} lies at {entry['data_offsets']} instead of {[offset, offset + tensor.nbytes]}")
        _fill(file, tensor_view(tensor))
        offset += tensor.nbytes
        if name.startswith(prefix):
            tensors[name], left = tensor, left - 1
    if file.read(1):
        raise ValueError("there are bytes after the last tensor")
    return tensors


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise ValueError("it is cut short")
    return data


def _fill(file: BinaryIO, view: memoryview) -> None:
    filled = 0
    while filled < len(view):
        if not (count := file.readinto(view[filled : filled + PIECE])):
            raise ValueError("it is cut short")
        filled += count
