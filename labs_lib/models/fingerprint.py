"""What identifies a policy: a hash of its parameters' names, dtypes, shapes and bytes."""

import torch

from labs_lib.checkpoint import describe_tensors, untied_state_dict
from labs_lib.storage import canonical_json, sha256_bytes


def policy_fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 over every parameter of `model`, tied ones once; equal for two models with equal bits."""
    return sha256_bytes(canonical_json(describe_tensors(untied_state_dict(model))))


def unique_parameters(model: torch.nn.Module) -> int:
    """Number of parameters, tied embeddings counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
