"""StockArithmetic-v1 as TRL wants it: the corpus as a `datasets.Dataset`, the verifier as a reward function.

Prompts, problems and the verifier are those of labs 01 to 03; only the containers differ.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from labs_lib.models.chat import decode_answer, ids_known
from labs_lib.rollout import EOS, LENGTH
from labs_lib.scale.engine import require_engine
from labs_lib.scale.prompts import messages
from labs_lib.tasks.stock_arithmetic.corpus import Example, load_split, split_training
from labs_lib.tasks.stock_arithmetic.problem import Problem, parse_problem
from labs_lib.tasks.stock_arithmetic.verifier import Verdict, verify

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

Row = dict[str, Any]


def dataset_row(name: str, statement: str, problem: Problem) -> Row:
    """One row: `prompt` is all that the policy reads; `problem` reaches the reward function only."""
    return {"prompt": messages(statement), "name": name, "problem": problem.as_dict()}


def training_examples() -> list[Example]:
    """The 872 problems that lab 03's GRPO trains on: what the warm start has seen is not among them."""
    return split_training(load_split("train", labels=True))[1]


def as_dataset(rows: Sequence[Row]) -> "Dataset":
    """Rows of `dataset_row` as a dataset.

    Raises LabError when the engine is not installed.
    """
    require_engine()
    from datasets import Dataset

    return Dataset.from_list(list(rows))


def training_dataset() -> "Dataset":
    """`training_examples` as a dataset."""
    return as_dataset([dataset_row(e.id, e.statement, e.problem) for e in training_examples()])


def judge_ids(tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int], problem: Problem) -> Verdict:
    """The verdict on one sampled answer, from its ids: whether it ended, and what it says, special tokens visible."""
    ids = list(ids)
    reason = EOS if ids and ids[-1] == tokenizer.eos_token_id else LENGTH
    return verify(decode_answer(tokenizer, ids), reason, problem, ids_known(tokenizer, ids))


class VerifierReward:
    """The verifier as TRL's reward function: 1.0 for a complete, correct answer, else 0.0.

    It judges `completion_ids`. The text that TRL passes beside them has lost what the verifier has to see: whether the
    answer ended, and special tokens inside it.
    """

    __name__ = "verifier"  # under which TRL logs it

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", record: Callable[[list[Row]], None] | None = None) -> None:
        self.tokenizer, self.record = tokenizer, record

    def __call__(
        self, completion_ids: list[list[int]], name: list[str], problem: list[dict], trainer_state: Any, **_: Any
    ) -> list[float]:
        """One reward per answer; `name` and `problem` are columns of the dataset, repeated over the group."""
        verdicts = [
            judge_ids(self.tokenizer, ids, parse_problem(structure))
            for ids, structure in zip(completion_ids, problem, strict=True)
        ]
        if self.record is not None:
            rows = zip(name, completion_ids, verdicts, strict=True)
            update = trainer_state.global_step  # how many were made when these answers were sampled
            self.record(
                [
                    {"update": update, "problem": n, "ids": list(ids), "reason": v.reason, "reward": v.reward}
                    for n, ids, v in rows
                ]
            )
        return [float(verdict.reward) for verdict in verdicts]
