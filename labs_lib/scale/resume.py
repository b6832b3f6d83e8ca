"""What a run of TRL does after an interruption: a few updates, continuous and resumed from one of its checkpoints."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from labs_lib.branches import PolicySource
from labs_lib.config import Profile
from labs_lib.paths import outputs_base
from labs_lib.scale.engine import require_engine
from labs_lib.scale.settings import grpo_config
from labs_lib.scale.start import export_policy
from labs_lib.scale.task import Row, VerifierReward, training_dataset
from labs_lib.tasks.learning_scope import stock_arithmetic_scope


@dataclass(frozen=True)
class Run:
    """The rollouts of one run, in order, and the parameters that it ended with, one vector."""

    rollouts: list[list[Row]]
    parameters: torch.Tensor

    @property
    def sampled_before(self) -> list[int]:
        """For each rollout, how many updates were made before it was sampled."""
        return [rows[0]["update"] for rows in self.rollouts]


@dataclass(frozen=True)
class Resumed:
    """The same run without and with an interruption after `stop` updates."""

    stop: int
    continuous: Run
    rest: Run  # what was sampled after the resume, and where it ended

    @property
    def expected(self) -> list[list[Row]]:
        """What the continuous run sampled after `stop` updates."""
        return [rows for rows in self.continuous.rollouts if rows[0]["update"] >= self.stop]

    @property
    def same_answers(self) -> bool:
        """Whether the resumed run sampled what the continuous one did."""
        return [_ids(rows) for rows in self.rest.rollouts] == [_ids(rows) for rows in self.expected]

    @property
    def apart(self) -> float:
        """Largest difference of a parameter at the end."""
        return float((self.rest.parameters - self.continuous.parameters).abs().max())


def _ids(rows: list[Row]) -> list[tuple[str, tuple[int, ...]]]:
    return [(row["problem"], tuple(row["ids"])) for row in rows]


def resumed_after(profile: Profile, source: PolicySource, stop: int, updates: int) -> Resumed:
    """Train `updates` updates with TRL in this process, and again from its checkpoint after `stop` of them."""
    require_engine()
    with tempfile.TemporaryDirectory() as name, stock_arithmetic_scope(outputs=outputs_base()):
        folder = Path(name)
        export_policy(profile, source, folder / "start")
        continuous = _run(profile, source, folder, updates, stop, None)
        rest = _run(profile, source, folder, updates, stop, str(folder / "run" / f"checkpoint-{stop}"))
        return Resumed(stop, continuous, rest)


def _run(profile: Profile, source: PolicySource, folder: Path, updates: int, stop: int, resume: str | None) -> Run:
    from transformers import PrinterCallback
    from trl import GRPOTrainer

    rollouts: list[list[Row]] = []
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": stop, "max_steps": updates}
    tokenizer = source.load().tokenizer
    trainer = GRPOTrainer(
        str(folder / "start"),
        VerifierReward(tokenizer, rollouts.append),
        grpo_config(profile, 1, str(folder / "run"), **saving),
        training_dataset(),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    named = sorted(trainer.model.named_parameters())
    return Run(rollouts, torch.cat([parameter.detach().flatten() for _, parameter in named]))
