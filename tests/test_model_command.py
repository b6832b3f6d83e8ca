"""`make model` for the base that the repository holds; tests/bases has the two that are fetched."""

import pytest

from labs_lib.errors import BaseModelError
from labs_lib.models import locations
from labs_lib.tools import model


def test_the_tiny_base_is_described(capsys):
    assert model.main(["--profile", "tiny"]) == 0
    said = capsys.readouterr().out
    assert "821,376 parameters" in said and "fetched" not in said and "not pinned" not in said


def test_a_missing_tiny_base_names_the_command_that_builds_it(monkeypatch, tmp_path):
    monkeypatch.setattr(locations, "ROOT", tmp_path)
    with pytest.raises(BaseModelError, match="make tiny-base"):
        model.main(["--profile", "tiny"])
