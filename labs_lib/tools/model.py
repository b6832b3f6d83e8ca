"""`make model`: fetch the base of a profile where it is missing, and check it (files, hash, size, tied embeddings)."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from labs_lib.config import load_profile
from labs_lib.errors import BaseModelError
from labs_lib.models.base import load_base
from labs_lib.models.chat import pad_id
from labs_lib.models.fingerprint import unique_parameters
from labs_lib.models.locations import base_location
from labs_lib.tools.bases.fetch import fetch_base
from labs_lib.tools.command_line import command_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch, load strictly and print what it is; a base that is missing or wrong is one clear sentence."""
    parser = argparse.ArgumentParser(prog="make model", description=__doc__)
    parser.add_argument("--profile", default="tiny")
    # On the CPU: a base can be fetched and checked where there is no GPU to run it.
    profile = replace(load_profile(parser.parse_args(arguments).profile), device="cpu")
    fetched = profile.base.source != "assets" and fetch_base(profile)
    location = base_location(profile)
    try:
        loaded = load_base(profile)
    except BaseModelError as error:
        if profile.base.source == "assets":
            raise
        raise BaseModelError(f"{error} To fetch it again, delete {location} and run the same command.") from error
    what = f"{type(loaded.model).__name__}, {unique_parameters(loaded.model):,} parameters"
    print(f"{location}{' (fetched now)' if fetched else ''}: {what}")
    print(f"weights SHA-256 {loaded.sha256}{'' if profile.base.sha256 else ' (not pinned)'}, embeddings tied")
    print(f"EOS {loaded.tokenizer.eos_token_id}, padding {pad_id(loaded.tokenizer)}: masks never look at either")
    return 0


if __name__ == "__main__":
    command_line(main)
