"""The engine: which packages it is, and which versions of them a measurement was made with."""

from importlib.metadata import version

from labs_lib.optional import require_installed

PACKAGES = ("trl", "accelerate", "datasets")
COMMAND = "make scale"


def require_engine() -> None:
    """Raise LabError, with the command that installs them, unless the engine's packages are installed."""
    require_installed(PACKAGES, COMMAND, "Lab 07")


def engine_versions() -> dict[str, str]:
    """Package -> version, of the engine and of what it computes with."""
    return {name: version(name).split("+")[0] for name in (*PACKAGES, "transformers", "torch")}
