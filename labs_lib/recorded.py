"""Recorded studies: summaries in `data/recorded/` that name what made them, and are refused once it changed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labs_lib.config import Profile, load_profile
from labs_lib.errors import LabError
from labs_lib.storage import atomic_write_json, read_json

REFRESH_STUDIES = "make studies"
DEFAULT_PROFILE = "tiny"


@dataclass(frozen=True)
class StudyFile:
    """One study's file, a section for each profile; `identity` is what must be unchanged for it to be believed."""

    path: Path
    title: str
    identity: Callable[[Profile], dict[str, str]]

    def record(self, study: dict[str, Any]) -> None:
        """Keep the study under its profile's name; those of other profiles stay."""
        atomic_write_json(self.path, self._all() | {study["profile"]: study})

    def load(self, profile: Profile) -> dict[str, Any]:
        """The recorded study of a profile.

        Raises LabError, with the command that records it: there is none, or another config, code, data or base
        made it (names which).
        """
        command = f"{REFRESH_STUDIES} PROFILE={profile.name}"
        studies = self._all()
        if profile.name not in studies:
            raise LabError(f"No {self.title} of profile {profile.name} is recorded: run `{command}`.")
        study, now = studies[profile.name], self.identity(profile)
        keys = sorted(now.keys() | study["identity"].keys())
        if differing := [key for key in keys if study["identity"].get(key) != now.get(key)]:
            raise LabError(f"The recorded {self.title} was made with another {', '.join(differing)}: run `{command}`.")
        return study

    def to_show(self, profile: Profile) -> tuple[dict[str, Any], bool]:
        """The study a lab shows, and whether it is of exactly this profile, so that a live run must equal its row.

        A profile without a recorded study is shown the default profile's; a changed seed makes another run.
        """
        if profile.name not in self._all():
            return self.load(load_profile(DEFAULT_PROFILE)), False
        published = load_profile(profile.name)
        return self.load(published), self.identity(profile) == self.identity(published)

    def _all(self) -> dict[str, Any]:
        return read_json(self.path) if self.path.exists() else {}
