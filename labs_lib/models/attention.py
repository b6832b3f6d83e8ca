"""Attention in which query heads that share a key-value head are rows of one product.

`eager` repeats keys and values for every query head (three copies of the cache at each decoding step of SmolLM2);
here nothing is repeated, the numbers are those of the same formula, and gradients are deterministic on every device.
"""

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

GROUPED = "grouped_query_rows"


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1) over grouped heads (Ainslie et al. 2023, GQA).

    query (A, heads, T, D); key and value (A, key-value heads, S, D); the mask (A, 1, T, S) is added to the scores.
    Returns (A, T, heads, D), and None in place of weights. There is no dropout: models are always in `eval()` here.
    """
    answers, heads, tokens, width = query.shape
    shared = key.shape[1]
    rows = (query * scaling).reshape(answers, shared, heads // shared * tokens, width)
    scores = rows @ key.transpose(2, 3)
    if attention_mask is not None:
        scores = scores + attention_mask.repeat(1, 1, heads // shared, 1)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).view(answers, heads, tokens, width).transpose(1, 2).contiguous(), None


def register() -> str:
    """Make `grouped_attention` known to transformers; returns the name by which a model asks for it."""
    AttentionInterface.register(GROUPED, grouped_attention)
    AttentionMaskInterface.register(GROUPED, eager_mask)
    return GROUPED


def groups_query_rows(model: PreTrainedModel) -> bool:
    """Whether `model` attends by `grouped_attention`."""
    return model.config._attn_implementation == GROUPED
