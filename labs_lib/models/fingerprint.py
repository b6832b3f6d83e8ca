"""What identifies a policy: a hash of its parameters' names, dtypes, shapes and bytes."""

from collections.abc import Mapping

import torch

from labs_lib.checkpoint import describe_tensors, untied_state_dict
from labs_lib.storage import canonical_json, sha256_bytes


def policy_fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 over every parameter of `model`, tied ones once; equal for two models with equal bits."""
    return tensors_fingerprint(untied_state_dict(model))


def tensors_fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """The fingerprint of a policy, or of what a role learned, by its tensors."""
    return sha256_bytes(canonical_json(describe_tensors(tensors)))


def unique_parameters(model: torch.nn.Module) -> int:
    """Number of parameters, tied embeddings counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
