"""What cells use: sources shown as they are, and numbers behind the sign held to a recorded run."""

import inspect
import math
from types import SimpleNamespace

import pytest

from labs_lib import notebook
from labs_lib.errors import LabError, VerificationError
from labs_lib.notebook import approx, assert_recorded, show_source
from labs_lib.progress import ProgressBar, announce, progress


@pytest.fixture
def shown(monkeypatch):
    """The Markdown that `show_source` displays."""
    displayed = []
    monkeypatch.setattr(notebook, "display", lambda markdown: displayed.append(markdown.data))

    def show(thing):
        show_source(thing)
        return displayed[-1]

    return show


def fenced():
    """Has ``` in it."""


def test_source_is_shown_with_its_file_and_coloured_as_python(shown):
    text = shown(progress)
    assert text.startswith("`labs_lib/progress.py`\n\n```python\ndef progress(")
    assert text.endswith("\n```")
    for function in (progress, announce):
        assert inspect.getsource(function).rstrip() in shown(function)
    assert shown(progress) == text


def test_methods_lose_their_indentation_and_classes_are_whole(shown):
    assert "```python\ndef advance(self" in shown(ProgressBar.advance)
    assert '\n    """Count' in shown(ProgressBar.advance)
    assert "def advance(self" in shown(ProgressBar)


def test_backquotes_in_a_source_do_not_end_the_block(shown):
    text = shown(fenced)
    assert "\n````python\n" in text
    assert text.endswith("\n````")


def test_a_decorator_of_another_package_does_not_lend_its_file(shown, monkeypatch, tmp_path):
    """torch's decorators hide a function's file behind one in .venv, which may or may not lie below the repository."""
    installed = tmp_path / ".venv" / "site-packages" / "torch" / "decorator.py"
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    reader = SimpleNamespace(getsource=inspect.getsource, getsourcefile=lambda function: str(installed))
    monkeypatch.setattr(notebook, "inspect", reader)
    assert shown(fenced).startswith(f"`{fenced.__module__}`")


@pytest.mark.parametrize("thing", [len, 3, eval("lambda: 1")])
def test_what_has_no_source_is_refused(thing):
    with pytest.raises(LabError, match="no Python source"):
        show_source(thing)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.34149, 3, "≈0.341"),
        (1234.5, 3, "≈1,234"),
        (2e12, 3, "≈2e+12"),
        (1.2e-6, 2, "≈1.2e-06"),
        (3, 3, "≈3"),
        (-0.5, 1, "≈-0.5"),
    ],
)
def test_numbers_behind_the_sign(value, digits, text):
    assert approx(value, digits) == text


def test_a_number_near_the_recorded_one_is_printed(capsys):
    assert_recorded("accuracy", 0.341, 0.35, 0.05)
    assert capsys.readouterr().out == "accuracy ≈0.341, within 0.05 of the recorded run\n"


@pytest.mark.parametrize("value", [0.401, 0.299, math.nan, math.inf])
def test_a_number_far_from_the_recorded_one_fails(value, capsys):
    with pytest.raises(VerificationError, match="accuracy is"):
        assert_recorded("accuracy", value, 0.35, 0.05)
    assert capsys.readouterr().out == ""
