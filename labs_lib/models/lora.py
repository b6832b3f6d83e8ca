"""Low-rank adapters (Hu et al. 2021, "LoRA", arXiv:2106.09685, section 4.1), from scratch.

W x + (alpha / rank) B (A x): the frozen W keeps its dtype, A and B are FP32, and so is their branch; the sum
returns to the dtype of W's output. B starts at zero, so an adapted model starts as the base itself.
"""

from math import sqrt

import torch
from transformers import PreTrainedModel

from labs_lib.config import Lora
from labs_lib.errors import BaseModelError
from labs_lib.models.half_precision import frozen_linear

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoraLinear(torch.nn.Module):
    """A frozen linear layer and its adapter: A (rank, in) and B (out, rank), both FP32."""

    def __init__(self, base: torch.nn.Linear, settings: Lora, generator: torch.Generator):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scaling = settings.alpha / settings.rank
        device = base.weight.device
        # Uniform within 1/sqrt(in), as PEFT and the paper's code have it; drawn on the CPU whatever the device.
        bound = 1 / sqrt(base.in_features)
        drawn = torch.rand(settings.rank, base.in_features, generator=generator) * (2 * bound) - bound
        self.A = torch.nn.Parameter(drawn.to(device))
        self.B = torch.nn.Parameter(torch.zeros(base.out_features, settings.rank, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., in) -> (..., out), both in the base's dtype."""
        kept = frozen_linear(x, self.base)
        added = torch.nn.functional.linear(torch.nn.functional.linear(x.float(), self.A), self.B)
        return (kept.float() + self.scaling * added).to(kept.dtype)


def add_adapters(model: PreTrainedModel, settings: Lora, generator: torch.Generator) -> PreTrainedModel:
    """Freeze `model` and put an adapter beside each projection of each layer, in place; returns it.

    The adapters' A are drawn from `generator` in the order of the layers and of `PROJECTIONS`.

    Raises:
        BaseModelError: a layer without one of the projections; names it.
    """
    model.requires_grad_(False)
    for number, layer in enumerate(model.model.layers):
        for name in PROJECTIONS:
            block = layer.self_attn if hasattr(layer.self_attn, name) else layer.mlp
            projection = getattr(block, name, None)
            if not isinstance(projection, torch.nn.Linear):
                raise BaseModelError(f"Layer {number} has no linear {name}: adapters need a Qwen2 or Llama base.")
            setattr(block, name, LoraLinear(projection, settings, generator))
    return model


def adapters(model: torch.nn.Module) -> dict[str, LoraLinear]:
    """Every adapted projection of `model` by its name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}
