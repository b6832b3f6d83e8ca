"""What each branch of OfficeHelp should have been, held to the specification's numbers."""

from dataclasses import dataclass, replace
from typing import Any

from labs_lib.tools.audit.findings import Findings, MissingEvidence
from labs_lib.tools.audit.protocol import in_order, literal, require_complete, section
from labs_lib.tools.audit.reading import INTERRUPTED, MODES, BranchEvidence, Evidence

SFT, JUDGE, PPO, DPO = "sft-office", "judge", "ppo", "dpo"
BASE, RUBRIC = "base", "rubric"
BIASES = ("courtesy", "confidence")
# Kind -> (its section of the protocol, the role that is its result, offset of its seed from the series').
KINDS = {
    SFT: ("office.sft", "policy", 1),
    JUDGE: ("office.judge", "judge", 2),
    PPO: ("office.ppo", "actor", 1),
    DPO: ("office.dpo", "policy", 1),
}
SPECIFICATION = {
    "office.lora.rank": 8,
    "office.lora.alpha": 16,
    "office.sft.examples": 168,
    "office.sft.epochs": 3,
    "office.sft.batch_size": 8,
    "office.judge.examples": 840,
    "office.judge.epochs": 2,
    "office.judge.batch_size": 8,
    "office.dpo.examples": 840,
    "office.dpo.epochs": 2,
    "office.dpo.batch_size": 8,
    "office.dpo.beta": 0.1,
    "office.ppo.iterations": 100,
    "office.ppo.prompts_per_iteration": 4,
    "office.ppo.updates_per_iteration": 2,
    "office.ppo.clip_low": 0.2,
    "office.ppo.clip_high": 0.2,
    "office.ppo.kl_weight": 0.02,
    "office.ppo.gamma": 1.0,
    "office.ppo.gae_lambda": 0.95,
    "office.ppo.truncation_penalty": 1.0,
    "office.ppo.temperature": 1.0,
    "office.ppo.top_k": 0,
    "office.ppo.top_p": 1.0,
    "office.study.kl_weights": [0.0, 0.02, 0.1],
}
# Kind -> (updates of each network, sampled answers, step at which an interrupted run stops).
BUDGETS = {SFT: (63, 0, 21), JUDGE: (210, 0, 105), PPO: (200, 400, 40), DPO: (210, 0, None)}


