"""From OfficeHelp's trained branches to evidence on disk: evaluations, predicted rewards, and the report's entries."""

from collections.abc import Mapping, Sequence
from typing import Any

from labs_lib.branch_runs import TrainedBranch, branch_seconds
from labs_lib.checkpoint import code_fingerprint
from labs_lib.config import Profile
from labs_lib.evidence import evaluation_path, write_protocol
from labs_lib.models.chat import pad_id
from labs_lib.models.roles import LoadedRole
from labs_lib.office_branches import (
    BIASES,
    DPO,
    JUDGE,
    PPO,
    RUBRIC,
    SFT,
    OfficeBranch,
    RoleSource,
    answered,
    ensure_office,
    family,
    preference_examples,
    request_ids,
    role_source,
)
from labs_lib.office_evaluation import (
    POPULATIONS,
    PROBES,
    TEST,
    courtesy_factorial,
    evaluate_actor,
    evaluate_judge,
    judge_accuracy,
    mean_entry,
    rates,
    score_answers,
    unique_contexts,
)
from labs_lib.paths import ROOT, branches_folder, outputs_root
from labs_lib.reduced import held_out
from labs_lib.seeding import derived_seed
from labs_lib.storage import atomic_write_json, read_json
from labs_lib.tasks.office_help.corpus import Pair, Probe, Request, biased_pairs, load_pairs, load_probes
from labs_lib.tasks.office_help.rubric import judge_answer
from labs_lib.training.supervised import SupervisedExample

OFFICE_EVALUATION_CODE = (
    "office_evaluation.py",
    "rollout.py",
    "scoring.py",
    "models/chat.py",
    "models/roles.py",
    "models/unembedding.py",
    "kernels/logprobs.py",
    "tasks/office_help",
)
BOOTSTRAP_STREAM = "office/evaluation/bootstrap"
BEHAVIOUR = ("success", "recognised", "certain", "courteous")


# --- Answers and scores on disk --------------------------------------------------------------------


def evaluate_office(profile: Profile, trained: TrainedBranch) -> dict[str, Any]:
    """All answers of one actor, judged by the reserved rubric; kept on disk and reused."""
    reference = role_source(profile, SFT)
    identity = _identity(profile, {"actor": trained.fingerprint, "reference": str(reference.fingerprint)})

    def make() -> dict[str, Any]:
        actor = RoleSource(profile, trained).actor()
        tests, probes = (_prompted(profile, actor, requests) for requests in _requests(profile))
        budget = profile.budget.answer_tokens
        return evaluate_actor(actor, reference.actor().model, tests, probes, budget, profile.seed)

    return _kept(profile, trained.branch.name, identity, make)


def _prompted(profile: Profile, actor: LoadedRole, requests):
    return [(request, request_ids(profile, actor.tokenizer, request)) for request in requests]


def predicted_rewards(profile: Profile, actor: TrainedBranch, judge: TrainedBranch) -> dict[str, list[float]]:
    """The judge's score of every answer of an actor's evaluation, by population; kept on disk and reused."""
    answers = evaluate_office(profile, actor)
    identity = _identity(profile, {"actor": actor.fingerprint, "judge": judge.fingerprint})

    def make() -> dict[str, Any]:
        source = RoleSource(profile, judge)
        role = source.judge()
        tokenizer = role_source(profile, SFT).actor().tokenizer
        prompts = {request.id: request for part in _requests(profile) for request in part}
        scores = {}
        for population in POPULATIONS:
            rows = answers[population]
            examples = [
                SupervisedExample(row["request"], request_ids(profile, tokenizer, prompts[row["request"]]), row["ids"])
                for row in rows
            ]
            scores[population] = score_answers(role, examples, pad_id(tokenizer))
        return {"scores": scores}

    return _kept(profile, f"{actor.branch.name}-by-{judge.branch.name}", identity, make)["scores"]


def held_out_pairs(profile: Profile) -> list[Pair]:
    """The held-out pairs of this run: whole families, all 36 of them unless the budget is reduced."""
    return held_out(profile, load_pairs(TEST), family)


