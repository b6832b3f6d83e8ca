"""Checks of the checkpoints: hashes, identities, equality of continuous and resumed, and who started from whom."""

import gzip
import struct
from collections.abc import Callable
from typing import Any

from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.protocol import OTHER_SECTIONS, Plan, without_sections
from labs_lib.tools.audit.reading import (
    CONTINUOUS,
    INTERRUPTED,
    RESUMED,
    BranchEvidence,
    Evidence,
    State,
    canonical_json,
    describe,
    policy_fingerprint,
    safetensors_entries,
    sha256,
    sha256_file,
    widened,
)

PARTS = ("durations.json", "record.json", "tensors.safetensors.gz")
BASES = ("base", "base-weak")


def check_states(evidence: Evidence, plan: Plan, tensors: bool, findings: Findings) -> None:
    """All that is checked of a branch's checkpoints; without `tensors` the large files are not opened."""
    branch = evidence.branches[plan.name]
    with findings.group(plan.name, "files") as group:
        check_branch_files(evidence, branch, branch.final.policy_fingerprint, tensors, group)
    with findings.group(plan.name, "identity") as group:
        check_identities(branch, _expected_identity(evidence, plan), group)
        _check_start(evidence, plan, branch, tensors, group)
    with findings.group(plan.name, "exact resume") as group:
        check_resume(plan, branch, group)


def check_branch_files(
    evidence: Evidence, branch: BranchEvidence, fingerprint: str, tensors: bool, group: Group
) -> None:
    """The files of every state, and the exported weights, which must have the `fingerprint` of the final state."""
    for state in branch.all_states:
        _check_files(state, tensors, group)
        if tensors:
            _check_tensors(state, group)
    if tensors:
        _check_exported(evidence, branch, fingerprint, group)


def _check_files(state: State, tensors: bool, group: Group) -> None:
    """The manifest vouches for the other files and for itself; the state's hash covers tensors and record."""
    manifest, place = state.manifest, f"{state.place}/manifest.json"
    own = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    group.equal(place, "manifest_sha256", manifest["manifest_sha256"], sha256(canonical_json(own)))
    group.equal(place, "files", sorted(manifest["files"]), sorted(PARTS))
    for name in PARTS if tensors else PARTS[:2]:
        path, entry = state.folder / name, manifest["files"][name]
        group.equal(f"{state.place}/{name}", "SHA-256", sha256_file(path), entry["sha256"])
        group.equal(f"{state.place}/{name}", "bytes", path.stat().st_size, entry["bytes"])
        group.count("file hashes")
    hashed = sha256(canonical_json({"tensors": manifest["tensors"], "record": state.record}))
    group.equal(place, "state_sha256", manifest["state_sha256"], hashed)
    group.equal(place, "step", manifest["step"], state.step)
    group.count("states")


def _check_tensors(state: State, group: Group) -> None:
    """Every tensor's hash, and that AdamW counted as many updates as the record says."""
    described: dict[str, Any] = {}
    with gzip.open(state.folder / PARTS[2]) as file:
        for name, entry, data in safetensors_entries(file)[1]:
            described[name] = describe(entry, data)
            if "adamw.step." in name:
                counted = struct.unpack("<f", data)[0]
                group.equal(f"{state.place}/{PARTS[2]}", name, counted, float(state.record["updates"]))
    place = f"{state.place}/manifest.json"
    group.equal(place, "names of the tensors", sorted(state.manifest["tensors"]), sorted(described))
    for name, entry in described.items():
        group.equal(place, f"tensor {name}", state.manifest["tensors"].get(name), entry)
        group.count("tensors")


def _check_exported(evidence: Evidence, branch: BranchEvidence, final: str, group: Group) -> None:
    """The exported weights are what the branch ended with."""
    place = f"models/{branch.name}/model.safetensors"
    with open(evidence.outputs / place, "rb") as file:
        metadata, entries = safetensors_entries(file)
        described = {name: describe(entry, data) for name, entry, data in entries}
    fingerprint = policy_fingerprint(described)
    group.equal(place, "fingerprint in the header", metadata.get("fingerprint"), fingerprint)
    group.equal(place, "fingerprint of the final state", fingerprint, final)
    group.count("exported model")


def _expected_identity(evidence: Evidence, plan: Plan) -> dict[str, str]:
    """What the identities of a branch must say: this protocol, this corpus, this branch."""
    config = without_sections(evidence.protocol, OTHER_SECTIONS)
    expected = {f"config.{key}": as_text(value) for key, value in config.items()}
    expected["data"] = sha256_file(evidence.data / "manifest.json")
    expected |= {
        "branch.name": plan.name,
        "branch.start": plan.start,
        "branch.kind": plan.kind,
        "branch.shuffle_rewards": str(plan.shuffled),
        "branch.three_ways": str(plan.three_ways),
    }
    if plan.kind == "grpo":
        settings = {key: value for key, value in plan.settings.items() if key != "interrupt_at"}
        expected |= {f"branch.grpo.{key}": as_text(value) for key, value in settings.items()}
    return expected


