"""Whether somebody looks at the notebook with something that can show a widget, or a program executes it.

The sign is on the request that runs the cell: JupyterLab, Notebook 7 and VS Code name the cell in its metadata, and
nbclient (so papermill, nbconvert and a refresh) and nbval do not. An environment variable would be no sign: whatever a
notebook starts inherits the variables of its kernel, such as the `JPY_SESSION_NAME` that jupyter_server sets. In doubt
nobody looks, and a static figure is shown.
"""

import os
from typing import Any

from IPython import get_ipython

WIDGETS_VARIABLE = "LABS_WIDGETS"
NO_WIDGETS = "off"  # for every kernel that our own tools start, where Colab's kernel would look like Colab
_CELL_OF_A_REQUEST = "cellId"
_NAME_FROM_VS_CODE = "__vsc_ipynb_file__"  # a variable that VS Code sets in the kernel, not in its environment
_COLAB = "google.colab"


def front_end_is_there() -> bool:
    """True in a cell that a person runs in JupyterLab, Notebook 7, VS Code or Colab."""
    shell = get_ipython()
    if shell is None or os.environ.get(WIDGETS_VARIABLE) == NO_WIDGETS:
        return False
    return (
        _CELL_OF_A_REQUEST in _metadata_of_request(shell)
        or _NAME_FROM_VS_CODE in shell.user_ns
        or type(shell).__module__.startswith(_COLAB)
    )


def _metadata_of_request(shell: Any) -> dict[str, Any]:
    """Metadata of the message that runs this cell; a shell in a terminal has no message."""
    request = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return request.get("metadata", {})