@dataclass(frozen=True)
class OfficePlan:
    """How a branch should have been made; `seed` is that of its streams, `interrupt_at` None without interruption."""

    name: str
    kind: str
    start: str
    series: int
    bias: str | None
    reward: str | None
    kl_weight: float | None
    three_ways: bool
    settings: dict[str, Any]
    interrupt_at: int | None = None

    @property
    def seed(self) -> int:
        return self.series + KINDS[self.kind][2]

    @property
    def role(self) -> str:
        """The role in the state that is the branch's result."""
        return KINDS[self.kind][1]

    @property
    def batches(self) -> int:
        """Updates in one epoch."""
        return -(-self.settings["examples"] // self.settings["batch_size"])

    @property
    def steps(self) -> int:
        """Iterations of PPO, updates of all else."""
        return self.settings["iterations"] if self.kind == PPO else self.batches * self.settings["epochs"]

    @property
    def updates(self) -> int:
        return self.steps * (self.settings["updates_per_iteration"] if self.kind == PPO else 1)

    @property
    def answers(self) -> int:
        return self.steps * self.settings["prompts_per_iteration"] if self.kind == PPO else 0

    @property
    def modes(self) -> tuple[str, ...]:
        return MODES if self.three_ways else MODES[:1]

    @property
    def judged_by(self) -> list[str]:
        """The judges that an actor's answers are scored by: the main one, and the one that paid."""
        return [JUDGE] if self.reward in (None, RUBRIC, JUDGE) else [JUDGE, self.reward]


def required_office_plans(protocol: dict[str, Any]) -> dict[str, OfficePlan]:
    """The nine branches of labs 04 and 05, each after what it starts from."""
    weight = protocol["office.ppo.kl_weight"]
    rows = [(SFT, SFT, BASE, None, None)]
    for bias in (None, *BIASES):
        suffix = "" if bias is None else f"-{bias}"
        rows.append((f"judge{suffix}", JUDGE, BASE, bias, None))
        rows.append((f"ppo{suffix}", PPO, SFT, None, f"judge{suffix}"))
    rows += [("ppo-rubric", PPO, SFT, None, RUBRIC), (DPO, DPO, SFT, None, None)]
    plans = {}
    for name, kind, start, bias, reward in rows:
        kl_weight = weight if kind == PPO else None
        three_ways = name in (SFT, JUDGE, PPO)
        settings = _settings(protocol, kind, kl_weight)
        plans[name] = OfficePlan(name, kind, start, protocol["seed"], bias, reward, kl_weight, three_ways, settings)
    return plans


def _settings(protocol: dict[str, Any], kind: str, kl_weight: float | None) -> dict[str, Any]:
    settings = section(protocol, KINDS[kind][0])
    return settings if kl_weight is None else {**settings, "kl_weight": kl_weight}


def declared_office_plan(branch: BranchEvidence, protocol: dict[str, Any]) -> OfficePlan:
    """What a branch's own states say that it is: for one outside of the protocol, as in the study."""
    said = {key: literal(value) for key, value in section(branch.identity, "branch").items()}
    keys = ("name", "kind", "start", "seed", "bias", "reward", "kl_weight", "three_ways")
    return OfficePlan(*(said[key] for key in keys), _settings(protocol, said["kind"], said["kl_weight"]))


def office_plans(evidence: Evidence, findings: Findings) -> dict[str, OfficePlan]:
    """The plan of every OfficeHelp branch on disk; one outside of the protocol that has not ended is only noted.

    Raises MissingEvidence for a required branch, mode, summary or evaluation that is not there, unless no branch is.
    """
    branches, required, found = evidence.office_branches, required_office_plans(evidence.protocol), {}
    if not branches:
        findings.note("OfficeHelp: none of its branches is on this machine")
        return {}
    for name in in_order(evidence, branches, required):
        branch = branches[name]
        plan = required.get(name) or _declared(branch, evidence.protocol)
        if name in required:
            require_complete(evidence, branch, plan.modes)
        elif branch.final.step < plan.steps:
            findings.note(f"the branch {name}, which is outside of the protocol and not finished")
            continue
        found[name] = _interrupted(plan, branch)
    return found


def _declared(branch: BranchEvidence, protocol: dict[str, Any]) -> OfficePlan:
    try:
        return declared_office_plan(branch, protocol)
    except (KeyError, TypeError, AttributeError) as error:
        raise MissingEvidence(
            f"The states of branch {branch.name} do not say what they are ({error}): train it again with --fresh."
        ) from error


def _interrupted(plan: OfficePlan, branch: BranchEvidence) -> OfficePlan:
    """Supervised runs stop after an epoch; where PPO stops changes no number, so its states say it."""
    if not plan.three_ways or INTERRUPTED not in branch.states:
        return plan
    return replace(plan, interrupt_at=branch.states[INTERRUPTED][-1].step if plan.kind == PPO else plan.batches)


def check_office_protocol(evidence: Evidence, found: dict[str, OfficePlan], reduced: bool, findings: Findings) -> None:
    """The protocol against the specification's numbers, and the budgets, unless it is a `reduced` one."""
    if reduced:
        return
    file = "evidence/protocol.json"
    with findings.group("protocol", "specification of OfficeHelp") as group:
        for key, value in SPECIFICATION.items():
            group.equal(file, key, evidence.protocol.get(key), value)
            group.count("numbers of the specification")
    with findings.group("protocol", "budgets of OfficeHelp") as group:
        for name, plan in found.items():
            updates, answers, interrupt = BUDGETS[plan.kind]
            budget = (updates, answers, interrupt if plan.three_ways else None)
            group.equal(file, f"budget of {name}", (plan.updates, plan.answers, plan.interrupt_at), budget)
            group.count("branches")
