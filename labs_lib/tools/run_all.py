"""Execute the labs headless: `make run-all`, and `make refresh` to write the outputs back."""

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from labs_lib.config import Profile, check_parameters, load_profile
from labs_lib.cores import side_by_side, usable_cores
from labs_lib.errors import ConfigError, LabError
from labs_lib.models.locations import base_folder, base_location
from labs_lib.paths import ROOT, outputs_base
from labs_lib.recorded import DEFAULT_PROFILE
from labs_lib.reduced import budget_note, reduced
from labs_lib.tools.command_line import command_line
from labs_lib.tools.lab_runs import LabRunner, Outcome, run_labs
from labs_lib.tools.labs import LABS, Lab, is_solution, longest_first, select, with_needs
from labs_lib.tools.locks import exclusive
from labs_lib.tools.notebooks import default_parameters, read_notebook
from labs_lib.tools.refresh import write_back
from labs_lib.tools.report import labs_table, write_report
from labs_lib.tools.stamps import made_files, shared_inputs

REFRESH_OUTPUTS = "refresh"
CELL_TIMEOUT, LAB_TIMEOUT = 900, 3600  # seconds
# For each of two labs on SmolLM2 side by side. At a twentieth of the counts all processes together took 17 GB of the
# machine at most; the peaks of single labs are 14.2 GB (lab 03) and 10.0 GB (lab 05).
REAL_MODEL_BYTES = 10 * 2**30
PATIENCE = 24  # a real model takes hours where `tiny` takes minutes


@dataclass(frozen=True)
class Repository:
    """The folder that holds notebooks/ and the rest, where runs write, and the table of labs."""

    root: Path
    outputs: Path
    labs: tuple[Lab, ...]

    @property
    def notebooks(self) -> Path:
        return self.root / "notebooks"


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make run-all", description=__doc__)
    parser.add_argument("labs", nargs="*", help="which labs, by the beginning of their names (02 03); default: all")
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--budget", type=float, default=1.0, help="share of the protocol's counts, for a first look")
    parser.add_argument(
        "-j",
        "--jobs",
        type=int,
        help="labs side by side; default: the cores, at most 4; 2 of a real model on the CPU, 1 on a GPU",
    )
    parser.add_argument(
        "-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="inject a parameter"
    )
    parser.add_argument("--seed", type=int, help="the same as -p SEED; default: each notebook's own")
    parser.add_argument("--fresh", action="store_true", help="delete what earlier runs made and execute again")
    parser.add_argument("--solutions", action="store_true", help="run the solutions notebooks too")
    parser.add_argument("--refresh", action="store_true", help="write the outputs back into the tracked notebooks")
    limits = f"default {CELL_TIMEOUT} and {LAB_TIMEOUT}; {PATIENCE} times that on a profile whose labs use all cores"
    parser.add_argument("--cell-timeout", type=int, metavar="SECONDS", help=limits)
    parser.add_argument("--lab-timeout", type=int, metavar="SECONDS", help=limits)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, repository: Repository | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _arguments(arguments)
    repository = repository or Repository(ROOT, outputs_base(), LABS)
    profile = reduced(load_profile(options.profile), options.budget)
    jobs = options.jobs if options.jobs is not None else default_jobs(profile)
    if jobs < 1:
        raise LabError(f"-j needs at least 1, got {jobs}.")
    patience = 1 if uses_one_core(profile) else PATIENCE
    options.cell_timeout = options.cell_timeout or patience * CELL_TIMEOUT
    options.lab_timeout = options.lab_timeout or patience * LAB_TIMEOUT
    command = refresh if options.refresh else run_all
    return command(repository, profile, options, jobs)


def default_jobs(profile: Profile) -> int:
    """As many labs side by side as there are cores for, where a lab uses one.

    A real model on the CPU gains little from a second thread and more from a second lab: two, each with half of the
    cores, where there is memory for both. On a GPU one lab after the other.
    """
    if uses_one_core(profile):
        return side_by_side()
    room = psutil.virtual_memory().total // REAL_MODEL_BYTES
    return max(1, min(2, side_by_side(), room)) if profile.device == "cpu" else 1


def uses_one_core(profile: Profile) -> bool:
    """Whether a lab of this profile keeps to one core."""
    return profile.device == "cpu" and profile.threads == 1


# --- run-all -----------------------------------------------------------------------------------------


