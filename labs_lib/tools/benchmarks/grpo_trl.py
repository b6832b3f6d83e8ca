"""A contender: a GRPO iteration by TRL's GRPOTrainer on the same work, with the settings that suit it here.

Left at TRL's defaults: attention, fused AdamW, clipping of the gradient, sampling. Set for equal work: FP32, prompts,
length of the answers, group size, updates, clip, KL weight, means of the objective. Set in its favour: no logging, no
saving, no progress bar, the whole batch in one step, and (but for one row) no gradient checkpointing, which is slower.
What it does and this project does not: it unembeds the prompts too (on a CPU), and scores the answers once more before
the first update. What this project does and it does not: the exact KL over the vocabulary, a fingerprint of the policy,
a comparison of recomputed with captured log-probabilities, evidence for the audit.
"""

import tempfile
from typing import Any

from labs_lib.scale.prompts import messages
from labs_lib.tools.benchmarks.cases import GrpoCase, done, payment, problems
from labs_lib.tools.benchmarks.turns import Turns, serve

STEPS = 2000  # of the schedule: more than are ever timed


class Paid:
    """The reward function, which also counts what was asked and answered in the iteration."""

    __name__ = "paid"

    def __init__(self, case: GrpoCase, tokenizer):
        self.examples, self.tokenizer, self.group_size = problems(case.prompts), tokenizer, case.group_size
        self.counted: dict[str, int] = {}

    def __call__(self, prompts, completions, completion_ids, index, **_: Any) -> list[float]:
        asked = self.tokenizer.apply_chat_template(list(prompts), add_generation_prompt=True)["input_ids"]
        self.counted = done(sum(map(len, asked)) // self.group_size, sum(map(len, completion_ids)))
        texts = [completion[0]["content"] for completion in completions]
        return [payment(text, self.examples[row]) for text, row in zip(texts, index, strict=True)]


def config(case: GrpoCase, folder: str):
    """TRL's settings for this work."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=folder,
        model_init_kwargs={"dtype": "float32"},
        bf16=False,
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=case.answers,
        num_generations=case.group_size,
        num_iterations=case.updates,
        max_completion_length=case.answer_tokens,
        generation_kwargs={"min_new_tokens": case.answer_tokens},
        epsilon=case.clip,
        beta=case.kl_weight,
        loss_type="grpo",
        gradient_checkpointing=case.checkpointing,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def trainer(case: GrpoCase, turns: Turns, folder: str):
    """GRPOTrainer on the profile's base, whose steps are the turns' iterations."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    from labs_lib.config import load_profile
    from labs_lib.models.base import base_tokenizer
    from labs_lib.models.locations import base_folder

    torch.set_num_threads(case.threads)
    profile = load_profile(case.profile)
    folder_of_base = base_folder(profile)
    tokenizer = base_tokenizer(profile.base, folder_of_base)
    paid = Paid(case, tokenizer)

    class Iterations(TrainerCallback):
        def on_step_begin(self, args, state, control, **_: Any) -> None:
            if state.global_step % case.updates == 0:
                turns.begin()

        def on_step_end(self, args, state, control, **_: Any) -> None:
            if state.global_step % case.updates == 0:
                turns.end(**paid.counted, updates=case.updates)

    rows = [{"prompt": messages(example.statement), "index": row} for row, example in enumerate(paid.examples)]
    return GRPOTrainer(
        str(folder_of_base),
        paid,
        config(case, folder),
        Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Iterations()],
    )


def work(options: dict[str, Any], turns: Turns) -> None:
    """Train; every turn is one iteration."""
    with tempfile.TemporaryDirectory() as folder:
        trainer(GrpoCase(**options), turns, folder).train()


if __name__ == "__main__":
    serve(work)
