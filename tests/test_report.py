"""The report: merged from labs, branches and verdicts, extended by later work, printed as tables."""

import json

import pytest

from labs_lib.errors import LabError, StorageError
from labs_lib.paths import OUTPUTS_VARIABLE, outputs_root, report_path
from labs_lib.tools.lab_runs import Outcome
from labs_lib.tools.report import main, render, write_report

ORDER = ["00_a", "01_b", "02_c"]


def accuracy(correct, n):
    return {"correct": correct, "n": n, "low": 0.1, "high": 0.9}


POPULATIONS = {"ID50": accuracy(50, 100), "OOD100": accuracy(9, 100), "ALL": accuracy(59, 200)}
BRANCH = {
    "updates": 200,
    "answers": 1600,
    "state_sha256": {"continuous": "ab", "resumed": "ab"},
    "accuracy": {"greedy": POPULATIONS, "sampled": {"ALL": accuracy(1, 800)}},
    "mixed_groups": 0.375,
    "seconds": {"generation": 3.25, "score_check": 1, "optimisation": 10.0, "total": 1234.5},
}


@pytest.fixture
def evidence(tmp_path):
    return stored(tmp_path / "evidence", grpo=BRANCH, base={"updates": 0})


def stored(evidence, **branches):
    """The folder of evidence with these branches too."""
    (evidence / "branches").mkdir(parents=True, exist_ok=True)
    for name, branch in branches.items():
        (evidence / "branches" / f"{name}.json").write_text(json.dumps(branch))
    return evidence


def written(path, outcomes, evidence):
    report = write_report(path, "tiny", outcomes, ORDER, evidence)
    assert json.loads(path.read_text()) == report
    return report


def test_labs_are_merged_with_the_earlier_report_in_the_order_of_the_table(tmp_path, evidence):
    path = tmp_path / "report.json"
    written(
        path, [Outcome("01_b", "ok", 2.0, 100, 1.5), Outcome("02_c", "skipped", detail="because of 01_b")], evidence
    )
    report = written(path, [Outcome("00_a", "FAILED", 1.0, 50, 0.5, "cell 3 (`x`): no")], evidence)
    assert [(lab["name"], lab["status"]) for lab in report["labs"]] == [
        ("00_a", "FAILED"),
        ("01_b", "ok"),
        ("02_c", "skipped because of 01_b"),
    ]
    assert report["labs"][0]["error"] == "cell 3 (`x`): no"
    assert report["labs"][1] == {
        "name": "01_b",
        "status": "ok",
        "seconds": 2.0,
        "peak_rss_mb": 100,
        "cpu_seconds": 1.5,
    }
    assert "error" not in written(path, [Outcome("00_a", "ok", 1.0, 50, 0.5)], evidence)["labs"][0]


def test_branches_are_the_files_that_are_there_and_other_parts_stay(tmp_path, evidence):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"profile": "tiny", "branches": {"gone": {}}, "bench": {"ratio": 2.5}}))
    report = written(path, [], evidence)
    assert report["branches"] == {"grpo": BRANCH, "base": {"updates": 0}}
    assert report["bench"] == {"ratio": 2.5}
    assert report["labs"] == []


def test_labs_that_no_longer_exist_leave_the_report(tmp_path, evidence):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"labs": [{"name": "09_old", "status": "ok"}]}))
    assert written(path, [], evidence)["labs"] == []


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_an_unreadable_report_is_replaced(tmp_path, evidence, content):
    path = tmp_path / "report.json"
    path.write_text(content)
    assert written(path, [], evidence)["profile"] == "tiny"


def test_a_malformed_branch_is_named(tmp_path, evidence):
    (evidence / "branches" / "sft.json").write_text("{")
    with pytest.raises(StorageError, match=r"sft\.json is not valid JSON"):
        write_report(tmp_path / "report.json", "tiny", [], ORDER, evidence)


def test_tables_show_every_figure(tmp_path, evidence):
    outcomes = [Outcome("00_a", "ok", 2.0, 1234, 1.5), Outcome("01_b", "up to date", 12.3, 99, 10.0)]
    text = render(written(tmp_path / "report.json", outcomes, evidence))
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["00_a"] == ["00_a", "ok", "2.0", "1.5", "1,234"]
    assert rows["01_b"][:4] == ["01_b", "up", "to", "date"]
    grpo = [line for line in text.splitlines() if line.startswith("grpo")]
    assert grpo[0].split() == ["grpo", "200", "1,600", "equal", "37.5%", "3.2", "1.0", "10.0", "1,234.5"]
    assert "50/100  50.0% [10.0%, 90.0%]" in grpo[1]
    assert "9/100   9.0%" in grpo[1]
    assert "59/200" in grpo[1]
    assert grpo[2].split()[:3] == ["grpo", "-", "-"]
    base = next(line for line in text.splitlines() if line.startswith("base"))
    assert base.split() == ["base", "0", "-", "-", "-", "-", "-", "-", "-"]


