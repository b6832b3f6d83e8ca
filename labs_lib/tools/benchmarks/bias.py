"""Training in the bias bench: every variant with every seed at once, against the loop for one model."""

from collections.abc import Iterator

from labs_lib.tools.benchmarks.measuring import Comparison, Measured, seconds_by_turns
from labs_lib.tools.benchmarks.options import Options

SEEDS = range(30)
TURNS = 100
FASTER = 20


def compare(options: Options) -> Iterator[Comparison]:
    """The one comparison: seconds for one seed and iteration, in this process, on `tiny`'s one thread."""
    from labs_lib.bench.losses import GRPO, VARIANTS
    from labs_lib.bench.plain import PlainTrainer
    from labs_lib.bench.policies import table_of
    from labs_lib.bench.training import BenchTrainer, Plan

    plan, turns = Plan(), options.turns(TURNS)
    plain, batched = PlainTrainer(GRPO, SEEDS[0], plan), BenchTrainer(VARIANTS, SEEDS, plan)
    models = len(VARIANTS) * len(SEEDS)
    alone, together = seconds_by_turns(turns, plain.advance, lambda: batched.advance(table_of(batched.policies)))
    yield Comparison(
        work=f"bias bench, {turns} iterations of {plan.prompts} prompts x {plan.group_size} answers, 1 thread",
        unit="seed and iteration",
        usual=Measured("plain loop, 1 model", tuple(alone)),
        ours=Measured(f"batched, {models} models", tuple(seconds / models for seconds in together)),
        faster=FASTER,
    )
