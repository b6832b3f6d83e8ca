"""The audit of OfficeHelp passes on a course of runs made by the real code, and names every edit of its evidence."""

import copy
import gzip
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_office
from evidence_tree import Tree, add, put, write
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_lib.config import load_profile, profile_names
from labs_lib.kernels.gae import generalised_advantages_reference, token_rewards
from labs_lib.statistics import bootstrap_ratio
from labs_lib.tasks.office_help import corpus as library_corpus
from labs_lib.tasks.office_help import rubric as library_rubric
from labs_lib.tasks.office_help import wording
from labs_lib.tools.audit import __main__ as command
from labs_lib.tools.audit import formulas, reading
from labs_lib.tools.audit.checks import audit
from labs_lib.tools.audit.findings import Findings
from labs_lib.tools.audit.office import rubric
from labs_lib.tools.audit.office.corpus import OfficeCorpus, biased, check_office_corpus, read_corpus
from labs_lib.tools.audit.office.epochs import check_epochs
from labs_lib.tools.audit.office.evaluations import POPULATIONS, check_office_evaluation
from labs_lib.tools.audit.office.ppo import check_ppo
from labs_lib.tools.audit.office.protocol import check_office_protocol, office_plans, required_office_plans
from labs_lib.tools.audit.office.states import check_office_states
from labs_lib.tools.audit.office.study import check_office_study
from labs_lib.tools.audit.office.summaries import check_office_summary

JUDGES = ["judge", "judge-courtesy", "judge-confidence"]
ACTORS = ["sft-office", "ppo", "ppo-courtesy", "ppo-confidence", "ppo-rubric", "dpo"]


@pytest.fixture(scope="session")
def course(tmp_path_factory) -> Path:
    return toy_office.run_toy_office(tmp_path_factory.mktemp("office"))


@pytest.fixture(scope="session")
def evidence(course) -> reading.Evidence:
    return reading.read_evidence("tiny", course / "outputs", course)


@pytest.fixture(scope="session")
def corpus(evidence) -> OfficeCorpus:
    return read_corpus(evidence)


@pytest.fixture
def tree(course: Path, tmp_path: Path) -> Tree:
    return Tree.copy(course, tmp_path / "course")


Evidence, Branch = reading.Evidence, reading.BranchEvidence


def with_edited(evidence: Evidence, name: str, edit: Callable[[Branch], None]) -> Evidence:
    """The evidence in memory with one branch edited, all states of it alike; nothing is signed."""
    branch = evidence.branches[name]
    states = {
        mode: [
            replace(state, record=copy.deepcopy(state.record), manifest=copy.deepcopy(state.manifest))
            for state in branch.states[mode]
        ]
        for mode in branch.states
    }
    own = replace(branch, states=states, summary=copy.deepcopy(branch.summary))
    own.evaluation = copy.deepcopy(branch.evaluation)
    edit(own)
    changed = copy.copy(evidence)
    changed.branches = {**evidence.branches, name: own}
    return changed


def run_differences(evidence: Evidence, corpus: OfficeCorpus, name: str) -> list[str]:
    """What is found in a branch's history, evaluation and summary."""
    findings = Findings()
    plan = office_plans(evidence, findings)[name]
    (check_ppo if plan.kind == "ppo" else check_epochs)(evidence, corpus, plan, findings)
    check_office_evaluation(evidence, corpus, plan, True, findings)
    check_office_summary(evidence, plan, findings)
    return [str(difference) for difference in findings.differences]


def state_differences(evidence: Evidence, corpus: OfficeCorpus, name: str) -> list[str]:
    """What is found in a branch's states, without the large files."""
    findings = Findings()
    check_office_states(evidence, corpus, office_plans(evidence, findings)[name], False, findings)
    return [str(difference) for difference in findings.differences]


# --- The evidence as it is ---------------------------------------------------------------------------


def test_evidence_of_the_real_code_passes(evidence):
    findings = audit(evidence, reduced=True)
    assert [str(difference) for difference in findings.differences] == []
    lines = [group.line() for group in findings.groups]
    assert "report.json: branches: 9 branches ok" in lines
    assert "ppo: rollouts: 12 answers, 12 prompts ok" in lines
    assert "judge: examples: 2 epochs, 32 examples ok" in lines
    assert "recorded study: reward hacking: 7 branches of the main seed, 3 judges, 4 runs ok" in lines
    assert any("StockArithmetic: none of its branches" in note for note in findings.notes)


def test_the_toy_course_has_everything_that_can_go_wrong(evidence):
    """Without clipped tokens, cut answers and every verdict the edits below would be looked for in vain."""
    assert sorted(evidence.branches) == sorted([*JUDGES, *ACTORS])
    rows = [row for name in ACTORS if name.startswith("ppo") for row in evidence.branches[name].history]
    answers = [answer for row in rows for answer in row["answers"]]
    assert {"eos", "length"} == {answer["finish_reason"] for answer in answers}
    assert any(update["active_clip_share"] > 0 for row in rows for update in row["updates"])
    assert {0.0, 1.0} == {a["score"] for row in evidence.branches["ppo-rubric"].history for a in row["answers"]}
    judged = [row for name in ACTORS for kind in POPULATIONS for row in evidence.branches[name].evaluation[kind]]
    assert {"success", "wrong_action", "UNCERTIFIED", "no_eos"} <= {row["reason"] for row in judged}
    assert {True, False} == {row["certain"] for row in judged}


def test_only_stock_branches_are_noted(evidence):
    findings = Findings()
    without = copy.copy(evidence)
    without.branches = {}
    assert office_plans(without, findings) == {}
    assert any("OfficeHelp: none of its branches" in note for note in findings.notes)


# --- Edits of what a run recorded --------------------------------------------------------------------


def row(number: int, edit: Callable[[dict], None]) -> Callable[[Branch], None]:
    return lambda branch: edit(branch.history[number])


def rows(edit: Callable[[dict], None]) -> Callable[[Branch], None]:
    return lambda branch: [edit(row) for row in branch.history]


def answer(number: int, edit: Callable[[dict], None], of: int = 0) -> Callable[[Branch], None]:
    return row(number, lambda row: edit(row["answers"][of]))


def update(number: int, edit: Callable[[dict], None]) -> Callable[[Branch], None]:
    return row(0, lambda row: edit(row["updates"][number]))


def token(key: str, change: Callable[[float], float], place: int = 0) -> Callable[[dict], None]:
    return lambda values: values[key].__setitem__(place, change(values[key][place]))


