"""What every kernel gets, whether papermill, nbval or a refresh starts it."""

import os

from labs_lib.interactive.front_end import NO_WIDGETS, WIDGETS_VARIABLE
from labs_lib.paths import ROOT


def kernel_environment() -> dict[str, str]:
    """Variables with which a kernel finds labs_lib and prints the same on every machine."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "PYTHONPATH": path,
        "PYTHONHASHSEED": "0",  # the order in which a printed set shows its members
        WIDGETS_VARIABLE: NO_WIDGETS,  # a program looks at the outputs, also if a notebook started it
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
