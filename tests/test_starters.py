"""What starts the labs elsewhere: container, Binder, and the commands that the pages tell people to type."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labs_lib.paths import ROOT

DEVCONTAINER = ROOT / ".devcontainer" / "devcontainer.json"
BINDER = ROOT / "binder"
INSTALL = ROOT / "docs" / "install.md"
MAKE = re.compile(r"(?:^|[\s`(])make ([a-z][a-z-]*)(?=[\s`.,;:)]|$)", re.MULTILINE)


def targets(makefile: str) -> set[str]:
    """The targets that somebody can type."""
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))


def unknown_targets(text: str, makefile: str) -> list[str]:
    """Targets of `make` that a text names, as code, and that do not exist."""
    code = re.findall(r"`[^`\n]+`|^ {4}.+$", text, re.MULTILINE)
    return sorted(set(MAKE.findall("\n".join(code))) - targets(makefile))


def at_least_3_11(version: str) -> bool:
    return tuple(map(int, version.split("."))) >= (3, 11)


@pytest.fixture
def makefile():
    return (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_devcontainer_runs_commands_that_exist(makefile):
    settings = json.loads(DEVCONTAINER.read_text(encoding="utf-8"))
    assert unknown_targets(f"`{settings['postCreateCommand']}`", makefile) == []
    assert settings["postCreateCommand"].startswith("make ")
    assert at_least_3_11(re.fullmatch(r"python:(\d+\.\d+)-\w+", settings["image"])[1])
    venv = re.search(r"^VENV := (\S+)$", makefile, re.MULTILINE)[1]
    interpreter = settings["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert interpreter == f"${{containerWorkspaceFolder}}/{venv}/bin/python"


def test_a_version_is_compared_as_numbers():
    assert at_least_3_11("3.12") and not at_least_3_11("3.9")


def test_binder_installs_the_same_requirements():
    lines = (BINDER / "requirements.txt").read_text(encoding="utf-8").splitlines()
    (included,) = (line.split()[1] for line in lines if line.startswith("-r "))
    assert (BINDER / included).resolve() == ROOT / "requirements.txt"
    runtime = (BINDER / "runtime.txt").read_text(encoding="utf-8").strip()
    assert at_least_3_11(runtime.removeprefix("python-"))


def test_binder_starts_what_it_is_given_with_the_library_in_reach(tmp_path):
    code = "import labs_lib.paths, os; print(labs_lib.paths.ROOT); print(os.environ['PYTHONHASHSEED'])"
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHASHSEED")}
    found = subprocess.run(
        [BINDER / "start", sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == [str(ROOT), "0"]


@pytest.mark.parametrize("page", ["docs/install.md", "docs/teacher-notes.md", "README.md"])
def test_pages_name_targets_that_exist(page, makefile):
    assert unknown_targets((ROOT / page).read_text(encoding="utf-8"), makefile) == []


def test_a_target_that_does_not_exist_is_seen(makefile):
    text = "run `make labb`, or\n\n    make tets ARGS=x\n\nand `make run-all PROFILE=...`; people make mistakes"
    assert unknown_targets(text, makefile) == ["labb", "tets"]
    assert "READY" not in targets(makefile) and "lab" in targets(makefile)


def test_pages_name_files_that_exist():
    named = re.findall(r"`((?:\.devcontainer|binder|docs|labs_lib|configs|notebooks)/[\w./-]*)`", INSTALL.read_text())
    assert named and [name for name in named if not Path(ROOT, name).exists()] == []
