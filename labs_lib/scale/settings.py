"""A profile's GRPO run in the words of TRL and accelerate: key by key, and what the profile has no word for.

One table makes both the settings of the run and the comparison that lab 07 shows, so that the two cannot part.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from labs_lib.config import Evaluation, Grpo, Optimizer, Profile, check_names
from labs_lib.errors import LabError

TRL, ACCELERATE, NONE = "TRL", "accelerate", "no counterpart"
SECTIONS = {"grpo": Grpo, "optimizer": Optimizer, "evaluation": Evaluation}  # whose keys all have an entry
# Of a profile's other keys, those that are no part of a GRPO run: other trainings, what the start is made of.
NO_PART = (
    "name",
    "protocol_share",
    "template_version",
    "base.",
    "warmstart.",
    "sft.",
    "group_size_runs.",
    "grpo_control.",
)
# Linear like ours, and told its end as a share of the peak (`polynomial` takes a rate, and warms up from 0).
SCHEDULE = "warmup_stable_decay"


@dataclass(frozen=True)
class Counterpart:
    """One key of ours, and what says the same to the engine (`theirs` is None where nothing does)."""

    ours: str
    engine: str
    theirs: str | None
    value: Any
    difference: str = ""


def _same(section: str, key: str, value: Any) -> Counterpart:
    return Counterpart(f"{section}.{key}", TRL, key, value)


def _none(ours: str, difference: str) -> Counterpart:
    return Counterpart(ours, NONE, None, None, difference)


def share_of(profile: Profile, processes: int) -> int:
    """Prompts of an iteration that each process answers.

    Raises LabError unless the processes share the prompts evenly: a group must not be cut.
    """
    prompts = profile.grpo.prompts_per_iteration
    if processes < 1 or prompts % processes:
        raise LabError(f"{prompts} prompts an iteration cannot be shared evenly by {processes} processes.")
    return prompts // processes


def micro_batch(profile: Profile, processes: int) -> int:
    """Prompts that a process scores at once: no more than the profile allows, and a divisor of its share."""
    share = share_of(profile, processes)
    return max(size for size in range(1, min(share, profile.grpo.micro_batch_prompts) + 1) if share % size == 0)


def counterparts(profile: Profile, processes: int) -> list[Counterpart]:
    """Every key of the sections of `SECTIONS`, and what else shapes the run, with its counterpart and its value."""
    return [*_grpo(profile, processes), *_optimizer(profile), *_evaluation(profile), *_run(profile, processes)]


def _grpo(profile: Profile, processes: int) -> list[Counterpart]:
    grpo, at_once = profile.grpo, micro_batch(profile, processes)
    updates, parts = grpo.updates_per_iteration, share_of(profile, processes) // at_once
    return [
        Counterpart("grpo.iterations", TRL, "max_steps", grpo.iterations * updates, "counts updates"),
        Counterpart(
            "grpo.prompts_per_iteration", TRL, "gradient_accumulation_steps", parts, "follows from the other two"
        ),
        Counterpart("grpo.group_size", TRL, "num_generations", grpo.group_size),
        Counterpart(
            "grpo.micro_batch_prompts",
            TRL,
            "per_device_train_batch_size",
            at_once * grpo.group_size,
            "counts answers, of one process",
        ),
        Counterpart("grpo.updates_per_iteration", TRL, "num_iterations", updates),
        Counterpart("grpo.clip_low", TRL, "epsilon", grpo.clip_low),
        Counterpart("grpo.clip_high", TRL, "epsilon_high", grpo.clip_high),
        Counterpart("grpo.kl_weight", TRL, "beta", grpo.kl_weight, "weighs k3 x ratio of one token, not the exact KL"),
        _none("grpo.advantage_epsilon", "1e-4, in the code; scale_rewards only chooses whose deviation divides"),
        _same("grpo", "learning_rate", grpo.learning_rate),
        _same("grpo", "temperature", grpo.temperature),
        _same("grpo", "top_k", grpo.top_k),
        _same("grpo", "top_p", grpo.top_p),
        _none("grpo.interrupt_at", "a run is interrupted from outside"),
        Counterpart(
            "grpo.checkpoint_every",
            TRL,
            "save_steps",
            grpo.checkpoint_every * updates,
            "counts updates, where save_strategy is steps (here nothing is saved on the way)",
        ),
        _none("grpo.logprob_tolerance", "captures nothing; with vLLM the difference is logged and weighed"),
    ]


def _optimizer(profile: Profile) -> list[Counterpart]:
    settings, updates = profile.optimizer, profile.grpo.iterations * profile.grpo.updates_per_iteration
    warm_up = max(1, round(updates * settings.warmup_fraction))
    decay = {
        "num_decay_steps": updates - warm_up,
        "decay_type": "linear",
        "min_lr_ratio": settings.final_fraction,
    }
    return [
        Counterpart(
            "optimizer.weight_decay", TRL, "weight_decay", settings.weight_decay, "spares biases and norms, ours none"
        ),
        _same("optimizer", "max_grad_norm", settings.max_grad_norm),
        Counterpart(
            "optimizer.warmup_fraction",
            TRL,
            "warmup_steps",
            warm_up,
            "counts updates; starts at final_fraction of the peak, ours at 1 / warmup; then one update late",
        ),
        Counterpart("optimizer.final_fraction", TRL, "lr_scheduler_kwargs", decay, f"of lr_scheduler_type {SCHEDULE}"),
    ]


def _evaluation(profile: Profile) -> list[Counterpart]:
    return [
        Counterpart(
            "evaluation.samples_per_problem",
            TRL,
            "num_generations_eval",
            profile.evaluation.samples_per_problem,
            "a mean reward only: no greedy answers, no populations",
        ),
        _none("evaluation.bootstrap_draws", "no intervals"),
    ]


def _run(profile: Profile, processes: int) -> list[Counterpart]:
    on_cpu = profile.device == "cpu"
    model = {"dtype": profile.dtype, "attn_implementation": "eager" if profile.pin_cpu else "sdpa"}
    return [
        Counterpart("budget.answer_tokens", TRL, "max_completion_length", profile.budget.answer_tokens),
        _none("budget.prompt_tokens", "a prompt is never refused"),
        _none("budget.total_tokens", "only a length of vLLM's, vllm_max_model_length"),
        _none("kl_block", "k3 needs no sum over the vocabulary"),
        Counterpart("seed", TRL, "seed", profile.seed, "sampling: plus the number of the process; order: alike in all"),
        Counterpart("dtype, pin_cpu", TRL, "model_init_kwargs", model, "and bf16, which is on by default"),
        Counterpart("device", TRL, "use_cpu", on_cpu),
        Counterpart("threads", ACCELERATE, "num_cpu_threads_per_process", profile.threads or None),
        *_exchange(processes, on_cpu),
    ]


def _exchange(processes: int, on_cpu: bool) -> list[Counterpart]:
    """What several processes need to know; ours is one."""
    entries = [Counterpart("(processes)", ACCELERATE, "num_processes", processes, "ours has one")]
    if processes > 1:
        entries.append(Counterpart("(exchange)", TRL, "ddp_find_unused_parameters", False, "each update uses all"))
        if on_cpu:
            entries.append(Counterpart("(exchange)", TRL, "ddp_backend", "gloo", "nccl on GPUs"))
    return entries


# Keys of TRL that are set though no key of a profile says them: what is compared is written down, also where it is the
# default of this version.
SET_APART: dict[str, Any] = {
    "loss_type": "grpo",
    "use_bias_correction_kl": True,
    "scale_rewards": "group",
    "lr_scheduler_type": SCHEDULE,
    "bf16": False,
    "gradient_checkpointing": False,
    "remove_unused_columns": False,
    "report_to": "none",
    "logging_strategy": "no",
    "save_strategy": "no",
    "disable_tqdm": True,
}


def trl_settings(profile: Profile, processes: int) -> dict[str, Any]:
    """Keyword arguments of `GRPOConfig` for the profile's run; `output_dir` is the caller's."""
    table = {entry.theirs: entry.value for entry in counterparts(profile, processes) if entry.engine == TRL}
    return table | SET_APART


def require_known(keys: Any) -> None:
    """Raise ConfigError for a key that the installed TRL's GRPOConfig does not have."""
    from trl import GRPOConfig

    check_names(keys, [item.name for item in dataclasses.fields(GRPOConfig)], "TRL key")


def grpo_config(profile: Profile, processes: int, folder: str, **changes: Any):
    """TRL's configuration of the profile's run, with `changes`.

    Raises:
        ConfigError: a key that TRL does not know, with the nearest one.
        LabError: processes that cannot share the prompts.
    """
    from trl import GRPOConfig

    settings = trl_settings(profile, processes) | changes
    require_known(settings)
    return GRPOConfig(output_dir=folder, **settings)
