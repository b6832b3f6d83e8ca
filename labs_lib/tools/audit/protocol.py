"""What each branch should have been: from the protocol beside the evidence, held to the specification's numbers."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labs_lib.tools.audit.findings import Findings, MissingEvidence
from labs_lib.tools.audit.reading import MODES, BranchEvidence, Evidence

# The numbers of the specification that no profile may change.
SPECIFICATION = {
    "protocol_share": 1.0,
    "dtype": "float32",
    "template_version": "stock-v1",
    "budget.prompt_tokens": 256,
    "budget.answer_tokens": 64,
    "budget.total_tokens": 320,
    "optimizer.weight_decay": 0.01,
    "optimizer.max_grad_norm": 1.0,
    "optimizer.warmup_fraction": 0.1,
    "optimizer.final_fraction": 0.1,
    "warmstart.examples": 128,
    "warmstart.epochs": 3,
    "warmstart.batch_size": 8,
    "sft.examples": 872,
    "sft.epochs": 2,
    "sft.batch_size": 8,
    "grpo.iterations": 100,
    "grpo.prompts_per_iteration": 4,
    "grpo.group_size": 4,
    "grpo.updates_per_iteration": 2,
    "grpo.clip_low": 0.2,
    "grpo.clip_high": 0.2,
    "grpo.kl_weight": 0.02,
    "grpo.advantage_epsilon": 1e-8,
    "grpo.temperature": 1.0,
    "grpo.top_k": 0,
    "grpo.top_p": 1.0,
    "grpo.logprob_tolerance": 2e-4,
    "group_size_runs.iterations": 20,
    "group_size_runs.group_sizes": [2, 8],
    "evaluation.samples_per_problem": 4,
}
OTHER_SECTIONS = ("office",)  # of the protocol: they play no part in StockArithmetic
# Branch -> (updates, sampled answers, step at which the interrupted run stops) of the full protocol.
BUDGETS = {
    "warmstart": (48, 0, 16),
    "sft": (218, 0, 109),
    "grpo": (200, 1600, 40),
    "grpo-g2": (40, 160, 8),
    "grpo-g8": (40, 640, 8),
    "grpo-shuffled": (200, 1600, None),
    "warmstart-weak": (48, 0, None),
    "grpo-weak": (200, 1600, None),
}


@dataclass(frozen=True)
class Plan:
    """How a branch should have been made; `settings` are those of its kind of training."""

    name: str
    start: str
    kind: str
    seed: int
    shuffled: bool
    three_ways: bool
    settings: dict[str, Any]

    @property
    def steps(self) -> int:
        """Iterations of GRPO, updates of SFT."""
        if self.kind == "grpo":
            return self.settings["iterations"]
        return self.batches * self.settings["epochs"]

    @property
    def updates(self) -> int:
        return self.steps * (self.settings["updates_per_iteration"] if self.kind == "grpo" else 1)

    @property
    def answers(self) -> int:
        """Sampled answers in training."""
        if self.kind != "grpo":
            return 0
        return self.steps * self.settings["prompts_per_iteration"] * self.settings["group_size"]

    @property
    def batches(self) -> int:
        """Updates in one epoch of SFT."""
        return -(-self.settings["examples"] // self.settings["batch_size"])

    @property
    def interrupt_at(self) -> int:
        return self.settings["interrupt_at"] if self.kind == "grpo" else self.batches

    @property
    def modes(self) -> tuple[str, ...]:
        return MODES if self.three_ways else MODES[:1]


def section(protocol: dict[str, Any], name: str) -> dict[str, Any]:
    """The keys of one section of the protocol, without its name."""
    return {key.removeprefix(f"{name}."): value for key, value in protocol.items() if key.startswith(f"{name}.")}


def without_sections(protocol: dict[str, Any], sections: Iterable[str]) -> dict[str, Any]:
    """The protocol without sections that play no part in a task: what its identities are made of."""
    prefixes = tuple(f"{name}." for name in sections)
    return {key: value for key, value in protocol.items() if not key.startswith(prefixes)}


def required_plans(protocol: dict[str, Any]) -> dict[str, Plan]:
    """The branches that the protocol asks for, each after what it starts from."""
    seed, grpo, sizes = protocol["seed"], section(protocol, "grpo"), section(protocol, "group_size_runs")
    plans = [
        Plan("warmstart", "base", "warmstart", seed, False, True, section(protocol, "warmstart")),
        Plan("sft", "warmstart", "sft", seed, False, True, section(protocol, "sft")),
        Plan("grpo", "warmstart", "grpo", seed, False, True, grpo),
    ]
    for size in sizes["group_sizes"]:
        settings = {**grpo, "group_size": size, "iterations": sizes["iterations"]}
        plans.append(Plan(f"grpo-g{size}", "warmstart", "grpo", seed, False, True, settings))
    plans.append(Plan("grpo-shuffled", "warmstart", "grpo", seed, True, False, grpo))
    if protocol["base.weak_location"] is not None:
        warm = section(protocol, "warmstart")
        plans.append(Plan("warmstart-weak", "base-weak", "warmstart", seed, False, False, warm))
        plans.append(Plan("grpo-weak", "warmstart-weak", "grpo", seed, False, False, grpo))
    return {plan.name: plan for plan in plans}


def declared_plan(branch: BranchEvidence, protocol: dict[str, Any]) -> Plan:
    """What the branch's own states say that it is; the plan of a branch outside of the protocol, as in a study."""
    declared = {key: literal(value) for key, value in section(branch.identity, "branch").items()}
    kind, seed = declared["kind"], declared["seed"]
    return Plan(
        declared["name"],
        declared["start"],
        kind,
        protocol["seed"] if seed is None else seed,
        declared["shuffle_rewards"],
        declared["three_ways"],
        section(declared, "grpo") if kind == "grpo" else section(protocol, kind),
    )


