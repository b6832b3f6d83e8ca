"""What every kernel checks about its tensors, so that each mistake has one sentence and one place."""

import torch

from labs_lib.errors import LabError


def accumulation_dtype(tensor: torch.Tensor) -> torch.dtype:
    """FP64 stays FP64 (the tests' reference precision); every other float is summed in FP32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def describe_place(index: list[int]) -> str:
    """Name an entry of a (...,) or (A, T) tensor for an error message."""
    if len(index) == 2:
        return f"prompt/answer row {index[0]}, position {index[1]}"
    return "row " + ", ".join(map(str, index)) if index else "the only row"


def refuse_where(bad: torch.Tensor, problem: str, remedy: str) -> None:
    """Raise LabError naming the first True entry of ``bad``; one device synchronisation, no copy."""
    if bad.any():
        place = describe_place(bad.nonzero()[0].tolist())
        raise LabError(f"{problem} at {place}: {remedy}.")


def require_shape(tensor: torch.Tensor, shape: torch.Size, name: str, expected: str) -> None:
    """Raise LabError unless ``tensor`` has exactly this shape: broadcasting would hide a swapped axis."""
    if tensor.shape != shape:
        raise LabError(
            f"{name} has shape {tuple(tensor.shape)} but {tuple(shape)} is needed ({expected}): "
            "pass one entry for each."
        )


def require_ids(ids: torch.Tensor, shape: torch.Size, vocabulary: int) -> None:
    """Raise LabError unless ``ids`` is int64 of ``shape`` with every value in 0..vocabulary-1."""
    if ids.dtype != torch.int64:
        raise LabError(f"ids has dtype {ids.dtype}: token ids are int64, convert with ids.long().")
    require_shape(ids, shape, "ids", "the leading dimensions of the logits")
    refuse_where(
        (ids < 0) | (ids >= vocabulary),
        f"A token id outside 0..{vocabulary - 1}",
        "pass ids of this vocabulary, padding included",
    )


def require_mask(mask: torch.Tensor, shape: torch.Size) -> None:
    """Raise LabError unless ``mask`` is bool of ``shape`` (a float mask would weight tokens silently)."""
    if mask.dtype != torch.bool:
        raise LabError(f"mask has dtype {mask.dtype}: make it bool, True for answer tokens and EOS.")
    require_shape(mask, shape, "mask", "one flag per token")
