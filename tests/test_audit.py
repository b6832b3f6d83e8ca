"""The audit passes on a course of runs made by the real code, and names every edit of its evidence.

Edits are signed again (hashes of record, state and manifest), so that recomputation has to find them.
"""

import ast
import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy_course
from evidence_tree import Tree, add, put, write
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.bench.findings import finding, record_findings
from labs_lib.config import load_profile, profile_names
from labs_lib.kernels.advantages import group_advantages
from labs_lib.seeding import named_generator
from labs_lib.statistics import bootstrap_mean, wilson
from labs_lib.tasks.stock_arithmetic.gallery import GALLERY, WORKED_PROBLEM
from labs_lib.tasks.stock_arithmetic.problem import Problem
from labs_lib.tasks.stock_arithmetic.verifier import verify
from labs_lib.tools.audit import __main__ as command
from labs_lib.tools.audit import formulas, protocol, randomness, reading
from labs_lib.tools.audit.checks import audit
from labs_lib.tools.audit.findings import Findings, MissingEvidence
from labs_lib.tools.audit.judging import final_stock, judge
from labs_lib.tools.report import write_report

PACKAGE = Path(protocol.__file__).parent


@pytest.fixture(scope="session")
def course(tmp_path_factory) -> Path:
    return toy_course.run_toy_course(tmp_path_factory.mktemp("course"))


@pytest.fixture
def tree(course: Path, tmp_path: Path) -> Tree:
    return Tree.copy(course, tmp_path / "course")


def first_answer(edit: Callable[[dict], None]) -> Callable[[dict], None]:
    return lambda row: edit(row["answers"][0])


def last_update(edit: Callable[[dict], None]) -> Callable[[dict], None]:
    return lambda row: edit(row["updates"][-1])


# --- The evidence as it is ---------------------------------------------------------------------------


def test_evidence_of_the_real_code_passes(course):
    evidence = reading.read_evidence("tiny", course / "outputs", course)
    findings = audit(evidence, reduced=True)
    assert findings.differences == []
    assert findings.groups[-1].line() == "report.json: branches: 8 branches ok"
    lines = "\n".join(group.line() for group in findings.groups)
    assert "grpo: rewards: 64 rewards ok" in lines
    assert "grpo: updates: " in lines and "8 updates, 8 learning rates ok" in lines
    assert "sft: examples: 2 epochs, 48 examples ok" in lines
    assert "report.json: verdicts: nothing ok" in lines
    assert "verdicts of lab 06: there are none on this machine" in findings.notes


def test_the_toy_course_has_everything_that_can_go_wrong(course):
    """Without clipped tokens, mixed groups or cut answers the edits below would be looked for in vain."""
    evidence = reading.read_evidence("tiny", course / "outputs", course)
    rows = evidence.branches["grpo"].history
    assert any(update["active_clip_share"] > 0 for row in rows for update in row["updates"])
    assert {answer["advantage"] > 0 for row in rows for answer in row["answers"]} == {True, False}
    answers = [row for branch in evidence.branches.values() for row in branch.evaluation["sampled"]]
    assert {"eos", "length"} == {answer["finish_reason"] for answer in answers}
    assert {"correct", "wrong_value", "not_json", "not_finished"} <= {answer["reason"] for answer in answers}


def test_it_runs_in_a_bare_interpreter(tree):
    """No site-packages, no import path: only the standard library and the audit's own files."""
    shutil.copytree(PACKAGE, tree.repository / "labs_lib" / "tools" / "audit")
    for folder in (tree.repository / "labs_lib", tree.repository / "labs_lib" / "tools"):
        (folder / "__init__.py").touch()
    arguments = [sys.executable, "-I", "-S", str(tree.repository / "labs_lib" / "tools" / "audit"), "--reduced"]
    result = subprocess.run(arguments, capture_output=True, text=True, cwd=tree.repository)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("PASS\n")


