"""The report: merged from labs and branches, extended by later work, printed as tables."""

import json

import pytest

from labs_lib.errors import LabError, StorageError
from labs_lib.paths import OUTPUTS_VARIABLE, branches_folder, report_path
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
def branches(tmp_path):
    folder = tmp_path / "branches"
    folder.mkdir()
    (folder / "grpo.json").write_text(json.dumps(BRANCH))
    (folder / "base.json").write_text(json.dumps({"updates": 0}))
    return folder


def written(path, outcomes, branches):
    report = write_report(path, "tiny", outcomes, ORDER, branches)
    assert json.loads(path.read_text()) == report
    return report


def test_labs_are_merged_with_the_earlier_report_in_the_order_of_the_table(tmp_path, branches):
    path = tmp_path / "report.json"
    written(
        path, [Outcome("01_b", "ok", 2.0, 100, 1.5), Outcome("02_c", "skipped", detail="because of 01_b")], branches
    )
    report = written(path, [Outcome("00_a", "FAILED", 1.0, 50, 0.5, "cell 3 (`x`): no")], branches)
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
    assert "error" not in written(path, [Outcome("00_a", "ok", 1.0, 50, 0.5)], branches)["labs"][0]


def test_branches_are_the_files_that_are_there_and_other_parts_stay(tmp_path, branches):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"profile": "tiny", "branches": {"gone": {}}, "bench": {"ratio": 2.5}}))
    report = written(path, [], branches)
    assert report["branches"] == {"grpo": BRANCH, "base": {"updates": 0}}
    assert report["bench"] == {"ratio": 2.5}
    assert report["labs"] == []


def test_labs_that_no_longer_exist_leave_the_report(tmp_path, branches):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"labs": [{"name": "09_old", "status": "ok"}]}))
    assert written(path, [], branches)["labs"] == []


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_an_unreadable_report_is_replaced(tmp_path, branches, content):
    path = tmp_path / "report.json"
    path.write_text(content)
    assert written(path, [], branches)["profile"] == "tiny"


def test_a_malformed_branch_is_named(tmp_path, branches):
    (branches / "sft.json").write_text("{")
    with pytest.raises(StorageError, match=r"sft\.json is not valid JSON"):
        write_report(tmp_path / "report.json", "tiny", [], ORDER, branches)


def test_tables_show_every_figure(tmp_path, branches):
    outcomes = [Outcome("00_a", "ok", 2.0, 1234, 1.5), Outcome("01_b", "up to date", 12.3, 99, 10.0)]
    text = render(written(tmp_path / "report.json", outcomes, branches))
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


def test_a_state_that_differs_after_a_resume_stands_out(tmp_path, branches):
    (branches / "grpo.json").write_text(json.dumps(BRANCH | {"state_sha256": {"continuous": "ab", "resumed": "cd"}}))
    assert "DIFFERS" in render(written(tmp_path / "report.json", [], branches))


def test_command_line(tmp_path, monkeypatch, capsys, branches):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    with pytest.raises(LabError, match="run `make run-all PROFILE=tiny`"):
        main([])
    write_report(report_path("tiny"), "tiny", [Outcome("00_a", "ok")], ORDER, branches_folder("tiny"))
    assert main([]) == 0
    assert "profile tiny" in capsys.readouterr().out
    with pytest.raises(LabError, match="Unknown profile"):
        main(["--profile", "tinny"])