RATE = {"count": 118, "n": 180, "value": 0.655556, "low": 0.57, "high": 0.73}
MEAN = {"n": 180, "value": 2.21263, "low": 1.88, "high": 2.58}
JUDGE = {
    "task": "office-help",
    "kind": "judge",
    "updates": 210,
    "answers": 0,
    "tokens_generated": 0,
    "answers_scored": 3360,
    "state_sha256": {"continuous": "ab", "resumed": "ab"},
    "seconds": {"total": 53.7},
    "accuracy": {"test": RATE, "test-courtesy": RATE | {"count": 45}, "test-confidence": RATE | {"count": 9}},
    "courtesy": {"right": [1.0, 2.0], "wrong": [-1.0, -1.5], "advice": [0.25, 0.0], "outranked": 7, "contexts": 20},
}
ACTOR = {
    "task": "office-help",
    "kind": "ppo",
    "reward": "judge-courtesy",
    "updates": 200,
    "answers": 400,
    "tokens_generated": 5108,
    "answers_scored": 3200,
    "populations": {
        "test": {"success": RATE, "recognised": RATE, "certain": {"count": 0, "n": 0}, "courteous": RATE},
        "sampled": {"success": RATE | {"count": 78}},
    },
    "predicted_rewards": {"judge": {"test": MEAN}, "judge-courtesy": {"test": MEAN | {"value": 4.67}}},
    "log_ratio": {"test": MEAN | {"value": -0.5}},
}


def test_tables_of_office_help_stand_beside_the_stock_ones(tmp_path, evidence):
    before = render(written(tmp_path / "report.json", [], evidence))
    stored(evidence, **{"judge": JUDGE, "ppo-courtesy": ACTOR})
    text = render(written(tmp_path / "report.json", [], evidence))
    assert text.startswith(before + "\n\n")
    lines = text.removeprefix(before).splitlines()
    judge, ppo = ([line for line in lines if line.startswith(name)] for name in ("judge ", "ppo-courtesy"))
    assert judge[0].split() == ["judge", "210", "0", "0", "3,360", "equal", "53.7"]
    assert "118/180  65.6% [57.0%, 73.0%]" in judge[2] and "45/180" in judge[2] and "9/180" in judge[2]
    assert judge[2].split()[-4:] == ["+0.12", "+1.50", "-1.25", "7/20"]
    assert ppo[0].split() == ["ppo-courtesy", "200", "400", "5,108", "3,200", "-", "-"]
    assert "118/180" in ppo[1] and "2.21 [1.88, 2.58]" in ppo[1] and "4.67 [1.88, 2.58]" in ppo[1]
    assert ppo[1].split()[-3:] == ["-0.50", "[1.88,", "2.58]"] and " - " in ppo[1]
    assert "78/180" in ppo[2]


def test_only_office_help_has_no_stock_table(tmp_path):
    evidence = stored(tmp_path / "evidence", **{"ppo-courtesy": ACTOR})
    text = render(written(tmp_path / "report.json", [], evidence))
    assert "ID50" not in text and "mixed groups" not in text and "courteous wrong first" not in text
    assert "greedy answers" in text and "sampled answers" in text


VERDICTS = {
    "length": {
        "claim": "Wrong answers grow longer.",
        "verdict": "MECHANISM_REPRODUCED",
        "effect": 0.8125,
        "low": 0.51234,
        "high": 1.11266,
        "smallest": 0.0,
        "seeds": 30,
        "values": [0.8125] * 30,
    },
    "table": {
        "claim": "The factor.",
        "verdict": "NOT_REPRODUCED",
        "effect": -0.25,
        "low": -0.25,
        "high": -0.25,
        "smallest": 0.0,
        "seeds": 1,
        "values": [-0.25],
    },
}


def test_verdicts_are_there_as_long_as_their_evidence_is(tmp_path, evidence):
    path, file = tmp_path / "report.json", evidence / "verdicts.json"
    before = written(path, [], evidence)
    assert "verdicts" not in before and "finding" not in render(before)
    file.write_text(json.dumps(VERDICTS))
    report = written(path, [], evidence)
    assert report == before | {"verdicts": VERDICTS}
    text = render(report)
    assert text.startswith(render(before) + "\n\n")
    header, _, length, table = text.removeprefix(render(before)).strip().splitlines()
    assert header.split() == ["finding", "verdict", "effect", "seeds"]
    assert length.split() == ["length", "MECHANISM_REPRODUCED", "0.812", "[0.512,", "1.11]", "30"]
    assert table.split() == ["table", "NOT_REPRODUCED", "-0.25", "exact", "1"]
    file.unlink()
    assert written(path, [], evidence) == before


def test_malformed_verdicts_are_named(tmp_path, evidence):
    (evidence / "verdicts.json").write_text("{")
    with pytest.raises(StorageError, match=r"verdicts\.json is not valid JSON"):
        written(tmp_path / "report.json", [], evidence)


def test_a_state_that_differs_after_a_resume_stands_out(tmp_path, evidence):
    stored(evidence, grpo=BRANCH | {"state_sha256": {"continuous": "ab", "resumed": "cd"}})
    assert "DIFFERS" in render(written(tmp_path / "report.json", [], evidence))


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    with pytest.raises(LabError, match="run `make run-all PROFILE=tiny`"):
        main([])
    write_report(report_path("tiny"), "tiny", [Outcome("00_a", "ok")], ORDER, outputs_root("tiny") / "evidence")
    assert main([]) == 0
    assert "profile tiny" in capsys.readouterr().out
    with pytest.raises(LabError, match="Unknown profile"):
        main(["--profile", "tinny"])
