"""`make model`: what is there is checked, what is missing is said in one sentence that can be acted on."""

import pytest

from labs_lib.config import load_profile
from labs_lib.errors import BaseModelError
from labs_lib.tools import model


def test_the_tiny_base_is_described(capsys):
    assert model.main(["--profile", "tiny"]) == 0
    assert "821,376 parameters" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-0.5b"])
def test_a_base_that_was_never_fetched_is_named_with_its_folder(name, monkeypatch, tmp_path):
    monkeypatch.setattr("labs_lib.models.base.ROOT", tmp_path)
    with pytest.raises(BaseModelError, match=r"assets/bases/.*: put its config\.json|assets/bases/.*not built yet"):
        model.require_base(load_profile(name).base)


def test_a_missing_tiny_base_names_the_command_that_builds_it(monkeypatch, tmp_path):
    monkeypatch.setattr("labs_lib.models.base.ROOT", tmp_path)
    with pytest.raises(BaseModelError, match="make tiny-base"):
        model.require_base(load_profile("tiny").base)
