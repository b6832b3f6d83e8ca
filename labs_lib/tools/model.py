"""`make model`: check the base of a profile (files, hash, architecture, parameter count, tied embeddings)."""

import argparse
from collections.abc import Sequence

from labs_lib.config import Base, load_profile
from labs_lib.errors import BaseModelError
from labs_lib.models.base import base_folder, load_base
from labs_lib.models.chat import pad_id
from labs_lib.models.fingerprint import unique_parameters
from labs_lib.paths import ROOT
from labs_lib.tools.command_line import command_line


def require_base(base: Base) -> None:
    """The base's files must be there already: fetching from a wheel or the hub is not built yet.

    Raises:
        BaseModelError: not there; says where to put what.
    """
    try:
        base_folder(base)
    except BaseModelError as error:
        if base.source == "assets":
            raise
        raise BaseModelError(
            f"{str(error).rsplit(':', 1)[0]}, and fetching from a {base.source} is not built yet: put its config.json, "
            "tokenizer files and model.safetensors there, and this command checks them."
        ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the base strictly and print what it is; a base that is missing or wrong is one clear sentence."""
    parser = argparse.ArgumentParser(prog="make model", description=__doc__)
    parser.add_argument("--profile", default="tiny")
    profile = load_profile(parser.parse_args(arguments).profile)
    require_base(profile.base)
    folder = base_folder(profile.base)
    loaded = load_base(profile)
    print(f"{folder.relative_to(ROOT)}: {type(loaded.model).__name__}, {unique_parameters(loaded.model):,} parameters")
    print(f"weights SHA-256 {loaded.sha256}, embeddings tied")
    print(f"EOS {loaded.tokenizer.eos_token_id}, padding {pad_id(loaded.tokenizer)}: masks never look at either")
    return 0


if __name__ == "__main__":
    command_line(main)
