"""A very small random Qwen2 with the tiny base's tokenizer, and trainers on it that take milliseconds a step."""

import copy
import os
import signal
from dataclasses import replace
from functools import lru_cache

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from labs_lib.config import Supervised, load_profile
from labs_lib.paths import ASSETS
from labs_lib.tasks.stock_arithmetic.problem import Problem
from labs_lib.tasks.stock_arithmetic.verifier import Verdict
from labs_lib.training.grpo import GrpoSettings, GrpoTrainer, RolloutPrompt
from labs_lib.training.run import RunPlan
from labs_lib.training.supervised import SupervisedExample, SupervisedTrainer

PROFILE = load_profile("tiny")
IDENTITY = {"config": "a", "data": "b", "base": "c", "code": "d"}
EPOCH = 3  # updates
ANSWER_TOKENS = 6
GRPO = replace(
    PROFILE.grpo,
    iterations=4,
    prompts_per_iteration=2,
    group_size=4,
    micro_batch_prompts=1,
    learning_rate=1e-3,
    interrupt_at=2,
)
SFT = Supervised(examples=12, epochs=3, batch_size=4, micro_batch_size=2, learning_rate=3e-3)


@lru_cache
def tokenizer():
    return PreTrainedTokenizerFast.from_pretrained(ASSETS / "tiny-base", local_files_only=True)


def small_model(seed: int = 0, **changes):
    """Random weights that are large enough for peaked distributions, and an EOS that is often sampled."""
    shape = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48}
    config = Qwen2Config(
        vocab_size=len(tokenizer()),
        num_hidden_layers=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.3,
        pad_token_id=tokenizer().pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer().eos_token_id,
        **(shape | changes),
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    make_eos_likely(model)
    return model


def in_double(model):
    """A copy in FP64, to tell a wrong term from rounding. Eager attention would give NaN: its softmax is FP32."""
    model = copy.deepcopy(model).double()
    model.set_attn_implementation("sdpa")
    return model


@torch.no_grad()
def make_eos_likely(model) -> None:
    ids = torch.randint(3, len(tokenizer()), (16, 8), generator=torch.Generator().manual_seed(1))
    mean = model.model(input_ids=ids).last_hidden_state.mean(dim=(0, 1))
    model.get_input_embeddings().weight[tokenizer().eos_token_id] = 6.0 * mean / mean.square().sum()


def id_lists(seed: int, count: int, shortest: int = 3, longest: int = 9) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(3, len(tokenizer()), (n,), generator=generator).tolist() for n in lengths]


def examples(seed: int, count: int) -> list[SupervisedExample]:
    """Targets of 2 to 6 tokens, EOS included: unequal lengths, so that wrong means show."""
    targets = [[*ids, tokenizer().eos_token_id] for ids in id_lists(seed + 1, count, 1, 5)]
    prompts = id_lists(seed, count)
    return [
        SupervisedExample(f"example-{n}", prompt, target)
        for n, (prompt, target) in enumerate(zip(prompts, targets, strict=True))
    ]


def rollout_prompts(count: int = 6) -> list[RolloutPrompt]:
    return [RolloutPrompt(f"prompt-{n}", ids, Problem(n, (0, 0), (0, 0))) for n, ids in enumerate(id_lists(5, count))]


def parity_verdict(text, finish_reason, problem, ids_known) -> Verdict:
    """Stands in for the verifier, which a random model never satisfies: pays for an even number of characters."""
    return Verdict(int(len(text) % 2 == 0), "parity")


def sft_trainer(trainer_class=SupervisedTrainer, seed: int = 48, settings: Supervised = SFT) -> SupervisedTrainer:
    return trainer_class(
        small_model(),
        examples(10, settings.examples),
        examples(20, 5),
        settings,
        PROFILE.optimizer,
        seed,
        "sft",
        tokenizer().pad_token_id,
    )


def grpo_trainer(trainer_class=GrpoTrainer, seed: int = 48, shuffle_rewards: bool = False, **changes) -> GrpoTrainer:
    settings = GrpoSettings(
        replace(GRPO, **changes), PROFILE.optimizer, 128, ANSWER_TOKENS, seed, "grpo", shuffle_rewards
    )
    return trainer_class(small_model(), small_model(), tokenizer(), rollout_prompts(), settings)


TRAINERS = {"sft": sft_trainer, "grpo": grpo_trainer}
LENGTHS = {"sft": SFT.updates, "grpo": GRPO.iterations}


def plan(kind: str, **changes) -> RunPlan:
    """Saves as the real branches do: SFT at each epoch's end, GRPO every second iteration."""
    every = EPOCH if kind == "sft" else 2
    return replace(RunPlan(LENGTHS[kind], lambda step: step % every == 0, IDENTITY, kind), **changes)


def killed_inside_a_step(trainer, last_whole_step: int):
    """The trainer, made to die by SIGKILL between two parameters' updates of the next step."""
    step = trainer.optimizer.step

    def kill_or_step():
        if trainer.step == last_whole_step:
            with torch.no_grad():
                trainer.optimizer.parameters[0].zero_()
            os.kill(os.getpid(), signal.SIGKILL)
        return step()

    trainer.optimizer.step = kill_or_step
    return trainer
