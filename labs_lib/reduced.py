"""A reduced budget: the same protocol with a share of its counts, for a first look on a slow machine.

What is reduced: training examples, iterations, held-out problems, the bench's seeds. What is not: sizes of batches and
groups, epochs, samples per problem, learning rates. A reduced run has an outputs folder of its own and says what it is
under every table: its numbers are not the protocol's.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from labs_lib.config import BUDGET_MARK, Grpo, Profile, Supervised
from labs_lib.errors import ConfigError

Row = TypeVar("Row")


def reduced(profile: Profile, share: float) -> Profile:
    """The profile with `share` of its counts, under a name of its own; the profile itself for 1.

    Raises:
        ConfigError: a share that is not in (0, 1], or a profile that is reduced already.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"BUDGET is {share:g}: give a share of the protocol's counts, above 0 and at most 1.")
    if share == 1:
        return profile
    if profile.protocol_share != 1:
        raise ConfigError(f"{profile.name} is reduced already: reduce the whole profile {profile.file}.")
    office = profile.office
    return replace(
        profile,
        name=f"{profile.name}{BUDGET_MARK}{share:g}",
        protocol_share=share,
        warmstart=_fewer_examples(profile.warmstart, share),
        sft=_fewer_examples(profile.sft, share),
        grpo=_fewer_iterations(profile.grpo, share),
        group_size_runs=_fewer_iterations(profile.group_size_runs, share),
        office=replace(
            office,
            sft=_fewer_examples(office.sft, share),
            judge=_fewer_examples(office.judge, share),
            ppo=_fewer_iterations(office.ppo, share),
            dpo=_fewer_examples(office.dpo, share),
        ),
    )


def short_run(profile: Profile, iterations: int = 4) -> int:
    """Iterations of a run that only shows an error: of a reduced profile a quarter, and three at least.

    With fewer than three there is no state before the one that a run is resumed from.
    """
    return iterations if profile.protocol_share == 1 else max(3, iterations // 4)


def short_grpo(profile: Profile, iterations: int = 4) -> Grpo:
    """The settings of GRPO for such a run: of a reduced profile also half of the prompts, and two at least."""
    prompts = profile.grpo.prompts_per_iteration
    fewer = prompts if profile.protocol_share == 1 else max(2, prompts // 2)
    return replace(profile.grpo, iterations=short_run(profile, iterations), prompts_per_iteration=fewer)


def _fewer_examples(settings: Supervised, share: float) -> Any:
    """Whole batches, at least one; never more than there are."""
    batches = math.ceil(settings.examples * share / settings.batch_size)
    return replace(settings, examples=min(settings.examples, batches * settings.batch_size))


def _fewer_iterations(settings: Any, share: float) -> Any:
    """At least two iterations, so that a run can be interrupted between them, at about the same place."""
    iterations = max(2, math.ceil(settings.iterations * share))
    place = round(iterations * settings.interrupt_at / settings.iterations)
    return replace(settings, iterations=iterations, interrupt_at=min(max(1, place), iterations - 1))


def evenly(values: Sequence[Row], count: int) -> list[Row]:
    """`count` of the values (all, where there are no more), evenly spaced and in order: corpora are sorted by kind."""
    count = min(count, len(values))
    return [values[place * len(values) // count] for place in range(count)]


def held_out(profile: Profile, rows: Sequence[Row], unit: Callable[[Row], Hashable]) -> list[Row]:
    """The held-out rows that a run uses: those of the profile's share of units, which stay whole."""
    units = list(dict.fromkeys(map(unit, rows)))
    kept = set(evenly(units, math.ceil(len(units) * profile.protocol_share)))
    return [row for row in rows if unit(row) in kept]


def budget_note(share: float) -> str:
    """What every table of a reduced run says of itself; empty for a whole one."""
    return "" if share == 1 else f"Reduced budget: {100 * share:g} % of the protocol's counts."
