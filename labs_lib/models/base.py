"""Loading a base model strictly: right files, right architecture, right size, tied embeddings.

Three sources, one check: `assets` (built by this repository), `wheel` (SmolLM2 inside a PyPI wheel, converted by
`make model`) and `hub` (a pinned revision). Every call returns a model of its own: two policies never share storage.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
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
from labs_lib.models.products import use_onednn_products
from labs_lib.paths import ROOT
from labs_lib.storage import sha256_file

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class LoadedBase:
    """A base ready to be trained; `sha256` is that of its weights file."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    sha256: str


def base_folder(base: Base, weak: bool = False) -> Path:
    """Where the base's files lie on this machine.

    Raises:
        BaseModelError: not there, with the command that gets it; or a weak base that the profile does not have.
    """
    if weak and base.weak_location is None:
        raise BaseModelError("This profile has no weak base: set base.weak_location in its config, or use tiny.")
    location = base.weak_location if weak else base.location
    folder = ROOT / location if base.source == "assets" else ROOT / "assets" / "bases" / _slug(base)
    if not (folder / WEIGHTS).is_file():
        command = "make tiny-base" if base.source == "assets" else "make model PROFILE=<profile>"
        raise BaseModelError(f"The base model {location} is not in {folder.relative_to(ROOT)}: run `{command}`.")
    return folder


def _slug(base: Base) -> str:
    return base.location.replace("/", "--").replace("==", "-")


def load_base(profile: Profile, weak: bool = False) -> LoadedBase:
    """Load a fresh copy of the profile's base: `eval()`, every parameter trainable.

    Dropout is off in generation and in updates; `eval()` does not stop autograd.

    Raises:
        BaseModelError: missing files, a wrong hash, architecture, parameter count or untied embeddings.
    """
    folder = base_folder(profile.base, weak)
    digest = sha256_file(folder / WEIGHTS)
    if not weak and profile.base.sha256 not in (None, digest):
        raise BaseModelError(
            f"{folder.name}/{WEIGHTS} has SHA-256 {digest[:12]}…, the profile expects "
            f"{profile.base.sha256[:12]}…: fetch or rebuild the base, or correct base.sha256."
        )
    # `eager` rounds as it did when the pinned profile's results were recorded.
    attention = "eager" if profile.pin_cpu else register()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, profile.dtype), attn_implementation=attention, local_files_only=True
    )
    check_base(model, profile.base)
    if profile.pin_cpu and model.dtype == torch.float32:
        use_onednn_products(model)
    tokenizer = base_tokenizer(profile.base, folder)
    check_tokenizer(tokenizer, model)
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


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Every id of the tokenizer must have a row in the embedding (which may have more, never fewer).

    Raises:
        BaseModelError: names both sizes.
    """
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise BaseModelError(
            f"The tokenizer has {len(tokenizer):,} ids and the embedding {rows:,} rows: they are not of one base."
        )


def meta_model(config_folder: Path) -> PreTrainedModel:
    """The model of a configuration on the meta device: shapes and counts without any memory."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config_folder, local_files_only=True))