def test_it_imports_nothing_but_the_standard_library_and_itself():
    modules = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            modules |= {node.module} if isinstance(node, ast.ImportFrom) else set()
    foreign = {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign and all(name.startswith("labs_lib.tools.audit") for name in foreign)


# --- Edited evidence ---------------------------------------------------------------------------------


def answers_swapped(tree: Tree) -> None:
    """Exchange two answers to the first prompt of a probed iteration, with all that is recorded of them."""

    def swap(row: dict) -> None:
        members = range(4)
        one, other = next(
            (a, b) for a, b in combinations(members, 2) if row["answers"][a]["ids"][0] != row["answers"][b]["ids"][0]
        )
        lists = [row["answers"], *(update[key] for update in row["updates"] for key in ("logprobs", "kl"))]
        for values in lists:
            values[one], values[other] = values[other], values[one]
        names = [row["answers"][place]["rollout_id"] for place in (one, other)]
        row["answers"][one]["rollout_id"], row["answers"][other]["rollout_id"] = reversed(names)

    number = next(
        number
        for number, row in enumerate(json.loads((tree.states("grpo")[0] / "record.json").read_text())["history"])
        if len({answer["ids"][0] for answer in row["answers"][:4]}) > 1
    )
    tree.row("grpo", number, swap)


def old_recomputed(tree: Tree) -> None:
    """A run whose "old" log-probs follow the policy: consistent in itself, and every ratio is 1."""

    def forget(record: dict) -> None:
        for row in record["history"]:
            first, second = row["updates"]
            second |= {"logprobs": first["logprobs"], "max_ratio_deviation": first["max_ratio_deviation"]}
            second |= {"active_clip_share": 0.0, "outside_share": 0.0}
            ratio = formulas.ratios(first["logprobs"], [answer["logprobs"] for answer in row["answers"]])
            advantage = [answer["advantage"] for answer in row["answers"]]
            settings = {"clip_low": 0.2, "clip_high": 0.2, "kl_weight": 0.02, "group_size": 4}
            second["loss"] = formulas.objective(ratio, second["kl"], advantage, settings)

    tree.record("grpo", forget)


def paid_in_another_order(tree: Tree) -> None:
    """Other answers are paid in the control: the same sum, and advantages to match."""

    def rotate(row: dict) -> None:
        paid = [answer["paid"] for answer in row["answers"]]
        paid = [*paid[1:], paid[0]]
        advantage = group_advantages(torch.tensor(paid).view(-1, 4)).flatten().tolist()
        for answer, reward, value in zip(row["answers"], paid, advantage, strict=True):
            answer |= {"paid": reward, "advantage": value}

    tree.row("grpo-shuffled", 0, rotate)


def reward_and_all_that_follows(tree: Tree) -> None:
    """A style bonus: every answer of the first group is paid, and the rest of the row is made to match."""

    def pay(row: dict) -> None:
        for answer in row["answers"][:4]:
            answer |= {"reward": 1, "paid": 1.0, "reason": "correct", "advantage": 0.0}

    tree.row("grpo", 0, pay)


def label_signed(tree: Tree) -> None:
    """A gold label changed together with the manifest that vouches for it."""
    folder = tree.repository / "data" / "stock-arithmetic-v1"
    path = folder / "test.labels.jsonl"
    data = path.read_bytes().replace(b'{\\"final_stock\\":72}', b'{\\"final_stock\\":73}', 1)
    write(path, data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][path.name]["sha256"] = reading.sha256(data)
    write(folder / "manifest.json", reading.canonical_json(manifest) + b"\n")


def exchange(key: str) -> Callable[[dict], None]:
    """Exchange one field of the first and the last answer of an iteration."""

    def edit(row: dict) -> None:
        first, last = row["answers"][0], row["answers"][-1]
        first[key], last[key] = last[key], first[key]

    return edit


SUMMARY = "evidence/branches/grpo.json: "
EDITS: dict[str, tuple[Callable[[Tree], None], str]] = {
    "a reward flipped": (
        lambda t: t.row("grpo", 0, first_answer(lambda a: a.update(reward=1 - a["reward"]))),
        "grpo/0001/0/0 reward: recorded",
    ),
    "a reward flipped with all that follows": (reward_and_all_that_follows, " reason: recorded 'correct'"),
    "a reason": (lambda t: t.row("grpo", 0, first_answer(put("reason", "too_long"))), "grpo/0001/0/0 reason"),
    "paid more than the reward": (lambda t: t.row("grpo", 1, first_answer(add("paid", 0.1))), "grpo/0002/0/0 paid"),
    "the control paid in another order": (paid_in_another_order, " paid: recorded"),
    "the control paid more": (lambda t: t.row("grpo-shuffled", 0, first_answer(put("paid", 2.0))), " paid: recorded 2"),
    "advantages with the other sign": (
        lambda t: t.row("grpo", 0, lambda row: [a.update(advantage=-a["advantage"]) for a in row["answers"]]),
        " advantage: recorded",
    ),
    "advantages with the sample deviation": (
        lambda t: t.row(
            "grpo", 0, lambda row: [a.update(advantage=a["advantage"] * 0.75**0.5) for a in row["answers"]]
        ),
        " advantage: recorded",
    ),
    "a captured log-prob": (
        lambda t: t.row("grpo", 0, first_answer(lambda a: a["logprobs"].__setitem__(2, -3.0))),
        "iteration 1 first update: recorded",
    ),
    "a positive log-prob": (
        lambda t: t.row("grpo", 0, first_answer(lambda a: a["logprobs"].__setitem__(2, 0.1))),
        "grpo/0001/0/0 logprobs",
    ),
    "a log-prob of an update": (
        lambda t: t.row("grpo", 0, last_update(lambda u: u["logprobs"][0].__setitem__(2, -3.0))),
        "iteration 1 update 1 loss",
    ),
    "old log-probs recomputed": (old_recomputed, "all later updates: recorded 0.0"),
    "the score check": (lambda t: t.row("grpo", 0, put("score_check", 1e-4)), "iteration 1 score_check"),
    "a loss": (lambda t: t.row("grpo", 0, last_update(add("loss", 1e-3))), "iteration 1 update 1 loss"),
    "a loss that is no number": (
        lambda t: t.row("grpo", 0, last_update(put("loss", None))),
        "update 1 loss: recorded None",
    ),
    "a KL mean": (lambda t: t.row("grpo", 0, last_update(add("kl_mean", 1e-3))), "iteration 1 update 1 kl_mean"),
    "a KL below zero": (
        lambda t: t.row("grpo", 0, last_update(lambda u: u["kl"][0].__setitem__(0, -0.01))),
        "iteration 1 update 1 kl: recorded -0.01",
    ),
    "a KL at the start": (
        lambda t: t.row("grpo", 0, lambda row: row["updates"][0]["kl"][0].__setitem__(0, 0.01)),
        "iteration 1 update 0 kl: recorded",
    ),
    "a KL other than the probed one": (
        lambda t: t.row("grpo", 1, lambda row: row["updates"][0]["kl"][0].__setitem__(0, 0.5)),
        "iteration 2 probe, answer 0 KL",
    ),
    "the clip share": (
        lambda t: t.row("grpo", 0, last_update(put("active_clip_share", 0.0))),
        "iteration 1 update 1 active_clip_share: recorded 0.0",
    ),
    "the outside share": (lambda t: t.row("grpo", 0, last_update(put("outside_share", 0.9))), "update 1 outside_share"),
    "the largest ratio": (
        lambda t: t.row("grpo", 0, last_update(add("max_ratio_deviation", 0.01))),
        "iteration 1 update 1 max_ratio_deviation",
    ),
    "a learning rate": (lambda t: t.row("grpo", 0, last_update(add("learning_rate", 1e-9))), "update 1 learning_rate"),
    "a probed probability": (
        lambda t: t.row("grpo", 0, lambda row: row["probe"]["now"].__setitem__(5, -1.0)),
        "iteration 1 probe now: sum of probabilities",
    ),
    "another reference": (
        lambda t: t.row("grpo", 0, lambda row: row["probe"].update(reference=row["probe"]["now"])),
        "iteration 1 probe sampled: recorded",
    ),
    "an entropy": (lambda t: t.row("grpo", 0, lambda row: row["updates"][0].update(entropy_mean=9.0)), "entropy_mean"),
    "an answer other than the one drawn": (answers_swapped, " first token: recorded"),
    "a rollout id used twice": (
        lambda t: t.row("grpo", 1, first_answer(put("rollout_id", "grpo/0001/0/0"))),
        "rollout_id",
    ),
    "an iteration optimised twice": (
        lambda t: t.record("grpo", lambda r: r["history"].__setitem__(1, {**r["history"][0], "iteration": 2})),
        "recorded 'grpo/0001/0/0', recomputed 'consumed only once'",
    ),
    "prompts exchanged": (lambda t: t.row("grpo", 0, exchange("prompt")), "rollout grpo/0001/0/0 prompt"),
    "a test problem as a prompt": (
        lambda t: t.row("grpo", 0, first_answer(put("prompt", "test-0001"))),
        "prompt: recorded 'test-0001'",
    ),
    "the cursor": (lambda t: t.record("grpo", add("cursor", 4)), "record.json: cursor"),
    "the permutation": (lambda t: t.record("grpo", lambda r: r["order"].reverse()), "record.json: order"),
    "a text": (lambda t: t.row("grpo", 0, first_answer(add("text", " "))), "grpo/0001/0/0 text"),
    "a finish reason": (
        lambda t: t.row("grpo", 0, first_answer(put("finish_reason", "length"))),
        "grpo/0001/0/0 finish_reason: recorded 'length'",
    ),
    "a token after EOS": (lambda t: t.row("grpo", 0, first_answer(lambda a: a["ids"].append(5))), "nothing after EOS"),
    "a fingerprint": (
        lambda t: t.row("grpo", 0, put("policy_fingerprint", "0" * 64)),
        "iteration 1 policy_fingerprint",
    ),
    "the fingerprint at a saved state": (
        lambda t: t.row("grpo", 2, put("policy_fingerprint", "0" * 64)),
        "iteration 3 policy_fingerprint",
    ),
    "another start": (
        lambda t: t.manifest("grpo", lambda m: m["identity"].update(start="0" * 64)),
        "manifest.json: identity start",
    ),
    "another group size": (
        lambda t: t.manifest("grpo", lambda m: m["identity"].update({"branch.grpo.group_size": "8"})),
        "identity branch.grpo.group_size: recorded '8'",
    ),
    "a number of the protocol": (
        lambda t: t.json("evidence/protocol.json", put("grpo.kl_weight", 0.2)),
        "identity config.grpo.kl_weight",
    ),
    "the resumed run alone": (
        lambda t: t.record("grpo", lambda r: r["history"][-1].update(score_check=1e-6), "resumed"),
        "grpo/resumed/step-000004/record.json: record",
    ),
    "the interrupted run alone": (
        lambda t: t.record("sft", lambda r: r["history"][0].update(nll=1.0), "interrupted"),
        "sft/interrupted/step-000003/record.json: history row 0",
    ),
    "an example used twice": (
        lambda t: t.row("sft", 0, lambda row: row["examples"].__setitem__(0, row["examples"][1])),
        "epoch 0: each example once",
    ),
    "a test problem as an example": (
        lambda t: t.row("sft", 0, lambda row: row["examples"].__setitem__(0, "test-0001")),
        "epoch 0: examples outside of its pool: recorded ['test-0001']",
    ),
    "examples in another order": (
        lambda t: t.row("warmstart", 0, lambda row: row["examples"].reverse()),
        "update 1 examples",
    ),
    "a learning rate of SFT": (lambda t: t.row("sft", 1, put("learning_rate", 0.02)), "update 1 learning_rate"),
    "a gold label": (label_signed, "test-0001 target: recorded '{\"final_stock\":73}'"),
    "a reward of an evaluation": (
        lambda t: t.evaluation("grpo", lambda e: e["sampled"][0].update(reward=1 - e["sampled"][0]["reward"])),
        "sampled 0 (test-0001) reward",
    ),
    "an evaluated problem": (
        lambda t: t.evaluation("grpo", lambda e: e["greedy"][0].update(problem="test-0002")),
        "greedy 0 (test-0001) problem",
    ),
    "an answer left out": (
        lambda t: t.evaluation("grpo", lambda e: e["sampled"].pop()),
        "sampled answers: recorded 47",
    ),
    "the evaluation of another policy": (
        lambda t: t.evaluation("grpo", put("policy_fingerprint", "0" * 64)),
        "evaluation-grpo.json: policy_fingerprint",
    ),
    "the report alone": (
        lambda t: t.json("report.json", lambda r: add("answers", 1)(r["branches"]["grpo"])),
        "report.json: grpo answers",
    ),
    "a branch left out of the report": (
        lambda t: t.json("report.json", lambda r: r["branches"].pop("sft")),
        "report.json: branches",
    ),
    "a row of another form": (lambda t: t.row("grpo", 0, lambda row: row.pop("updates")), "KeyError: 'updates'"),
}

# Made together: each is another field.
REPORTED: dict[str, tuple[Callable[[Tree], None], str]] = {
    "the accuracy": (
        lambda t: t.report("grpo", lambda s: add("correct", 1)(s["accuracy"]["greedy"]["ID50"])),
        f"{SUMMARY}accuracy greedy ID50 correct",
    ),
    "the best of four as pass@1": (
        lambda t: t.report("grpo", lambda s: s["accuracy"]["sampled"]["ALL"].update(n=12)),
        f"{SUMMARY}accuracy sampled ALL n",
    ),
    "a Wilson interval": (
        lambda t: t.report("grpo", lambda s: add("low", 1e-4)(s["accuracy"]["greedy"]["ALL"])),
        f"{SUMMARY}accuracy greedy ALL low",
    ),
    "a bootstrap interval": (
        lambda t: t.report("grpo", lambda s: add("high", 1e-4)(s["accuracy"]["sampled"]["ALL"])),
        f"{SUMMARY}accuracy sampled ALL high",
    ),
    "valid JSON": (
        lambda t: t.report("grpo", lambda s: add("valid_json", 1)(s["quality"]["greedy"])),
        f"{SUMMARY}quality greedy valid_json",
    ),
    "the share of mixed groups": (lambda t: t.report("grpo", add("mixed_groups", 0.1)), f"{SUMMARY}mixed_groups"),
    "the number of answers": (lambda t: t.report("grpo", add("answers", 1)), f"{SUMMARY}answers"),
    "the tokens generated": (lambda t: t.report("grpo", add("tokens_generated", 1)), f"{SUMMARY}tokens_generated"),
    "the tokens scored": (lambda t: t.report("grpo", add("tokens_scored", 1)), f"{SUMMARY}tokens_scored"),
    "the tokens scored in SFT": (lambda t: t.report("sft", add("tokens_scored", 1)), "sft.json: tokens_scored"),
    "seconds": (lambda t: t.report("grpo", lambda s: add("total", 1)(s["seconds"])), f"{SUMMARY}seconds total"),
    "a state's hash in the summary": (
        lambda t: t.report("grpo", lambda s: s["state_sha256"].update(resumed="0" * 64)),
        f"{SUMMARY}state_sha256 resumed",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_every_edit_is_found_and_named(tree, name):
    edit, expected = EDITS[name]
    edit(tree)
    differences = tree.audit()
    assert any(expected in difference for difference in differences), differences[:10]


def test_every_edit_of_a_summary_is_found_and_named(tree):
    for edit, _ in REPORTED.values():
        edit(tree)
    differences = tree.audit()
    missed = [name for name, (_, expected) in REPORTED.items() if not any(expected in d for d in differences)]
    assert missed == []
    assert len(differences) == len(REPORTED), differences


def test_an_edit_that_is_not_signed_is_found_by_its_hash(tree):
    folder = tree.states("grpo", "continuous")[-1]
    tree.json(folder / "record.json", lambda record: record["history"][0]["answers"][0].update(reward=1))
    differences = "\n".join(tree.audit())
    assert "grpo/continuous/step-000004/record.json: SHA-256" in differences
    assert "grpo/continuous/step-000004/manifest.json: state_sha256" in differences


def test_a_changed_tensor_is_named(tree):
    folder = tree.states("grpo", "continuous")[-1]
    raw = bytearray(gzip.decompress((folder / "tensors.safetensors.gz").read_bytes()))
    raw[-1] ^= 1
    write(folder / "tensors.safetensors.gz", gzip.compress(bytes(raw)))
    differences = "\n".join(tree.audit(tensors=True))
    assert "grpo/continuous/step-000004/tensors.safetensors.gz: SHA-256" in differences
    assert "grpo/continuous/step-000004/manifest.json: tensor " in differences


def test_a_damaged_tensor_file_is_a_difference_and_no_traceback(tree):
    file = tree.states("grpo", "continuous")[-1] / "tensors.safetensors.gz"
    write(file, file.read_bytes()[:100])
    assert any("tensors.safetensors.gz: SHA-256" in difference for difference in tree.audit(tensors=True))


def test_exported_weights_of_another_branch_are_found(tree):
    target = tree.root / "models" / "grpo" / "model.safetensors"
    write(target, (tree.root / "models" / "sft" / "model.safetensors").read_bytes())
    assert any("models/grpo/model.safetensors: fingerprint of the final" in text for text in tree.audit(tensors=True))


def test_a_base_swapped_after_training_is_found(tree):
    bases = tree.repository / "assets"
    write(bases / "tiny-base" / "model.safetensors", (bases / "tiny-base-weak" / "model.safetensors").read_bytes())
    assert any("warmstart/continuous/step-000004/manifest.json: identity start" in d for d in tree.audit(tensors=True))


# --- What is not there, and how the command ends ------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        "report.json",
        "evidence/protocol.json",
        "evidence/branches/grpo.json",
        "evaluations/evaluation-sft.json",
        "branches/grpo/resumed",
        "branches/grpo-g8",
        "branches/sft/continuous/step-000006/durations.json",
    ],
)
def test_missing_evidence_is_one_sentence_that_names_it(tree, place, monkeypatch, capsys):
    path = tree.root / place
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    monkeypatch.setenv("LABS_OUTPUTS", str(tree.repository / "outputs"))
    assert command.main(["--reduced", "--skip-tensors"]) == command.MISSING
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and len(captured.err.splitlines()) == 1
    assert place in captured.err and "make run-all" in captured.err


def test_an_unknown_profile_has_nothing_to_audit(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LABS_OUTPUTS", str(tmp_path))
    assert command.main(["--profile", "tinny"]) == command.MISSING
    assert "tinny does not exist" in capsys.readouterr().err


def test_the_command_prints_pass_or_what_differs(tree, monkeypatch, capsys):
    monkeypatch.setattr(
        command,
        "read_evidence",
        lambda profile: reading.read_evidence(profile, tree.repository / "outputs", tree.repository),
    )
    assert command.main(["--reduced"]) == command.PASSED
    assert capsys.readouterr().out.endswith("\nPASS\n")
    tree.row("grpo", 0, lambda row: [answer.update(advantage=9.0) for answer in row["answers"]])
    tree.record("grpo", lambda record: [a.update(text="") for row in record["history"] for a in row["answers"]])
    assert command.main(["--reduced", "--skip-tensors"]) == command.DIFFERS
    out = capsys.readouterr().out
    assert out.endswith("\nFAIL\n") and "grpo: advantages: 16 groups, " in out and "16 DIFFER" in out
    assert "DIFFERENCE branches/grpo/continuous/step-000004/record.json: grpo/0001/0/0 advantage: recorded 9.0" in out
    assert "and 44 more in grpo: texts" in out


def test_an_unfinished_branch_outside_of_the_protocol_is_noted(tree):
    source = tree.states("grpo-shuffled", "continuous")[0]
    for name in ("grpo-shuffled-seed49", "grpo-seed49"):
        (tree.root / "branches" / name).mkdir()
    shutil.copytree(source, tree.root / "branches" / "grpo-shuffled-seed49" / "continuous" / source.name)
    evidence = reading.read_evidence("tiny", tree.repository / "outputs", tree.repository)
    findings = audit(evidence, reduced=True, tensors=False)
    assert findings.differences == []
    assert any("grpo-shuffled-seed49" in note for note in findings.notes)


def test_a_recorded_study_is_held_to_the_policies_that_are_there(tree):
    evidence = reading.read_evidence("tiny", tree.repository / "outputs", tree.repository)
    branch = evidence.branches["grpo"]
    accuracy = branch.summary["accuracy"]
    row = {
        "policy": "grpo",
        "seed": 48,
        "fingerprint": branch.final.policy_fingerprint,
        "mixed_test_problems": branch.summary["mixed_test_problems"],
        "correct": {
            kind: {name: {key: entry[key] for key in ("correct", "n")} for name, entry in accuracy[kind].items()}
            for kind in accuracy
        },
    }
    path = tree.repository / "data" / "recorded" / "grpo_control.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"tiny": {"rows": [row]}}))
    assert tree.audit() == []
    row["correct"]["greedy"]["ALL"]["correct"] += 1
    path.write_text(json.dumps({"tiny": {"rows": [row]}}))
    assert any("grpo seed 48 (the policy of grpo) greedy ALL" in difference for difference in tree.audit())


def test_verdicts_are_audited_with_the_rest(tree, monkeypatch):
    monkeypatch.setenv("LABS_OUTPUTS", str(tree.repository / "outputs"))
    record_findings(load_profile("tiny"), [finding("length", "Wrong answers grow longer.", [0.5, 0.75, 0.625])])
    write_report(tree.root / "report.json", "tiny", [], [], tree.root / "evidence")
    assert tree.audit() == []
    tree.json("evidence/verdicts.json", lambda verdicts: add("effect", 0.1)(verdicts["length"]))
    assert [difference.partition(": recorded")[0] for difference in tree.audit()] == [
        "evidence/verdicts.json: length effect",
        "report.json: length effect",
    ]


# --- The protocol ------------------------------------------------------------------------------------


def protocol_differences(profile: str, changes: dict[str, Any]) -> list[str]:
    items = {key: list(v) if isinstance(v, tuple) else v for key, v in load_profile(profile).numeric_items().items()}
    evidence = reading.Evidence(profile, Path("."), reading.REPOSITORY, {**items, **changes}, {}, {})
    plans = protocol.required_plans(evidence.protocol)
    for name, plan in plans.items():
        interrupt = {"grpo": 40}.get(name, 8)
        plans[name] = protocol.replace(plan, settings={**plan.settings, "interrupt_at": interrupt})
    findings = Findings()
    protocol.check_protocol(evidence, plans, False, findings)
    return [str(difference) for difference in findings.differences]


@pytest.mark.parametrize("profile", profile_names())
def test_every_profile_is_the_protocol_of_the_specification(profile):
    assert protocol_differences(profile, {}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"grpo.iterations": 99}, "budget of grpo: recorded (198, 1584, 40)"),
        ({"sft.epochs": 1}, "sft.epochs: recorded 1"),
        ({"grpo.temperature": 0.7}, "grpo.temperature: recorded 0.7"),
        ({"grpo.learning_rate": 1.0}, "grpo.learning_rate: recorded 1.0"),
        ({"kl_block": 640}, "kl_block: recorded 640, recomputed 128"),
    ],
)
def test_a_protocol_that_is_not_the_specification_is_named(changes, expected):
    assert any(expected in difference for difference in protocol_differences("tiny", changes))