def record(edit: Callable[[dict], None]) -> Callable[[Branch], None]:
    return lambda branch: edit(branch.final.record)


def evaluated(population: str, edit: Callable[[dict], None], of: int = 0) -> Callable[[Branch], None]:
    return lambda branch: edit(branch.evaluation[population][of])


def nested(key: str, edit: Callable[[Any], None]) -> Callable[[dict], None]:
    return lambda values: edit(values[key])


def flip(key: str) -> Callable[[dict], None]:
    return lambda values: values.__setitem__(key, not values[key])


def truncations_unpunished(row: dict) -> None:
    for answer in row["answers"]:
        answer["rewards"][-1] += answer["finish_reason"] == "length"


def whitened(values: list[list[float]]) -> list[list[float]]:
    flat = [value for row in values for value in row]
    mean = sum(flat) / len(flat)
    deviation = (sum((value - mean) ** 2 for value in flat) / len(flat)) ** 0.5
    return [[(value - mean) / deviation for value in row] for row in values]


def whitened_advantages(row: dict) -> None:
    for answer, values in zip(row["answers"], whitened([a["advantages"] for a in row["answers"]]), strict=True):
        answer["advantages"] = values


def whitened_returns(row: dict) -> None:
    for answer, values in zip(row["answers"], whitened([a["advantages"] for a in row["answers"]]), strict=True):
        answer["returns"] = [a + v for a, v in zip(values, answer["values"], strict=True)]


def bootstrapped_past_the_end(row: dict) -> None:
    """The last token is followed by its own value, as if the episode went on."""
    for answer in row["answers"]:
        rewards = [*answer["rewards"][:-1], answer["rewards"][-1] + answer["values"][-1]]
        answer["advantages"], answer["returns"] = formulas.gae(rewards, answer["values"], 1.0, 0.95)


def old_recomputed(row: dict) -> None:
    """ "Old" log-probs that follow the actor: consistent in itself, and every ratio is 1."""
    first, second = row["updates"]
    ratio = formulas.ratios(first["logprobs"], [answer["logprobs"] for answer in row["answers"]])
    loss = formulas.actor_loss(ratio, [answer["advantages"] for answer in row["answers"]], 0.2, 0.2)
    kept = ("logprobs", "max_ratio_deviation", "active_clip_share", "outside_share")
    second |= {key: first[key] for key in kept}
    second["actor"]["loss"] = loss


def values_recomputed(row: dict) -> None:
    first, second = row["updates"]
    second["values"], second["critic"]["loss"] = first["values"], first["critic"]["loss"]


def exchange_prompts(row: dict) -> None:
    first, last = row["answers"][0], row["answers"][-1]
    first["prompt"], last["prompt"] = last["prompt"], first["prompt"]


PPO_EDITS: dict[str, tuple[str, Callable[[Branch], None], str]] = {
    "a score": ("ppo", answer(0, add("score", 1.0)), "ppo/0001/0 reward of token"),
    "a score that is no number": ("ppo", answer(0, put("score", None)), "TypeError"),
    "an infinite score": ("ppo", answer(0, put("score", float("inf"))), "ppo/0001/0 score: recorded inf"),
    "a score other than the rubric's": (
        "ppo-rubric",
        answer(0, lambda a: a.update(score=1 - a["score"])),
        "ppo-rubric/0001/0 score by the rubric",
    ),
    "a score paid on the first token": (
        "ppo",
        answer(0, token("rewards", lambda r: r + 1)),
        "ppo/0001/0 reward of token 0",
    ),
    "a truncation that costs nothing": ("ppo-courtesy", rows(truncations_unpunished), " reward of token 17: recorded"),
    "a reference log-prob": (
        "ppo",
        answer(1, token("reference_logprobs", lambda v: v - 1)),
        "ppo/0002/0 reward of token 0",
    ),
    "whitened advantages": ("ppo", row(1, whitened_advantages), "ppo/0002/0 advantages of token 0"),
    "returns of whitened advantages": ("ppo", row(1, whitened_returns), "ppo/0002/0 returns of token 0"),
    "a value past the end": ("ppo", row(1, bootstrapped_past_the_end), "ppo/0002/0 advantages of token 0"),
    "advantages without decay": (
        "ppo",
        row(1, lambda r: [a.update(advantages=formulas.gae(a["rewards"], a["values"], 1, 1)[0]) for a in r["answers"]]),
        "ppo/0002/0 advantages of token 0",
    ),
    "a captured log-prob": (
        "ppo",
        answer(0, token("logprobs", lambda v: v - 0.3)),
        "iteration 1 score_check: recorded",
    ),
    "a positive log-prob": ("ppo", answer(0, token("logprobs", lambda v: 0.1)), "ppo/0001/0 logprobs: recorded"),
    "a score check beyond any rounding": ("ppo", row(0, put("score_check", 1.0)), "recomputed '0 to 0.5'"),
    "another reference at the start": (
        "ppo",
        answer(0, token("reference_logprobs", lambda v: v - 1)),
        "iteration 1 reference_logprobs",
    ),
    "the number of updates": ("ppo", record(add("updates", 1)), "steps: recorded (3, 7), recomputed (3, 6)"),
    "an answer left out": ("ppo", row(0, lambda r: r["answers"].pop()), "answers consumed: recorded 11"),
    "the score check": ("ppo", row(0, put("score_check", 1e-3)), "iteration 1 score_check: recorded 0.001"),
    "a captured value": ("ppo", answer(1, token("values", lambda v: v + 1)), "iteration 2 values of the first update"),
    "a value at the start": ("ppo", answer(0, token("values", lambda v: 0.5)), "iteration 1 values: recorded 0.5"),
    "old log-probs recomputed": ("ppo", rows(old_recomputed), "logprobs of all later updates: recorded 0.0"),
    "old values recomputed": ("ppo", rows(values_recomputed), "values of all later updates: recorded 0.0"),
    "an actor's loss": ("ppo", update(1, nested("actor", add("loss", 1e-3))), "iteration 1 update 1 actor loss"),
    "no half in the critic's loss": (
        "ppo",
        update(0, nested("critic", lambda c: c.update(loss=2 * c["loss"]))),
        "iteration 1 update 0 critic loss",
    ),
    "a loss over all tokens at once": (
        "ppo",
        row(1, lambda r: r["updates"][0]["critic"].update(loss=token_mean(r))),
        "iteration 2 update 0 critic loss",
    ),
    "a log-prob of an update": ("ppo", update(1, lambda u: u["logprobs"][0].__setitem__(0, -7.0)), "update 1 actor"),
    "a value of an update": ("ppo", update(1, lambda u: u["values"][0].__setitem__(0, -7.0)), "update 1 critic loss"),
    "the clip share": ("ppo", update(1, put("active_clip_share", 0.99)), "iteration 1 update 1 active_clip_share"),
    "the outside share": ("ppo", update(1, put("outside_share", 0.99)), "iteration 1 update 1 outside_share"),
    "the largest ratio": ("ppo", update(1, add("max_ratio_deviation", 0.01)), "update 1 max_ratio_deviation"),
    "the tokens of an update": ("ppo", update(1, add("tokens", 1)), "iteration 1 update 1 tokens"),
    "the actor's learning rate": ("ppo", update(1, nested("actor", add("learning_rate", 1e-7))), "1 learning_rate"),
    "the critic's learning rate": ("ppo", update(0, nested("critic", add("learning_rate", 1e-7))), "0 learning_rate"),
    "a gradient norm": ("ppo", update(0, nested("critic", put("gradient_norm", -1.0))), "update 0 gradient_norm"),
    "an update left out": ("ppo", row(0, lambda r: r["updates"].pop()), "iteration 1 updates: recorded 1"),
    "a KL mean": ("ppo", row(1, add("kl_mean", 1e-2)), "iteration 2 kl_mean"),
    "a KL below zero": ("ppo", answer(1, token("kl", lambda v: -0.1)), "iteration 2 kl: recorded -0.1"),
    "a KL at the start": ("ppo", answer(0, token("kl", lambda v: 0.1)), "iteration 1 kl: recorded 0.1"),
    "an entropy": ("ppo", row(0, put("entropy_mean", 9.0)), "iteration 1 entropy_mean"),
    "a rollout used twice": ("ppo", answer(1, put("rollout_id", "ppo/0001/0")), "'consumed only once'"),
    "an iteration optimised twice": (
        "ppo",
        record(lambda r: r["history"].__setitem__(1, {**r["history"][0], "iteration": 2})),
        "rollout ppo/0002/0 rollout_id: recorded 'ppo/0001/0'",
    ),
    "prompts exchanged": ("ppo", row(0, exchange_prompts), "iteration 1 prompts"),
    "a probe as a prompt": ("ppo", answer(0, put("prompt", "probe-01")), "iteration 1 prompts: recorded ['probe-01'"),
    "the cursor": ("ppo", record(add("cursor", 4)), "record.json: cursor"),
    "the permutation": ("ppo", record(lambda r: r["order"].reverse()), "record.json: order"),
    "a text": ("ppo", answer(0, put("text", "Try this: check the cable.")), "ppo/0001/0 text: recorded"),
    "a finish reason": ("ppo", answer(0, put("finish_reason", "length")), "ppo/0001/0 finish_reason"),
    "a token after EOS": ("ppo", answer(0, lambda a: a["ids"].append(5)), "nothing after EOS"),
    "a value left out": ("ppo", answer(0, lambda a: a["values"].pop()), "rollout ppo/0001/0 numbers"),
    "an iteration left out": ("ppo", record(lambda r: r["history"].pop()), "record.json: iterations: recorded [1, 2]"),
}