def check_identities(branch: BranchEvidence, expected: dict[str, str], group: Group) -> None:
    """All states of a branch were made by one and the same thing, which is the expected one."""
    for state in branch.all_states:
        identity, place = state.manifest["identity"], f"{state.place}/manifest.json"
        for key, value in expected.items():
            group.equal(place, f"identity {key}", identity.get(key), value)
        for key in branch.identity:
            group.equal(place, f"identity {key} among the states", identity.get(key), branch.identity[key])
        group.count("identities")


def as_text(value: Any) -> str:
    """A value of the protocol as an identity spells it; JSON's lists were tuples."""
    return str(tuple(value)) if isinstance(value, list) else str(value)


def _check_start(evidence: Evidence, plan: Plan, branch: BranchEvidence, tensors: bool, group: Group) -> None:
    """The branch began where the branch (or the base) that it names ended, and so did its first answers."""
    place = f"{branch.final.place}/manifest.json"
    start = _start_fingerprint(evidence, plan.start, tensors)
    if start is not None:
        group.equal(place, "identity start", branch.identity["start"], start)
        group.count("start")
    if plan.kind == "grpo":
        check_fingerprints(branch, "policy_fingerprint", "policy", group)


def check_fingerprints(branch: BranchEvidence, key: str, role: str, group: Group) -> None:
    """Who sampled each iteration: first the start, then what the saved states hold, another one after each update."""
    rows, file = branch.history, branch.final.record_place
    group.equal(file, f"iteration 1 {key}", rows[0][key], branch.identity["start"])
    for state in branch.all_states:
        if state.step < len(rows):
            sampled_by = rows[state.step][key]
            group.equal(file, f"iteration {state.step + 1} {key}", sampled_by, state.role_fingerprint(role))
            group.count("fingerprints of saved policies")
    for row, after in zip(rows, [*rows[1:], {key: branch.final.role_fingerprint(role)}], strict=True):
        same = row[key] == after[key]
        group.require(file, f"iteration {row['iteration']}", not same, "the same policy after it", "another policy")
        group.count("policies")


def _start_fingerprint(evidence: Evidence, start: str, tensors: bool) -> str | None:
    """None for a base whose files are not the repository's own: their names and dtypes may be others."""
    if start not in BASES:
        return evidence.branches[start].final.policy_fingerprint
    return base_fingerprint(evidence, start == "base-weak", widened) if tensors else None


def base_fingerprint(evidence: Evidence, weak: bool, convert: Callable) -> str | None:
    """The fingerprint of a base whose tensors were loaded as `convert` makes them; None for a base of others."""
    if evidence.protocol["base.source"] != "assets":
        return None
    with open(evidence.base_folder(weak) / "model.safetensors", "rb") as file:
        entries = [(name, *convert(entry, data)) for name, entry, data in safetensors_entries(file)[1]]
    return policy_fingerprint({name: describe(entry, data) for name, entry, data in entries})


def check_resume(plan: Any, branch: BranchEvidence, group: Group) -> None:
    """Interrupted is a prefix of continuous, resumed equals it, and went on from the interrupted state."""
    ends = {CONTINUOUS: plan.steps, INTERRUPTED: plan.interrupt_at, RESUMED: plan.steps} if plan.three_ways else {}
    ends.setdefault(CONTINUOUS, plan.steps)
    for mode, states in branch.states.items():
        group.equal(states[-1].place, "last step", states[-1].step, ends.get(mode))
        for state in states:
            _check_prefix(state, branch, group)
    if not plan.three_ways:
        return
    final, resumed, cut = branch.final, branch.states[RESUMED][-1], branch.states[INTERRUPTED][-1]
    group.equal(resumed.place, "state_sha256", resumed.manifest["state_sha256"], final.manifest["state_sha256"])
    group.equal(resumed.record_place, "record", resumed.record, final.record)
    kept = measured(resumed)[: cut.step]
    group.equal(f"{resumed.place}/durations.json", f"the first {cut.step} steps", kept, measured(cut))
    group.count("resumed states equal")


def _check_prefix(state: State, branch: BranchEvidence, group: Group) -> None:
    rows, whole = state.record["history"], branch.history
    group.equal(state.record_place, "rows of the history", len(rows), state.step)
    group.equal(f"{state.place}/durations.json", "steps", len(measured(state)), state.step)
    for index, (row, continuous) in enumerate(zip(rows, whole, strict=False)):
        if row != continuous:
            group.differs(state.record_place, f"history row {index}", row, continuous)
    group.count("history rows", len(rows))


def measured(state: State) -> list[Any]:
    """Durations, one entry for each step."""
    return state.durations["iterations" if "iterations" in state.durations else "optimisation"]
