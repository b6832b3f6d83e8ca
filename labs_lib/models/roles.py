"""The roles of PPO: actor, reference, reward (judge) and critic, each on a frozen backbone of its own.

What a role learned is only its adapters and its head. That is what is saved, fingerprinted and copied; the
backbone is the base, named by its own fingerprint. No two roles share storage: with a shared backbone that
learns, the reward would move while PPO runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from labs_lib.checkpoint import check_tensors, describe_tensors, untied_state_dict
from labs_lib.config import Profile
from labs_lib.errors import VerificationError
from labs_lib.models.base import load_base
from labs_lib.models.half_precision import use_fp32_products
from labs_lib.models.lora import adapters, add_adapters
from labs_lib.storage import canonical_json, sha256_bytes

HEAD_DEVIATION = 0.02


class Scalar(torch.nn.Module):
    """A backbone with adapters and a linear head (H -> 1): one FP32 number per hidden state, a score or a value."""

    def __init__(self, backbone: PreTrainedModel, generator: torch.Generator | None = None):
        """Head weights N(0, 0.02) from `generator`, or zero without one; bias 0."""
        super().__init__()
        self.backbone = backbone
        self.head = torch.nn.Linear(backbone.config.hidden_size, 1, device=backbone.device)
        with torch.no_grad():
            self.head.bias.zero_()
            self.head.weight.zero_()
            if generator is not None:
                drawn = torch.randn(self.head.weight.shape, generator=generator)
                self.head.weight.copy_(HEAD_DEVIATION * drawn)
        self.eval()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden (..., H) in the backbone's dtype -> (...) FP32."""
        return self.head(hidden.float()).squeeze(-1)


@dataclass(frozen=True)
class LoadedRole:
    """A language model with adapters, ready to learn, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_adapted(profile: Profile, generator: torch.Generator) -> LoadedRole:
    """A fresh backbone in `office.dtype`, frozen, with new adapters (A from `generator`, B zero)."""
    loaded = load_base(replace(profile, dtype=profile.office.dtype))
    if loaded.model.device.type == "cpu" and profile.office.dtype == "bfloat16":
        use_fp32_products(loaded.model)
    return LoadedRole(add_adapters(loaded.model, profile.office.lora, generator).eval(), loaded.tokenizer)


# --- What a role learned ---------------------------------------------------------------------------


def learned_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Adapters and head by name, views of the live parameters; every tensor of a model without adapters."""
    adapted = adapters(model)
    if not adapted:
        return untied_state_dict(model)
    tensors = {f"{name}.{part}": getattr(module, part) for name, module in adapted.items() for part in "AB"}
    if isinstance(model, Scalar):
        tensors |= {f"head.{name}": tensor for name, tensor in model.head.named_parameters()}
    return {name: tensor.detach() for name, tensor in tensors.items()}


@torch.no_grad()
def load_learned(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy what `learned_tensors` gave into `model`, in place and strictly.

    Raises CheckpointError naming a missing or unexpected name, or one whose shape or dtype differs.
    """
    own = learned_tensors(model)
    check_tensors(tensors, _forms(own), f"Weights for {type(model).__name__}")
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def _forms(tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    described = {"dtype": lambda t: str(t.dtype).removeprefix("torch."), "shape": lambda t: list(t.shape)}
    return {name: {key: read(tensor) for key, read in described.items()} for name, tensor in tensors.items()}


def learned_fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 over what the model learned."""
    return sha256_bytes(canonical_json(describe_tensors(learned_tensors(model))))


def backbone_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The frozen tensors: those of the base, under its own names."""
    backbone = model.backbone if isinstance(model, Scalar) else model
    kept = {name: tensor for name, tensor in untied_state_dict(backbone).items() if not name.endswith((".A", ".B"))}
    return {name.replace(".base.", "."): tensor for name, tensor in kept.items()}


def backbone_fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 over the frozen tensors; equal to `policy_fingerprint` of the base in the same dtype."""
    return sha256_bytes(canonical_json(describe_tensors(backbone_tensors(model))))


# --- Invariants ------------------------------------------------------------------------------------


def require_separate(roles: Mapping[str, torch.nn.Module]) -> None:
    """No two roles may share mutable storage.

    Raises VerificationError naming the two roles and a tensor.
    """
    owners: dict[int, str] = {}
    for role, model in roles.items():
        pointers = {tensor.untyped_storage().data_ptr(): name for name, tensor in model.state_dict().items()}
        for pointer, name in pointers.items():
            if pointer in owners:
                raise VerificationError(
                    f"{owners[pointer]} and {role} share {name}: load each role on a backbone of its own."
                )
        owners |= dict.fromkeys(pointers, role)


def require_frozen_backbone(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """The backbone has `dtype` and does not learn; adapters and head are FP32; `eval()` everywhere.

    Raises VerificationError naming the first parameter that is otherwise.
    """
    learned = set(learned_tensors(model))
    if any(module.training for module in model.modules()):
        raise VerificationError("A role is in train() mode, where dropout may act: call eval() first.")
    for name, parameter in model.named_parameters():
        expected = torch.float32 if name in learned else dtype
        if parameter.dtype != expected:
            raise VerificationError(f"{name} is {parameter.dtype}, not {expected}: load the role again.")
        if parameter.requires_grad and name not in learned:
            raise VerificationError(f"{name} belongs to the frozen backbone and would learn: freeze it.")


@dataclass(frozen=True)
class RoleCosts:
    """Parameters and bytes of one role; `state_bytes` are Adam's two moments of what learns."""

    role: str
    backbone: int
    adapters: int
    head: int
    learning: int
    weight_bytes: int
    state_bytes: int


def role_costs(role: str, model: torch.nn.Module) -> RoleCosts:
    """Count one role; works on the meta device too."""
    parameters, names = dict(model.named_parameters()), learned_tensors(model)  # tied ones once, without addresses
    learned = {name: parameters[name] for name in names}
    head = _elements(parameter for name, parameter in learned.items() if name.startswith("head."))
    learning = _elements(parameter for parameter in parameters.values() if parameter.requires_grad)
    return RoleCosts(
        role,
        _elements(parameters.values()) - _elements(learned.values()),
        _elements(learned.values()) - head,
        head,
        learning,
        sum(parameter.numel() * parameter.element_size() for parameter in parameters.values()),
        8 * learning,
    )


def _elements(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
