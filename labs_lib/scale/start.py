"""A policy as a folder that any Hugging Face tool opens: weights, configuration, tokenizer, chat template."""

import shutil
from pathlib import Path

from labs_lib.branches import PolicySource
from labs_lib.checkpoint import save_model_weights, untied_state_dict
from labs_lib.config import Profile
from labs_lib.errors import VerificationError
from labs_lib.models.base import LoadedBase, load_folder
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.models.locations import WEIGHTS, base_folder

# What lies beside the weights of a base, where the base has it.
BESIDE_WEIGHTS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def export_policy(profile: Profile, source: PolicySource, folder: Path) -> str:
    """Write the policy of `source` to `folder` and read it back; returns its fingerprint.

    Configuration, tokenizer and template are the base's files, unchanged: a tokenizer that is loaded and saved again
    can come back as another class with other special tokens.

    Raises:
        VerificationError: what was read back is not the policy that was written.
    """
    policy = source.load().model
    fingerprint = policy_fingerprint(policy)
    folder.mkdir(parents=True, exist_ok=True)
    for name in BESIDE_WEIGHTS:
        if (file := base_folder(profile, source.weak) / name).is_file():
            shutil.copyfile(file, folder / name)
    save_model_weights(folder / WEIGHTS, untied_state_dict(policy), {"fingerprint": fingerprint}, fresh=True)
    if policy_fingerprint(read_policy(profile, folder).model) != fingerprint:
        raise VerificationError(f"{folder.name} does not hold the policy that was written: export it again.")
    return fingerprint


def read_policy(profile: Profile, folder: Path) -> LoadedBase:
    """What an engine saved, held to the profile's architecture, size and tie, as a base is."""
    return load_folder(folder, profile, None)
