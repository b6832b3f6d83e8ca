"""Learning rates of a profile, chosen on validation data: a short run at each rate, measured, the best one carried on.

No test problem, test pair or probe plays a part: the learning scopes would refuse to open them. What a stage starts
from is the best run of an earlier one. A short run says which rate learns fastest without breaking, which need not be
the best one for the whole budget: the record says how long the runs were.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from labs_lib.branch_runs import TrainedBranch
from labs_lib.branches import BASE, PolicySource, branch_trainer, prompt_ids, protocol_branches
from labs_lib.checkpoint import save_model_weights
from labs_lib.config import Profile
from labs_lib.errors import LabError
from labs_lib.evaluation import validation_rates
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.models.roles import learned_fingerprint, learned_tensors
from labs_lib.office_branches import JUDGE, PPO, RoleSource, office_protocol, office_trainer
from labs_lib.office_branches import SFT as OFFICE_SFT
from labs_lib.paths import outputs_base, outputs_root
from labs_lib.progress import progress
from labs_lib.reduced import held_out
from labs_lib.tasks.learning_scope import office_help_scope, stock_arithmetic_scope
from labs_lib.tasks.stock_arithmetic.corpus import load_split

FACTORS = (0.3, 1.0, 3.0, 10.0)  # of the profile's own rate
LAST = 0.25  # share of PPO's iterations whose mean reward counts

Measured = dict[str, float]
Starts = Mapping[str, Any]  # stage -> PolicySource or RoleSource of its best run


@dataclass(frozen=True)
class Stage:
    """One rate to choose. `measure` gives numbers of a finished run by name; the larger the better.

    The first number decides, the next one where that ties; of equal runs the one that was tried first is taken.

    Attributes:
        keys: the profile's learning rates that are scaled together.
        needs: stages whose best runs it starts from, in an order in which each comes before its users.
    """

    name: str
    keys: tuple[str, ...]
    needs: tuple[str, ...]
    begin: Callable[[Profile, Starts], Any]
    scope: Callable[[], AbstractContextManager]
    measure: Callable[[Profile, Any], Measured]
    keep: Callable[[Profile, Any, Path], Any]


def search(profile: Profile, names: Iterable[str], factors: Sequence[float] = FACTORS) -> list[dict[str, Any]]:
    """Try every factor in every named stage and in those that they need.

    Returns:
        a row for each run: "stage", "rates" (key -> rate), "measured" (name -> value) and "chosen".

    Raises:
        LabError: an unknown stage.
    """
    rows, starts = [], {}
    for stage in _with_needs(names):
        runs = []
        for factor in factors:
            tried = scaled(profile, stage.keys, factor)
            with stage.scope():
                trainer = stage.begin(tried, starts)
                for _ in progress(range(trainer.total_steps), f"{stage.name} at {factor:g} of its rate"):
                    trainer.advance()
            runs.append((stage.measure(tried, trainer), tried))
            values = [tuple(measured.values()) for measured, _ in runs]
            if values.index(max(values)) == len(runs) - 1:
                starts[stage.name] = stage.keep(tried, trainer, _weights_file(profile, stage))
                best = len(runs) - 1
        rows += [
            {"stage": stage.name, "rates": rates(tried, stage.keys), "measured": measured, "chosen": number == best}
            for number, (measured, tried) in enumerate(runs)
        ]
        profile = runs[best][1]
    return rows


def scaled(profile: Profile, keys: Iterable[str], factor: float) -> Profile:
    """The profile with some learning rates multiplied; a key is a path, such as "office.ppo.actor_learning_rate"."""
    for key in keys:
        profile = _replaced(profile, key.split("."), factor)
    return profile


def _replaced(section: Any, path: list[str], factor: float) -> Any:
    value = getattr(section, path[0])
    return replace(section, **{path[0]: value * factor if len(path) == 1 else _replaced(value, path[1:], factor)})


def rates(profile: Profile, keys: Iterable[str]) -> dict[str, float]:
    """The learning rates at some paths, three significant digits."""
    items = profile.numeric_items()
    return {key: float(f"{items[key]:.3g}") for key in keys}


def _with_needs(names: Iterable[str]) -> list[Stage]:
    names = list(names)
    if unknown := [name for name in names if name not in STAGES]:
        raise LabError(f"Unknown stage {unknown[0]!r}; the stages are: {', '.join(STAGES)}.")
    wanted = {need for name in names for need in (*STAGES[name].needs, name)}
    return [stage for name, stage in STAGES.items() if name in wanted]


def _weights_file(profile: Profile, stage: Stage) -> Path:
    return outputs_root(profile.name) / "rates" / f"{stage.name}.safetensors"


# --- StockArithmetic -------------------------------------------------------------------------------


def _begin_stock(name: str, profile: Profile, starts: Starts):
    branch = protocol_branches(profile)[name]
    source = PolicySource(profile, False, None, None) if branch.start == BASE else starts[branch.start]
    return branch_trainer(profile, branch, source)


def _fits(profile: Profile, trainer: Any) -> Measured:
    return {"minus validation NLL": -trainer.validation[-1]} | _answers_right(profile, trainer.model)


def _wins(profile: Profile, trainer: Any) -> Measured:
    return _answers_right(profile, trainer.policy)


def _answers_right(profile: Profile, model: torch.nn.Module) -> Measured:
    """Sampled success first: it is counted over four times as many answers as the greedy one."""
    tokenizer = PolicySource(profile, False, None, None).tokenizer()
    examples = held_out(profile, load_split("validation", labels=True), lambda example: example.id)
    prompts = [prompt_ids(profile, tokenizer, example) for example in examples]
    samples, tokens = profile.evaluation.samples_per_problem, profile.budget.answer_tokens
    found = validation_rates(model, tokenizer, examples, prompts, samples, tokens, profile.seed)
    return {name: found[name] for name in ("sampled", "greedy", "mixed", "valid")}


def _keep_policy(profile: Profile, trainer: Any, path: Path) -> PolicySource:
    model = trainer.policy if hasattr(trainer, "policy") else trainer.model
    fingerprint = policy_fingerprint(model)
    path.unlink(missing_ok=True)  # of an earlier rate or search
    save_model_weights(path, learned_tensors(model), {"fingerprint": fingerprint})
    return PolicySource(profile, False, path, fingerprint)


# --- OfficeHelp ------------------------------------------------------------------------------------


def _begin_office(name: str, profile: Profile, starts: Starts):
    branch = office_protocol(profile)[name]
    source = RoleSource(profile, None) if branch.start == BASE else starts[f"office.{branch.start}"]
    return office_trainer(profile, branch, source, starts.get("office.judge"))


def _validated(profile: Profile, trainer: Any) -> Measured:
    last = trainer.validation[-1]
    if not isinstance(last, dict):
        return {"minus validation NLL": -last}
    return {"minus validation loss": -last["loss"], "accuracy": last["accuracy"]}


def _paid(profile: Profile, trainer: Any) -> Measured:
    last = trainer.history[-max(1, round(LAST * len(trainer.history))) :]
    answers = [answer for row in last for answer in row["answers"]]
    kl = fmean(row["kl_mean"] for row in last)
    return {"mean reward at the end": fmean(answer["score"] for answer in answers), "minus KL per token": -kl}


def _keep_role(name: str, profile: Profile, trainer: Any, path: Path) -> RoleSource:
    model = trainer.actor if name == PPO else trainer.model
    fingerprint = learned_fingerprint(model)
    path.unlink(missing_ok=True)  # of an earlier rate or search
    save_model_weights(path, learned_tensors(model), {"fingerprint": fingerprint})
    return RoleSource(profile, TrainedBranch(office_protocol(profile)[name], {}, path, fingerprint))


def _stock(name: str, needs: tuple[str, ...], measure) -> Stage:
    def scope() -> AbstractContextManager:
        return stock_arithmetic_scope(validation_nll=name != "grpo", outputs=outputs_base())

    return Stage(name, (f"{name}.learning_rate",), needs, partial(_begin_stock, name), scope, measure, _keep_policy)


def _office(name: str, section: str, needs: tuple[str, ...], measure=_validated) -> Stage:
    def scope() -> AbstractContextManager:
        return office_help_scope(name != PPO, outputs=outputs_base())

    kinds = ("actor_", "critic_") if name == PPO else ("",)
    keys = tuple(f"office.{section}.{kind}learning_rate" for kind in kinds)
    begin, keep = partial(_begin_office, name), partial(_keep_role, name)
    return Stage(f"office.{name}", keys, needs, begin, scope, measure, keep)


STAGES = {
    stage.name: stage
    for stage in (
        _stock("warmstart", (), _fits),
        _stock("sft", ("warmstart",), _fits),
        _stock("grpo", ("warmstart",), _wins),
        _office(OFFICE_SFT, "sft", ()),
        _office(JUDGE, "judge", ()),
        _office(PPO, "ppo", (f"office.{OFFICE_SFT}", f"office.{JUDGE}"), _paid),
        _office("dpo", "dpo", (f"office.{OFFICE_SFT}",)),
    )
}
