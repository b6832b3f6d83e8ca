"""What a study of the bench ended with, by variant and seed, and the comparison of two variants in pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from labs_lib.bench.behaviour import behaviour
from labs_lib.bench.losses import Variant
from labs_lib.bench.training import BenchTrainer, Plan
from labs_lib.errors import LabError
from labs_lib.statistics import Interval, mean_over_seeds


@dataclass(frozen=True)
class Outcome:
    """Curves of a study: `iterations` (I, V, seeds, ...) and `updates` (U, V, seeds) by name.

    Behaviour has I = iterations + 1 rows, from before the first one to after the last.
    """

    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    iterations: dict[str, torch.Tensor]
    updates: dict[str, torch.Tensor]

    def curve(self, name: str, variant: str) -> torch.Tensor:
        """(I or U, seeds, ...) of one variant.

        Raises LabError for an unknown name or variant.
        """
        kept = self.iterations | self.updates
        if name not in kept or variant not in self.variants:
            raise LabError(
                f"The study has no {name!r} of {variant!r}: it has {', '.join(kept)} of {', '.join(self.variants)}."
            )
        return kept[name][:, self.variants.index(variant)]

    def paired(self, name: str, first: str, second: str, at: int = -1) -> Interval:
        """Mean over seeds of second minus first in row `at`, with Student's 95 % interval."""
        difference = self.curve(name, second)[at] - self.curve(name, first)[at]
        return mean_over_seeds(difference.tolist())


def run_study(variants: Mapping[str, Variant], seeds: Sequence[int], plan: Plan) -> Outcome:
    """Train every variant with every seed, all at once; behaviour is exact before each iteration and at the end."""
    record = BenchTrainer(variants, seeds, plan).run(partial(behaviour, bits=plan.bits))

    def shaped(rows: list[torch.Tensor]) -> torch.Tensor:
        values = torch.stack(rows)
        return values.view(len(values), len(variants), len(seeds), *values.shape[2:])

    iterations, updates = (
        {name: shaped(rows) for name, rows in part.items()} for part in (record.iterations, record.updates)
    )
    return Outcome(tuple(variants), tuple(seeds), iterations, updates)
