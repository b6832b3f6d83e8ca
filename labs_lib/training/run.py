"""One way to run any trainer: save whole steps, resume exactly, stop cleanly on Ctrl-C.

A trainer counts steps of its own kind (updates or iterations). State is saved only between steps, so nothing
half-optimised ever reaches the disk, and no rollout can be optimised twice.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from labs_lib.checkpoint import (
    Checkpoint,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    state_differences,
)
from labs_lib.errors import CheckpointError, VerificationError
from labs_lib.progress import ProgressBar

CONTINUOUS, INTERRUPTED, RESUMED = "continuous", "interrupted", "resumed"
MODES = (CONTINUOUS, INTERRUPTED, RESUMED)


class Trainer(Protocol):
    """What `run` needs of a trainer."""

    step: int
    total_steps: int

    def advance(self) -> None:
        """Make one whole step."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything in the state that is a tensor."""

    def record(self) -> dict[str, Any]:
        """Everything else in the comparable state, as JSON values."""

    def durations(self) -> dict[str, Any]:
        """Seconds, kept beside the state and never compared."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""


@dataclass(frozen=True)
class RunPlan:
    """How far to go and what to save on the way; `identity` must be equal for a resume to be accepted."""

    until: int
    save_at: Callable[[int], bool]
    identity: Mapping[str, str]
    description: str
    show_complete: bool = True  # also show a bar for what is found done, so that an output does not depend on it


@contextmanager
def deferred_interrupt() -> Iterator[list[bool]]:
    """Collect Ctrl-C instead of raising it in the middle of a step; the list is non-empty once it came."""
    pressed: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    previous = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, previous)


def run(make_trainer: Callable[[], Trainer], folder: Path, plan: RunPlan, start_from: Path | None = None) -> Checkpoint:
    """Train to step `plan.until`, continuing from what `folder` (or else `start_from`) already holds.

    Raises:
        IdentityError: the saved state was made with another config, base, data or code; names what differs.
        CheckpointError: the saved state is already past `plan.until`.
        KeyboardInterrupt: after Ctrl-C, once the step in progress is complete and saved.
    """
    newest = latest_checkpoint(folder)
    saved = load_checkpoint(newest, plan.identity) if newest else None
    if saved is not None and saved.step == plan.until:
        if plan.show_complete:
            with ProgressBar(plan.description, plan.until) as bar:
                bar.advance(plan.until)
        return saved
    if saved is not None and saved.step > plan.until:
        raise CheckpointError(f"{saved.path} is past this run's last step, {plan.until}: pass fresh to start again.")
    trainer = make_trainer()
    if saved is None and start_from is not None:
        saved = load_checkpoint(latest_checkpoint(start_from), plan.identity)
    if saved is not None:
        trainer.restore(saved)
    _train(trainer, folder, plan)
    return load_checkpoint(latest_checkpoint(folder), plan.identity)


def _train(trainer: Trainer, folder: Path, plan: RunPlan) -> None:
    with deferred_interrupt() as pressed, ProgressBar(plan.description, plan.until) as bar:
        bar.advance(trainer.step)
        while trainer.step < plan.until:
            trainer.advance()
            bar.advance()
            if pressed or trainer.step == plan.until or plan.save_at(trainer.step):
                save_checkpoint(
                    folder,
                    trainer.step,
                    trainer.tensors(),
                    trainer.record(),
                    plan.identity,
                    trainer.durations(),
                )
            if pressed:
                raise KeyboardInterrupt(f"stopped after step {trainer.step}; run the same command to go on.")


def run_three_ways(
    make_trainer: Callable[[], Trainer], folder: Path, plan: RunPlan, interrupt_at: int
) -> dict[str, Checkpoint]:
    """Run 0 -> end in one go, 0 -> `interrupt_at`, and `interrupt_at` -> end from what is on disk.

    Returns the final checkpoint of each mode.

    Raises:
        VerificationError: the continuous and the resumed run do not end in bit-identical states; names the
            tensors and record keys that differ.
    """
    plans = {mode: replace(plan, description=f"{plan.description}, {mode}") for mode in MODES}
    plans[INTERRUPTED] = replace(plans[INTERRUPTED], until=interrupt_at)
    ends = {mode: run(make_trainer, folder / mode, plans[mode]) for mode in (CONTINUOUS, INTERRUPTED)}
    ends[RESUMED] = run(make_trainer, folder / RESUMED, plans[RESUMED], start_from=folder / INTERRUPTED)
    differing = state_differences(ends[CONTINUOUS], ends[RESUMED])
    if differing:
        raise VerificationError(f"The resumed run differs from the continuous one in: {', '.join(differing[:5])}.")
    return ends