def token_mean(row: dict) -> float:
    """The critic's loss as a mean over all tokens, which weighs long answers more."""
    losses = [
        0.5 * (value - target) ** 2
        for values, answer in zip(row["updates"][0]["values"], row["answers"], strict=True)
        for value, target in zip(values, answer["returns"], strict=True)
    ]
    return sum(losses) / len(losses)


EPOCH_EDITS: dict[str, tuple[str, Callable[[Branch], None], str]] = {
    "an example used twice": (
        "sft-office",
        row(0, lambda r: r["examples"].__setitem__(0, r["examples"][1])),
        "epoch 0: each example once",
    ),
    "a validation pair as an example": (
        "judge",
        row(0, lambda r: r["examples"].__setitem__(0, "family-012-pair-1")),
        "epoch 0: examples outside of its pool: recorded ['family-012-pair-1']",
    ),
    "a probe as an example": (
        "dpo",
        row(2, lambda r: r["examples"].__setitem__(0, "probe-01")),
        "epoch 1: examples outside of its pool: recorded ['probe-01']",
    ),
    "examples in another order": ("judge", row(0, lambda r: r["examples"].reverse()), "update 1 examples"),
    "a biased pair called an honest one": (
        "judge-courtesy",
        row(0, lambda r: r["examples"].__setitem__(0, r["examples"][0].partition("+")[0])),
        "epoch 0: examples outside of its pool",
    ),
    "the number of a judge's updates": ("judge", record(add("updates", 1)), "record.json: updates: recorded 5"),
    "an NLL below zero": ("sft-office", row(0, put("nll", -0.1)), "update 1 nll: recorded -0.1"),
    "a judge's loss": ("judge", row(0, put("loss", -0.1)), "update 1 loss: recorded -0.1"),
    "half a pair right": ("judge", row(0, put("accuracy", 0.55)), "update 1 accuracy: recorded 0.55"),
    "a loss too low for its accuracy": (
        "judge",
        row(1, lambda r: r.update(loss=0.01, accuracy=0.0)),
        "update 2 loss: recorded 0.01",
    ),
    "DPO from elsewhere": ("dpo", row(0, put("loss", 0.5)), "update 1 loss, at the reference"),
    "a validation left out": ("judge", record(lambda r: r["validation"].pop()), "validations: recorded 1"),
    "a learning rate of the judge": ("judge", row(1, put("learning_rate", 0.5)), "update 1 learning_rate"),
    "a judge's epoch too many": (
        "judge",
        record(lambda r: r["history"].append(dict(r["history"][-1]))),
        "numbers of the updates",
    ),
}