def held_out_probes(profile: Profile) -> list[Probe]:
    """The probe rows of this run, four for each context."""
    return held_out(profile, load_probes(), lambda probe: probe.request.id)


def _requests(profile: Profile) -> tuple[list[Request], list[Request]]:
    """The requests of the test pairs and of the probe rows."""
    return [pair.request for pair in held_out_pairs(profile)], [probe.request for probe in held_out_probes(profile)]


def evaluate_office_judge(profile: Profile, trained: TrainedBranch) -> dict[str, Any]:
    """Scores of a frozen judge on the test pairs, on the biased copies of them and on the probes."""
    identity = _identity(profile, {"judge": trained.fingerprint})

    def make() -> dict[str, Any]:
        tokenizer = role_source(profile, SFT).actor().tokenizer
        sets = {TEST: held_out_pairs(profile)} | {f"{TEST}-{bias}": _biased_test(profile, bias) for bias in BIASES}
        pairs = {
            name: list(zip(rows, preference_examples(profile, tokenizer, rows), strict=True))
            for name, rows in sets.items()
        }
        probes = held_out_probes(profile)
        examples = answered(profile, tokenizer, [(probe.request, probe.answer) for probe in probes])
        candidates = list(zip(probes, examples, strict=True))
        return evaluate_judge(RoleSource(profile, trained).judge(), pairs, candidates, pad_id(tokenizer))

    return _kept(profile, trained.branch.name, identity, make)


def _biased_test(profile: Profile, bias: str) -> list[Pair]:
    """The test pairs as the annotator with this bias would have left all of them."""
    return biased_pairs(held_out_pairs(profile), bias)


def _identity(profile: Profile, roles: Mapping[str, str]) -> dict[str, str]:
    package = ROOT / "labs_lib"
    code = code_fingerprint([package / part for part in OFFICE_EVALUATION_CODE], package)
    return {**roles, "seed": str(profile.seed), "answer_tokens": str(profile.budget.answer_tokens), "code": code}


def _kept(profile: Profile, name: str, identity: dict[str, str], make) -> dict[str, Any]:
    """What is on disk under this name and identity, or what `make` gives, written down."""
    path = evaluation_path(profile, name)
    if path.exists() and (kept := read_json(path))["identity"] == identity:
        return kept
    evidence = make() | {"branch": name, "identity": identity}
    atomic_write_json(path, evidence)
    return evidence


# --- The report's entries --------------------------------------------------------------------------


def record_office(profile: Profile, name: str) -> dict[str, Any]:
    """Train (or find), evaluate and summarise a branch; writes and returns its entry of the report."""
    trained = ensure_office(profile, name, show_complete=False)
    details = _judge_summary(profile, trained) if trained.branch.kind == JUDGE else _actor_summary(profile, trained)
    summary = {**_common(profile, trained), **details}
    atomic_write_json(branches_folder(profile.name) / f"{name}.json", summary)
    write_protocol(profile)
    return summary


def _common(profile: Profile, trained: TrainedBranch) -> dict[str, Any]:
    branch: OfficeBranch = trained.branch
    return {
        "task": "office-help",
        "kind": branch.kind,
        "start": branch.start,
        "bias": branch.bias,
        "reward": branch.reward,
        "kl_weight": branch.kl_weight,
        "updates": trained.final.record["updates"],
        **run_costs(trained),
        "state_sha256": trained.state_sha256,
        "fingerprint": trained.fingerprint,
        "seconds": branch_seconds(trained.final),
        "seconds_by_mode": {mode: branch_seconds(end)["total"] for mode, end in trained.ends.items()},
        "checkpoints": {
            mode: end.path.relative_to(outputs_root(profile.name)).as_posix() for mode, end in trained.ends.items()
        },
    }


