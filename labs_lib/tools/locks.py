"""One writer at a time: two runs in the same outputs folder would destroy each other's states."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from labs_lib.errors import LabError


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold `folder`, which need not exist and may be deleted meanwhile; LabError if another process holds it.

    The lock is a file beside the folder, and ends with the process, however it ends.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f".{folder.name}.lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"Another run is writing to {folder}: wait for it to end.") from None
        yield
