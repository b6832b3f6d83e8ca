"""OfficeHelp's roles on the very small random model: each on a backbone of its own, with equal weights."""

import copy
from functools import lru_cache

import torch
from small_model import PROFILE, id_lists, small_model, tokenizer
from transformers import PreTrainedModel

from labs_lib.models.half_precision import use_fp32_products
from labs_lib.models.lora import adapters, add_adapters
from labs_lib.models.roles import Scalar
from labs_lib.seeding import named_generator
from labs_lib.training.preferences import PreferenceExample

LORA = PROFILE.office.lora
PAD_ID, EOS_ID = tokenizer().pad_token_id, tokenizer().eos_token_id


@lru_cache
def _pristine() -> PreTrainedModel:
    return small_model()


def small_backbone(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A fresh copy of the small base, multiplying as a role's backbone does."""
    model = copy.deepcopy(_pristine())
    for parameter in model.parameters():  # not the buffers: rotary frequencies stay FP32, as when a base is loaded
        parameter.data = parameter.to(dtype)
    return use_fp32_products(model) if dtype == torch.bfloat16 else model


def small_actor(seed: int = 0, dtype: torch.dtype = torch.float32, learned: bool = False) -> PreTrainedModel:
    """New adapters from `seed`; with `learned`, B is not zero, as if they had learned something."""
    model = add_adapters(small_backbone(dtype), LORA, named_generator(seed, "office/adapters")).eval()
    if learned:
        fill_adapters(model, seed)
    return model


def small_judge(seed: int = 0, dtype: torch.dtype = torch.float32, learned: bool = False) -> Scalar:
    """A scalar role whose head is drawn from `seed`."""
    return Scalar(small_actor(seed, dtype, learned), named_generator(seed, "office/head"))


def small_critic(seed: int = 0, dtype: torch.dtype = torch.float32, learned: bool = False) -> Scalar:
    """A scalar role whose head starts at zero; with `learned`, it is drawn."""
    critic = Scalar(small_actor(seed, dtype, learned))
    if learned:
        with torch.no_grad():
            critic.head.weight.normal_(0, 0.1, generator=named_generator(seed, "test/head"))
            critic.head.bias.fill_(0.25)
    return critic


@torch.no_grad()
def fill_adapters(model: torch.nn.Module, seed: int, size: float = 0.1) -> None:
    """Give every B values around `size`: large enough to be seen, small enough to leave distributions usable."""
    generator = named_generator(seed, "test/adapters")
    for adapter in adapters(model).values():
        adapter.B.normal_(0, size, generator=generator)


def preferences(seed: int = 30, count: int = 8) -> list[PreferenceExample]:
    """Pairs with answers of 2 to 6 tokens, EOS included: mostly of unequal lengths."""
    prompts = id_lists(seed, count)
    chosen, rejected = ([[*ids, EOS_ID] for ids in id_lists(seed + n, count, 1, 5)] for n in (1, 2))
    return [
        PreferenceExample(f"pair-{n}", *parts) for n, parts in enumerate(zip(prompts, chosen, rejected, strict=True))
    ]
