"""Files that are either wholly there or not there at all, and the hashes that name them.

Every write goes to a temporary file in the *same* folder (a rename is atomic only inside one file
system), is flushed to the disk, and is then renamed over the target. A SIGKILL or a full disk at any
moment leaves the earlier file as it was. Names that begin with `PARTIAL_PREFIX` are never results.
"""

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from labs_lib.errors import StorageError

PARTIAL_PREFIX = ".partial-"
_CHUNK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an operating-system refusal while writing `path` into a one-sentence `StorageError`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(path) from error
        raise StorageError(f"{path} cannot be written: {error.strerror or error}.") from error


def disk_full(path: Path) -> StorageError:
    """The sentence for a disk (or quota, or file-size limit) that ends while `path` is written."""
    return StorageError(
        f"The disk is full: {path} was not written and what was there before is intact; "
        "free some space and run the same command again."
    )


def write_synced(path: Path, *pieces: bytes | memoryview) -> None:
    """Write a file and force it to the disk; not atomic by itself, for use inside an unfinished name."""
    with open(path, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def fsync_file(path: Path) -> None:
    """Force a file's bytes, or a folder's entries, out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write_bytes(path: Path | str, *pieces: bytes | memoryview) -> None:
    """Write `pieces`, one after the other, to `path` so that a reader sees the old file or the new one, never a part.

    Creates missing parent folders. Raises StorageError when the file system refuses (disk full, no
    permission); then the old file is intact and no temporary file is left.
    """
    path = Path(path)
    partial = path.with_name(f"{PARTIAL_PREFIX}{path.name}.{os.getpid()}")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_synced(partial, *pieces)
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        fsync_file(path.parent)


def canonical_json(value: Any) -> bytes:
    """The one spelling of `value` as UTF-8 JSON: sorted keys, no spaces, floats by shortest exact repr.

    Raises StorageError for NaN or infinity (not JSON), for what JSON cannot hold, and for a key that
    is not text (JSON would silently turn 1 into "1", and the value read back would differ).
    """
    _refuse_odd_keys(value, "")
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        return text.encode("utf-8")
    except (TypeError, ValueError) as error:
        raise StorageError(f"A value cannot be stored as JSON: {error}.") from error


def _refuse_odd_keys(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise StorageError(f"A JSON key must be text, got {key!r} in {where or 'the top level'}.")
            _refuse_odd_keys(item, f"{where}.{key}" if where else key)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_odd_keys(item, f"{where}[{index}]")


def atomic_write_json(path: Path | str, value: Any) -> None:
    """Write `value` as canonical JSON and a final newline, atomically; errors as in the two above."""
    atomic_write_bytes(path, canonical_json(value) + b"\n")


def atomic_write_jsonl(path: Path | str, rows: Iterable[Any]) -> None:
    """Write one canonical JSON value a line, atomically as a whole file."""
    atomic_write_bytes(path, b"".join(canonical_json(row) + b"\n" for row in rows))


def read_json(path: Path | str) -> Any:
    """Read one JSON file; a missing or malformed one is a StorageError that names it."""
    return parse_json(_read_bytes(Path(path)), str(path))


def read_jsonl(path: Path | str) -> list[Any]:
    """Read a JSON-lines file; a missing or malformed one is a StorageError that names file and line."""
    lines = _read_bytes(Path(path)).splitlines()
    return [parse_json(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def parse_json(data: bytes, where: str) -> Any:
    """Parse UTF-8 JSON bytes; `where` names the source in the StorageError for malformed ones."""
    try:
        return json.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise StorageError(f"{where} is not valid JSON ({error}); delete it and make it again.") from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error


def sha256_bytes(*pieces: bytes | memoryview) -> str:
    """SHA-256 of `pieces`, one after the other: 64 lower-case hexadecimal digits."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def sha256_file(path: Path | str) -> str:
    """SHA-256 of a file's bytes, read in pieces so that a large model needs no memory.

    A process reads a file again only when it has changed since: states and bases of gigabytes are verified at every
    load. What was written in the last seconds is always read, since a second change may not move its time stamp.
    """
    try:
        with open(path, "rb") as file:
            version, now = _version(file), time.time_ns()
            if version in _known_digests:
                return _known_digests[version]
            digest = hashlib.sha256()
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            # The first half for clocks that disagree: that of a file server may be behind this machine's.
            settled = version == _version(file) and now - max(version[-2:]) > _SETTLED
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
    if settled:
        _known_digests[version] = digest.hexdigest()
    return digest.hexdigest()


_SETTLED = 2_000_000_000  # nanoseconds; file systems count in steps of up to two seconds
_known_digests: dict[tuple[int, ...], str] = {}


def _version(file: BinaryIO) -> tuple[int, ...]:
    """Which file this is and when it was changed; the last, the change of the inode, cannot be set back."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def sha256_tree(root: Path | str) -> str:
    """SHA-256 over every file below `root`: relative names and contents, in sorted order.

    Unfinished files (`PARTIAL_PREFIX`) are not part of a tree. Raises StorageError when `root` is no folder.
    """
    root = Path(root)
    if not root.is_dir():
        raise StorageError(f"{root} is not a folder.")
    files = {
        path.relative_to(root).as_posix(): sha256_file(path)
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(PARTIAL_PREFIX) for part in path.relative_to(root).parts)
    }
    return sha256_bytes(canonical_json(files))