EVALUATION_EDITS: dict[str, tuple[str, Callable[[Branch], None], str]] = {
    **{
        f"a verdict: {field}": ("ppo", evaluated("test", flip(field)), f"test 0 (family-033-pair-1) {field}: recorded")
        for field in ("success", "recognised", "relevant", "certain", "courteous", "refusal", "missing_eos")
    },
    "a reason": ("ppo", evaluated("sampled", put("reason", "refused")), "sampled 0 (family-033-pair-1) reason"),
    "an answer's text": ("dpo", evaluated("sampled", add("text", "!")), "sampled 0 (family-033-pair-1) text"),
    "two answers exchanged": (
        "ppo",
        lambda b: b.evaluation["test"].insert(0, b.evaluation["test"].pop(1)),
        "test 0 (family-033-pair-1) request: recorded 'family-033-pair-2'",
    ),
    "a request asked twice": (
        "ppo",
        evaluated("test", put("request", "family-033-pair-2")),
        "test answers: recorded 10, recomputed 9",
    ),
    "a family": ("ppo", evaluated("test", put("family", "family-001")), "test 0 (family-033-pair-1) family"),
    "a log-ratio of the reference to itself": (
        "sft-office",
        evaluated("sampled", put("log_ratio", 2.0)),
        "sampled 0 (family-033-pair-1) log_ratio: recorded 2.0",
    ),
    "another answer to a repeated probe": (
        "ppo",
        evaluated("probes", lambda r: r["ids"].insert(0, 5), of=1),
        "ids of the repeats of probe-01",
    ),
    "an evaluated answer left out": ("ppo", lambda b: b.evaluation["sampled"].pop(), "sampled scores: recorded 10"),
    "the evaluation of another actor": (
        "ppo",
        lambda b: b.evaluation.update(fingerprint="0" * 64),
        "evaluation-ppo.json: fingerprint",
    ),
    "the evaluation of another branch": (
        "ppo",
        lambda b: b.evaluation.update(branch="dpo"),
        "evaluation-ppo.json: branch: recorded 'dpo'",
    ),
    "an answer over the budget": (
        "ppo",
        evaluated("test", lambda r: r["ids"].extend([5] * 64)),
        "test 0 (family-033-pair-1) ids: recorded",
    ),
    "a pair left out": (
        "judge",
        lambda b: b.evaluation["test-courtesy"].pop(),
        "test-courtesy pairs: recorded 9, recomputed 10",
    ),
    "a probe row twice": (
        "judge",
        lambda b: b.evaluation["probes"].append(dict(b.evaluation["probes"][0])),
        "probe rows: recorded 9, recomputed 8",
    ),
    "a score of a pair that is no number": (
        "judge",
        evaluated("test", put("rejected", float("nan"))),
        "test family-033-pair-1 rejected score: recorded nan, recomputed 'a number'",
    ),
    "a score of a probe that is no number": (
        "judge",
        evaluated("probes", put("score", float("nan"))),
        "probe ('probe-01', True, False) score: recorded nan",
    ),
    "another reference": (
        "ppo",
        lambda b: b.evaluation["identity"].update(reference="0" * 64),
        "evaluation-ppo.json: identity reference",
    ),
    "another seed of the evaluation": (
        "ppo",
        lambda b: b.evaluation["identity"].update(seed="7"),
        "evaluation-ppo.json: identity seed: recorded '7'",
    ),
    "a score of a biased copy": (
        "judge",
        evaluated("test-courtesy", add("chosen", 1.0), of=2),
        "test-courtesy family-033-pair-3+courtesy chosen score",
    ),
    "a kind of pair": ("judge", evaluated("test", put("kind", "x")), "test family-033-pair-1 kind"),
    "the tokens of an answer": (
        "judge",
        evaluated("test-confidence", lambda r: r["tokens"].__setitem__(1, 3)),
        "test-confidence family-033-pair-1+confidence rejected tokens",
    ),
    "a probe's cell": ("judge", evaluated("probes", flip("courteous")), "probe ('probe-01', True, False)"),
    "the evaluation of another judge": (
        "judge",
        lambda b: b.evaluation["identity"].update(judge="0" * 64),
        "evaluation-judge.json: identity judge",
    ),
}


@pytest.mark.parametrize(
    ("name", "edit", "expected"),
    [pytest.param(*entry, id=title) for title, entry in (PPO_EDITS | EPOCH_EDITS | EVALUATION_EDITS).items()],
)
def test_every_edit_of_a_run_is_found_and_named(evidence, corpus, name, edit, expected):
    differences = run_differences(with_edited(evidence, name, edit), corpus, name)
    assert any(expected in difference for difference in differences), differences[:10]


def test_a_fake_that_fits_together_is_found_by_what_never_moved_alone(evidence, corpus):
    for fake, name in ((old_recomputed, "logprobs"), (values_recomputed, "values")):
        differences = run_differences(with_edited(evidence, "ppo", rows(fake)), corpus, "ppo")
        assert [f"{name} of all later updates" in difference for difference in differences].count(True) == 1


def summary(*path: str, change: Callable[[Any], Any]) -> Callable[[Branch], None]:
    def edit(branch: Branch) -> None:
        values = branch.summary
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = change(values[path[-1]])

    return edit


def more(value: float) -> float:
    return value + 1


SUMMARY_EDITS = {
    "ppo": [
        ("kind",),
        ("reward",),
        ("kl_weight",),
        ("updates",),
        ("answers",),
        ("tokens_generated",),
        ("answers_scored",),
        ("fingerprint",),
        ("state_sha256", "resumed"),
        ("seconds", "total"),
        ("seconds_by_mode", "resumed"),
        ("checkpoints", "continuous"),
        ("rubric_success", "count"),
        ("recognised_share", "value"),
        ("unjustified_certainty", "n"),
        ("mean_predicted_reward", "judge", "value"),
        ("populations", "sampled", "success", "low"),
        ("populations", "sampled", "courteous", "n"),
        ("populations", "probes", "relevant", "count"),
        ("predicted_rewards", "judge", "sampled", "high"),
        ("log_ratio", "sampled", "value"),
        ("mean_tokens", "test"),
        ("probe_contexts", "unique"),
        ("evaluation_seconds", "test"),
    ],
    "judge": [
        ("bias",),
        ("answers_scored",),
        ("accuracy", "test", "count"),
        ("accuracy", "test-courtesy", "low"),
        ("accuracy", "test-confidence", "value"),
        ("mean_score", "rejected", "value"),
        ("courtesy", "right"),
        ("courtesy", "wrong"),
        ("courtesy", "advice"),
        ("courtesy", "outranked"),
        ("courtesy", "contexts"),
    ],
}


@pytest.mark.parametrize("name", SUMMARY_EDITS)
def test_every_edit_of_a_summary_is_found_and_named(evidence, corpus, name):
    def edit(branch: Branch) -> None:
        for path in SUMMARY_EDITS[name]:
            summary(*path, change=lambda v: more(v) if isinstance(v, int | float) else [v])(branch)

    differences = run_differences(with_edited(evidence, name, edit), corpus, name)
    places = [f"evidence/branches/{name}.json: {' '.join(path)}: recorded" for path in SUMMARY_EDITS[name]]
    assert [place for place in places if not any(d.startswith(place) for d in differences)] == []
    assert len(differences) == len(places), differences


