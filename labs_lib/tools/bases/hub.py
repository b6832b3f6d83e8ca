"""A base from the Hugging Face hub at a pinned revision, or from the hub's cache on this machine."""

import shutil
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from labs_lib.config import Base
from labs_lib.errors import BaseModelError
from labs_lib.models.locations import WEIGHTS

FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS)


def fetch_from_hub(base: Base, folder: Path, work: Path) -> None:
    """Copy the files of a base out of the hub's cache into `folder`; what the cache lacks is downloaded into it first.

    The cache is where the hub's own variables say (HF_HOME, HF_HUB_CACHE). A download that breaks off goes on from
    there the next time, which is why `work` is not used.

    Raises:
        BaseModelError: not in the cache and not to be had from the hub, or a file is missing there.
    """
    snapshot = cached_snapshot(base) or download_snapshot(base)
    missing = missing_files(snapshot)
    if missing:
        raise BaseModelError(f"{base.location} at revision {base.revision} has no {missing[0]}: choose another one.")
    for name in FILES:
        shutil.copyfile(snapshot / name, folder / name)


def cached_snapshot(base: Base) -> Path | None:
    """The folder of the pinned revision in the hub's cache, or None unless all of its files are there."""
    try:
        snapshot = Path(snapshot_download(base.location, revision=base.revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return None if missing_files(snapshot) else snapshot


def download_snapshot(base: Base) -> Path:
    """Download what is missing into the hub's cache; returns the folder of the pinned revision there.

    Raises:
        BaseModelError: the hub cannot be reached or refuses; with its reason.
    """
    print(f"Downloading {base.location} at revision {base.revision} into the hub's cache.", flush=True)
    try:
        return Path(snapshot_download(base.location, revision=base.revision, allow_patterns=list(FILES)))
    except Exception as error:  # of its network library, its transfer library or its own: a dozen unrelated classes
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the network
        # What the hub says when its cache cannot help either is a paragraph; its cause is the reason.
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split()).rstrip(".") or type(cause).__name__
        raise BaseModelError(
            f"{base.location} could not be downloaded ({reason}): connect to the internet, or copy the revision "
            "into the hub's cache from another machine (HF_HOME), and run the same command again."
        ) from error


def missing_files(snapshot: Path) -> list[str]:
    """Names of `FILES` that a snapshot does not hold; a link to nothing holds nothing."""
    return [name for name in FILES if not (snapshot / name).is_file()]
