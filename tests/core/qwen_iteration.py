"""One iteration on the real configuration of Qwen2.5-0.5B with random weights: `python qwen_iteration.py grpo|ppo`.

A process of its own, so that its peak memory is that of the iteration; prints one line of JSON.
"""

import json
import resource
import sys
import time
from dataclasses import replace

import torch
from qwen_stand_in import QWEN_CONFIG, QwenRanks
from transformers import AutoModelForCausalLM, Qwen2Config

from labs_lib.branches import prompt_ids
from labs_lib.config import load_profile
from labs_lib.models.base import check_base
from labs_lib.models.half_precision import use_fp32_products
from labs_lib.models.lora import add_adapters
from labs_lib.models.roles import Scalar
from labs_lib.office_rewards import JudgeReward
from labs_lib.seeding import named_generator
from labs_lib.tasks.stock_arithmetic.corpus import load_split
from labs_lib.training.grpo import GrpoSettings, GrpoTrainer, RolloutPrompt
from labs_lib.training.ppo import PpoPrompt, PpoSettings, PpoTrainer

PROFILE = load_profile("qwen2.5-0.5b")
ANSWER_TOKENS = 8  # random weights hardly ever end an answer, and 64 tokens would take eight times as long


def random_base(dtype: torch.dtype, seed: int = 0):
    """The real shapes with the configuration's own initialisation; equal seeds give equal weights."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(Qwen2Config(**QWEN_CONFIG), dtype=dtype, attn_implementation="eager")
    check_base(model, PROFILE.base)
    return model.eval()


def adapted(seed: int):
    """A backbone in BF16 with FP32 adapters, as a role of lab 05."""
    model = use_fp32_products(random_base(torch.bfloat16))
    return add_adapters(model, PROFILE.office.lora, named_generator(seed, "office/adapters")).eval()


def grpo_trainer() -> GrpoTrainer:
    examples = load_split("train", labels=True)[:8]
    prompts = [RolloutPrompt(e.id, prompt_ids(PROFILE, QwenRanks(), e), e.problem) for e in examples]
    settings = GrpoSettings(
        replace(PROFILE.grpo, iterations=2), PROFILE.optimizer, PROFILE.kl_block, ANSWER_TOKENS, PROFILE.seed, "qwen"
    )
    policy, reference = random_base(torch.float32), random_base(torch.float32)
    return GrpoTrainer(policy, reference, QwenRanks(), prompts, settings)


def ppo_trainer() -> PpoTrainer:
    examples = load_split("train", labels=True)[:8]
    prompts = [PpoPrompt(e.id, prompt_ids(PROFILE, QwenRanks(), e)) for e in examples]
    ppo = replace(PROFILE.office.ppo, iterations=2)
    settings = PpoSettings(ppo, PROFILE.optimizer, PROFILE.kl_block, ANSWER_TOKENS, PROFILE.seed, "qwen")
    judge = Scalar(adapted(50), named_generator(50, "office/head"))
    reward = JudgeReward(judge, QwenRanks.pad_token_id)
    return PpoTrainer(adapted(49), Scalar(adapted(49)), adapted(49), reward, QwenRanks(), prompts, settings)


def main(kind: str) -> None:
    trainer = {"grpo": grpo_trainer, "ppo": ppo_trainer}[kind]()
    began = time.perf_counter()
    trainer.advance()
    row = trainer.history[0]
    optimizers = trainer.optimizers if kind == "ppo" else {"policy": trainer.optimizer}
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - began,
                "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                "answers": len(row["answers"]),
                "updates": len(row["updates"]),
                "optimiser_steps": {role: optimizer.updates for role, optimizer in optimizers.items()},
                "evidence": row,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
