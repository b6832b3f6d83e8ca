"""The audit of lab 06 passes on verdicts that the real code recorded, and names every edit of them.

Edits are made in the report too, so that recomputation has to find them.
"""

from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from evidence_tree import Tree, add, put
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.bench.findings import finding, record_findings
from labs_lib.config import load_profile
from labs_lib.paths import OUTPUTS_VARIABLE
from labs_lib.statistics import T95
from labs_lib.tools.audit import bench, formulas, reading
from labs_lib.tools.audit.findings import Findings, MissingEvidence
from labs_lib.tools.report import write_report

VERDICTS, REPORT = "evidence/verdicts.json", "report.json"
# Student (1908): extra sleep of ten patients; R prints 0.7001142 to 2.4598858 in its help of t.test.
SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
FINDINGS = [
    finding("sleep", "They sleep longer.", SLEEP, 0.5),
    finding("nothing", "Two names of one variant differ.", [0.0] * 30),
    finding("unsure", "Two seeds say so.", [1.0, 2.0]),
    finding("against", "It is the other way round.", [-value for value in SLEEP]),
    finding("exact", "The factor is above 2.", [3.0237157840738176], 2.0),
    finding("equal", "The factor is above 2.", [2.0], 2.0),
]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch) -> Tree:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    record_findings(load_profile("tiny"), FINDINGS)
    tree = Tree(tmp_path)
    report(tree)
    return tree


def report(tree: Tree) -> None:
    write_report(tree.root / REPORT, "tiny", [], [], tree.root / "evidence")


def audited(tree: Tree) -> Findings:
    reported = reading.read_json(tree.root / REPORT, "")
    findings = Findings()
    evidence = reading.Evidence("tiny", tree.root, tree.repository, {}, reported, {})
    bench.check_verdicts(evidence, findings)
    return findings


def differences(tree: Tree) -> list[str]:
    return [str(difference) for difference in audited(tree).differences]


# --- The evidence as it is ---------------------------------------------------------------------------


def test_verdicts_of_the_real_code_pass(tree):
    findings = audited(tree)
    assert findings.differences == []
    lines = [group.line() for group in findings.groups]
    assert "lab 06: sleep: 10 effects ok" in lines and "lab 06: exact: 1 effects ok" in lines
    assert lines[-1] == "report.json: verdicts: 6 verdicts ok"
    assert list(findings.notes) == ["verdicts of lab 06: the effects behind them need its training"]


def test_a_lab_that_has_not_run_is_noted(tree):
    (tree.root / VERDICTS).unlink()
    assert differences(tree) == [f"report.json: verdicts: recorded {sorted(f.name for f in FINDINGS)}, recomputed []"]
    report(tree)
    findings = audited(tree)
    assert findings.differences == []
    assert list(findings.notes) == ["verdicts of lab 06: there are none on this machine"]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=31), st.floats(0, 1e3))
def test_whatever_the_values_are_the_library_and_the_audit_agree(values, smallest):
    found, findings = finding("any", "claim", values, smallest), Findings()
    with findings.group("lab 06", "any") as group:
        bench._check_verdict("any", found.entry(), group)
    assert [str(difference) for difference in findings.differences] == []


# --- Edits -------------------------------------------------------------------------------------------


def first_value(amount: float):
    return lambda entry: add(0, amount)(entry["values"])


# Which finding, the edit of its entry, what is said of it.
EDITS: dict[str, tuple[str, Any, str]] = {
    "an effect": ("sleep", add("effect", 1e-6), "sleep effect: recorded 1.58000"),
    "a lower bound": ("sleep", add("low", 1e-3), "sleep low: recorded 0.70"),
    "an upper bound": ("sleep", add("high", -1e-3), "sleep high: recorded 2.4"),
    "the value of one seed": ("sleep", first_value(0.01), "sleep effect"),
    "two values apart, with the same mean": (
        "sleep",
        lambda entry: (add(0, 0.5)(entry["values"]), add(1, -0.5)(entry["values"])),
        "sleep low",
    ),
    "a value left out": ("nothing", lambda entry: entry["values"].pop(), "nothing seeds: recorded 30, recomputed 29"),
    "the number of seeds": ("sleep", add("seeds", 1), "sleep seeds: recorded 11, recomputed 10"),
    "true as a number of seeds": ("exact", put("seeds", True), "exact seeds: recorded True, recomputed 1"),
    "a verdict that does not follow": (
        "nothing",
        put("verdict", "MECHANISM_REPRODUCED"),
        "nothing verdict: recorded 'MECHANISM_REPRODUCED', recomputed 'NOT_REPRODUCED'",
    ),
    "a verdict that follows and is denied": (
        "sleep",
        put("verdict", "NOT_REPRODUCED"),
        "sleep verdict: recorded 'NOT_REPRODUCED', recomputed 'MECHANISM_REPRODUCED'",
    ),
    "a verdict of a bound that only touches": ("equal", put("verdict", "MECHANISM_REPRODUCED"), "equal verdict"),
    "a verdict of the effect alone": ("unsure", put("verdict", "MECHANISM_REPRODUCED"), "unsure verdict"),
    "a verdict for the other sign": ("against", put("verdict", "MECHANISM_REPRODUCED"), "against verdict"),
    "another word": ("nothing", put("verdict", "BEATS"), "nothing verdict: recorded 'BEATS'"),
    "a least effect above the bound": ("sleep", put("smallest", 0.75), "sleep verdict"),
    "a least effect below the bound": ("equal", put("smallest", 1.0), "equal verdict"),
    "a least effect of the other sign": ("against", put("smallest", -9.0), "against smallest: recorded -9.0"),
    "an exact value with a width": ("exact", add("low", -1e-9), "exact low: recorded 3.0237157830738"),
    "an exact value with a width above": ("exact", add("high", 1e-9), "exact high"),
    "another exact value": ("exact", first_value(1e-9), "exact effect"),
    "a bound that is no number": ("exact", put("high", None), "exact high: recorded None"),
    "no values": ("exact", put("values", []), "lab 06: exact: recorded 'ZeroDivisionError"),
    "a field left out": ("sleep", lambda entry: entry.pop("claim"), "sleep keys: recorded ['effect'"),
    "values left out": ("sleep", lambda entry: entry.pop("values"), "lab 06: sleep: recorded \"KeyError: 'values'"),
    "a value that is text": ("sleep", lambda entry: entry["values"].append("1"), "lab 06: sleep: recorded 'TypeError"),
    "a field that nothing recomputes": ("sleep", put("p", 0.003), "sleep keys"),
}


