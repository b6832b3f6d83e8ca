"""`make bench`: time and memory against the usual way, on the same work, in one run on one machine; prints ratios."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version

from labs_lib.config import profile_names
from labs_lib.cores import usable_cores
from labs_lib.errors import LabError
from labs_lib.runtime import start
from labs_lib.tools.benchmarks import bias, grpo, kl_rows, ppo, sampling
from labs_lib.tools.benchmarks.options import Options, Shown, profiles_here, require_here
from labs_lib.tools.command_line import command_line

BENCHMARKS: dict[str, Callable[[Options], Iterable[Shown]]] = {
    "grpo": grpo.compare,
    "sampling": sampling.compare,
    "kl": kl_rows.compare,
    "ppo": ppo.compare,
    "bias": bias.compare,
}


def machine() -> str:
    """What the numbers below were measured with."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return f"{versions}; {usable_cores()} cores; medians, and least..most of the turns that count"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every benchmark, or those named, and print what they found; whether a target is reached is no error."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--iterations", type=int, help="how many turns are counted (default: each benchmark's own)")
    parser.add_argument("--profile", action="append", choices=profile_names(), help="default: those that can run here")
    parser.add_argument("--threads", type=int, help="of every way (default: the profile's)")
    parser.add_argument("benchmarks", nargs="*", choices=[*BENCHMARKS, []], help="which ones; all when none is named")
    given = parser.parse_args(arguments)
    for name in ("iterations", "threads"):
        if getattr(given, name) is not None and getattr(given, name) < 1:
            raise LabError(f"--{name} is {getattr(given, name)}: use at least one.")
    start("tiny")
    if given.profile:
        require_here(given.profile)
    options = Options(tuple(given.profile or profiles_here()), given.iterations, given.threads)
    print(machine(), flush=True)
    for name in given.benchmarks or BENCHMARKS:
        for result in BENCHMARKS[name](options):
            print("", *result.lines(), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    command_line(main)
