"""A contender: sampling answers by `labs_lib.rollout.generate`, which also captures their log-probabilities."""

from typing import Any

from labs_lib.tools.benchmarks.cases import NO_EOS, RolloutCase, done, problems
from labs_lib.tools.benchmarks.turns import Turns, serve


def work(options: dict[str, Any], turns: Turns) -> None:
    """All answers to all prompts a turn, for ever."""
    from labs_lib.runtime import start

    case = RolloutCase(**options)
    profile = start(case.profile)
    import torch

    from labs_lib.branches import prompt_ids
    from labs_lib.models.base import load_base
    from labs_lib.models.chat import pad_id
    from labs_lib.rollout import answer_draws, generate
    from labs_lib.seeding import named_generator

    torch.set_num_threads(case.threads)
    loaded, generator = load_base(profile), named_generator(profile.seed, "bench/draws")
    prompts = [prompt_ids(profile, loaded.tokenizer, example) for example in problems(case.prompts)]
    while True:
        turns.begin()
        draws = answer_draws(generator, case.answers, case.answer_tokens)
        pad = pad_id(loaded.tokenizer)
        rollout = generate(loaded.model, prompts, case.group_size, case.answer_tokens, NO_EOS, pad, draws)
        turns.end(**done(sum(map(len, prompts)), int(rollout.mask.sum())))


if __name__ == "__main__":
    serve(work)
