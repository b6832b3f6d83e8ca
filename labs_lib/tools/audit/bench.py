"""Checks of lab 06's verdicts: mean, interval and verdict from each seed's effect, and their copy in `report.json`."""

from collections.abc import Sequence
from typing import Any

from labs_lib.tools.audit.findings import Findings, Group, MissingEvidence
from labs_lib.tools.audit.formulas import mean, standard_error, student_quantile
from labs_lib.tools.audit.reading import Evidence, read_json

FILE = "evidence/verdicts.json"
KEYS = ["claim", "effect", "high", "low", "seeds", "smallest", "values", "verdict"]
REPRODUCED, NOT_REPRODUCED = "MECHANISM_REPRODUCED", "NOT_REPRODUCED"
T_DECIMALS = 5e-4  # the course reads Student's t from a table with three decimals
ROUNDING = 1e-12  # of sums in FP64, as a share of the largest value


def check_verdicts(evidence: Evidence, findings: Findings) -> None:
    """Every verdict from its own values, and `report.json` against all of them; a lab that has not run is noted.

    Raises MissingEvidence for a file that holds no verdicts by name.
    """
    verdicts = _read_verdicts(evidence)
    what = "the effects behind them need its training" if verdicts else "there are none on this machine"
    findings.note(f"verdicts of lab 06: {what}")
    for name, entry in verdicts.items():
        with findings.group("lab 06", name) as group:
            _check_verdict(name, entry, group)
    with findings.group("report.json", "verdicts") as group:
        _check_reported(evidence.report.get("verdicts", {}), verdicts, group)


def _read_verdicts(evidence: Evidence) -> dict[str, Any]:
    path = evidence.outputs / FILE
    verdicts = read_json(path, evidence.remedy) if path.is_file() else {}
    if not isinstance(verdicts, dict):
        raise MissingEvidence(f"{path} holds no verdicts by name: {evidence.remedy}.")
    return verdicts


def _check_verdict(name: str, entry: dict[str, Any], group: Group) -> None:
    values, low, smallest = entry["values"], entry["low"], entry["smallest"]
    group.equal(FILE, f"{name} keys", sorted(entry), KEYS)
    group.equal(FILE, f"{name} seeds", entry["seeds"], len(values))
    _check_interval(name, entry, values, group)
    # A least effect below 0 would let one of the other sign count.
    group.require(FILE, f"{name} smallest", smallest >= 0, smallest, "at least 0")
    # The recorded bound decides: within the table's decimals of it, a recomputed one could fall on the other side.
    group.equal(FILE, f"{name} verdict", entry["verdict"], REPRODUCED if low > smallest else NOT_REPRODUCED)
    group.count("effects", len(values))


def _check_interval(name: str, entry: dict[str, Any], values: Sequence[float], group: Group) -> None:
    """Student's 95 % interval of the mean; a single value is exact and has no width at all."""
    centre, error = mean(values), standard_error(values)
    half = student_quantile(len(values) - 1) * error if len(values) > 1 else 0.0
    rounding = ROUNDING * max(map(abs, values)) if len(values) > 1 else 0.0
    group.close(FILE, f"{name} effect", entry["effect"], centre, rounding)
    for key, bound in (("low", centre - half), ("high", centre + half)):
        group.close(FILE, f"{name} {key}", entry[key], bound, rounding + T_DECIMALS * error)


def _check_reported(reported: dict[str, Any], verdicts: dict[str, Any], group: Group) -> None:
    group.equal("report.json", "verdicts", sorted(reported), sorted(verdicts))
    for name in sorted(reported.keys() & verdicts.keys()):
        for key in sorted(reported[name].keys() | verdicts[name].keys()):
            group.equal("report.json", f"{name} {key}", reported[name].get(key), verdicts[name].get(key))
        group.count("verdicts")
