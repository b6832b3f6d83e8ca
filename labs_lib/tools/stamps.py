"""Is a lab up to date? A stamp remembers what a successful run depended on and what it made."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labs_lib.errors import StorageError
from labs_lib.storage import (
    atomic_write_json,
    canonical_json,
    read_json,
    sha256_bytes,
    sha256_file,
    sha256_tree,
)


@dataclass(frozen=True)
class Stamp:
    """`inputs`: name -> fingerprint; `files`: path below the outputs folder -> SHA-256; and the costs."""

    inputs: dict[str, str]
    files: dict[str, str]
    seconds: float
    peak_rss_mb: float
    cpu_seconds: float


def shared_inputs(root: Path, profile: str, bases: list[str]) -> dict[str, str]:
    """Fingerprints of what every lab of a profile depends on: code, config, data, bases, requirements."""
    return {
        "library": _python_tree(root / "labs_lib"),
        "config": _file(root / "configs" / f"{profile}.yaml"),
        "data": _tree(root / "data"),
        **{f"base {base}": _tree(root / base) for base in bases},
        "requirements": _file(root / "requirements.txt"),
        "python": platform.python_version(),
    }


def _tree(folder: Path) -> str:
    return sha256_tree(folder) if folder.is_dir() else "missing"


def _python_tree(folder: Path) -> str:
    """As `_tree`, without the byte code that importing leaves between the sources."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    digests = {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}
    return sha256_bytes(canonical_json(digests))


def _file(path: Path) -> str:
    return sha256_file(path) if path.is_file() else "missing"


def made_files(outputs: Path, patterns: list[str]) -> dict[str, str]:
    """SHA-256 of every file below `outputs` that matches one of the glob patterns."""
    paths = sorted({path for pattern in patterns for path in outputs.glob(pattern) if path.is_file()})
    return {path.relative_to(outputs).as_posix(): sha256_file(path) for path in paths}


def write_stamp(path: Path, stamp: Stamp) -> None:
    """Write a stamp atomically."""
    atomic_write_json(path, vars(stamp))


def read_stamp(path: Path) -> Stamp | None:
    """The stamp, or None for one that is missing or unreadable (then the lab is simply run again)."""
    try:
        return Stamp(**_checked(read_json(path)))
    except (StorageError, TypeError):
        return None


def _checked(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(value.get(key), dict) for key in ("inputs", "files")):
        raise TypeError("not a stamp")
    return value


def out_of_date(stamp: Stamp | None, inputs: Mapping[str, str], outputs: Path) -> str | None:
    """Why a lab has to be executed, in a few words, or None when it is up to date."""
    if stamp is None:
        return "not run yet"
    changed = [name for name in {**inputs, **stamp.inputs} if inputs.get(name) != stamp.inputs.get(name)]
    if changed:
        return f"{', '.join(changed)} changed"
    for name, digest in stamp.files.items():
        if not (outputs / name).is_file():
            return f"{name} is missing"
        if sha256_file(outputs / name) != digest:
            return f"{name} was changed"
    return None
