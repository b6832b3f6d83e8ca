"""Where the time of one of this project's PPO iterations goes."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median

from labs_lib.tools.benchmarks.cases import RolloutCase
from labs_lib.tools.benchmarks.options import Options
from labs_lib.tools.benchmarks.turns import Contender

OURS = "labs_lib.tools.benchmarks.ppo_ours"
ANSWER_TOKENS = 16
TURNS = 5
REST = "rest (fingerprint, evidence)"


@dataclass(frozen=True)
class Phases:
    """Median seconds of an iteration and of its phases, and the peak memory of its process."""

    work: str
    seconds: float
    phases: Mapping[str, float]
    peak_mb: float

    def lines(self) -> list[str]:
        """What is printed of it."""
        rows = {**self.phases, REST: max(0.0, self.seconds - sum(self.phases.values()))}
        width = max(map(len, rows))
        return [
            self.work,
            *(f"  {name:<{width}}  {s:9.4f} s  {s / self.seconds:4.0%}" for name, s in rows.items()),
            f"  {'an iteration':<{width}}  {self.seconds:9.4f} s, peak {self.peak_mb / 1024:.2f} GB",
        ]


def compare(options: Options) -> Iterator[Phases]:
    """One table for each profile."""
    for profile in options.profiles:
        case = RolloutCase(profile, options.threads_of(profile), ANSWER_TOKENS, group_size=1)
        seconds, phases = [], []
        with Contender("this project", OURS, asdict(case)) as ours:
            ours.turn()  # not counted: it also loads what torch loads late
            for _ in range(options.turns(TURNS)):
                seconds.append(ours.turn())
                phases.append(ours.done)
        medians = {name: median(row[name] for row in phases) for name in phases[0]}
        yield Phases(f"PPO iteration by phases: {case}, LoRA, 2 updates", median(seconds), medians, ours.peak_mb)
