"""Frozen copies of arguments and results, to see whether a call has changed or differs from another."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy
import torch


def snapshot(value: Any) -> Any:
    """A copy of `value` that later changes cannot reach; what cannot be copied is kept as it is."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, torch.nn.Module):
        return {name: tensor.detach().clone() for name, tensor in value.state_dict().items()}
    if isinstance(value, torch.Generator):
        return None  # a generator is there to be advanced
    if isinstance(value, Mapping):
        return {key: snapshot(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [snapshot(item) for item in value]
    if isinstance(value, numpy.ndarray):
        return value.copy()
    try:
        return copy.deepcopy(value)
    except Exception:  # an object with a file, a lock or a kernel handle inside
        return value


def fresh(value: Any) -> Any:
    """`value` with every tensor, array and container copied, so that a call cannot spoil the original.

    Gradients flow through the copies. Models, generators and other objects are passed on as they are.
    """
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, numpy.ndarray):
        return value.copy()
    if type(value) is dict:
        return {key: fresh(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(fresh(item) for item in value)
    return value


def same(left: Any, right: Any) -> bool:
    """Whether two snapshots are equal, bit for bit in their numbers, NaN being equal to NaN."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return (
            left.shape == right.shape
            and left.dtype == right.dtype
            and torch.allclose(left, right, rtol=0, atol=0, equal_nan=True)
        )
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, numpy.ndarray) and isinstance(right, numpy.ndarray):
        return left.shape == right.shape and bool(((left == right) | ((left != left) & (right != right))).all())
    if type(left) is not type(right):
        return False
    try:
        equal = left == right or (left != left and right != right)
    except Exception:
        return True  # an object that cannot be compared tells nothing
    # Without an __eq__ of its own a copied object never equals its original.
    return bool(equal) or type(left).__eq__ is object.__eq__