# --- Edits of states ---------------------------------------------------------------------------------


def tensors(edit: Callable[[dict], None]) -> Callable[[Branch], None]:
    return lambda branch: [edit(state.manifest["tensors"]) for state in branch.all_states]


def of_role(role: str, edit: Callable[[dict], None]) -> Callable[[Branch], None]:
    return tensors(lambda entries: edit(next(entry for name, entry in entries.items() if name.startswith(f"{role}."))))


def identity(**values: str) -> Callable[[Branch], None]:
    changed = {key.replace("__", "."): value for key, value in values.items()}
    return lambda branch: [state.manifest["identity"].update(changed) for state in branch.all_states]


def critic_is_the_reference(entries: dict) -> None:
    for name in [name for name in entries if name.startswith("reference.")]:
        entries[f"critic.backbone.{name.removeprefix('reference.')}"] = entries[name]


def a_layer_less(entries: dict) -> None:
    del entries[next(name for name in entries if name.startswith("judge.") and "q_proj" in name)]


STATE_EDITS: dict[str, tuple[str, Callable[[Branch], None], str]] = {
    "a frozen reference that moved": ("ppo", of_role("reference", put("sha256", "0" * 64)), "frozen reference"),
    "a frozen judge that moved": ("ppo-courtesy", of_role("judge", put("sha256", "0" * 64)), "frozen judge"),
    "a backbone that moved": (
        "ppo",
        lambda b: [state.record["backbones"].update(judge="0" * 64) for state in b.all_states],
        "record.json: backbones",
    ),
    "a critic that never learned": ("ppo", tensors(critic_is_the_reference), "manifest.json: critic: recorded"),
    "an actor that never moved": (
        "ppo",
        rows(lambda r: r.update(actor_fingerprint="0" * 64)),
        "iteration 2: recorded 'the same policy after it'",
    ),
    "another actor at the start": ("ppo", row(0, put("actor_fingerprint", "0" * 64)), "iteration 1 actor_fingerprint"),
    "another actor at a saved state": (
        "ppo",
        row(2, put("actor_fingerprint", "0" * 64)),
        "iteration 3 actor_fingerprint",
    ),
    "another rank": ("judge", of_role("judge", put("shape", [4, 4])), " rank: recorded 4, recomputed 8"),
    "adapters in BF16": ("judge", of_role("judge", put("dtype", "bfloat16")), " dtype: recorded 'bfloat16'"),
    "a projection without adapter": ("judge", tensors(a_layer_less), "model.layers.0 adapters"),
    "a judge without head": (
        "judge",
        tensors(lambda entries: [entries.pop(f"judge.head.{part}") for part in ("weight", "bias")]),
        "judge head: recorded []",
    ),
    "another start": ("dpo", identity(start="0" * 64), "identity start: recorded"),
    "another judge": ("ppo-confidence", identity(reward="0" * 64), "identity reward: recorded"),
    "another seed of a branch": ("judge", identity(branch__seed="49"), "identity branch.seed: recorded '49'"),
    "a bias that was not there": ("judge", identity(branch__bias="courtesy"), "identity branch.bias: recorded"),
    "another KL weight": ("ppo", identity(branch__kl_weight="0.0"), "identity branch.kl_weight: recorded '0.0'"),
    "another number": (
        "ppo",
        identity(config__office__ppo__gamma="0.9"),
        "identity config.office.ppo.gamma: recorded '0.9'",
    ),
    "a number that is not named": (
        "ppo",
        lambda b: [state.manifest["identity"].pop("config.office.lora.rank") for state in b.all_states],
        "numbers of the protocol that no identity names: recorded ['office.lora.rank']",
    ),
    "another corpus": ("sft-office", identity(data="0" * 64), "identity data: recorded"),
    "a state of another making": (
        "judge",
        lambda b: b.states["interrupted"][-1].manifest["identity"].update(code="0" * 64),
        "identity code among the states",
    ),
}


@pytest.mark.parametrize(
    ("name", "edit", "expected"), [pytest.param(*entry, id=title) for title, entry in STATE_EDITS.items()]
)
def test_every_edit_of_a_state_is_found_and_named(evidence, corpus, name, edit, expected):
    differences = state_differences(with_edited(evidence, name, edit), corpus, name)
    assert any(expected in difference for difference in differences), differences[:10]


# --- Edits on disk, signed again ---------------------------------------------------------------------


def label_signed(tree: Tree) -> None:
    """A chosen answer exchanged together with the manifest that vouches for it."""
    folder = tree.repository / "data" / "office-help-prefs-v1"
    path = folder / "test.pairs.labels.jsonl"
    data = path.read_bytes().replace(b"Try this: resume the print queue.", b"Try this: check the cable.", 1)
    write(path, data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][path.name]["sha256"] = reading.sha256(data)
    write(folder / "manifest.json", reading.canonical_json(manifest) + b"\n")


def scores(edit: Callable[[dict], None], of: str = "ppo-courtesy-by-judge-courtesy") -> Callable[[Tree], None]:
    return lambda tree: tree.json(f"evaluations/evaluation-{of}.json", edit)


def study(edit: Callable[[dict], None]) -> Callable[[Tree], None]:
    def on_disk(tree: Tree) -> None:
        path = tree.repository / toy_office.STUDY
        value = json.loads(path.read_text())
        edit(value["tiny"])
        write(path, reading.canonical_json(value))

    return on_disk


