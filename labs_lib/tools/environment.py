"""What every kernel gets, whether papermill, nbval or a refresh starts it."""

import os

from labs_lib.paths import ROOT


def kernel_environment() -> dict[str, str]:
    """Variables with which a kernel finds labs_lib and prints the same on every machine."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "PYTHONPATH": path,
        "PYTHONHASHSEED": "0",  # the order in which a printed set shows its members
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
