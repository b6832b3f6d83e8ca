"""From final hidden states to logits, with BF16 weights as with FP32 ones: BF16 operands, FP32 sums."""

import torch
from transformers import PreTrainedModel

from labs_lib.kernels.checks import accumulation_dtype


def unembedding(policy: PreTrainedModel) -> torch.Tensor:
    """The (V, H) matrix that turns hidden states into logits; tied to the embedding."""
    return policy.get_output_embeddings().weight


def logits_of(policy: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """hidden (..., H) -> logits (..., V) in FP32 (FP64 for an FP64 policy), never rounded to BF16."""
    dtype = accumulation_dtype(hidden)
    return torch.nn.functional.linear(hidden.to(dtype), unembedding(policy).to(dtype))
