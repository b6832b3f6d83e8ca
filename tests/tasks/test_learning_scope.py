"""What learning may see: every way of opening a held-out file is tried, inside and outside a scope."""

# ruff: noqa: SIM115 - a refused open has nothing to close, and the shortest call is what is tried

import gzip
import io
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from labs_lib.errors import LearningScopeError
from labs_lib.tasks.learning_scope import (
    learning_scope,
    office_help_scope,
    refuse_held_out,
    stock_arithmetic_scope,
)
from labs_lib.tasks.office_help import corpus as office
from labs_lib.tasks.stock_arithmetic.corpus import load_split, write_corpus


@pytest.fixture
def held_out(tmp_path):
    path = tmp_path / "held" / "test.labels.jsonl"
    path.parent.mkdir()
    path.write_text("secret")
    return path


def relative(path):
    return os.path.relpath(path)


def by_symlink(path):
    link = path.parent.parent / "link"
    link.symlink_to(path)
    return link.read_text()


def by_folder_symlink(path):
    link = path.parent.parent / "folder"
    link.symlink_to(path.parent)
    return (link / path.name).read_text()


def by_thread(path):
    caught = []

    def read():
        try:
            path.read_text()
        except LearningScopeError as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    if caught:
        raise caught[0]


def by_descriptor(path):
    with os.fdopen(os.open(path, os.O_RDONLY)) as file:
        return file.read()


def by_hard_link_made_inside(path):
    os.link(path, path.parent.parent / "hard")


def by_rename(path):
    path.rename(path.parent.parent / "renamed")


