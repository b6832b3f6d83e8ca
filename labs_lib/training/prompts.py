"""The order in which a run meets its prompts: seeded permutations and a cursor, part of the resumable state."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch

from labs_lib.seeding import generator_state, restore_generator

Prompt = TypeVar("Prompt")


class PromptStream(Generic[Prompt]):
    """Prompts without end; a new permutation when fewer are left than needed."""

    def __init__(self, prompts: Sequence[Prompt], generator: torch.Generator):
        self.prompts, self.generator = prompts, generator
        self.order: list[int] = []
        self.cursor = 0

    def next(self, wanted: int) -> list[Prompt]:
        """The next `wanted` prompts, all different."""
        if self.cursor + wanted > len(self.order):
            self.order = torch.randperm(len(self.prompts), generator=self.generator).tolist()
            self.cursor = 0
        chosen = self.order[self.cursor : self.cursor + wanted]
        self.cursor += wanted
        return [self.prompts[index] for index in chosen]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"generator.prompts": generator_state(self.generator)}

    def record(self) -> dict[str, Any]:
        return {"order": self.order, "cursor": self.cursor}

    def restore(self, tensors: dict[str, torch.Tensor], record: dict[str, Any]) -> None:
        self.generator = restore_generator(tensors["generator.prompts"])
        self.order, self.cursor = record["order"], record["cursor"]
