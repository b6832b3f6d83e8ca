"""`make audit`: recompute the evidence of a profile, print what was checked, and PASS or every difference."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):  # started as `python labs_lib/tools/audit`, without installation or PYTHONPATH
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from labs_lib.tools.audit.checks import audit
from labs_lib.tools.audit.findings import Findings, MissingEvidence
from labs_lib.tools.audit.reading import read_evidence

PASSED, DIFFERS, MISSING = 0, 1, 2
SHOWN = 20  # differences of one group; one cause can have thousands


def render(findings: Findings) -> str:
    """A line for each group of checks, what was not recomputed, the differences, and the verdict."""
    lines = [group.line() for group in findings.groups]
    lines.append("not recomputed: " + "; ".join(findings.notes))
    for group in findings.groups:
        lines += [f"DIFFERENCE {difference}" for difference in group.differences[:SHOWN]]
        if len(group.differences) > SHOWN:
            lines.append(f"and {len(group.differences) - SHOWN:,} more in {group.subject}: {group.title}")
    return "\n".join([*lines, "FAIL" if findings.differences else "PASS"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 for PASS, 1 for differences, 2 for evidence that is not there."""
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__)
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--budget", type=float, default=1.0, help="the share of the counts that the run had")
    parser.add_argument("--reduced", action="store_true", help="a shortened run: leave out the specification's numbers")
    parser.add_argument("--skip-tensors", action="store_true", help="do not open the large files")
    options = parser.parse_args(arguments)
    reduced = options.reduced or options.budget != 1
    run = options.profile if options.budget == 1 else f"{options.profile}-budget-{options.budget:g}"
    try:
        findings = audit(read_evidence(run), reduced, not options.skip_tensors)
    except MissingEvidence as error:
        print(f"error: {error}", file=sys.stderr)
        return MISSING
    print(render(findings))
    return DIFFERS if findings.differences else PASSED


if __name__ == "__main__":
    sys.exit(main())