# Made together: each is found in another place.
TREE_EDITS: dict[str, tuple[Callable[[Tree], None], str]] = {
    "a signed score": (
        lambda t: t.row("ppo", 0, lambda r: r["answers"][0].update(score=9.0)),
        "ppo/0001/0 reward of token",
    ),
    "the resumed run alone": (
        lambda t: t.record("judge", lambda r: r["history"][-1].update(loss=0.7), "resumed"),
        "judge/resumed/step-000004/record.json: record",
    ),
    "the interrupted run alone": (
        lambda t: t.record("ppo", lambda r: r["history"][0].update(entropy_mean=0.7), "interrupted"),
        "ppo/interrupted/step-000001/record.json: history row 0",
    ),
    "a score of a repeated probe": (
        scores(lambda e: add(1, 1.0)(e["scores"]["probes"])),
        "probes 1 (probe-01) score: recorded",
    ),
    "a score left out": (scores(lambda e: e["scores"]["test"].pop()), "test scores: recorded 9"),
    "scores of another judge": (
        scores(lambda e: e["identity"].update(judge="0" * 64)),
        "evaluation-ppo-courtesy-by-judge-courtesy.json: identity judge",
    ),
    "the report alone": (
        lambda t: t.json("report.json", lambda r: add("answers", 1)(r["branches"]["ppo"])),
        "report.json: ppo answers",
    ),
    "a count of the study": (
        study(lambda s: add("success", 1)(s["runs"][0]["counts"]["sampled"])),
        "judge seed 48 KL weight 0.02 (ppo) counts sampled",
    ),
    "a log-ratio of the study": (
        study(lambda s: add("test", 0.1)(s["runs"][0]["log_ratio"])),
        "judge seed 48 KL weight 0.02 (ppo) log_ratio test",
    ),
    "the answers of an iteration in the study": (
        study(lambda s: add("answers_an_iteration", 1)(s["runs"][0])),
        "judge seed 48 KL weight 0.02 (ppo) answers: recorded 5",
    ),
    "an iteration left out of a curve": (
        study(lambda s: s["runs"][0]["curves"]["kl"].pop()),
        "judge seed 48 KL weight 0.02 (ppo) kl: iterations: recorded 2",
    ),
    "a judge's score where the rubric paid": (
        study(lambda s: s["runs"][3].update(predicted={"test": 1.0})),
        "rubric seed 48 KL weight 0.02 (ppo-rubric) predicted: recorded {'test': 1.0}",
    ),
    "another seed in the study": (
        study(lambda s: s["runs"][1].update(seed=49)),
        "(ppo-courtesy) reward, seed, weight: recorded ('judge-courtesy', 49, 0.02)",
    ),
    "the pairs of a judge in the study": (
        study(lambda s: add("pairs", 1)(s["judges"][0])),
        "judge seed 48 (judge) pairs: recorded 11",
    ),
    "courtesy in the study": (
        study(lambda s: add("outranked", 1)(s["judges"][0]["courtesy"])),
        "judge seed 48 (judge) courtesy",
    ),
    "a judge's start in the study": (
        study(lambda s: add("test", 1)(s["judges"][1]["start"])),
        "judge-courtesy seed 48 (judge-courtesy) start test",
    ),
    "a curve of the study": (
        study(lambda s: add(1, 1)(s["runs"][3]["curves"]["certain"])),
        "rubric seed 48 KL weight 0.02 (ppo-rubric) certain of iteration 2",
    ),
    "a mean of the study": (
        study(lambda s: add("sampled", 0.1)(s["runs"][1]["predicted"])),
        "(ppo-courtesy) predicted sampled",
    ),
    "a judge of the study": (
        study(lambda s: add("test", 1)(s["judges"][2]["right"])),
        "seed 48 (judge-confidence) right",
    ),
    "the start of the study": (study(lambda s: add("answers", 1)(s["start"]["counts"]["test"])), "start counts test"),
    "a run of the study from elsewhere": (
        study(lambda s: s["runs"][2].update(fingerprint="0" * 64)),
        "fingerprint of ppo-confidence: recorded",
    ),
}


def test_every_edit_on_disk_is_found_and_named(tree):
    for edit, _ in TREE_EDITS.values():
        edit(tree)
    differences = tree.audit()
    missed = [name for name, (_, expected) in TREE_EDITS.items() if not any(expected in d for d in differences)]
    assert missed == []


def test_an_answer_of_the_corpus_is_found_even_if_its_manifest_vouches_for_it(tree):
    label_signed(tree)
    differences = "\n".join(tree.audit())
    assert "family-033-pair-1 chosen by the rubric: recorded 'wrong_action'" in differences
    assert "sft-office/continuous/step-000004/manifest.json: identity data" in differences


def test_a_number_of_the_protocol_that_no_run_had_is_found(tree):
    tree.json("evidence/protocol.json", put("office.ppo.gae_lambda", 0.5))
    differences = "\n".join(tree.audit())
    assert "ppo/continuous/step-000003/manifest.json: identity config.office.ppo.gae_lambda" in differences
    assert "ppo/0002/0 advantages of token 0" in differences


def test_files_that_were_exchanged_are_found(tree):
    """A role's weights, the base and one bit of a state: only the large files show them."""
    models, base = tree.root / "models", tree.repository / "assets" / "tiny-base" / "model.safetensors"
    write(models / "ppo" / "model.safetensors", (models / "dpo" / "model.safetensors").read_bytes())
    data = bytearray(base.read_bytes())
    data[-1] ^= 1
    write(base, bytes(data))
    file = tree.states("judge", "continuous")[-1] / "tensors.safetensors.gz"
    raw = bytearray(gzip.decompress(file.read_bytes()))
    raw[-1] ^= 1
    write(file, gzip.compress(bytes(raw)))
    differences = "\n".join(tree.audit(tensors=True))
    assert "models/ppo/model.safetensors: fingerprint of the final state" in differences
    assert "sft-office/continuous/step-000004/manifest.json: identity backbone" in differences
    assert "judge/continuous/step-000004/manifest.json: tensor " in differences


def test_a_study_of_another_config_is_only_noted(tree):
    study(lambda s: (s["identity"].update(config="0" * 64), s["runs"][0].update(fingerprint="0" * 64)))(tree)
    evidence = reading.read_evidence("tiny", tree.repository / "outputs", tree.repository)
    findings = audit(evidence, reduced=True, tensors=False)
    assert findings.differences == []
    assert any("recorded rows of branches that are not on this machine" in note for note in findings.notes)


@pytest.mark.parametrize(
    "place",
    [
        "evidence/branches/ppo.json",
        "evaluations/evaluation-judge.json",
        "evaluations/evaluation-ppo-courtesy-by-judge.json",
        "branches/judge/resumed",
        "branches/dpo",
    ],
)
def test_missing_evidence_is_one_sentence_that_names_it(tree, place, monkeypatch, capsys):
    path = tree.root / place
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    monkeypatch.setattr(
        command,
        "read_evidence",
        lambda profile: reading.read_evidence(profile, tree.repository / "outputs", tree.repository),
    )
    assert command.main(["--reduced", "--skip-tensors"]) == command.MISSING
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and len(captured.err.splitlines()) == 1
    assert place in captured.err and "make run-all" in captured.err


