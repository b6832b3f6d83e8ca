"""Checks of OfficeHelp's checkpoints: exact resume, adapters, frozen roles, and who started from whom."""

from typing import Any

from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.office.corpus import OfficeCorpus
from labs_lib.tools.audit.office.protocol import BASE, KINDS, PPO, RUBRIC, OfficePlan
from labs_lib.tools.audit.protocol import section
from labs_lib.tools.audit.reading import BranchEvidence, Evidence, State, sha256_file, widened
from labs_lib.tools.audit.states import (
    as_text,
    base_fingerprint,
    check_branch_files,
    check_fingerprints,
    check_identities,
    check_resume,
)

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
HEAD = ("head.bias", "head.weight")
BACKBONE = "backbone."
SHARED_KEYS = ("name", "seed", "dtype", "kl_block", "template_version", "office.dtype")
SHARED_SECTIONS = ("base", "budget", "optimizer", "office.lora")


def check_office_states(
    evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan, tensors: bool, findings: Findings
) -> None:
    """All that is checked of a branch's checkpoints; without `tensors` the large files are not opened."""
    branch = evidence.branches[plan.name]
    with findings.group(plan.name, "files") as group:
        check_branch_files(evidence, branch, branch.final.role_fingerprint(plan.role), tensors, group)
    with findings.group(plan.name, "identity") as group:
        expected = _expected_identity(evidence, corpus, plan, branch, findings)
        if tensors and (backbone := _backbone(evidence)) is not None:
            expected["backbone"] = backbone
        check_identities(branch, expected, group)
        _check_config(evidence, plan, branch, group)
    with findings.group(plan.name, "roles") as group:
        for state in branch.all_states:
            _check_roles(evidence, plan, branch, state, group)
        if plan.kind == PPO:
            check_fingerprints(branch, "actor_fingerprint", "actor", group)
    with findings.group(plan.name, "exact resume") as group:
        check_resume(plan, branch, group)


# --- Identity ----------------------------------------------------------------------------------------


def _expected_identity(
    evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan, branch: BranchEvidence, findings: Findings
) -> dict[str, str]:
    expected = {
        f"branch.{key}": str(getattr(plan, key))
        for key in ("name", "kind", "start", "bias", "reward", "kl_weight", "three_ways")
    }
    expected |= {"branch.seed": str(plan.series), "data": sha256_file(corpus.folder / "manifest.json")}
    expected["start"] = "None" if plan.start == BASE else start_fingerprint(evidence, plan)
    if plan.reward in (None, RUBRIC):
        expected["reward"] = "None"
    elif (judge := paying_judge(evidence, plan)) is not None:
        expected["reward"] = judge.final.role_fingerprint("judge")
    else:
        findings.note(f"the judge that paid {plan.name}, which is not on this machine")
    return expected


def start_fingerprint(evidence: Evidence, plan: OfficePlan) -> str:
    """What the branch that this one starts from ended with."""
    return evidence.branches[plan.start].final.role_fingerprint("policy")


def paying_judge(evidence: Evidence, plan: OfficePlan) -> BranchEvidence | None:
    """The judge that pays in this plan: of the protocol, or (in the study) of the same series."""
    same = [
        branch
        for name, branch in evidence.office_branches.items()
        if branch.identity["branch.kind"] == "judge"
        and branch.identity["branch.seed"] == str(plan.series)
        and name.partition("-seed")[0] == plan.reward
    ]
    return same[0] if same else None


def _check_config(evidence: Evidence, plan: OfficePlan, branch: BranchEvidence, group: Group) -> None:
    """Every number that the identity names is the protocol's, and it names all that this kind of training uses."""
    protocol, place = evidence.protocol, f"{branch.final.place}/manifest.json"
    named = section(branch.identity, "config")
    for key, value in named.items():
        group.equal(place, f"identity config.{key}", value, as_text(protocol.get(key)))
    sections = (*SHARED_SECTIONS, KINDS[plan.kind][0])
    needed = [key for name in sections for key in protocol if key.startswith(f"{name}.")]
    if plan.bias == "confidence":
        needed.append("office.confidence_share")
    missing = sorted({*SHARED_KEYS, *needed} - named.keys())
    group.equal(place, "numbers of the protocol that no identity names", missing, [])
    group.count("numbers of the protocol", len(named))


def _backbone(evidence: Evidence) -> str | None:
    """The base's fingerprint in the dtype of the frozen backbones; its files hold BF16."""
    half = evidence.protocol["office.dtype"] == "bfloat16"
    return base_fingerprint(evidence, False, (lambda entry, data: (entry, data)) if half else widened)


# --- Roles -------------------------------------------------------------------------------------------


def _check_roles(evidence: Evidence, plan: OfficePlan, branch: BranchEvidence, state: State, group: Group) -> None:
    """Adapters of the right form; in PPO the frozen roles are the ones of their branches, in every state alike."""
    place = f"{state.place}/manifest.json"
    frozen = {}
    if plan.kind == PPO:
        frozen["reference"] = branch.identity["start"]
        if plan.reward != RUBRIC:
            frozen["judge"] = branch.identity["reward"]
    roles = ["actor", "critic", *frozen] if plan.kind == PPO else [plan.role]
    for role in roles:
        _check_adapters(evidence, place, role, state.role_tensors(role), role in ("judge", "critic"), group)
    for role, fingerprint in frozen.items():
        group.equal(place, f"frozen {role}", state.role_fingerprint(role), fingerprint)
        group.count("frozen roles")
    if plan.kind == PPO:
        backbones = dict.fromkeys(roles, branch.identity["backbone"])
        group.equal(f"{state.place}/record.json", "backbones", state.record["backbones"], backbones)
        _check_critic(place, state, group)


def _check_critic(place: str, state: State, group: Group) -> None:
    """The critic began as a copy of the reference's adapters and has learned since."""
    critic = {name.removeprefix(BACKBONE): entry for name, entry in state.role_tensors("critic").items()}
    same = [name for name, entry in state.role_tensors("reference").items() if critic.get(name) == entry]
    learned = len(same) < len(state.role_tensors("reference"))
    group.require(place, "critic", learned, "the adapters of SFT", "adapters that have learned since")


def _check_adapters(
    evidence: Evidence, place: str, role: str, tensors: dict[str, dict[str, Any]], scalar: bool, group: Group
) -> None:
    """An A (rank, in) and a B (out, rank) in FP32 for each projection of each layer; a head where there is one."""
    rank = evidence.protocol["office.lora.rank"]
    adapters = {name: entry for name, entry in tensors.items() if name not in HEAD}
    layers: dict[str, set[str]] = {}
    for name, entry in adapters.items():
        layer, _, end = name.partition(".self_attn.") if ".self_attn." in name else name.partition(".mlp.")
        layers.setdefault(layer, set()).add(end)
        group.equal(place, f"{role} {name} dtype", entry["dtype"], "float32")
        group.equal(place, f"{role} {name} rank", entry["shape"][0 if name.endswith(".A") else 1], rank)
    wanted = sorted(f"{name}.{part}" for name in PROJECTIONS for part in "AB")
    group.require(place, f"{role} adapters", bool(layers), sorted(tensors), "adapters in every layer")
    for layer, found in layers.items():
        group.equal(place, f"{role} {layer} adapters", sorted(found), wanted)
    heads = [name for name in HEAD if name in tensors]
    group.equal(place, f"{role} head", heads, list(HEAD) if scalar else [])
    group.count("adapters", len(adapters) // 2)
