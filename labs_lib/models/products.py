"""FP32 products on the CPU by oneDNN, whose instruction set the pins hold.

MKL, to which torch gives them otherwise, is equal on every processor only in its slowest mode, about a quarter of
oneDNN's speed at the batch sizes of the labs.
"""

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from transformers import PreTrainedModel

FEW_ROWS = 16  # up to here, as in decoding, oneDNN's preparations cost more than it saves
ROWS = 32  # it writes a kernel for every shape that it meets, in about a millisecond: so let it meet few


def by_onednn(x: torch.Tensor) -> bool:
    """Whether products of x (..., in) go to oneDNN: FP32 and many rows, where torch has oneDNN at all."""
    many = x.numel() > FEW_ROWS * x.shape[-1]
    return many and x.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x (..., in) @ weight.T + bias -> (..., out), without a gradient of its own."""
    if not by_onednn(x):
        return linear(x, weight, bias)
    rows = x.numel() // x.shape[-1]
    full = _onednn(_whole(x.reshape(rows, -1)), weight, bias)
    return full[:rows].view(*x.shape[:-1], -1)


def outer_product(rows: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
    """rows (N, out), read (N, in) -> (out, in), the sum over N of their outer products: a weight's gradient."""
    if not by_onednn(read):
        return rows.T @ read
    return _onednn(_whole(rows).T, _whole(read).T)


def _onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _whole(rows: torch.Tensor) -> torch.Tensor:
    """(N, K) with rows of zeros up to a multiple of `ROWS`."""
    return torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % ROWS))


class _Product(torch.autograd.Function):
    """`product` with the gradients of a linear layer."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: torch.Tensor):
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        rows, read = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (upstream, x))
        return (
            product(upstream, weight.T) if for_x else None,
            outer_product(rows, read) if for_weight else None,
            rows.sum(dim=0) if for_bias else None,
        )


class OneDnnLinear(torch.nn.Linear):
    """A linear layer whose products, forward and backward, are `product`s."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., in) -> (..., out)."""
        return _Product.apply(x, self.weight, self.bias)


def use_onednn_products(model: PreTrainedModel) -> PreTrainedModel:
    """Let every linear layer below the unembedding multiply by oneDNN, in place; parameters and names stay."""
    for module in list(model.model.modules()):
        for name, layer in module.named_children():
            if type(layer) is torch.nn.Linear:
                faster = OneDnnLinear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
                faster.weight, faster.bias = layer.weight, layer.bias
                setattr(module, name, faster.train(layer.training))
    return model
