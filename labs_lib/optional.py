"""Packages that only some of the series needs: whether they are here, and one sentence where they are not."""

import importlib.util
from collections.abc import Iterable

from labs_lib.errors import LabError


def absent(packages: Iterable[str]) -> list[str]:
    """Those of `packages` (import names) that are not installed; nothing is imported."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def require_installed(packages: Iterable[str], command: str, what: str) -> None:
    """Raise LabError unless `packages` are installed: what needs them, and the `command` that installs them."""
    if lacking := absent(packages):
        raise LabError(f"{what} needs {' and '.join(lacking)}, which `{command}` installs; nothing else needs them.")
