"""`make bench`: time against the usual way, on the same work, in one run on one machine; prints ratios."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from labs_lib.errors import LabError
from labs_lib.runtime import start
from labs_lib.tools.command_line import command_line

SEEDS = range(30)


@dataclass(frozen=True)
class Comparison:
    """Seconds for one unit of the same work, and how many times faster this project's way is meant to be."""

    work: str
    unit: str
    usual: str
    usual_seconds: float
    ours: str
    our_seconds: float
    target: float

    @property
    def ratio(self) -> float:
        return self.usual_seconds / self.our_seconds

    def lines(self) -> list[str]:
        """What is printed of it."""
        width = max(len(self.usual), len(self.ours))
        rows = ((self.usual, self.usual_seconds), (self.ours, self.our_seconds))
        verdict = "reached" if self.ratio >= self.target else "NOT reached"
        return [
            self.work,
            *(f"  {name:<{width}}  {1000 * seconds:10.4f} ms per {self.unit}" for name, seconds in rows),
            f"  ratio {self.ratio:.1f}; target {self.target:g}: {verdict}",
        ]


def seconds_by_turns(iterations: int, *advances: Callable[[], object]) -> list[float]:
    """Seconds that each of `advances` took in all, called in turn, so that all see the same machine.

    One call of each comes first and is not counted: it also loads what torch loads late.
    """
    spent = [0.0] * len(advances)
    for turn in range(iterations + 1):
        for place, advance in enumerate(advances):
            began = perf_counter()
            advance()
            spent[place] += (perf_counter() - began) * (turn > 0)
    return spent


def bias(iterations: int) -> Comparison:
    """Training in the bias bench: every variant with every seed at once, against the loop for one model."""
    from labs_lib.bench.losses import GRPO, VARIANTS
    from labs_lib.bench.plain import PlainTrainer
    from labs_lib.bench.policies import table_of
    from labs_lib.bench.training import BenchTrainer, Plan

    plan = Plan()
    plain, batched = PlainTrainer(GRPO, SEEDS[0], plan), BenchTrainer(VARIANTS, SEEDS, plan)
    models = len(VARIANTS) * len(SEEDS)
    alone, together = seconds_by_turns(iterations, plain.advance, lambda: batched.advance(table_of(batched.policies)))
    return Comparison(
        work=f"bias bench, {iterations} iterations of {plan.prompts} prompts x {plan.group_size} answers",
        unit="seed and iteration",
        usual="plain loop, 1 model",
        usual_seconds=alone / iterations,
        ours=f"batched, {models} models",
        our_seconds=together / iterations / models,
        target=20,
    )


# Each is given the number of iterations to time; its imports come after the pins.
BENCHMARKS: dict[str, Callable[[int], Comparison]] = {"bias": bias}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every benchmark, or those named, and print what they found; whether a target is reached is no error."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--iterations", type=int, default=100, help="how many are timed (default 100)")
    parser.add_argument("benchmarks", nargs="*", choices=[*BENCHMARKS, []], help="which ones; all when none is named")
    options = parser.parse_args(arguments)
    if options.iterations < 1:
        raise LabError(f"--iterations is {options.iterations}: time at least one.")
    start("tiny")
    for name in options.benchmarks or BENCHMARKS:
        print("\n".join(BENCHMARKS[name](options.iterations).lines()), flush=True)
    return 0


if __name__ == "__main__":
    command_line(main)
