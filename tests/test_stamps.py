"""When a lab is run again: any change of what its results depend on, or of what it made."""

import pytest

from labs_lib.tools.stamps import Stamp, made_files, out_of_date, read_stamp, shared_inputs, write_stamp


@pytest.fixture
def root(tmp_path):
    for name in (
        "labs_lib/kernels/kl.py",
        "configs/tiny.yaml",
        "configs/other.yaml",
        "data/corpus/train.jsonl",
        "assets/base/model.safetensors",
        "assets/other/model.safetensors",
        "requirements.txt",
        "README.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def inputs(root):
    return shared_inputs(root, "tiny", ["assets/base"])


CHANGES = {
    "labs_lib/kernels/kl.py": "library",
    "labs_lib/new.py": "library",
    "configs/tiny.yaml": "config",
    "data/corpus/train.jsonl": "data",
    "assets/base/model.safetensors": "base assets/base",
    "requirements.txt": "requirements",
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_an_input_is_named(root, name):
    before = inputs(root)
    (root / name).write_text("changed")
    changed = [key for key, value in inputs(root).items() if value != before[key]]
    assert changed == [CHANGES[name]]


@pytest.mark.parametrize(
    "name", ["README.md", "configs/other.yaml", "assets/other/model.safetensors", "labs_lib/__pycache__/kl.pyc"]
)
def test_what_cannot_change_a_result_does_not_count(root, name):
    before = inputs(root)
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("changed")
    assert inputs(root) == before


def test_a_moved_file_counts(root):
    before = inputs(root)
    (root / "labs_lib/kernels/kl.py").rename(root / "labs_lib/kl.py")
    assert inputs(root) != before


def test_reasons_to_run_again(tmp_path):
    (tmp_path / "a.json").write_text("1")
    stamp = Stamp({"library": "x", "config": "y"}, made_files(tmp_path, ["*.json"]), 1.0, 2.0, 3.0)
    assert out_of_date(None, {}, tmp_path) == "not run yet"
    assert out_of_date(stamp, {"library": "x", "config": "y"}, tmp_path) is None
    assert out_of_date(stamp, {"library": "z", "config": "y"}, tmp_path) == "library changed"
    assert out_of_date(stamp, {"library": "x"}, tmp_path) == "config changed"
    assert out_of_date(stamp, {"library": "x", "config": "y", "01_b": "new"}, tmp_path) == "01_b changed"
    (tmp_path / "a.json").write_text("2")
    assert out_of_date(stamp, stamp.inputs, tmp_path) == "a.json was changed"
    (tmp_path / "a.json").unlink()
    assert out_of_date(stamp, stamp.inputs, tmp_path) == "a.json is missing"


def test_stamps_are_read_back_and_bad_ones_count_as_none(tmp_path):
    path = tmp_path / "stamps" / "00_a.json"
    stamp = Stamp({"library": "x"}, {"a.json": "y"}, 1.5, 2.0, 3.0)
    write_stamp(path, stamp)
    assert read_stamp(path) == stamp
    for content in ["", "[]", "{}", '{"inputs": {}, "files": []}', '{"inputs": {}, "files": {}, "odd": 1}']:
        path.write_text(content)
        assert read_stamp(path) is None
    assert read_stamp(tmp_path / "missing.json") is None