def run_all(repository: Repository, profile: Profile, options: argparse.Namespace, jobs: int) -> int:
    """Execute what is not up to date, print the table, write the report."""
    outputs = repository.outputs / profile.name
    candidates = [lab for lab in repository.labs if options.solutions or not is_solution(lab)]
    chosen = select(candidates, options.labs)
    ordered = longest_first(with_needs(chosen, repository.labs))
    parameters = _parameters(repository, ordered, chosen, profile, options)
    bases = needed_bases(profile)
    with exclusive(outputs):
        if options.fresh:
            _forget(outputs, chosen, everything=not options.labs)
        runner = LabRunner(
            repository.notebooks,
            outputs,
            parameters,
            shared_inputs(repository.root, profile.file, bases),
            lambda lab: outputs / "figures",
            options.cell_timeout,
            options.lab_timeout,
            None if profile.threads else max(1, usable_cores() // jobs),
        )
        outcomes = run_labs(runner, ordered, jobs, _say)
        order = [lab.name for lab in repository.labs]
        report = write_report(outputs / "report.json", profile.name, outcomes.values(), order, outputs / "evidence")
    ran = [entry for entry in report["labs"] if entry["name"] in outcomes]
    print(f"\n{labs_table(ran)}")
    if profile.protocol_share != 1:
        print(budget_note(profile.protocol_share))
    print("Costs of what is up to date are those of the run that made it; `make report` shows the results.")
    return _failures(runner, ordered, outcomes)


def _parameters(
    repository: Repository, ordered: list[Lab], chosen: list[Lab], profile: Profile, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """What is injected into each lab, checked against its `parameters` cell before anything runs.

    A lab that only runs because another needs it takes of the extra parameters those that it has.
    """
    given = {name: _value(name, text) for name, text in options.parameter}
    if options.seed is not None:
        given["SEED"] = options.seed
    for name in given.keys() & {"PROFILE", "BUDGET"}:
        raise ConfigError(f"{name} is chosen with `make run-all {name}=...`, not with -p.")
    chosen_run = {"PROFILE": profile.file} | ({} if profile.protocol_share == 1 else {"BUDGET": profile.protocol_share})
    parameters = {}
    for lab in ordered:
        defaults = default_parameters(read_notebook(repository.notebooks / f"{lab.name}.ipynb"), lab.name)
        own = given if lab in chosen else {name: value for name, value in given.items() if name in defaults}
        try:
            values = check_parameters({**chosen_run, **own}, defaults)
        except ConfigError as error:
            raise ConfigError(f"{lab.name}: {error}") from None
        parameters[lab.name] = {name: values[name] for name in {**chosen_run, "SEED": 0, **own} if name in values}
    return parameters


def _value(name: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if not isinstance(value, bool | int | float | str):
        raise ConfigError(f"parameter {name} must be a number, true, false or text, got {text!r}.")
    return value


def needed_bases(profile: Profile) -> list[str]:
    """The folders of the base models that a profile's labs read, below the repository.

    Raises BaseModelError for one that is not there.
    """
    kinds = (False,) if profile.base.weak_location is None else (False, True)
    for weak in kinds:
        base_folder(profile, weak)
    return [base_location(profile, weak) for weak in kinds]


def _forget(outputs: Path, chosen: list[Lab], everything: bool) -> None:
    """What --fresh deletes: the profile's whole outputs, or what the chosen labs have made."""
    if everything:
        shutil.rmtree(outputs, ignore_errors=True)
    for lab in chosen:
        (outputs / "stamps" / f"{lab.name}.json").unlink(missing_ok=True)
        for name in made_files(outputs, list(lab.written)):
            (outputs / name).unlink()


def _failures(runner: LabRunner, ordered: list[Lab], outcomes: dict[str, Outcome]) -> int:
    failed = [lab for lab in ordered if not outcomes[lab.name].good]
    for lab in failed:
        outcome = outcomes[lab.name]
        if outcome.status == "FAILED":
            print(f"\nFAILED {lab.name}: {outcome.detail}\n  executed notebook: {_short(runner.executed(lab))}")
    return 1 if failed else 0


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _say(line: str) -> None:
    print(line, flush=True)


# --- refresh -----------------------------------------------------------------------------------------


def refresh(repository: Repository, profile: Profile, options: argparse.Namespace, jobs: int) -> int:
    """Execute with default parameters from an empty outputs folder and write back what succeeds.

    The folder is emptied because outputs must not depend on what was trained earlier; what a chosen lab
    needs is therefore executed too, and not written back.
    """
    if options.parameter or options.seed is not None or profile.name != DEFAULT_PROFILE:
        raise LabError("Committed outputs are those of the default parameters: refresh takes none.")
    chosen = select(repository.labs, options.labs)
    ordered = longest_first(with_needs(chosen, repository.labs))
    base = repository.outputs / REFRESH_OUTPUTS
    with exclusive(base):
        shutil.rmtree(base, ignore_errors=True)
        runner = LabRunner(
            repository.notebooks,
            base / profile.name,
            {},
            None,
            lambda lab: base / "figures" / lab.name,
            options.cell_timeout,
            options.lab_timeout,
        )
        outcomes = run_labs(runner, ordered, jobs, _say)
        for lab in chosen:
            if outcomes[lab.name].good:
                for line in write_back(runner, lab, repository.root / "figures"):
                    _say(line)
    print(f"\n{labs_table([vars(outcome) for outcome in outcomes.values()])}")
    return _failures(runner, ordered, outcomes)


if __name__ == "__main__":
    command_line(main)
