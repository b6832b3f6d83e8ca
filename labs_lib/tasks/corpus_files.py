"""What the corpora share: named random streams, files of JSON lines, and a manifest that names their hashes.

A corpus is a pure function of its seed, so that its files can be made again byte for byte. A file that differs
from what its manifest says is refused, whatever changed it.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labs_lib.errors import LabError
from labs_lib.storage import atomic_write_bytes, canonical_json, parse_json, sha256_bytes

MANIFEST = "manifest.json"


class CorpusError(LabError):
    """A corpus file is missing or differs from its manifest; the message names the file."""


def named_stream(corpus: str, seed: int, stream: str) -> random.Random:
    """The generator of one named part of a corpus: changing the size of one part leaves the draws of the others."""
    digest = hashlib.sha256(f"{corpus}/{seed}/{stream}".encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


def files_with_manifest(rows: Mapping[str, Sequence[Any]], description: Mapping[str, Any]) -> dict[str, bytes]:
    """File name -> bytes: one canonical JSON value a line, and last the manifest with `description` and hashes."""
    files = {name: b"".join(canonical_json(row) + b"\n" for row in lines) for name, lines in rows.items()}
    entries = {name: {"examples": len(rows[name]), "sha256": sha256_bytes(data)} for name, data in files.items()}
    return files | {MANIFEST: canonical_json({**description, "files": entries}) + b"\n"}


def write_files(folder: Path | str, files: Mapping[str, bytes]) -> None:
    """Write a corpus in the order given; with the manifest last, an interrupted run never looks whole."""
    for name, data in files.items():
        atomic_write_bytes(Path(folder) / name, data)


def load_manifest(folder: Path | str) -> dict[str, Any]:
    """The manifest of the corpus in `folder`; CorpusError when it is missing."""
    path = Path(folder) / MANIFEST
    return parse_json(_read(path), str(path))


def verified_rows(path: Path, manifest: Mapping[str, Any]) -> list[Any]:
    """The rows of one file.

    Raises:
        CorpusError: the file is missing, or its hash is not the manifest's.
        LearningScopeError: the file is held out while a policy is being trained.
    """
    data = _read(path)
    expected = manifest.get("files", {}).get(path.name, {}).get("sha256")
    if sha256_bytes(data) != expected:
        raise CorpusError(f"{path} is not the file its manifest describes: run `make data` to restore it.")
    return [parse_json(line, str(path)) for line in data.splitlines()]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror}): run `make data` first.") from error
