"""A copy of a toy course's evidence that tests edit and sign again, so that only recomputation can find the edit."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labs_lib.tools.audit import reading
from labs_lib.tools.audit.checks import audit

OUTPUTS = Path("outputs") / "tiny"


class Tree:
    """A copy of the course's evidence that can be edited and signed again."""

    def __init__(self, repository: Path):
        self.repository, self.root = repository, repository / OUTPUTS

    @classmethod
    def copy(cls, course: Path, repository: Path) -> "Tree":
        # Hard links are enough: every edit writes a new file.
        shutil.copytree(course, repository, copy_function=os.link)
        return cls(repository)

    def audit(self, tensors: bool = False) -> list[str]:
        evidence = reading.read_evidence("tiny", self.repository / "outputs", self.repository)
        return [str(difference) for difference in audit(evidence, reduced=True, tensors=tensors).differences]

    def json(self, place: str, edit: Callable[[Any], None]) -> None:
        path = self.root / place
        value = json.loads(path.read_text())
        edit(value)
        write(path, reading.canonical_json(value) + b"\n")

    def states(self, branch: str, mode: str = "*") -> list[Path]:
        return sorted((self.root / "branches" / branch).glob(f"{mode}/step-*"))

    def record(self, branch: str, edit: Callable[[dict], None], mode: str = "*") -> None:
        """Edit the record of every state of a branch, sign them, and repeat the new hashes where they are reported."""
        for folder in self.states(branch, mode):
            self.json(folder / "record.json", edit)
            self.sign(folder)
        self.report(branch)

    def row(self, branch: str, number: int, edit: Callable[[dict], None]) -> None:
        """Edit one row of the history in every state that has it."""
        self.record(branch, lambda record: [edit(row) for row in record["history"][number : number + 1]])

    def manifest(self, branch: str, edit: Callable[[dict], None]) -> None:
        for folder in self.states(branch):
            self.json(folder / "manifest.json", edit)
            self.sign(folder)

    def sign(self, folder: Path) -> None:
        record = (folder / "record.json").read_bytes()
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest.pop("manifest_sha256")
        manifest["files"]["record.json"] = {"bytes": len(record), "sha256": reading.sha256(record)}
        state = {"tensors": manifest["tensors"], "record": json.loads(record)}
        manifest["state_sha256"] = reading.sha256(reading.canonical_json(state))
        manifest["manifest_sha256"] = reading.sha256(reading.canonical_json(manifest))
        write(folder / "manifest.json", reading.canonical_json(manifest) + b"\n")

    def report(self, branch: str, edit: Callable[[dict], None] = lambda summary: None) -> None:
        """Edit a branch's summary, in its file and in the report, with the hashes of the states as they are now."""

        def both(summary: dict) -> None:
            for mode in summary["state_sha256"]:
                manifest = json.loads((self.states(branch, mode)[-1] / "manifest.json").read_text())
                summary["state_sha256"][mode] = manifest["state_sha256"]
            edit(summary)

        self.json(f"evidence/branches/{branch}.json", both)
        self.json("report.json", lambda report: both(report["branches"][branch]))

    def evaluation(self, branch: str, edit: Callable[[dict], None]) -> None:
        self.json(f"evaluations/evaluation-{branch}.json", edit)


def write(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def add(key: str, amount: float) -> Callable[[dict], None]:
    return lambda values: values.__setitem__(key, values[key] + amount)


def put(key: Any, value: Any) -> Callable[[Any], None]:
    return lambda values: values.__setitem__(key, value)