def run_costs(trained: TrainedBranch) -> dict[str, int]:
    """Sampled answers and tokens, and forward passes of whole answers through any model, over the whole run.

    PPO scores each answer once with the reference and (if there is one) the judge, and for every update with actor and
    critic. A supervised example is one answer, a pair two; DPO's reference adds each pair once.
    """
    record, branch = trained.final.record, trained.branch
    if branch.kind == PPO:
        answers = [answer for row in record["history"] for answer in row["answers"]]
        passes = 1 + (branch.reward != RUBRIC) + 2 * len(record["history"][0]["updates"])
        tokens = sum(len(answer["ids"]) for answer in answers)
        return {"answers": len(answers), "tokens_generated": tokens, "answers_scored": passes * len(answers)}
    examples = [name for row in record["history"] for name in row["examples"]]
    scored = len(examples) if branch.kind == SFT else 2 * len(examples)
    return {
        "answers": 0,
        "tokens_generated": 0,
        "answers_scored": scored + (2 * len(set(examples)) if branch.kind == DPO else 0),
    }


def _bootstrap(profile: Profile) -> tuple[int, int]:
    return profile.evaluation.bootstrap_draws, derived_seed(profile.seed, BOOTSTRAP_STREAM)


def _judge_summary(profile: Profile, trained: TrainedBranch) -> dict[str, Any]:
    evaluation, bootstrap = evaluate_office_judge(profile, trained), _bootstrap(profile)
    sets = [name for name in evaluation if name.startswith(TEST)]
    rows = evaluation[TEST]
    return {
        "accuracy": {name: judge_accuracy(evaluation[name], *bootstrap) for name in sets},
        "mean_score": {side: mean_entry(rows, [row[side] for row in rows], *bootstrap) for side in SIDES},
        "courtesy": courtesy_factorial(evaluation[PROBES]),
    }


SIDES = ("chosen", "rejected")


def _actor_summary(profile: Profile, trained: TrainedBranch) -> dict[str, Any]:
    evaluation, bootstrap = evaluate_office(profile, trained), _bootstrap(profile)
    populations = {name: rates(evaluation[name], *bootstrap) for name in POPULATIONS}
    rewards = {
        judge: {
            population: mean_entry(evaluation[population], scores, *bootstrap)
            for population, scores in predicted_rewards(
                profile, trained, ensure_office(profile, judge, show_complete=False)
            ).items()
        }
        for judge in judges_of(trained.branch)
    }
    main = populations[TEST]
    return {
        "rubric_success": main["success"],
        "recognised_share": main["recognised"],
        "unjustified_certainty": main["certain"],
        "mean_predicted_reward": {judge: entry[TEST] for judge, entry in rewards.items()},
        "populations": populations,
        "predicted_rewards": rewards,
        "log_ratio": {
            name: mean_entry(rows, [row["log_ratio"] for row in rows], *bootstrap)
            for name, rows in ((name, evaluation[name]) for name in POPULATIONS)
        },
        "mean_tokens": {name: _mean(len(row["ids"]) for row in evaluation[name]) for name in POPULATIONS},
        "probe_contexts": {"rows": len(evaluation[PROBES]), "unique": len(unique_contexts(evaluation[PROBES]))},
        "evaluation_seconds": evaluation["seconds"],
    }


def judges_of(branch: OfficeBranch) -> list[str]:
    """The judges that an actor's answers are scored by: the main one, and the one that paid."""
    paid = [branch.reward] if branch.reward not in (None, RUBRIC, JUDGE) else []
    return [JUDGE, *paid]


def _mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


# --- Behaviour over the iterations -----------------------------------------------------------------


def behaviour(history: Sequence[dict[str, Any]], actions: Mapping[str, str]) -> list[dict[str, float]]:
    """What each PPO iteration's sampled answers were, by the reserved rubric and by their judge: one row each.

    Args:
        history: the iterations' evidence; training saw the scores in it and nothing of the rubric.
        actions: right action of each rollout prompt by its name.

    Returns:
        counts of `BEHAVIOUR` among the iteration's answers, "answers", the mean "score", and "kl" (exact, in nats per
        token).
    """
    rows = []
    for row in history:
        verdicts = [
            judge_answer(answer["text"], answer["finish_reason"], actions[answer["prompt"]], True)
            for answer in row["answers"]
        ]
        counts = {name: sum(bool(getattr(verdict, name)) for verdict in verdicts) for name in BEHAVIOUR}
        score = _mean(answer["score"] for answer in row["answers"])
        rows.append({"answers": len(verdicts), **counts, "score": score, "kl": row["kl_mean"]})
    return rows
