"""Where a profile's base lies on this machine, and the command that gets it there; imports no torch."""

from pathlib import Path

from labs_lib.config import Profile
from labs_lib.errors import BaseModelError
from labs_lib.paths import ROOT

WEIGHTS = "model.safetensors"
FETCHED = "assets/bases"


def base_location(profile: Profile, weak: bool = False) -> str:
    """The base's folder, relative to the repository; it need not exist.

    Raises:
        BaseModelError: a weak base that the profile does not have.
    """
    base = profile.base
    location = base.weak_location if weak else base.location
    if location is None:
        raise BaseModelError("This profile has no weak base: set base.weak_location in its config, or use tiny.")
    if base.source == "assets":
        return location
    return f"{FETCHED}/{location.replace('/', '--').replace('==', '-')}"


def base_command(profile: Profile) -> str:
    """What to run for a base that is missing."""
    return "make tiny-base" if profile.base.source == "assets" else f"make model PROFILE={profile.file}"


def base_folder(profile: Profile, weak: bool = False) -> Path:
    """The folder of a base that is there.

    Raises:
        BaseModelError: not there, with the command that gets it; or a weak base that the profile does not have.
    """
    location = base_location(profile, weak)
    if not (ROOT / location / WEIGHTS).is_file():
        name = profile.base.weak_location if weak else profile.base.location
        raise BaseModelError(f"The base model {name} is not in {location}: run `{base_command(profile)}`.")
    return ROOT / location
