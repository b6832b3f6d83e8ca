"""What a benchmark is asked for, and which profiles it can run on."""

from dataclasses import dataclass
from typing import Protocol

from labs_lib.config import load_profile, profile_names
from labs_lib.cores import usable_cores
from labs_lib.errors import BaseModelError, LabError


class Shown(Protocol):
    """A result that can be printed."""

    def lines(self) -> list[str]:
        """What is printed of it."""


@dataclass(frozen=True)
class Options:
    """`iterations` to count (None: the benchmark's own number), `profiles`, and `threads` (None: the profile's)."""

    profiles: tuple[str, ...] = ("tiny",)
    iterations: int | None = None
    threads: int | None = None

    def turns(self, usual: int) -> int:
        return usual if self.iterations is None else self.iterations

    def threads_of(self, name: str) -> int:
        """How many threads every way gets on profile `name`."""
        return self.threads or load_profile(name).threads or usable_cores()


def profiles_here() -> list[str]:
    """The profiles that run on the CPU and whose base is on this machine."""
    return [name for name in profile_names() if load_profile(name).device == "cpu" and _problem(name) is None]


def require_here(names: tuple[str, ...]) -> None:
    """Raises LabError for a profile that does not run on the CPU, or whose base is missing; says what to do."""
    for name in names:
        if load_profile(name).device != "cpu":
            raise LabError(f"Profile {name} needs a GPU and this is measured on the CPU: name another profile.")
        problem = _problem(name)
        if problem is not None:
            raise problem


def _problem(name: str) -> BaseModelError | None:
    from labs_lib.models.locations import base_folder

    try:
        base_folder(load_profile(name))
    except BaseModelError as error:
        return error
    return None
