"""The evidence as it lies on disk: corpus, protocol, checkpoints, evaluations, summaries and report.

Every path is derived here again, and every file is opened with the standard library alone.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from labs_lib.tools.audit.findings import MissingEvidence
from labs_lib.tools.audit.judging import Tokenizer

REPOSITORY = Path(__file__).resolve().parents[3]
CONTINUOUS, INTERRUPTED, RESUMED = "continuous", "interrupted", "resumed"
MODES = (CONTINUOUS, INTERRUPTED, RESUMED)
SPLITS = ("train", "validation", "test")
OFFICE_KINDS = ("sft-office", "judge", "ppo", "dpo")
_CHUNK = 1 << 20


def canonical_json(value: Any) -> bytes:
    """The one spelling of a JSON value that hashes are taken of: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def read_json(path: Path, remedy: str) -> Any:
    """One JSON file; MissingEvidence, with what to do, when it is not there or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MissingEvidence(f"{path} cannot be read ({error.strerror}): {remedy}.") from error
    except ValueError as error:
        raise MissingEvidence(f"{path} is not valid JSON ({error}): {remedy}.") from error


@dataclass(frozen=True)
class State:
    """One checkpoint folder; `place` is its name below the outputs folder of the profile."""

    folder: Path
    place: str
    step: int
    record: dict[str, Any]
    durations: dict[str, Any]
    manifest: dict[str, Any]

    @property
    def record_place(self) -> str:
        return f"{self.place}/record.json"

    @property
    def policy_fingerprint(self) -> str:
        """The fingerprint of the policy in this state."""
        return self.role_fingerprint("policy")

    def role_fingerprint(self, role: str) -> str:
        """The fingerprint of what one role is in this state, from the hashes of its tensors."""
        if role not in self._fingerprints:
            self._fingerprints[role] = policy_fingerprint(self.role_tensors(role))
        return self._fingerprints[role]

    def role_tensors(self, role: str) -> dict[str, dict[str, Any]]:
        """Name -> dtype, shape and hash of one role's tensors; empty for a role that is not in this state."""
        prefix = f"{role}."
        tensors = self.manifest["tensors"]
        return {name.removeprefix(prefix): entry for name, entry in tensors.items() if name.startswith(prefix)}

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        return {}


def policy_fingerprint(tensors: dict[str, dict[str, Any]]) -> str:
    """SHA-256 over names, dtypes, shapes and hashes of a policy's tensors."""
    return sha256(canonical_json(tensors))


@dataclass
class BranchEvidence:
    """All that is on disk about one branch; `summary` and `evaluation` are None where they were not written."""

    name: str
    states: dict[str, list[State]]
    summary: dict[str, Any] | None
    evaluation: dict[str, Any] | None

    @property
    def final(self) -> State:
        return self.states[CONTINUOUS][-1]

    @property
    def identity(self) -> dict[str, str]:
        return self.final.manifest["identity"]

    @property
    def all_states(self) -> list[State]:
        return [state for states in self.states.values() for state in states]

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.final.record["history"]

    @property
    def summary_place(self) -> str:
        return f"evidence/branches/{self.name}.json"

    @property
    def evaluation_place(self) -> str:
        return f"evaluations/evaluation-{self.name}.json"

    @property
    def weak(self) -> bool:
        return "-weak" in self.name

    @property
    def of_office(self) -> bool:
        """Whether this is a branch of OfficeHelp; all others are StockArithmetic's."""
        return self.identity.get("branch.kind") in OFFICE_KINDS


@dataclass
class Evidence:
    """Everything an audit reads, parsed once."""

    profile: str
    outputs: Path
    repository: Path
    protocol: dict[str, Any]
    report: dict[str, Any]
    corpus: dict[str, list[dict[str, Any]]]
    branches: dict[str, BranchEvidence] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.repository / "data" / "stock-arithmetic-v1"

    @property
    def remedy(self) -> str:
        """What makes evidence that is not there."""
        return f"run `make run-all PROFILE={self.profile}` first"

    @property
    def stock_branches(self) -> dict[str, BranchEvidence]:
        return {name: branch for name, branch in self.branches.items() if not branch.of_office}

    @property
    def office_branches(self) -> dict[str, BranchEvidence]:
        return {name: branch for name, branch in self.branches.items() if branch.of_office}

    @cached_property
    def examples(self) -> dict[str, dict[str, Any]]:
        """Id -> example, over all splits."""
        return {row["id"]: row for rows in self.corpus.values() for row in rows}

    def base_folder(self, weak: bool) -> Path:
        """The folder of the base, or of the weak base, that the protocol names."""
        location = self.protocol["base.weak_location" if weak else "base.location"]
        if self.protocol["base.source"] == "assets":
            return self.repository / location
        return self.repository / "assets" / "bases" / location.replace("/", "--").replace("==", "-")

    def tokenizer(self, weak: bool) -> Tokenizer | None:
        """The base's tokenizer, or None when its files are not here or it is not a byte-level one."""
        if weak not in self._tokenizers:
            self._tokenizers[weak] = self._read_tokenizer(self.base_folder(weak) / "tokenizer.json")
        return self._tokenizers[weak]

    @cached_property
    def _tokenizers(self) -> dict[bool, Tokenizer | None]:
        return {}

    def _read_tokenizer(self, file: Path) -> Tokenizer | None:
        if not file.is_file() or '"ByteLevel"' not in json.dumps(json.loads(file.read_text("utf-8")).get("decoder")):
            return None
        return Tokenizer(file)