def test_a_chosen_seed_is_no_difference():
    assert protocol_differences("tiny", {"seed": 7}) == []


@pytest.mark.parametrize("profile", profile_names())
def test_profiles_are_read_without_a_yaml_library(profile):
    read = protocol.profile_items(reading.REPOSITORY / "configs" / f"{profile}.yaml")
    for key, value in load_profile(profile).numeric_items().items():
        assert read[key] == (list(value) if isinstance(value, tuple) else value)


def test_a_profile_that_is_gone_is_missing_evidence(tmp_path):
    with pytest.raises(MissingEvidence, match="gone.yaml"):
        protocol.profile_items(tmp_path / "gone.yaml")


# --- Its own readings against the library's ------------------------------------------------------------

JSON_PARTS = ('{"final_stock":', "{", "}", '"final_stock"', '"final\\u005fstock"', ":", " ", "\n", "[", "]", ",", '"')
VALUES = (
    "27",
    "-0",
    "027",
    "42.0",
    "1e2",
    "true",
    '"27"',
    "NaN",
    "301",
    "-1",
    "1" * 30,
    "null",
    "\ufeff",
    "\u00a0",
    "４２",
)
FRAGMENTS = st.sampled_from(JSON_PARTS + VALUES)
TEXTS = st.one_of(
    st.text(), st.lists(FRAGMENTS, max_size=8).map("".join), st.integers(-5, 400).map('{{"final_stock":{}}}'.format)
)


