"""OfficeHelp's trainers on the very small model's roles: milliseconds a step."""

from dataclasses import replace

import torch
from small_model import ANSWER_TOKENS, PROFILE, examples, id_lists, tokenizer
from small_office import PAD_ID, preferences, small_actor, small_critic, small_judge

from labs_lib.config import Dpo, Supervised
from labs_lib.office_rewards import JudgeReward
from labs_lib.training.ppo import PpoPrompt, PpoSettings, PpoTrainer
from labs_lib.training.preferences import DpoTrainer, JudgeTrainer
from labs_lib.training.supervised import SupervisedTrainer

SFT = Supervised(examples=12, epochs=2, batch_size=4, micro_batch_size=2, learning_rate=1e-2)
JUDGE = Supervised(examples=12, epochs=2, batch_size=4, micro_batch_size=4, learning_rate=1e-2)
DPO = Dpo(examples=12, epochs=2, batch_size=4, micro_batch_size=2, learning_rate=1e-2, beta=0.1)
PPO = replace(
    PROFILE.office.ppo,
    iterations=4,
    prompts_per_iteration=3,
    actor_learning_rate=3e-3,
    critic_learning_rate=3e-2,
    interrupt_at=2,
    checkpoint_every=2,
)
EPOCH = 3  # updates
PROMPTS = 6  # two iterations a permutation
ACTOR, JUDGE_SEED = 49, 50
LENGTHS = {"sft": SFT.updates, "judge": JUDGE.updates, "dpo": DPO.updates, "ppo": PPO.iterations}
INTERRUPT_AT = {"sft": EPOCH, "judge": EPOCH, "dpo": EPOCH, "ppo": PPO.interrupt_at}


def _common(settings, seed: int, name: str) -> tuple:
    return settings, PROFILE.optimizer, seed, name, PAD_ID


def sft_trainer(trainer_class=SupervisedTrainer, seed: int = 48, dtype=torch.float32) -> SupervisedTrainer:
    return trainer_class(small_actor(ACTOR, dtype), examples(10, 12), examples(20, 5), *_common(SFT, seed, "sft"))


def judge_trainer(trainer_class=JudgeTrainer, seed: int = 48, dtype=torch.float32, settings=JUDGE) -> JudgeTrainer:
    pairs = preferences(30, settings.examples), preferences(60, 5)
    return trainer_class(small_judge(JUDGE_SEED, dtype), *pairs, *_common(settings, seed, "judge"))


def dpo_trainer(trainer_class=DpoTrainer, seed: int = 48, dtype=torch.float32, settings=DPO, **roles) -> DpoTrainer:
    """`policy` and `reference` start alike, as in the labs, unless they are given."""
    roles = {name: small_actor(ACTOR, dtype, learned=True) for name in ("policy", "reference")} | roles
    pairs = preferences(30, settings.examples), preferences(60, 5)
    pairs = pairs[0], [replace(pair, name=f"validation-{pair.name}") for pair in pairs[1]]
    return trainer_class(roles["policy"], roles["reference"], *pairs, *_common(settings, seed, "dpo"))


def ppo_prompts(count: int = PROMPTS) -> list[PpoPrompt]:
    return [PpoPrompt(f"prompt-{n}", ids) for n, ids in enumerate(id_lists(5, count))]


def ppo_settings(seed: int = 48, name: str = "ppo", **changes) -> PpoSettings:
    return PpoSettings(replace(PPO, **changes), PROFILE.optimizer, 128, ANSWER_TOKENS, seed, name)


def ppo_trainer(
    trainer_class=PpoTrainer, seed: int = 48, dtype=torch.float32, name: str = "ppo", reward=None, **changes
) -> PpoTrainer:
    """Actor, reference and critic start from one learned role; the judge has learned something of its own."""
    actor, reference = (small_actor(ACTOR, dtype, learned=True) for _ in range(2))
    critic = small_critic(ACTOR, dtype, learned=True)
    reward = reward or JudgeReward(small_judge(JUDGE_SEED, dtype, learned=True), PAD_ID)
    settings = ppo_settings(seed, name, **changes)
    return trainer_class(actor, critic, reference, reward, tokenizer(), ppo_prompts(), settings)


TRAINERS = {"sft": sft_trainer, "judge": judge_trainer, "dpo": dpo_trainer, "ppo": ppo_trainer}
