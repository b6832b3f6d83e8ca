"""A contender: PPO iterations of this project, timed phase by phase."""

from dataclasses import replace
from typing import Any

from labs_lib.tools.benchmarks.cases import RolloutCase
from labs_lib.tools.benchmarks.grpo_ours import ITERATIONS, Endless
from labs_lib.tools.benchmarks.phases import Stopwatch
from labs_lib.tools.benchmarks.turns import Turns, serve

PHASES = {
    "sample": "sampling",
    "read": "reading by actor and critic",
    "evaluate": "reference, exact KL, advantages",
    "reward": "judge",
    "update": "backward and updates of actor and critic",
}


def trainer(case: RolloutCase):
    """PpoTrainer on roles that start from the profile's base, paid by an untrained judge."""
    from labs_lib.runtime import start

    profile = start(case.profile)
    import torch

    from labs_lib.models.chat import pad_id
    from labs_lib.office_branches import BASE, request_ids, role_source
    from labs_lib.office_rewards import JudgeReward
    from labs_lib.tasks.office_help.corpus import load_rollout_requests
    from labs_lib.training.ppo import PpoPrompt, PpoSettings, PpoTrainer

    torch.set_num_threads(case.threads)
    ppo = replace(profile.office.ppo, iterations=ITERATIONS, prompts_per_iteration=case.prompts)
    source = role_source(profile, BASE)
    actor = source.actor()
    requests = load_rollout_requests()[: case.prompts]
    prompts = [PpoPrompt(row.id, request_ids(profile, actor.tokenizer, row)) for row in requests]
    settings = PpoSettings(ppo, profile.optimizer, profile.kl_block, case.answer_tokens, profile.seed, "bench")
    paid_by = JudgeReward(source.judge(), pad_id(actor.tokenizer))
    roles = actor.model, source.critic(), source.actor().model
    return PpoTrainer(*roles, paid_by, Endless(actor.tokenizer), prompts, settings)


def work(options: dict[str, Any], turns: Turns) -> None:
    """One iteration a turn, for ever; says the seconds of each phase."""
    ours, stopwatch = trainer(RolloutCase(**options)), Stopwatch()
    stopwatch.watch(ours, PHASES)
    stopwatch.serve_iterations(ours.advance, turns)


if __name__ == "__main__":
    serve(work)
