"""Where things are: the folders of the repository, and the one folder that a run may write to.

Two environment variables move what a run writes, so that a test run or `make refresh` can never reuse
or destroy a student's results:

- `LABS_OUTPUTS`: stands in for `outputs/` (relative values count from the repository's root);
- `LABS_FIGURES`: where rendered figures go. Only `make refresh` lets them reach the tracked `figures/`.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
SOLUTIONS = NOTEBOOKS / "solutions"
CONFIGS = ROOT / "configs"
FIGURES = ROOT / "figures"
DATA = ROOT / "data"
ASSETS = ROOT / "assets"

OUTPUTS_VARIABLE = "LABS_OUTPUTS"
FIGURES_VARIABLE = "LABS_FIGURES"


def outputs_base() -> Path:
    """The folder that holds one folder per profile: `$LABS_OUTPUTS`, or `outputs/`."""
    return ROOT / os.environ.get(OUTPUTS_VARIABLE, "outputs")


def outputs_root(profile: str) -> Path:
    """The folder of everything that a run of `profile` produces; not created here."""
    return outputs_base() / profile


def branches_folder(profile: str) -> Path:
    """One JSON file per trained branch, merged into `report.json` under the file's stem."""
    return outputs_root(profile) / "evidence" / "branches"


def verdicts_path(profile: str) -> Path:
    """The computed verdicts of lab 06, merged into `report.json` as "verdicts"."""
    return outputs_root(profile) / "evidence" / "verdicts.json"


def report_path(profile: str) -> Path:
    """The report that `make run-all` writes and `make report` prints."""
    return outputs_root(profile) / "report.json"


def figures_folder() -> Path:
    """Where `save_figure` writes: `$LABS_FIGURES`, or `figures/` inside the outputs folder."""
    configured = os.environ.get(FIGURES_VARIABLE)
    return ROOT / configured if configured else outputs_base() / "figures"