@pytest.mark.parametrize("name", EDITS)
def test_every_edit_is_found_and_named(tree, name):
    of, edit, expected = EDITS[name]
    tree.json(VERDICTS, lambda verdicts: edit(verdicts[of]))
    tree.json(REPORT, lambda report: edit(report["verdicts"][of]))
    found = differences(tree)
    assert any(expected in difference for difference in found), found
    assert all(of in difference for difference in found)


def test_an_entry_that_is_no_table_is_found(tree):
    for place, of in ((VERDICTS, lambda file: file), (REPORT, lambda file: file["verdicts"])):
        tree.json(place, lambda file, of=of: of(file).update(sleep=[]))
    assert any(difference.startswith("lab 06: sleep: recorded 'TypeError") for difference in differences(tree))


@pytest.mark.parametrize("key", bench.KEYS)
def test_a_report_that_says_something_else_is_named(tree, key):
    tree.json(REPORT, lambda report: report["verdicts"]["sleep"].pop(key))
    (found,) = differences(tree)
    assert found.startswith(f"report.json: sleep {key}: recorded None")


def test_a_verdict_of_one_side_only_is_named(tree):
    tree.json(REPORT, lambda report: report["verdicts"].pop("exact"))
    assert any("report.json: verdicts: recorded ['against', 'equal', 'nothing'" in text for text in differences(tree))
    tree.json(REPORT, lambda report: report.pop("verdicts"))
    assert any("report.json: verdicts: recorded []" in text for text in differences(tree))
    report(tree)
    tree.json(REPORT, lambda report: report["verdicts"]["sleep"].update(p=0.003))
    assert differences(tree) == ["report.json: sleep p: recorded 0.003, recomputed None"]


@pytest.mark.parametrize(("content", "said"), [("{", "is not valid JSON"), ("[]", "holds no verdicts by name")])
def test_a_file_of_another_form_is_one_sentence_that_names_it(tree, content, said):
    (tree.root / VERDICTS).write_text(content)
    with pytest.raises(MissingEvidence, match=rf"evidence/verdicts\.json {said}.*run `make run-all PROFILE=tiny`"):
        audited(tree)


# --- Its own Student's t -------------------------------------------------------------------------------

# Two-sided 95 % by degrees of freedom, from published tables with four decimals or more.
QUANTILES = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 9: 2.26216, 29: 2.04523, 30: 2.04227, 1000: 1.96234}


def agrees_with_the_tables(quantile) -> bool:
    return all(quantile(freedom) == pytest.approx(value, abs=5e-5) for freedom, value in QUANTILES.items())


def test_student_s_quantiles_are_the_published_ones():
    assert agrees_with_the_tables(formulas.student_quantile)
    assert formulas.student_quantile(5, 0.99) == pytest.approx(4.03214, abs=5e-5)


WRONG_QUANTILES = {
    "one side": lambda freedom: formulas.student_quantile(freedom, 0.9),
    "all values are free": lambda freedom: formulas.student_quantile(freedom + 1),
    "the normal distribution": lambda freedom: formulas.Z95,
}


@pytest.mark.parametrize("name", WRONG_QUANTILES)
def test_wrong_quantiles_are_told_apart(name):
    assert not agrees_with_the_tables(WRONG_QUANTILES[name])


def test_the_course_s_table_is_right_to_its_last_decimal():
    assert all(abs(value - formulas.student_quantile(n)) <= bench.T_DECIMALS for n, value in enumerate(T95) if n)
    assert abs(T95[9] + 0.001 - formulas.student_quantile(9)) > bench.T_DECIMALS


def sleep_interval(error) -> tuple[float, float]:
    half = formulas.student_quantile(9) * error(SLEEP)
    return formulas.mean(SLEEP) - half, formulas.mean(SLEEP) + half


def test_the_interval_is_the_published_one():
    published = pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    assert sleep_interval(formulas.standard_error) == published
    assert sleep_interval(lambda values: formulas.standard_error(values) * sqrt(0.9)) != published  # the population's
    assert sleep_interval(lambda values: formulas.standard_error(values) * sqrt(10)) != published  # of one value
