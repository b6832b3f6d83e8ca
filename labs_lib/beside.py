"""Branches that train in a second process while a lab goes on, where the machine has a core for it.

The states are the same as without it: whoever needs a branch first trains it, and the other waits for it.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from labs_lib.config import Profile
from labs_lib.cores import side_by_side
from labs_lib.errors import LabError
from labs_lib.paths import ROOT, outputs_root
from labs_lib.runtime import start

INTERRUPTED = 130
_processes: list[subprocess.Popen] = []  # their stdin stays open for as long as this process lives


def train_beside(profile: Profile, names: Sequence[str]) -> bool:
    """Begin to train branches of labs 04 and 05, one after the other, in a second process; returns at once.

    `ensure_office` waits for a branch that is in training there. The second process ends with this one, after the
    step that it is in, and leaves a state that can be resumed; what it cannot do is left to `ensure_office`, which
    says why. Its messages are in `outputs/<profile>/beside.log`.

    Returns:
        whether it was begun: only where the profile has one thread on the CPU, and with a second core. Where it leaves
        the threads open, a lab alone has all cores in use and labs side by side share them.

    Raises:
        LabError: an unknown branch.
    """
    from labs_lib.office_branches import office_protocol  # it imports torch, which the child's pins must come before

    if unknown := [name for name in names if name not in office_protocol(profile)]:
        raise LabError(f"Unknown branch {unknown[0]!r}; the branches are: {', '.join(office_protocol(profile))}.")
    if profile.device != "cpu" or profile.threads != 1 or side_by_side() < 2:
        return False
    log = outputs_root(profile.name) / "beside.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    run = [profile.file, str(profile.seed), str(profile.protocol_share)]
    command = [sys.executable, "-m", "labs_lib.beside", *run, *names]
    with open(log, "wb") as messages:
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        # In a session of its own: a kernel that ends kills its process group, in the middle of a step.
        streams = {"stdin": pipe, "stdout": nowhere, "stderr": messages}
        _processes.append(subprocess.Popen(command, cwd=ROOT, start_new_session=True, **streams))
    return True


def _stop_with_parent() -> None:
    """Interrupt this process once its stdin is closed, which the end of its parent does, however it ends."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # inherited as ignored in a script's background
    threading.Thread(target=wait, daemon=True).start()


def main(profile_name: str, seed: str, budget: str, *names: str) -> int:
    """Train the named branches, until done or until the parent has ended."""
    _stop_with_parent()
    profile = start(profile_name, int(seed), float(budget))
    from labs_lib.office_branches import ensure_office

    for name in names:
        ensure_office(profile, name, show_complete=False)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
