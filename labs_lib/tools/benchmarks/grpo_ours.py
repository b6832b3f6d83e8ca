"""A contender: a GRPO iteration by this project's trainer."""

from dataclasses import replace
from typing import Any

from labs_lib.tools.benchmarks.cases import NO_EOS, GrpoCase, done, payment, problems
from labs_lib.tools.benchmarks.turns import Turns, serve

ITERATIONS = 1000  # of the schedule: more than are ever timed


class Endless:
    """A tokenizer whose EOS is never sampled; everything else is the real one's."""

    eos_token_id = NO_EOS

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)


def trainer(case: GrpoCase):
    """GrpoTrainer on two copies of the profile's base."""
    from labs_lib.runtime import start

    profile = start(case.profile)
    import torch

    from labs_lib.branches import prompt_ids
    from labs_lib.kernels.advantages import group_advantages
    from labs_lib.models.base import load_base
    from labs_lib.training.grpo import PROBED_ITERATIONS, Batch, GrpoSettings, GrpoTrainer, RolloutPrompt

    torch.set_num_threads(case.threads)

    class PaidByParity(GrpoTrainer):
        def sample(self) -> Batch:
            batch = super().sample()
            paid = [
                payment(text, examples[batch.prompts[row // case.group_size].name])
                for row, text in enumerate(batch.texts)
            ]
            rewards = torch.tensor(paid, device=batch.rewards.device).view(batch.rewards.shape)
            return replace(batch, rewards=rewards, advantages=group_advantages(rewards).flatten())

    loaded, reference = load_base(profile), load_base(profile)
    examples = {example.id: example for example in problems(case.prompts)}
    prompts = [RolloutPrompt(e.id, prompt_ids(profile, loaded.tokenizer, e), e.problem) for e in examples.values()]
    grpo = replace(
        profile.grpo,
        iterations=ITERATIONS,
        prompts_per_iteration=case.prompts,
        micro_batch_prompts=min(case.prompts, profile.grpo.micro_batch_prompts),
        group_size=case.group_size,
        updates_per_iteration=case.updates,
        clip_low=case.clip,
        clip_high=case.clip,
        kl_weight=case.kl_weight,
    )
    settings = GrpoSettings(grpo, profile.optimizer, profile.kl_block, case.answer_tokens, profile.seed, "bench")
    ours = PaidByParity(loaded.model, reference.model, Endless(loaded.tokenizer), prompts, settings)
    ours.step = PROBED_ITERATIONS  # the first ones keep whole distributions for the audit, most do not
    return ours


def work(options: dict[str, Any], turns: Turns) -> None:
    """One iteration a turn, for ever."""
    case = GrpoCase(**options)
    ours = trainer(case)
    prompt_tokens = sum(len(prompt.ids) for prompt in ours.stream.prompts)
    while True:
        turns.begin()
        ours.advance()
        row = ours.history[-1]
        answer_tokens = sum(len(answer["ids"]) for answer in row["answers"])
        turns.end(**done(prompt_tokens, answer_tokens, updates=len(row["updates"])))


if __name__ == "__main__":
    serve(work)
