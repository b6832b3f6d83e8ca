"""Names in a resumable state: each role's tensors stand under its prefix."""

import torch


def role_tensors(role: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`tensors` under the prefix of their role."""
    return {f"{role}.{name}": tensor for name, tensor in tensors.items()}


def tensors_of_role(tensors: dict[str, torch.Tensor], role: str) -> dict[str, torch.Tensor]:
    """What `role_tensors` put under the prefix of `role`, by the names without it."""
    prefix = f"{role}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
