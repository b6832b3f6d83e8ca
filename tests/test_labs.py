"""The table of labs: selection, order, and what each lab leaves for others; and how many run side by side."""

import os
from fnmatch import fnmatch

import pytest

from labs_lib import cores
from labs_lib.branches import protocol_branches
from labs_lib.config import load_profile
from labs_lib.errors import LabError
from labs_lib.office_branches import office_protocol
from labs_lib.tools.labs import LABS, Lab, longest_first, main, select, with_needs

# --- Selection ---------------------------------------------------------------------------------------

TABLE = [Lab("01_a"), Lab("02_b", needs=("01_a",)), Lab("03_c", needs=("02_b",)), Lab("solutions/02_solutions")]


def names(labs):
    return [lab.name for lab in labs]


def test_labs_are_selected_by_the_beginning_of_their_names():
    assert names(select(TABLE, [])) == names(TABLE)
    assert names(select(TABLE, ["02"])) == ["02_b", "solutions/02_solutions"]
    assert names(select(TABLE, ["solutions", "01_a.ipynb"])) == ["01_a", "solutions/02_solutions"]
    with pytest.raises(LabError, match="No lab begins with '9'; the labs are: 01_a"):
        select(TABLE, ["9"])


def test_a_lab_with_needs_of_its_own_runs_only_where_it_is_asked_for(capsys):
    table = [*TABLE, Lab("07_more", extra=("json",)), Lab("08_most", extra=("no_such_package",))]
    assert names(select(table, [])) == names(TABLE)
    assert names(select(table, ["07", "02"])) == ["02_b", "solutions/02_solutions", "07_more"]
    with pytest.raises(LabError, match="08_most needs no_such_package, which `make scale` installs"):
        select(table, ["08"])
    assert [lab.name for lab in LABS if lab.extra] == ["07_scale_out"]
    main([])
    assert capsys.readouterr().out.split() == [f"notebooks/{lab.name}.ipynb" for lab in LABS if not lab.extra]


def test_needs_come_first_and_circles_are_refused():
    assert names(with_needs([TABLE[2]], TABLE)) == ["01_a", "02_b", "03_c"]
    circle = [Lab("01_a", needs=("02_b",)), Lab("02_b", needs=("01_a",))]
    with pytest.raises(LabError, match="circle: 01_a -> 02_b -> 01_a"):
        with_needs(circle[:1], circle)
    with pytest.raises(LabError, match="02_b needs 01_a, which is not"):
        with_needs([TABLE[1]], TABLE[1:])
    assert {lab.name for lab in with_needs(LABS, LABS)} == {lab.name for lab in LABS}


def test_the_longest_chain_starts_first_and_a_need_before_its_users():
    labs = [
        Lab("00_short", minutes=0.2),
        Lab("02_user", needs=("03_need",), minutes=9),
        Lab("01_long", minutes=9.5),
        Lab("03_need", minutes=4),
        Lab("04_as_short", minutes=0.2),
    ]
    assert names(longest_first(labs)) == ["03_need", "01_long", "02_user", "00_short", "04_as_short"]
    ordered = names(longest_first(LABS))
    assert sorted(ordered) == sorted(names(LABS))
    assert all(ordered.index(need) < ordered.index(lab.name) for lab in LABS for need in lab.needs)


# --- What each lab leaves ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny", "smollm2-135m", "qwen2.5-0.5b"])
def test_every_branch_of_the_protocol_is_written_by_one_lab(name):
    profile = load_profile(name)
    branches = {*protocol_branches(profile), *office_protocol(profile)}
    files = {branch: f"evidence/branches/{branch}.json" for branch in branches}
    patterns = [pattern for lab in LABS for pattern in lab.written]
    writers = {branch: sum(fnmatch(file, pattern) for pattern in patterns) for branch, file in files.items()}
    assert set(writers.values()) == {1}, writers
    required = [pattern for lab in LABS for pattern in lab.outputs]
    written = [*files.values(), "evidence/verdicts.json", "scale/summary.json"]
    assert [pattern for pattern in required if not any(fnmatch(file, pattern) for file in written)] == []


# --- How many run side by side -----------------------------------------------------------------------

QUOTAS = {
    "none": ({}, 4),
    "version 2, unlimited": ({"cpu.max": "max 100000\n"}, 4),
    "version 2, two cores": ({"cpu.max": "200000 100000\n"}, 2),
    "version 2, two and a half": ({"cpu.max": "250000 100000\n"}, 2),
    "version 2, half a core": ({"cpu.max": "50000 100000\n"}, 1),
    "version 1, unlimited": ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
    "version 1, three cores": ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
    "not readable": ({"cpu.max": "what\n"}, 4),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_a_containers_quota_counts_and_four_is_the_most(name, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    files, expected = QUOTAS[name]
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    assert cores.side_by_side(tmp_path) == expected


def test_only_cores_that_this_process_may_use_count(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    assert cores.side_by_side(tmp_path) == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert cores.side_by_side(tmp_path) == 3
