"""What learning may see, as a mechanism: inside a scope, opening a held-out file is an error.

A Python audit hook (PEP 578) sees every `open` of the interpreter: `open`, `io.open`, `os.open`, `pathlib`,
`gzip`, `numpy.load`, imports; by relative path, through a symbolic or a hard link, or as a descriptor that
was opened before. It also sees `os.link` and `os.rename`, with which a file could be brought out of reach.

What it cannot see: native code that opens files itself (safetensors, torch's C++ reader, tokenizers, ctypes);
child processes that do not inherit the hook (a fork does, a spawned or executed program does not); a relative
path with `dir_fd`; content that was read or memory-mapped before the scope began, or copied elsewhere.
Code that hands a path to a native reader calls `refuse_held_out(path)` first.
"""

import glob
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from labs_lib.errors import LearningScopeError
from labs_lib.paths import DATA, outputs_base

# Audit events of interest; the path is the first argument of each.
_EVENTS = frozenset({"open", "os.link", "os.rename"})
_WILDCARDS = re.compile(r"(\*\*/|\*|\?)")
_MEANING = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}

_lock = threading.Lock()
_active: tuple["_Scope", ...] = ()  # replaced as a whole, so that the hook reads it without the lock
_installed = False


class _PathSet:
    """Files and folders given as paths or globs; a folder stands for everything below it."""

    def __init__(self, patterns: Iterable[Path | str]):
        absolute = [os.path.abspath(pattern) for pattern in patterns]
        # Both spellings: as written, and with links in the part before the first wildcard resolved.
        spellings = {*absolute, *map(_resolve_prefix, absolute)}
        whole_trees = [f"(?:{_translate(spelling)})(?:/.*)?" for spelling in sorted(spellings)]
        self._regex = re.compile("|".join(whole_trees) or "(?!)")
        # Files that exist now are also known by device and inode, which no link can disguise.
        self._inodes = {_inode(path): path for pattern in absolute for path in _existing(pattern)}

    def touches(self, path: str | int) -> bool:
        """Is `path` one of these, by its name, by what its links lead to, or by its inode?"""
        return self._known_inode(path) or any(self._named(path))

    def covers(self, path: str | int) -> bool:
        """Is `path` one of these beyond doubt: by its name *and* by what its links lead to?"""
        return self._known_inode(path) if isinstance(path, int) else all(self._named(path))

    def _known_inode(self, path: str | int) -> bool:
        inode = _inode(path)  # None for what does not exist
        # Asked again for the known path: once that file is gone, its inode number may serve another.
        return inode is not None and inode in self._inodes and _inode(self._inodes[inode]) == inode

    def _named(self, path: str | int) -> list[bool]:
        names = [] if isinstance(path, int) else [os.path.abspath(path), os.path.realpath(path)]
        return [self._regex.fullmatch(name) is not None for name in names]


class _Scope:
    def __init__(self, forbidden: Iterable[Path | str], allow: Iterable[Path | str]):
        self.forbidden, self.allowed = _PathSet(forbidden), _PathSet(allow)

    def refuses(self, path: str | int) -> bool:
        return self.forbidden.touches(path) and not self.allowed.covers(path)


def _translate(pattern: str) -> str:
    return "".join(_MEANING.get(part, re.escape(part)) for part in _WILDCARDS.split(pattern))


def _resolve_prefix(pattern: str) -> str:
    wildcard = _WILDCARDS.search(pattern)
    if wildcard is None:
        return os.path.realpath(pattern)
    folder, rest = pattern[: wildcard.start()].rsplit("/", 1)
    return f"{os.path.realpath(folder).rstrip('/')}/{rest}{pattern[wildcard.start() :]}"


def _existing(pattern: str) -> Iterator[str]:
    for match in glob.glob(pattern, recursive=True, include_hidden=True):
        yield match
        yield from (os.path.join(top, name) for top, _, names in os.walk(match) for name in names)


def _inode(path: str | int) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _hook(event: str, arguments: tuple) -> None:
    if _active and event in _EVENTS:
        refuse_held_out(arguments[0])


def refuse_held_out(path: object) -> None:
    """Raise LearningScopeError, naming the file, when an active scope forbids `path` (or descriptor)."""
    scopes = _active
    if not scopes or not isinstance(path, (str, bytes, int, os.PathLike)):
        return
    name = path if isinstance(path, int) else os.fsdecode(path)
    if isinstance(name, str) and "\0" in name:
        return  # no file has such a name; open itself says so
    if any(scope.refuses(name) for scope in scopes):
        shown = f"descriptor {name}" if isinstance(name, int) else name
        raise LearningScopeError(
            f"{shown} is held out while a policy is being trained: read it before or after the training."
        )


@contextmanager
def learning_scope(forbidden: Iterable[Path | str], allow: Iterable[Path | str] = ()) -> Iterator[None]:
    """While active, opening (for any purpose) a forbidden file raises LearningScopeError.

    Args:
        forbidden: paths or globs (`*`, `?`, `**/`), relative ones from the current folder. A folder stands
            for all below it. Files need not exist yet.
        allow: exceptions from this scope. Scopes nest: a file must be allowed by every active scope, so an
            inner scope never loosens an outer one.

    The scope holds for the whole process, all threads included: a loader thread must not be a way round it.
    """
    global _active, _installed
    scope = _Scope(forbidden, allow)
    with _lock:
        if not _installed:  # an audit hook can never be removed: one for the life of the process
            sys.addaudithook(_hook)
            _installed = True
        _active = (*_active, scope)
    try:
        yield
    finally:
        with _lock:  # by identity: threads may leave their scopes in any order
            _active = tuple(other for other in _active if other is not scope)


def stock_arithmetic_scope(
    validation_nll: bool = False, data: Path | str | None = None, outputs: Path | str | None = None
) -> AbstractContextManager[None]:
    """The learning scope of StockArithmetic-v1; use it as `with stock_arithmetic_scope(): ...`.

    Forbids validation and test, statements and labels, and every inference output (any file or folder
    below `outputs` whose name begins with "evaluation"). `validation_nll` allows the two validation files:
    the negative log-likelihood of a target needs its statement as the prompt. Test is never allowed.
    """
    data = Path(data or DATA / "stock-arithmetic-v1")
    validation = [data / "validation.visible.jsonl", data / "validation.labels.jsonl"]
    forbidden = [data / "validation.*", data / "test.*", _evaluations(outputs)]
    return learning_scope(forbidden, allow=validation if validation_nll else [])


def office_help_scope(
    validation_pairs: bool = False, data: Path | str | None = None, outputs: Path | str | None = None
) -> AbstractContextManager[None]:
    """The learning scope of OfficeHelpPrefs-v1; use it as `with office_help_scope(): ...`.

    Forbids validation and test pairs, the probes, and every inference output, as `stock_arithmetic_scope` does.
    `validation_pairs` allows the validation pairs, for the figure that follows each epoch and selects nothing.
    Test and probes are never allowed.
    """
    data = Path(data or DATA / "office-help-prefs-v1")
    validation = [data / "validation.pairs.visible.jsonl", data / "validation.pairs.labels.jsonl"]
    forbidden = [data / "validation.*", data / "test.*", data / "probes.*", _evaluations(outputs)]
    return learning_scope(forbidden, allow=validation if validation_pairs else [])


def _evaluations(outputs: Path | str | None) -> Path:
    return Path(outputs or outputs_base()) / "**/evaluation*"
