"""AdamW over shuffled epochs of given examples: the common part of SFT, the judge and DPO.

One step is one update; validation follows each epoch and selects nothing.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from labs_lib.checkpoint import Checkpoint
from labs_lib.config import Optimizer, Supervised
from labs_lib.errors import LabError
from labs_lib.models.roles import learned_tensors, load_learned
from labs_lib.seeding import generator_state, named_generator, restore_generator
from labs_lib.training.optimizer import ScheduledAdamW
from labs_lib.training.states import role_tensors, tensors_of_role


class Named(Protocol):
    """An example that the history can name."""

    name: str


class EpochTrainer:
    """Subclasses say how a batch gives a gradient, and how an epoch is validated."""

    role = "policy"  # prefix of the learned tensors in the state
    validation_key = "validation"

    def __init__(
        self,
        model: torch.nn.Module,
        examples: Sequence[Named],
        validation: Sequence[Named],
        settings: Supervised,
        optimizer: Optimizer,
        seed: int,
        name: str,
        pad_id: int,
    ):
        if len(examples) != settings.examples:
            raise LabError(f"{name} needs {settings.examples} examples and got {len(examples)}: correct the profile.")
        self.model, self.examples, self.validation_examples = model, examples, validation
        self.settings, self.pad_id = settings, pad_id
        self.total_steps = settings.updates
        self.optimizer = ScheduledAdamW(model, optimizer, self.total_steps, settings.learning_rate)
        self.generator = named_generator(seed, f"{name}/permutation")
        self.order: list[int] = []
        self.cursor = 0
        self.history: list[dict[str, Any]] = []
        self.validation: list[Any] = []
        self.seconds: list[float] = []

    def accumulate(self, batch: Sequence[Named]) -> dict[str, Any]:
        """Add the gradient of the batch's loss to the parameters; returns what to record of it."""
        raise NotImplementedError

    def validate(self) -> Any:
        """A JSON value measured on the validation examples after an epoch."""
        raise NotImplementedError

    @property
    def step(self) -> int:
        return self.optimizer.updates

    def advance(self) -> None:
        """One update on the next `batch_size` examples of the epoch's permutation."""
        began = time.perf_counter()
        if self.cursor >= len(self.order):
            self.order = torch.randperm(len(self.examples), generator=self.generator).tolist()
            self.cursor = 0
        chosen = self.order[self.cursor : self.cursor + self.settings.batch_size]
        batch = [self.examples[index] for index in chosen]
        measured = self.accumulate(batch)
        used = self.optimizer.step()
        self.cursor += len(batch)
        names = [example.name for example in batch]
        self.history.append({"update": self.step, "examples": names, **measured, **used})
        self.seconds.append(time.perf_counter() - began)
        if self.cursor >= len(self.order):
            self.validation.append(self.validate())

    def tensors(self) -> dict[str, torch.Tensor]:
        weights = role_tensors(self.role, learned_tensors(self.model))
        return weights | self.optimizer.tensors() | {"generator.permutation": generator_state(self.generator)}

    def record(self) -> dict[str, Any]:
        return {
            "updates": self.step,
            "order": self.order,
            "cursor": self.cursor,
            "history": self.history,
            self.validation_key: self.validation,
        }

    def durations(self) -> dict[str, Any]:
        return {"optimisation": self.seconds}

    def restore(self, checkpoint: Checkpoint) -> None:
        record, tensors = checkpoint.record, checkpoint.tensors
        load_learned(self.model, tensors_of_role(tensors, self.role))
        self.optimizer.restore(tensors, record["updates"])
        self.generator = restore_generator(tensors["generator.permutation"])
        self.order, self.cursor = record["order"], record["cursor"]
        self.history, self.validation = record["history"], record[self.validation_key]
        self.seconds = checkpoint.durations["optimisation"]