def both_verdicts(text: Any, reason: Any, known: bool, problem: Problem = WORKED_PROBLEM) -> None:
    ours = judge(text, reason, final_stock(problem.as_dict()), known)
    theirs = verify(text, reason, problem, known)
    assert (ours.reward, ours.reason, ours.value) == (theirs.reward, theirs.reason, theirs.value)


@given(TEXTS, st.sampled_from(["eos", "length"]), st.booleans())
def test_verdicts_are_the_verifiers(text, reason, known):
    both_verdicts(text, reason, known)


def test_verdicts_are_the_verifiers_on_the_gallery():
    for entry in GALLERY:
        both_verdicts(entry.text, entry.finish_reason, entry.ids_known, entry.problem)


@pytest.mark.parametrize(
    "text", ["[" * 250, '{"final_stock":' + "9" * 240 + "}", '{"final_stock":27} ' + " " * 300, None]
)
def test_verdicts_are_the_verifiers_at_the_limits(text):
    both_verdicts(text, "eos", True)


@pytest.mark.parametrize("seed", [0, 48, 2**63 + 5])
def test_random_streams_are_torchs_and_numpys(seed):
    generator, own = named_generator(seed, "a stream"), randomness.torch_stream(seed, "a stream")
    assert own.permutation(872) == torch.randperm(872, generator=generator).tolist()
    assert own.uniforms(100) == torch.rand(100, generator=generator, dtype=torch.float64).tolist()
    for n in (1, 2, 7, 200):
        expected = np.random.default_rng(seed).integers(0, n, size=300).tolist()
        assert randomness.numpy_indices(seed, n, 300) == expected


