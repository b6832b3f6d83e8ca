"""A contender: sampling answers by transformers' `generate`, from the whole distribution, without log-probabilities."""

from typing import Any

from labs_lib.scale.prompts import messages
from labs_lib.tools.benchmarks.cases import RolloutCase, done, problems
from labs_lib.tools.benchmarks.turns import Turns, serve


def work(options: dict[str, Any], turns: Turns) -> None:
    """All answers to all prompts a turn, for ever."""
    import torch
    from transformers import AutoModelForCausalLM

    from labs_lib.config import load_profile
    from labs_lib.models.base import base_tokenizer
    from labs_lib.models.locations import base_folder
    from labs_lib.rollout import left_pad

    case = RolloutCase(**options)
    torch.set_num_threads(case.threads)
    profile = load_profile(case.profile)
    folder = base_folder(profile)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    tokenizer = base_tokenizer(profile.base, folder)
    asked = [messages(example.statement) for example in problems(case.prompts)]
    prompts = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
    ids, attention, _ = left_pad(prompts, tokenizer.pad_token_id, "cpu")
    lengths = {"max_new_tokens": case.answer_tokens, "min_new_tokens": case.answer_tokens}
    while True:
        turns.begin()
        whole = model.generate(
            ids.repeat_interleave(case.group_size, dim=0),
            attention_mask=attention.repeat_interleave(case.group_size, dim=0),
            do_sample=True,
            top_k=0,
            **lengths,
        )
        turns.end(**done(sum(map(len, prompts)), whole[:, ids.shape[1] :].numel()))


if __name__ == "__main__":
    serve(work)