WAYS = {
    "open": lambda p: open(p).read(),
    "open bytes name": lambda p: open(os.fsencode(p)).read(),
    "io.open": lambda p: io.open(p).read(),  # noqa: UP020
    "io.FileIO": lambda p: io.FileIO(p).read(),
    "io.open_code": lambda p: io.open_code(str(p)).read(),
    "os.open": by_descriptor,
    "read_text": Path.read_text,
    "read_bytes": Path.read_bytes,
    "for writing": lambda p: open(p, "a").close(),
    "relative": lambda p: open(relative(p)).read(),
    "dotted": lambda p: open(p.parent / ".." / p.parent.name / p.name).read(),
    "symlink": by_symlink,
    "folder symlink": by_folder_symlink,
    "gzip": lambda p: gzip.open(p),
    "numpy": lambda p: np.fromfile(p, np.uint8),
    "numpy memmap": lambda p: np.memmap(p, np.uint8),
    "copy": lambda p: shutil.copyfile(p, p.parent.parent / "copy"),
    "thread": by_thread,
    "hard link": by_hard_link_made_inside,
    "rename": by_rename,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_every_way_is_refused_inside_and_open_outside(way, held_out):
    with learning_scope([held_out]), pytest.raises(LearningScopeError, match="held out while a policy"):
        way(held_out)
    for left in ("link", "folder"):
        (held_out.parent.parent / left).unlink(missing_ok=True)
    way(held_out)  # the mutant "scope not active" reads fine: it is the scope that refuses


def test_the_error_names_the_file(held_out):
    with (
        learning_scope([held_out]),
        pytest.raises(LearningScopeError, match=r"test\.labels\.jsonl is held out"),
    ):
        held_out.read_text()


def test_earlier_hard_link_and_earlier_descriptor(held_out, tmp_path):
    os.link(held_out, tmp_path / "innocent")
    with open(held_out) as file, learning_scope([held_out]):
        with pytest.raises(LearningScopeError, match="innocent"):
            open(tmp_path / "innocent")
        with pytest.raises(LearningScopeError, match="descriptor"):
            open(file.fileno(), closefd=False)


def test_globs_folders_and_files_made_later(tmp_path):
    (tmp_path / "tiny" / "evaluation").mkdir(parents=True)
    (tmp_path / "tiny" / "rollouts.jsonl").write_text("fine")
    with learning_scope([tmp_path / "**/evaluation*"]):
        assert (tmp_path / "tiny" / "rollouts.jsonl").read_text() == "fine"
        for name in ("evaluation.json", "tiny/evaluation/a/b.json", "tiny/evaluation_grpo.json"):
            with pytest.raises(LearningScopeError, match=name):
                (tmp_path / name).write_text("late")
        (tmp_path / "tiny" / "no_evaluation.json").write_text("the name begins otherwise")


def test_relative_patterns_and_the_dot_is_no_wildcard(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("testXjsonl").write_text("fine")
    with learning_scope(["test.jsonl", "tes?.txt"]):
        assert Path("testXjsonl").read_text() == "fine"
        for name in ("test.jsonl", "test.txt"):
            with pytest.raises(LearningScopeError):
                open(tmp_path / name)


def test_pattern_through_a_linked_folder(held_out, tmp_path):
    (tmp_path / "alias").symlink_to(held_out.parent)
    (tmp_path / "held" / "late.jsonl").unlink(missing_ok=True)
    with learning_scope([tmp_path / "alias" / "*.jsonl"]):
        for folder in ("alias", "held"):
            with pytest.raises(LearningScopeError):
                (tmp_path / folder / "late.jsonl").write_text("")


def test_allowed_exception_cannot_be_borrowed_by_a_link(held_out, tmp_path):
    allowed = held_out.parent / "validation.labels.jsonl"
    allowed.write_text("allowed")
    with learning_scope([held_out.parent], allow=[held_out.parent / "validation.*"]):
        assert allowed.read_text() == "allowed"
        (held_out.parent / "validation.link").symlink_to(held_out)
        with pytest.raises(LearningScopeError):
            (held_out.parent / "validation.link").read_text()


def test_nesting_never_loosens(held_out, tmp_path):
    other = tmp_path / "other"
    other.write_text("other")
    with learning_scope([held_out]):
        inner = learning_scope([other], allow=[held_out])
        with inner:
            for path in (held_out, other):
                with pytest.raises(LearningScopeError):
                    path.read_text()
        assert other.read_text() == "other"
        with pytest.raises(LearningScopeError):
            held_out.read_text()
    assert held_out.read_text() == "secret"


def test_scopes_may_end_in_any_order_and_end_on_errors(held_out, tmp_path):
    other = tmp_path / "other"
    other.write_text("other")
    first, second = learning_scope([held_out]), learning_scope([other])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert held_out.read_text() == "secret"
    with pytest.raises(LearningScopeError):
        other.read_text()
    second.__exit__(None, None, None)
    with pytest.raises(RuntimeError), learning_scope([other]):
        raise RuntimeError
    assert other.read_text() == "other"


def test_a_reused_inode_number_is_not_mistaken(held_out, tmp_path):
    removal = [sys.executable, "-c", "import os, sys; os.remove(sys.argv[1])", str(held_out)]
    with learning_scope([held_out]):
        subprocess.run(removal, check=True)  # another process replaces its evaluation meanwhile
        for number in range(20):  # file systems hand a freed number to a new file
            (tmp_path / f"checkpoint-{number}").write_text("fine")
            assert (tmp_path / f"checkpoint-{number}").read_text() == "fine"


def test_odd_names_are_left_to_open(held_out):
    with learning_scope([held_out]):
        with pytest.raises(ValueError, match="null"):
            open("a\0b")
        with pytest.raises(FileNotFoundError):
            open(held_out.parent / "absent")
        refuse_held_out(None)


def test_code_with_a_native_reader_can_ask_first(tmp_path):
    numpy_safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "evaluation.safetensors"
    numpy_safetensors.save_file({"logits": np.zeros(2)}, path)
    with learning_scope([path]), pytest.raises(LearningScopeError, match=r"evaluation\.safetensors"):
        refuse_held_out(path)
    refuse_held_out(path)


class TestStockArithmeticScope:
    @pytest.fixture
    def data(self, tmp_path):
        write_corpus(tmp_path / "data")
        return tmp_path / "data"

    def test_training_data_stay_open(self, data, tmp_path):
        with stock_arithmetic_scope(data=data, outputs=tmp_path):
            assert len(load_split("train", labels=True, folder=data)) == 1000

    @pytest.mark.parametrize("split", ["validation", "test"])
    @pytest.mark.parametrize("labels", [False, True])
    def test_held_out_splits_are_closed(self, data, tmp_path, split, labels):
        with stock_arithmetic_scope(data=data, outputs=tmp_path):
            with pytest.raises(LearningScopeError, match=rf"{split}\.visible\.jsonl"):
                load_split(split, labels=labels, folder=data)
            with pytest.raises(LearningScopeError):
                (data / f"{split}.labels.jsonl").read_bytes()
        assert len(load_split(split, labels=labels, folder=data)) == 200

    def test_validation_nll_opens_validation_only(self, data, tmp_path):
        with stock_arithmetic_scope(validation_nll=True, data=data, outputs=tmp_path):
            assert len(load_split("validation", labels=True, folder=data)) == 200
            with pytest.raises(LearningScopeError):
                load_split("test", labels=False, folder=data)

    def test_inference_outputs_are_closed(self, data, tmp_path):
        answers = tmp_path / "outputs" / "tiny" / "evaluation" / "grpo.json"
        answers.parent.mkdir(parents=True)
        answers.write_text("[]")
        scope = stock_arithmetic_scope(data=data, outputs=tmp_path / "outputs")
        with scope, pytest.raises(LearningScopeError, match=r"grpo\.json"):
            answers.read_text()

    def test_the_default_is_this_repositorys_corpus(self):
        with stock_arithmetic_scope():
            assert len(load_split("train", labels=False)) == 1000
            with pytest.raises(LearningScopeError):
                load_split("test", labels=False)


class TestOfficeHelpScope:
    @pytest.fixture
    def data(self, tmp_path):
        office.write_corpus(tmp_path / "data")
        return tmp_path / "data"

    def test_training_data_stay_open(self, data, tmp_path):
        with office_help_scope(data=data, outputs=tmp_path):
            assert len(office.load_pairs("train", folder=data)) == 840
            assert len(office.load_demonstrations(folder=data)) == 168
            assert len(office.load_rollout_requests(folder=data)) == 672

    @pytest.mark.parametrize("population", ["validation.pairs", "test.pairs", "probes"])
    @pytest.mark.parametrize("part", ["visible", "labels"])
    def test_held_out_files_are_closed(self, data, tmp_path, population, part):
        with office_help_scope(data=data, outputs=tmp_path):
            with pytest.raises(LearningScopeError, match=rf"{population}\.visible\.jsonl"):
                office.load_requests(population, labels=part == "labels", folder=data)
            with pytest.raises(LearningScopeError, match=rf"{population}\.{part}\.jsonl"):
                (data / f"{population}.{part}.jsonl").read_bytes()
        assert office.load_requests(population, labels=part == "labels", folder=data)

    def test_the_validation_figure_opens_validation_only(self, data, tmp_path):
        with office_help_scope(validation_pairs=True, data=data, outputs=tmp_path):
            assert len(office.load_pairs("validation", folder=data)) == 180
            for held_out in (lambda: office.load_pairs("test", folder=data), lambda: office.load_probes(folder=data)):
                with pytest.raises(LearningScopeError):
                    held_out()

    def test_an_inner_validation_scope_does_not_loosen_an_outer_one(self, data, tmp_path):
        scopes = [office_help_scope(allowed, data=data, outputs=tmp_path) for allowed in (False, True)]
        with scopes[0], scopes[1], pytest.raises(LearningScopeError):
            office.load_pairs("validation", folder=data)

    def test_inference_outputs_are_closed(self, data, tmp_path):
        answers = tmp_path / "outputs" / "tiny" / "evaluations" / "evaluation-ppo.json"
        answers.parent.mkdir(parents=True)
        answers.write_text("[]")
        scope = office_help_scope(True, data=data, outputs=tmp_path / "outputs")
        with scope, pytest.raises(LearningScopeError, match=r"evaluation-ppo\.json"):
            answers.read_text()

    def test_the_default_is_this_repositorys_corpus(self):
        with office_help_scope():
            assert len(office.load_pairs("train")) == 840
            with pytest.raises(LearningScopeError):
                office.load_probes()
