"""Where the time of an iteration goes: phases timed inside of a contender, and the table that is printed of them."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

from labs_lib.tools.benchmarks.cases import RolloutCase
from labs_lib.tools.benchmarks.turns import Contender, Turns

REST = "rest"


@dataclass(frozen=True)
class Phases:
    """Median seconds of an iteration, of its phases and of the rest, and the peak memory of its process."""

    work: str
    seconds: float
    phases: Mapping[str, float]
    peak_mb: float

    def lines(self) -> list[str]:
        """What is printed of it."""
        width = max(map(len, self.phases))
        return [
            self.work,
            *(f"  {name:<{width}}  {s:9.4f} s  {s / self.seconds:4.0%}" for name, s in self.phases.items()),
            f"  {'an iteration':<{width}}  {self.seconds:9.4f} s, peak {self.peak_mb / 1024:.2f} GB",
        ]


def measure_phases(work: str, module: str, case: RolloutCase, turns: int) -> Phases:
    """Run the contender `module`, which says the seconds of its phases; medians of the turns that count."""
    seconds, phases = [], []
    with Contender("this project", module, asdict(case)) as ours:
        ours.turn()  # not counted: it also loads what torch loads late
        for _ in range(turns):
            seconds.append(ours.turn())
            phases.append(ours.done | {REST: seconds[-1] - sum(ours.done.values())})
    medians = {name: median(row[name] for row in phases) for name in phases[0]}
    return Phases(work, median(seconds), medians, ours.peak_mb)


class Stopwatch:
    """Seconds by phase; what a phase calls that is a phase itself counts there only."""

    def __init__(self, now: Callable[[], float] = perf_counter):
        self.now = now
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def timed(self, phase: str, work: Callable) -> Callable:
        """`work`, whose time is added to `phase` whenever it is called."""

        def run(*arguments: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            began = self.now()
            result = work(*arguments, **named)
            spent = self.now() - began
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent - self._inner.pop()
            self._inner[-1] += spent
            return result

        return run

    def watch(self, owner: Any, phases: Mapping[str, str]) -> None:
        """Time the functions of `owner` (a trainer, a module or a class) that `phases` names, from here on."""
        for name, phase in phases.items():
            setattr(owner, name, self.timed(phase, getattr(owner, name)))

    def serve_iterations(self, advance: Callable[[], Any], turns: Turns) -> None:
        """One iteration a turn, for ever; says the seconds of each phase."""
        while True:
            self.seconds.clear()
            turns.begin()
            advance()
            turns.end(**self.seconds)
