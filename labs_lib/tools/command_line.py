"""How a command of this repository ends: with a sentence and a status, not with a traceback."""

import signal
import sys
from collections.abc import Callable
from types import FrameType

from labs_lib.errors import LabError

REFUSED = 2
INTERRUPTED = 130


def command_line(main: Callable[[], int]) -> None:
    """Run `main` and exit with its status; a LabError is one sentence on stderr and status 2.

    Ctrl-C and SIGTERM both arrive in `main` as KeyboardInterrupt, so that it can stop its children.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        status = main()
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        status = REFUSED
    except KeyboardInterrupt:
        print("\nInterrupted. What was finished is kept: the same command goes on from there.", file=sys.stderr)
        status = INTERRUPTED
    sys.exit(status)


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