# --- Finding and opening -----------------------------------------------------------------------------


def read_evidence(profile: str, outputs: Path | None = None, repository: Path = REPOSITORY) -> Evidence:
    """Open the evidence of a profile.

    Raises MissingEvidence naming the file that is not there and the command that makes it.
    """
    base = outputs or repository / os.environ.get("LABS_OUTPUTS", "outputs")
    root = base / profile
    remedy = f"run `make run-all PROFILE={profile}` first"
    if not root.is_dir():
        raise MissingEvidence(f"{root} does not exist, so there is nothing to audit: {remedy}.")
    evidence = Evidence(
        profile,
        root,
        repository,
        read_json(root / "evidence" / "protocol.json", remedy),
        read_json(root / "report.json", remedy),
        {},
    )
    evidence.corpus = {split: _read_split(evidence.data, split) for split in SPLITS}
    folders = sorted(path for path in (root / "branches").glob("*") if path.is_dir())
    found = (read_branch(root, path.name, remedy) for path in folders)
    evidence.branches = {branch.name: branch for branch in found if CONTINUOUS in branch.states}
    return evidence


def _read_split(folder: Path, split: str) -> list[dict[str, Any]]:
    parts = [read_lines(folder / f"{split}.{part}.jsonl") for part in ("visible", "labels")]
    labels = {row["id"]: row for row in parts[1]}
    return [{**row, **labels.get(row["id"], {})} for row in parts[0]]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of one corpus file; MissingEvidence when it is not there or no JSON."""
    try:
        return json.loads(f"[{','.join(path.read_text(encoding='utf-8').splitlines())}]")
    except (OSError, ValueError) as error:
        raise MissingEvidence(f"{path} cannot be read ({error}): run `make data`.") from error


def read_branch(root: Path, name: str, remedy: str) -> BranchEvidence:
    """Every checkpoint, the evaluation and the summary of one branch; modes without a checkpoint are left out."""
    states = {mode: _read_states(root, root / "branches" / name / mode, remedy) for mode in MODES}
    states = {mode: found for mode, found in states.items() if found}
    paths = root / "evidence" / "branches" / f"{name}.json", root / "evaluations" / f"evaluation-{name}.json"
    summary, evaluation = (read_json(path, remedy) if path.exists() else None for path in paths)
    return BranchEvidence(name, states, summary, evaluation)


def _read_states(root: Path, folder: Path, remedy: str) -> list[State]:
    if not folder.is_dir():
        return []
    steps = sorted(path for path in folder.iterdir() if re.fullmatch(r"step-\d{6,}", path.name))
    return [
        State(
            path,
            path.relative_to(root).as_posix(),
            int(path.name.removeprefix("step-")),
            *(read_json(path / f"{part}.json", remedy) for part in ("record", "durations", "manifest")),
        )
        for path in steps
    ]


# --- Safetensors -------------------------------------------------------------------------------------


def safetensors_entries(file: Any) -> tuple[dict[str, Any], Iterator[tuple[str, dict[str, Any], bytes]]]:
    """The metadata of an open safetensors stream, and its tensors as (name, {"dtype", "shape"}, bytes) in order."""
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    metadata = header.pop("__metadata__", {})
    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    return metadata, ((name, entry, file.read(_size(entry))) for name, entry in entries)


def _size(entry: dict[str, Any]) -> int:
    begin, end = entry["data_offsets"]
    return end - begin


DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "U8": "uint8", "I64": "int64", "F64": "float64"}


def describe(entry: dict[str, Any], data: bytes) -> dict[str, Any]:
    """A tensor as the manifests describe it."""
    return {"dtype": DTYPES.get(entry["dtype"], entry["dtype"]), "shape": entry["shape"], "sha256": sha256(data)}


def widened(entry: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """A BF16 tensor as the FP32 one of equal values (its bits are the upper half); others as they are."""
    if entry["dtype"] != "BF16":
        return entry, data
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return {**entry, "dtype": "F32"}, bytes(wide)
