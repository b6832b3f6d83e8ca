"""A repository of its own for every test, a hub's cache of its own, and no network."""

import huggingface_hub.constants
import pytest

from labs_lib.models import locations
from labs_lib.tools.bases import fetch


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """The repository's root: where `assets/bases` is."""
    for module in (locations, fetch):
        monkeypatch.setattr(module, "ROOT", tmp_path / "repository")
    return tmp_path / "repository"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The hub's cache, empty, on a machine that is offline."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.fixture
def left(root):
    """What a fetch left in assets/bases, apart from its lock."""

    def names():
        folder = root / "assets" / "bases"
        return (
            sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock")) if folder.exists() else []
        )

    return names
