"""What one GRPO iteration really holds in memory, counted tensor by tensor: what the plan on paper is held to."""

from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from labs_lib.branches import PolicySource
from labs_lib.config import Profile
from labs_lib.models.base import LoadedBase
from labs_lib.models.chat import pad_id
from labs_lib.rollout import left_pad
from labs_lib.scale.parity import our_trainer
from labs_lib.scoring import answer_hidden_plain, masked_hidden
from labs_lib.training.grpo import Batch


def tensor_bytes(tensors: Any) -> int:
    """Bytes of the storages of some tensors, shared ones once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@contextmanager
def kept_for_backward(model: PreTrainedModel):
    """Yields a list that grows by every tensor that autograd keeps inside, but for the model's own parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: list[torch.Tensor] = []  # which also keeps them alive: no storage is counted under another's address

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def state_measured(profile: Profile, source: PolicySource, batch: Batch) -> dict[str, int]:
    """Bytes of policy, reference, gradients and Adam's moments in a real update of `batch`."""
    policy, reference = source.load().model, source.load()
    trainer = our_trainer(profile, policy, reference)
    gradients: list[int] = []
    step = trainer.optimizer.step

    def counting() -> dict[str, float]:
        gradients.append(tensor_bytes(p.grad for p in policy.parameters()))
        return step()

    trainer.optimizer.step = counting
    trainer.update(batch, _reference_hidden(reference, batch))
    moments = [tensor for name, tensor in trainer.optimizer.tensors().items() if ".step." not in name]
    return {
        "policy": tensor_bytes(policy.parameters()),
        "reference": tensor_bytes(reference.model.parameters()),
        "gradients": gradients[0],
        "Adam": tensor_bytes(moments),
    }


def _reference_hidden(reference: LoadedBase, batch: Batch) -> torch.Tensor:
    return masked_hidden(
        reference.model, batch.prompt_ids, batch.rollout.ids, batch.rollout.mask, pad_id(reference.tokenizer)
    )


def activations_measured(policy: LoadedBase, batch: Batch) -> tuple[int, int, int]:
    """Bytes kept for the backward pass by full sequences of `batch`, as TRL scores them; tokens; keys of each."""
    width = max(map(len, batch.prompt_ids)) + batch.rollout.ids.shape[1] - 1
    with kept_for_backward(policy.model) as kept:
        hidden = answer_hidden_plain(policy.model, batch.prompt_ids, batch.rollout.ids, pad_id(policy.tokenizer))
    del hidden
    return tensor_bytes(kept), width * len(batch.rollout.ids), width


@torch.no_grad()
def cache_measured(policy: LoadedBase, prompts: list[list[int]]) -> tuple[int, int]:
    """Bytes of the key-value cache after reading `prompts`, and the tokens of each, padding included."""
    ids, attention, positions = left_pad(prompts, pad_id(policy.tokenizer), policy.model.device)
    cache = DynamicCache(config=policy.model.config)
    policy.model.model(input_ids=ids, attention_mask=attention, position_ids=positions, cache=cache)
    return tensor_bytes(tensor for layer in cache.layers for tensor in (layer.keys, layer.values)), ids.shape[1]
