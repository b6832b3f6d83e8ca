"""BF16 products on the CPU as FP32 products of the upcast operands, rounded to BF16.

That is what BF16 means in this project: BF16 operands, FP32 accumulation. Native BF16 products take other
instructions on every processor and are many times slower under the pins; these are equal everywhere.
"""

import torch
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from labs_lib.models.products import product

EAGER_FP32_PRODUCTS = "eager_fp32_products"


class _FrozenProduct(torch.autograd.Function):
    """x @ weight.T + bias of BF16 operands; the weight is frozen."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: torch.Tensor):
        (weight,) = ctx.saved_tensors
        return _product(upstream, weight.T), None, None


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """FP32 sums over BF16 operands, rounded once."""
    return product(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


def frozen_linear(x: torch.Tensor, layer: torch.nn.Linear) -> torch.Tensor:
    """What the frozen `layer` makes of x (..., in): (..., out) in the dtype of `x`; gradients flow to `x` alone."""
    if x.dtype != torch.bfloat16 or x.device.type != "cpu":
        return torch.nn.functional.linear(x, layer.weight, layer.bias)
    return _FrozenProduct.apply(x, layer.weight, layer.bias)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **_: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Eager attention (Vaswani et al. 2017, section 3.2.1), rounding to the model's dtype where BF16 would.

    query (A, heads, T, D); key and value (A, key-value heads, S, D); returns (A, T, heads, D) and the weights.
    """
    groups, dtype = module.num_key_value_groups, query.dtype
    key, value = (tensor.float().repeat_interleave(groups, dim=1) for tensor in (key, value))
    scores = (query.float() @ key.transpose(2, 3)).to(dtype) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask[:, :, :, : key.shape[-2]]
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(dtype)
    return (weights.float() @ value).to(dtype).transpose(1, 2).contiguous(), weights


def use_fp32_products(model: PreTrainedModel) -> PreTrainedModel:
    """Let a BF16 model on the CPU multiply in FP32, in its attention; `LoraLinear` does so in the projections."""
    AttentionInterface.register(EAGER_FP32_PRODUCTS, _attention)
    AttentionMaskInterface.register(EAGER_FP32_PRODUCTS, eager_mask)
    model.set_attn_implementation(EAGER_FP32_PRODUCTS)
    return model
