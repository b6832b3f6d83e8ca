"""Verdicts that are computed: a claim, what was measured for each seed, and whether the interval excludes chance.

MECHANISM_REPRODUCED: the effect shows beyond its uncertainty. NOT_REPRODUCED: this bench does not show it, which says
nothing about others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from labs_lib.config import Profile
from labs_lib.errors import LabError
from labs_lib.paths import verdicts_path
from labs_lib.statistics import Interval, mean_over_seeds
from labs_lib.storage import atomic_write_json

REPRODUCED, NOT_REPRODUCED = "MECHANISM_REPRODUCED", "NOT_REPRODUCED"


@dataclass(frozen=True)
class Finding:
    """One claim and its effect, positive where the claim says so.

    `values` holds one effect per seed; a single one is exact and has no uncertainty. Effects up to `smallest` do not
    count, however sure they are.
    """

    name: str
    claim: str
    values: tuple[float, ...]
    smallest: float = 0.0

    @property
    def effect(self) -> Interval:
        """The mean over seeds with Student's 95 % interval."""
        return mean_over_seeds(self.values) if len(self.values) > 1 else Interval(*self.values * 3)

    @property
    def verdict(self) -> str:
        return REPRODUCED if self.effect.low > self.smallest else NOT_REPRODUCED

    def entry(self) -> dict[str, Any]:
        """As it stands in the evidence."""
        effect = self.effect
        return {
            "claim": self.claim,
            "verdict": self.verdict,
            "effect": effect.value,
            "low": effect.low,
            "high": effect.high,
            "smallest": self.smallest,
            "seeds": len(self.values),
            "values": list(self.values),
        }


def finding(name: str, claim: str, values: Iterable[float], smallest: float = 0.0) -> Finding:
    """A finding from one number per seed (a tensor will do).

    Raises LabError without any value.
    """
    kept = tuple(float(value) for value in values)
    if not kept:
        raise LabError(f"{name} has no measured value: give one for each seed, or a single exact one.")
    return Finding(name, claim, kept, smallest)


def record_findings(profile: Profile, findings: Iterable[Finding]) -> None:
    """Write the verdicts, with all that they follow from, where the report and the audit look for them.

    Raises LabError when two findings have one name.
    """
    entries: dict[str, Any] = {}
    for found in findings:
        if found.name in entries:
            raise LabError(f"Two findings are called {found.name}: give each a name of its own.")
        entries[found.name] = found.entry()
    atomic_write_json(verdicts_path(profile.name), entries)