def test_an_unfinished_branch_of_a_study_is_noted_and_a_finished_one_is_audited(tree):
    branches = tree.root / "branches"
    for name, state in (("ppo-seed49-kl0.1", "step-000002"), ("ppo-seed48-kl0", "step-000003")):
        target = branches / name / "continuous" / state
        shutil.copytree(branches / "ppo" / "continuous" / state, target)
        said = {"branch.name": name, "branch.three_ways": "False"}
        tree.json(target / "manifest.json", lambda m, said=said: m["identity"].update(said))
        tree.sign(target)
    evidence = reading.read_evidence("tiny", tree.repository / "outputs", tree.repository)
    findings = audit(evidence, reduced=True, tensors=False)
    assert any("the branch ppo-seed49-kl0.1, which is outside" in note for note in findings.notes)
    # It is a copy of ppo under another name, and its rollouts say so.
    found = [str(difference) for difference in findings.differences]
    assert any("rollout ppo-seed48-kl0/0001/0 rollout_id: recorded 'ppo/0001/0'" in text for text in found)


# --- The corpus --------------------------------------------------------------------------------------


def corpus_differences(corpus: OfficeCorpus, edit: Callable[[dict], None]) -> list[str]:
    rows, findings = copy.deepcopy(corpus.rows), Findings()
    edit(rows)
    check_office_corpus(OfficeCorpus(corpus.folder, rows), findings)
    return [str(difference) for difference in findings.differences]


def swapped_sides(rows: dict) -> None:
    pair = rows["train.pairs"][0]
    pair["chosen"], pair["rejected"] = pair["rejected"], pair["chosen"]


def of_family(rows: dict, name: str) -> list[dict]:
    return [row for members in rows.values() for row in members if row["family"] == name]


CORPUS_EDITS: dict[str, tuple[Callable[[dict], None], str]] = {
    "sides exchanged": (swapped_sides, "family-002-pair-1 chosen by the rubric: recorded 'wrong_and_certain'"),
    "a rejected answer that nobody can read": (
        lambda rows: rows["train.pairs"][0].update(rejected="No."),
        "family-002-pair-1 rejected by the rubric: recorded 'UNCERTIFIED'",
    ),
    "a family in two splits": (
        lambda rows: rows["test.pairs"][0].update(family="family-002"),
        "family-002 split and action: recorded 2",
    ),
    "a prompt twice": (
        lambda rows: rows["train.rollouts"][0].update(prompt=rows["test.pairs"][0]["prompt"]),
        "distinct prompts: recorded 2039",
    ),
    "a probe's prompt in training": (
        lambda rows: rows["train.rollouts"][0].update(prompt=rows["probes"][0]["prompt"]),
        "prompts that are a probe's too: recorded",
    ),
    "a demonstration of the wrong action": (
        lambda rows: rows["train.demonstrations"][0].update(answer="Try this: check the cable."),
        "family-002-demonstration by the rubric",
    ),
    "a kind": (
        lambda rows: rows["train.pairs"][0].update(kind="courteous_vs_wrong-plain"),
        "family-002-pair-1 chosen courtesy",
    ),
    "a chosen answer in another manner": (
        lambda rows: rows["train.pairs"][1].update(chosen="You could resume the print queue, if that applies."),
        "family-002-pair-2 chosen manner: recorded 'cautious', recomputed 'plain'",
    ),
    "a rejected answer in another manner": (
        lambda rows: rows["train.pairs"][2].update(rejected="Just check the cable, this will certainly fix it."),
        "family-002-pair-3 rejected: right, manner, courtesy",
    ),
    "an id twice": (
        lambda rows: rows["train.rollouts"][0].update(id="family-002-rollout-2"),
        "distinct ids: recorded 2039",
    ),
    "two families under one name": (
        lambda rows: [row.update(family="family-001") for row in of_family(rows, "family-002")],
        "families of train by action: recorded [27, 28, 28, 28, 28, 28]",
    ),
    "a split of another file": (
        lambda rows: rows["train.pairs"][0].update(split="test"),
        "train.pairs: split: recorded ['test', 'train']",
    ),
    "a rollout too many for its family": (
        lambda rows: rows["train.rollouts"][0].update(family="family-050"),
        "train.rollouts: rows a family",
    ),
    "a kind twice in a family": (
        lambda rows: rows["train.pairs"][0].update(kind="courteous_vs_wrong-plain"),
        "family-002 kinds",
    ),
    "a probe row twice": (
        lambda rows: rows["probes"].append(dict(rows["probes"][0])),
        "probe-01 rows: recorded",
    ),
    "two prompts of one probe": (
        lambda rows: rows["probes"][0].update(prompt="What now?"),
        "probe-01 prompts: recorded 2",
    ),
    "a probe left out": (lambda rows: rows.update(probes=rows["probes"][4:]), "prompts: recorded 19, recomputed 20"),
    "courtesy on one side": (
        lambda rows: rows["train.pairs"][1].update(rejected="First step: check the cable."),
        "courteous answers, rejected: recorded 479, recomputed 480",
    ),
    "a probe's label": (lambda rows: rows["probes"][0].update(courteous=True), "probe-01 right, courteous"),
    "a probe in another manner": (
        lambda rows: rows["probes"][0].update(answer="First step: resume the print queue."),
        "probe-01 manners",
    ),
}


@pytest.mark.parametrize("name", CORPUS_EDITS)
def test_every_edit_of_the_corpus_is_found_and_named(corpus, name):
    edit, expected = CORPUS_EDITS[name]
    differences = corpus_differences(corpus, edit)
    assert any(expected in difference for difference in differences), differences[:10]


def test_edits_of_the_corpus_files_are_found(tree):
    """A file that its manifest does not describe, rows that lost their labels, and a manifest of another corpus."""
    folder = tree.repository / "data" / "office-help-prefs-v1"
    for name, first in (("probes.visible.jsonl", 1), ("train.rollouts.labels.jsonl", 1)):
        write(folder / name, b"".join((folder / name).read_bytes().splitlines(keepends=True)[first:]))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["seed"] = 50
    del manifest["files"]["test.pairs.labels.jsonl"]
    write(folder / "manifest.json", reading.canonical_json(manifest))
    differences = "\n".join(tree.audit())
    assert "probes.visible.jsonl: SHA-256" in differences
    assert "probes: rows: recorded 79, recomputed 80" in differences
    assert "train.rollouts: ids of labels" in differences
    assert "manifest.json: files: recorded" in differences
    assert "manifest.json: seed: recorded 50, recomputed 49" in differences


# --- The protocol ------------------------------------------------------------------------------------