def test_intervals_are_the_librarys():
    assert formulas.wilson(3, 200) == pytest.approx((wilson(3, 200).low, wilson(3, 200).high), abs=1e-12)
    for correct in (0, 200):
        interval = wilson(correct, 200)
        assert formulas.wilson(correct, 200) == pytest.approx((interval.low, interval.high), abs=1e-12)
    values = [0.0, 0.25, 1.0, 0.5, 0.75]
    interval = bootstrap_mean(values, 500, 7)
    assert formulas.bootstrap(values, 500, 7) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert formulas.bootstrap([0.5], 500, 7) == (0.5, 0.5)


def test_texts_are_the_tokenizers(course):
    from transformers import PreTrainedTokenizerFast

    folder = course / "assets" / "tiny-base"
    real = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    own = reading.Tokenizer(folder / "tokenizer.json")
    draws = torch.Generator().manual_seed(0)
    for _ in range(200):
        ids = torch.randint(0, len(real), (12,), generator=draws).tolist()
        shown = ids[:-1] if ids[-1] == real.eos_token_id else ids
        assert own.text(ids) == real.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert own.eos == real.eos_token_id and own.text([*real("Ünïcödé ☃")["input_ids"], own.eos]) == "Ünïcödé ☃"
    assert not own.knows([len(real)]) and own.knows([0, len(real) - 1])
