"""Loading a base model strictly: right files, right architecture, right size, tied embeddings.

Three sources, one check: `assets` (built by this repository), `wheel` (SmolLM2 inside a PyPI wheel, converted by
`make model`) and `hub` (a pinned revision). Every call returns a model of its own: two policies never share storage.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from labs_lib.config import Base, Profile
from labs_lib.errors import BaseModelError
from labs_lib.models.attention import register
from labs_lib.models.fingerprint import unique_parameters
from labs_lib.models.locations import WEIGHTS, base_folder
from labs_lib.models.products import use_onednn_products
from labs_lib.storage import sha256_file


@dataclass(frozen=True)
class LoadedBase:
    """A base ready to be trained; `sha256` is that of its weights file."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    sha256: str


def load_base(profile: Profile, weak: bool = False) -> LoadedBase:
    """Load a fresh copy of the profile's base: `eval()`, every parameter trainable.

    Dropout is off in generation and in updates; `eval()` does not stop autograd.

    Raises:
        BaseModelError: missing or unreadable files, weights that do not fit, a wrong hash, architecture or parameter
            count, untied embeddings, or a tokenizer that is not the base's or knows no chats.
    """
    return load_folder(base_folder(profile, weak), profile, None if weak else profile.base.sha256)


def load_folder(folder: Path, profile: Profile, sha256: str | None) -> LoadedBase:
    """`load_base` for files that lie in `folder`; `sha256` of the weights is checked unless it is None."""
    digest = sha256_file(folder / WEIGHTS)
    if sha256 not in (None, digest):
        raise BaseModelError(
            f"{folder.name}/{WEIGHTS} has SHA-256 {digest[:12]}…, the profile expects "
            f"{sha256[:12]}…: fetch or rebuild the base, or correct base.sha256."
        )
    # `eager` rounds as it did when the pinned profile's results were recorded.
    attention = "eager" if profile.pin_cpu else register()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, profile.dtype),
            attn_implementation=attention,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # they are in the report
            output_loading_info=True,
        )
        tokenizer = base_tokenizer(profile.base, folder)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise BaseModelError(f"{folder.name} cannot be read as a model: {' '.join(str(error).split())}.") from error
    check_base(model, profile.base)
    check_complete(report)
    check_tokenizer(tokenizer, model)
    if profile.pin_cpu and model.dtype == torch.float32:
        use_onednn_products(model)
    return LoadedBase(model.to(profile.device).eval(), tokenizer, digest)


def base_tokenizer(base: Base, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in the base's `folder`."""
    # AutoTokenizer goes by the architecture: for our own tokenizer it would add Qwen's tokens, beyond the embedding.
    loader = PreTrainedTokenizerFast if base.source == "assets" else AutoTokenizer
    return loader.from_pretrained(folder, local_files_only=True)


def check_base(model: PreTrainedModel, base: Base) -> None:
    """Architecture, number of unique parameters, and the tie of unembedding and embedding.

    Raises:
        BaseModelError: names what differs and both values.
    """
    name = type(model).__name__
    if name != base.architecture:
        raise BaseModelError(f"The base is a {name}, the profile expects {base.architecture}.")
    if model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
        raise BaseModelError("The base's unembedding is not tied to its embedding: load a checkpoint that ties them.")
    count = unique_parameters(model)
    if count != base.parameters:
        raise BaseModelError(f"The base has {count:,} unique parameters, the profile expects {base.parameters:,}.")


def check_complete(report: Mapping[str, Collection]) -> None:
    """The weights file must hold every parameter and nothing else: `transformers` would draw what is missing at random.

    Args:
        report: what `from_pretrained` says about missing, unexpected and mismatched names.

    Raises:
        BaseModelError: names one that is wrong.
    """
    for kind in ("missing", "unexpected", "mismatched"):
        names = sorted(name if isinstance(name, str) else name[0] for name in report[f"{kind}_keys"])
        if names:
            raise BaseModelError(
                f"{WEIGHTS} does not fit config.json: {len(names)} {kind} tensors, {names[0]} for one; "
                "fetch or rebuild the base."
            )


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Every id of the tokenizer must have a row in the embedding (which may have more), and chats need a template.

    Raises:
        BaseModelError: names both sizes, or what the tokenizer lacks.
    """
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise BaseModelError(
            f"The tokenizer has {len(tokenizer):,} ids and the embedding {rows:,} rows: they are not of one base."
        )
    for name in ("chat_template", "eos_token"):
        if getattr(tokenizer, name) is None:
            raise BaseModelError(f"The base's tokenizer has no {name}: the labs need an instruct model.")


def meta_model(config_folder: Path) -> PreTrainedModel:
    """The model of a configuration on the meta device: shapes and counts without any memory."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config_folder, local_files_only=True))