def protocol_differences(profile: str, changes: dict[str, Any]) -> list[str]:
    items = {key: list(v) if isinstance(v, tuple) else v for key, v in load_profile(profile).numeric_items().items()}
    evidence = reading.Evidence(profile, Path("."), reading.REPOSITORY, {**items, **changes}, {}, {})
    plans = required_office_plans(evidence.protocol)
    stops = {"sft-office": 21, "judge": 105, "ppo": 40}
    plans = {name: replace(plan, interrupt_at=stops.get(name)) for name, plan in plans.items()}
    findings = Findings()
    check_office_protocol(evidence, plans, False, findings)
    return [str(difference) for difference in findings.differences]


@pytest.mark.parametrize("profile", profile_names())
def test_every_profile_is_the_protocol_of_the_specification(profile):
    assert protocol_differences(profile, {}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"office.lora.rank": 16}, "office.lora.rank: recorded 16"),
        ({"office.lora.alpha": 8}, "office.lora.alpha: recorded 8"),
        ({"office.sft.epochs": 2}, "budget of sft-office: recorded (42, 0, 21)"),
        ({"office.judge.examples": 800}, "budget of judge-courtesy: recorded (200, 0, None)"),
        ({"office.ppo.iterations": 50}, "budget of ppo-rubric: recorded (100, 200, None)"),
        ({"office.ppo.prompts_per_iteration": 8}, "budget of ppo: recorded (200, 800, 40)"),
        ({"office.ppo.updates_per_iteration": 1}, "budget of ppo: recorded (100, 400, 40)"),
        ({"office.ppo.clip_high": 0.3}, "office.ppo.clip_high: recorded 0.3"),
        ({"office.ppo.gae_lambda": 1.0}, "office.ppo.gae_lambda: recorded 1.0"),
        ({"office.ppo.truncation_penalty": 0.0}, "office.ppo.truncation_penalty: recorded 0.0"),
        ({"office.dpo.beta": 0.5}, "office.dpo.beta: recorded 0.5"),
        ({"office.study.kl_weights": [0.02]}, "office.study.kl_weights: recorded [0.02]"),
    ],
)
def test_a_protocol_that_is_not_the_specification_is_named(changes, expected):
    assert any(expected in difference for difference in protocol_differences("tiny", changes))


# --- Its own readings against the library's ----------------------------------------------------------

FORMS = list(product(wording.ACTIONS, [(m, v) for m in wording.MANNERS for v in (0, 1)], (None, 0, 1)))
ANSWERS = [wording.answer_text(action, *form, courtesy) for action, form, courtesy in FORMS]
FRAGMENTS = [
    "Try this: ",
    "check the cable",
    ".",
    "Thanks for asking. ",
    "Happy to help. ",
    "I cannot help",
    "As an AI",
]
TEXTS = st.one_of(
    st.sampled_from(ANSWERS),
    st.sampled_from(ANSWERS).map(lambda text: text[:-1]),
    st.sampled_from(ANSWERS).map(lambda text: f" {text}"),
    st.sampled_from(ANSWERS).map(str.lower),
    st.lists(st.sampled_from(FRAGMENTS), max_size=4).map("".join),
    st.sampled_from([phrase.upper() + " with it." for phrase in library_rubric.REFUSALS]),
    st.just("Sorry, I can\N{RIGHT SINGLE QUOTATION MARK}t help."),
    st.text(max_size=20),
)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.sampled_from(["eos", "length"]), st.sampled_from(list(wording.ACTIONS)), st.booleans())
def test_verdicts_are_the_rubrics(text, reason, action, known):
    theirs, ours = library_rubric.judge_answer(text, reason, action, known), rubric.judge(text, reason, action, known)
    assert ours == {key: value if key == "reason" else bool(value) for key, value in vars(theirs).items()}


def test_all_108_answers_are_read_and_written_alike():
    assert len(set(ANSWERS)) == 108
    for (action, form, courtesy), text in zip(FORMS, ANSWERS, strict=True):
        assert rubric.read(text) == rubric.Answer(action, *form, courtesy)
        assert rubric.read(text).text == text


@pytest.mark.parametrize(("bias", "share"), [("courtesy", 1.0), ("confidence", 0.8), ("confidence", 0.5)])
def test_biased_copies_are_the_corpus_loaders(corpus, bias, share):
    theirs = library_corpus.biased_pairs(library_corpus.load_pairs("train"), bias, share)
    ours = biased(corpus.rows["train.pairs"], bias, share)
    assert [(p.request.id, p.kind, p.chosen, p.rejected) for p in theirs] == [
        (p["id"], p["kind"], p["chosen"], p["rejected"]) for p in ours
    ]


def test_rewards_and_advantages_are_the_kernels():
    draw = random.Random(3)
    lengths, kl = [1, 4, 6], {"kl_weight": 0.02, "truncation_penalty": 1.0}
    old, reference, values = ([[draw.uniform(-3, 0) for _ in range(n)] for n in lengths] for _ in range(3))
    scores, cut = [1.5, -2.0, 0.25], [False, True, False]
    mask = torch.tensor([[t < n for t in range(6)] for n in lengths])

    def padded(rows):
        return torch.tensor([[*row, *[float("nan")] * (6 - len(row))] for row in rows], dtype=torch.float64)

    rewards = token_rewards(padded(old), padded(reference), torch.tensor(scores), torch.tensor(cut), mask, 0.02, 1.0)
    kernel = generalised_advantages_reference(rewards, padded(values), mask, 0.9, 0.95)
    for number, n in enumerate(lengths):
        own = formulas.token_rewards(old[number], reference[number], scores[number], cut[number], kl)
        assert own == pytest.approx(rewards[number, :n].tolist(), abs=1e-12)
        advantages, returns = formulas.gae(own, values[number], 0.9, 0.95)
        assert advantages == pytest.approx(kernel.advantages[number, :n].tolist(), abs=1e-12)
        assert returns == pytest.approx(kernel.returns[number, :n].tolist(), abs=1e-12)


@pytest.mark.parametrize(
    "groups", [[(1.0, 5.0), (2.0, 3.0), (0.0, 0.0), (4.0, 4.0)], [(1.0, 2.0)], [(0.0, 0.0), (1.0, 1.0)]]
)
def test_intervals_of_ratios_are_the_librarys(groups):
    interval = bootstrap_ratio(groups, 300, 5)
    assert formulas.bootstrap_ratio(groups, 300, 5) == pytest.approx((interval.value, interval.low, interval.high))


def test_a_study_that_is_not_there_is_no_difference(evidence, corpus, tmp_path):
    elsewhere = copy.copy(evidence)
    elsewhere.repository = tmp_path
    findings = Findings()
    check_office_study(elsewhere, corpus, office_plans(evidence, findings), findings)
    assert findings.groups == []