def literal(text: str) -> Any:
    """A value back from its text in an identity: numbers, tuples, True, False and None; other text as it is."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def plans(evidence: Evidence, findings: Findings) -> dict[str, Plan]:
    """The plan of every branch on disk; one outside of the protocol that has not ended yet is left out and noted.

    Raises MissingEvidence for a required branch, mode, summary or evaluation that is not there.
    """
    branches, required, found = evidence.stock_branches, required_plans(evidence.protocol), {}
    if not branches and evidence.office_branches:
        findings.note("StockArithmetic: none of its branches is on this machine")
        return {}
    for name in in_order(evidence, branches, required):
        branch = branches[name]
        plan = _plan(branch, required.get(name), evidence.protocol)
        if name in required:
            require_complete(evidence, branch, plan.modes)
        elif branch.final.step < plan.steps:
            findings.note(f"the branch {name}, which is outside of the protocol and not finished")
            continue
        found[name] = plan
    return found


def in_order(evidence: Evidence, branches: Iterable[str], required: Iterable[str]) -> list[str]:
    """The required branches of a task in their order, then the others on disk.

    Raises MissingEvidence for a required one without a checkpoint.
    """
    for name in required:
        if name not in branches:
            folder = evidence.outputs / "branches" / name / MODES[0]
            raise MissingEvidence(f"{folder} has no checkpoint: {evidence.remedy}.")
    return [*required, *(name for name in branches if name not in required)]


def _plan(branch: BranchEvidence, required: Plan | None, protocol: dict[str, Any]) -> Plan:
    try:
        declared = declared_plan(branch, protocol)
        plan = required or declared
        # Where an interruption falls changes no number, so the protocol leaves it to the states.
        return replace(plan, settings={**plan.settings, "interrupt_at": declared.settings.get("interrupt_at")})
    except (KeyError, TypeError, AttributeError) as error:
        raise MissingEvidence(
            f"The states of branch {branch.name} do not say what they are ({error}): train it again with --fresh."
        ) from error


def require_complete(evidence: Evidence, branch: BranchEvidence, modes: Iterable[str]) -> None:
    """Raise MissingEvidence unless every mode, the summary and the evaluation of a required branch are there."""
    for mode in modes:
        if mode not in branch.states:
            folder = evidence.outputs / "branches" / branch.name / mode
            raise MissingEvidence(f"{folder} has no checkpoint: {evidence.remedy}.")
    for place, content in ((branch.summary_place, branch.summary), (branch.evaluation_place, branch.evaluation)):
        if content is None:
            raise MissingEvidence(f"{evidence.outputs / place} is not there: {evidence.remedy}.")


def check_protocol(evidence: Evidence, found: dict[str, Plan], reduced: bool, findings: Findings) -> None:
    """The protocol against the specification, the profile's file and the budgets, unless it is a `reduced` one."""
    if reduced:
        findings.note("the protocol itself (--reduced): a shortened run is held only to its own numbers")
        return
    file = "evidence/protocol.json"
    with findings.group("protocol", "specification and profile") as group:
        for key, value in SPECIFICATION.items():
            group.equal(file, key, evidence.protocol.get(key), value)
            group.count("numbers of the specification")
        # The seed may be chosen by a parameter of a lab; everything else is the profile's.
        for key, value in profile_items(evidence.repository / "configs" / f"{evidence.profile}.yaml").items():
            if key != "seed" and key in evidence.protocol:
                group.equal(file, key, evidence.protocol[key], value)
                group.count("keys of the profile")
    with findings.group("protocol", "budgets") as group:
        for name, budget in BUDGETS.items():
            if name in found:
                plan = found[name]
                interrupt = plan.interrupt_at if plan.three_ways else None
                group.equal(file, f"budget of {name}", (plan.updates, plan.answers, interrupt), budget)
                group.count("branches")


# --- The profile's file ------------------------------------------------------------------------------


def profile_items(path: Path) -> dict[str, Any]:
    """Key path -> value of a profile: the small part of YAML that these files are written in."""
    if not path.is_file():
        raise MissingEvidence(f"{path} is not there: the evidence names a profile that the repository does not have.")
    items: dict[str, Any] = {}
    headings: list[tuple[int, str]] = []  # (indentation, key) of the sections around a line
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.split("#")[0].rstrip()
        if not text:
            continue
        key, _, value = text.strip().partition(":")
        indentation = len(text) - len(text.lstrip())
        headings = [(depth, heading) for depth, heading in headings if depth < indentation]
        if not value.strip():
            headings.append((indentation, key))
        else:
            items |= _flat(".".join([*(heading for _, heading in headings), key]), value.strip())
    return items


def _flat(key: str, text: str) -> dict[str, Any]:
    if not text.startswith("{"):
        return {key: _scalar(text)}
    pairs = (part.partition(":") for part in _split(text[1:-1]))
    return {f"{key}.{name.strip()}": _scalar(value.strip()) for name, _, value in pairs}


def _split(text: str) -> list[str]:
    """At the commas that are not inside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _scalar(text: str) -> Any:
    return literal({"true": "True", "false": "False", "null": "None"}.get(text, text))
