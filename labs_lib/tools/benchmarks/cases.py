"""The work that contenders share: which problems, how many answers of which length, paid by what.

Nothing here imports torch: a contender does, after the pins of its profile.
"""

from dataclasses import dataclass
from typing import Any

from labs_lib.tasks.stock_arithmetic.corpus import Example, load_split, split_training
from labs_lib.tasks.stock_arithmetic.verifier import verify

NO_EOS = -1  # an id that is never sampled: every answer runs to its full length


@dataclass(frozen=True)
class RolloutCase:
    """`prompts` problems, `group_size` answers of exactly `answer_tokens` tokens to each."""

    profile: str
    threads: int
    answer_tokens: int
    prompts: int = 4
    group_size: int = 4

    @property
    def answers(self) -> int:
        return self.prompts * self.group_size

    def __str__(self) -> str:
        return (
            f"{self.profile}, {self.prompts} prompts x {_counted(self.group_size, 'answer')} of "
            f"{self.answer_tokens} tokens, {_counted(self.threads, 'thread')}"
        )


@dataclass(frozen=True)
class GrpoCase(RolloutCase):
    """One GRPO iteration: sample, score, then `updates` updates on these answers."""

    updates: int = 2
    kl_weight: float = 0.02
    clip: float = 0.2
    checkpointing: bool = False  # the usual way only


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number > 1)}"


def problems(count: int) -> list[Example]:
    """The first `count` training problems that the labs use for GRPO."""
    return split_training(load_split("train", labels=True))[1][:count]


def payment(text: str, example: Example) -> float:
    """The verifier runs, as in the labs, but an even number of characters is what pays: rewards are mixed then.

    A base that solves no problem would have no advantages, and gradients that are almost nothing.
    """
    verify(text, "length", example.problem, True)
    return float(len(text) % 2 == 0)


def done(prompt_tokens: int, answer_tokens: int, **more: Any) -> dict[str, Any]:
    """What a contender says of its turn, to be compared with the others'."""
    return {"prompt tokens": prompt_tokens, "answer tokens": answer_tokens, **more}
