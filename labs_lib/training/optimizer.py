"""AdamW, its learning-rate schedule, and its state as named tensors."""

from dataclasses import dataclass

import torch

from labs_lib.config import Optimizer
from labs_lib.errors import CheckpointError, VerificationError

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to `peak`, then linear decrease to `final_fraction * peak` at the last of `total` updates."""

    total: int
    peak: float
    warmup_fraction: float
    final_fraction: float

    def learning_rate(self, update: int) -> float:
        """Learning rate of update `update`, 0-based."""
        warmup = max(1, round(self.total * self.warmup_fraction))
        if update < warmup:
            return self.peak * (update + 1) / warmup
        progress = (update + 1 - warmup) / max(1, self.total - warmup)
        return self.peak * (1 - (1 - self.final_fraction) * progress)


class ScheduledAdamW:
    """AdamW (Loshchilov and Hutter 2019) on every parameter that learns, with clipping and the schedule.

    The fused implementation: its square root is equal on every x86-64 processor, the default one's is not.
    """

    def __init__(self, model: torch.nn.Module, settings: Optimizer, total_updates: int, peak: float):
        learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.names, self.parameters = list(learning), list(learning.values())
        self.max_grad_norm = settings.max_grad_norm
        self.schedule = Schedule(total_updates, peak, settings.warmup_fraction, settings.final_fraction)
        self.updates = 0
        self._adamw = torch.optim.AdamW(self.parameters, lr=peak, weight_decay=settings.weight_decay, fused=True)

    def step(self) -> dict[str, float]:
        """Clip the accumulated gradient, make one update, clear the gradient; returns what was used.

        `gradient_norm` is the norm before clipping.

        Raises:
            VerificationError: a gradient that is NaN or infinite; the parameters are unchanged then.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        if not norm.isfinite():
            raise VerificationError(
                f"The gradient of update {self.updates + 1} has norm {norm.item()}: lower the learning rate."
            )
        learning_rate = self.schedule.learning_rate(self.updates)
        self._adamw.param_groups[0]["lr"] = learning_rate
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        self.updates += 1
        return {"learning_rate": learning_rate, "gradient_norm": norm.item()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Adam's moments and step counters by parameter name; empty before the first update."""
        return {
            f"adamw.{moment}.{name}": self._adamw.state[parameter][moment]
            for name, parameter in zip(self.names, self.parameters, strict=True)
            if parameter in self._adamw.state
            for moment in MOMENTS
        }

    def restore(self, tensors: dict[str, torch.Tensor], updates: int) -> None:
        """Continue from `tensors()` after `updates` updates.

        Raises:
            CheckpointError: a moment is missing, naming it.
        """
        self.updates = updates
        if not updates:
            return
        for name, parameter in zip(self.names, self.parameters, strict=True):
            wanted = {moment: f"adamw.{moment}.{name}" for moment in MOMENTS}
            missing = [key for key in wanted.values() if key not in tensors]
            if missing:
                raise CheckpointError(f"The state of AdamW lacks {missing[0]}: start the run again with --fresh.")
            self._adamw.state[parameter] = {
                moment: tensors[key].clone().to(parameter.device)  # the fused step counter lives there too
                for moment, key in wanted.items()
            }
