"""Checkpoints: whole or absent, verified by name, refused for another identity, exact in every bit."""

import errno
import gzip
import itertools
import json
import os
import shutil
import signal
import stat
import sys
import threading
import traceback
from concurrent.futures import Future

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_lib import checkpoint, storage
from labs_lib.config import load_profile
from labs_lib.errors import (
    CheckpointError,
    EvidenceExistsError,
    IdentityError,
    LabError,
    StorageError,
)
from labs_lib.tensor_files import read_tensors, tensor_view
from labs_lib.training.optimizer import ScheduledAdamW

IDENTITY = {"base": "b" * 64, "code": "c" * 64, "config": "a" * 64, "data": "d" * 64}


def _state(step):
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "model.weight": torch.randn(7, 5, generator=generator),
        "adam.exp_avg.weight": torch.randn(7, 5, generator=generator).to(torch.bfloat16),
        "adam.step": torch.tensor(float(step)),
        "generator": generator.get_state(),
    }
    return tensors, {"cursor": step * 4, "permutation": [3, 1, 2], "history": [{"loss": 0.1 + step}]}


def _save(root, step, **options):
    tensors, record = _state(step)
    durations = {"seconds": 1.5}
    return checkpoint.save_checkpoint(root, step, tensors, record, IDENTITY, durations, **options)


def _is_state(loaded, step):
    tensors, record = _state(step)
    return loaded.step == step and loaded.state_sha256 == checkpoint.state_sha256(tensors, record)


# --- Round trip ------------------------------------------------------------------------------------

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def any_tensor(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = torch.Size(shape).numel() * torch.empty((), dtype=dtype).element_size()
    data = bytearray(draw(st.binary(min_size=count, max_size=count)))
    raw = torch.tensor(list(data), dtype=torch.uint8)
    # Any bit pattern is a value (NaN payloads too), except that a bool is 0 or 1.
    flat = (raw % 2).to(torch.bool) if dtype == torch.bool else raw.view(dtype)
    tensor = flat.reshape(shape)
    return tensor.transpose(0, -1) if tensor.dim() > 1 and draw(st.booleans()) else tensor


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text("abc._", min_size=1, max_size=6), any_tensor(), max_size=4))
def test_every_tensor_comes_back_bit_for_bit(tmp_path_factory, tensors):
    root = tmp_path_factory.mktemp("round")
    loaded = checkpoint.load_checkpoint(checkpoint.save_checkpoint(root, 0, tensors, {}, {}))
    assert loaded.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        back = loaded.tensors[name]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert tensor_view(back) == tensor_view(tensor)


def test_a_checkpoint_holds_record_durations_and_sizes(tmp_path):
    path = _save(tmp_path, 40)
    loaded = checkpoint.load_checkpoint(path, IDENTITY)
    assert path.name == "step-000040"
    assert _is_state(loaded, 40)
    assert loaded.record == _state(40)[1]
    assert loaded.durations == {"seconds": 1.5}
    entry = loaded.manifest["files"][checkpoint.TENSORS]
    assert entry["bytes"] == (path / checkpoint.TENSORS).stat().st_size
    assert entry["raw_bytes"] > sum(t.numel() * t.element_size() for t in loaded.tensors.values())


def test_a_part_of_a_state_is_held_to_its_hashes_too(tmp_path):
    loaded = checkpoint.load_checkpoint(_save(tmp_path, 40))
    assert loaded.tensors_from("adam.").keys() == {"adam.exp_avg.weight", "adam.step"}
    assert tensor_view(loaded.tensors_from("model.")["model.weight"]) == tensor_view(_state(40)[0]["model.weight"])
    _forge(loaded.path, lambda manifest: manifest["tensors"]["model.weight"].update(sha256="0"))
    forged = checkpoint.load_checkpoint(loaded.path)
    assert forged.tensors_from("adam.")
    with pytest.raises(CheckpointError, match=r"model\.weight has sha256"):
        forged.tensors_from("model.")
    with pytest.raises(CheckpointError, match=r"no tensor whose name begins with 'policy\.'"):
        loaded.tensors_from("policy.")


@pytest.mark.parametrize("prefix", ["", "optimizer.zeroth."], ids=["policy", "a role of PPO"])
def test_adams_moments_come_after_what_a_policy_is_read_from(tmp_path, prefix):
    model = torch.nn.Linear(3, 2)
    optimizer = ScheduledAdamW(model, load_profile("tiny").optimizer, 2, 1e-3)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    moments = {f"{prefix}{name}": tensor for name, tensor in optimizer.tensors().items()}
    roles = {f"zeroth.{name}": parameter for name, parameter in model.named_parameters()}
    with gzip.open(checkpoint.save_checkpoint(tmp_path, 1, roles | moments, {}, {}) / checkpoint.TENSORS) as file:
        names = [*read_tensors(file)]
    assert names == sorted(roles) + sorted(moments) and len(moments) == 6


def test_the_same_state_gives_the_same_bytes(tmp_path):
    first, second = _save(tmp_path / "a", 40), _save(tmp_path / "b", 40)
    assert storage.sha256_tree(first) == storage.sha256_tree(second)


def test_a_restored_generator_and_numbers_continue(tmp_path):
    loaded = checkpoint.load_checkpoint(_save(tmp_path, 3))
    generator = torch.Generator()
    generator.set_state(loaded.tensors["generator"])
    original = torch.Generator()
    original.set_state(_state(3)[0]["generator"])
    assert torch.equal(torch.rand(5, generator=generator), torch.rand(5, generator=original))


# --- The state hash --------------------------------------------------------------------------------

ZERO = torch.zeros(2, 3)
OTHER_STATES = {
    "name": ({"b": ZERO}, {}),
    "dtype": ({"a": ZERO.to(torch.int32)}, {}),
    "shape": ({"a": ZERO.reshape(3, 2)}, {}),
    "sign of zero": ({"a": -ZERO}, {}),
    "record": ({"a": ZERO}, {"cursor": 0}),
}


def _hash_of_bytes(tensors, record):
    """Mutant: names, dtypes and shapes are left out."""
    return storage.sha256_bytes(b"".join(map(tensor_view, tensors.values()))) + str(record)


def _tells_apart(hash_state):
    return {what for what, state in OTHER_STATES.items() if hash_state(*state) != hash_state({"a": ZERO}, {})}


def test_the_state_hash_sees_every_difference_and_a_plain_hash_does_not():
    assert _tells_apart(checkpoint.state_sha256) == set(OTHER_STATES)
    assert _tells_apart(_hash_of_bytes) == {"sign of zero", "record"}


def test_the_state_hash_ignores_order_strides_and_durations(tmp_path):
    tensors, record = _state(1)
    turned = {name: tensors[name] for name in reversed(tensors)}
    turned["model.weight"] = tensors["model.weight"].t().contiguous().t()
    assert checkpoint.state_sha256(turned, dict(reversed(record.items()))) == checkpoint.state_sha256(tensors, record)
    slow = checkpoint.save_checkpoint(tmp_path, 1, tensors, record, IDENTITY, {"seconds": 9.0})
    assert checkpoint.load_checkpoint(slow).state_sha256 == checkpoint.state_sha256(tensors, record)


def test_differences_between_two_states_are_named(tmp_path):
    first = checkpoint.load_checkpoint(_save(tmp_path / "a", 40))
    tensors, record = _state(40)
    tensors["model.weight"][0, 0] += 1e-6
    record["cursor"] += 4
    second = checkpoint.load_checkpoint(checkpoint.save_checkpoint(tmp_path / "b", 40, tensors, record, {}))
    assert checkpoint.state_differences(first, second) == ["tensor model.weight", "record cursor"]
    assert checkpoint.state_differences(first, first) == []


# --- A kill at any moment --------------------------------------------------------------------------

WATCHED = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}


def _killed(nth, save):
    """Run `save` in a forked child and SIGKILL it at its nth file-system call; False if it finished first.

    Before a file is forced to the disk, half of it is cut off: what a kill inside the write leaves.
    """
    pid = os.fork()
    if pid:
        status = os.waitpid(pid, 0)[1]
        assert status in (0, signal.SIGKILL), f"the child failed with status {status}"
        return status == signal.SIGKILL
    try:
        calls, fsync = itertools.count(1), os.fsync

        def step(event, _):
            if event in WATCHED and next(calls) == nth:
                os.kill(os.getpid(), signal.SIGKILL)

        def fsync_or_die(descriptor):
            if next(calls) == nth:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode):
                    os.ftruncate(descriptor, found.st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            fsync(descriptor)

        os.fsync = fsync_or_die
        sys.addaudithook(step)
        save()
        os._exit(0)
    finally:  # reached only by an exception: nothing of the forked copy of pytest may go on
        traceback.print_exc()
        os._exit(1)


def _save_in_place(root, step, keep):
    """Mutant: writes under the final name, so that a kill leaves half a step that looks whole."""
    folder = root / f"step-{step:06d}"
    folder.mkdir()
    checkpoint._write_parts(folder, step, *_state(step), IDENTITY, {})
    for _, old in checkpoint._steps(root)[:-keep]:
        checkpoint._discard(old)


def _make_room_first(root, step, keep):
    """Mutant: deletes the old step before the new one is safe."""
    checkpoint.remove_checkpoints(root)
    _save(root, step, keep=keep)


def _delete_under_own_name(root, step, keep):
    """Mutant: an old step is deleted file by file under the name of a whole one."""
    checkpoint._discard = shutil.rmtree  # in the forked child only
    _save(root, step, keep=keep)


def _steps_after_kills(tmp_path, save):
    """Kill `save` of step 40 over step 20 at every call in turn; give the newest step left each time."""
    template = tmp_path / "template"
    _save(template, 20)
    left = []
    for nth in itertools.count(1):
        root = tmp_path / f"kill-{nth}"
        shutil.copytree(template, root)
        killed = _killed(nth, lambda root=root: save(root, 40, keep=1))
        newest = checkpoint.latest_checkpoint(root)
        assert newest is not None, "no checkpoint survived"
        for folder in root.glob("step-*"):
            assert _is_state(checkpoint.load_checkpoint(folder, IDENTITY), int(folder.name[5:]))
        left.append(int(newest.name[5:]))
        _save(root, 60)
        assert not list(root.glob(f"{storage.PARTIAL_PREFIX}*")), "leftovers stay"
        if not killed:
            return left


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork to kill a child at a chosen call")
class TestKill:
    def test_a_kill_at_any_call_leaves_a_whole_checkpoint(self, tmp_path):
        left = _steps_after_kills(tmp_path, _save)
        # Kills before the rename leave the old step, later ones the new: both sides were really visited.
        assert left == sorted(left)
        assert left.count(20) >= 8
        assert left.count(40) >= 5

    @pytest.mark.parametrize("mutant", [_save_in_place, _make_room_first, _delete_under_own_name])
    def test_the_kill_test_rejects_a_save_that_is_not_atomic(self, tmp_path, mutant):
        with pytest.raises((AssertionError, CheckpointError)) as caught:
            _steps_after_kills(tmp_path, mutant)
        assert "the child failed" not in str(caught.value)


def _full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _AtOnce:
    """An executor that has done its work when it is handed over."""

    def __init__(self, workers):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, work, *arguments):
        future = Future()
        try:
            future.set_result(work(*arguments))
        except OSError as error:
            future.set_exception(error)
        return future


def _save_on_a_disk_that_is_full_once(tmp_path, monkeypatch, flush):
    """Save a state that is flushed after every piece; flush number `flush` fails, and it alone is told so."""
    flushes, real = [], os.fsync

    def fsync(file):
        flushes.append(file)
        return _full_disk() if len(flushes) == flush else real(file)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_FLUSHED_AT_ONCE", 0)
        patch.setattr(checkpoint, "ThreadPoolExecutor", _AtOnce)
        patch.setattr(checkpoint.os, "fsync", fsync)
        _save(tmp_path, 40)


# A header and four tensors: five flushes beside the packing.
@pytest.mark.parametrize("flush", range(1, 6))
def test_a_disk_that_is_full_beside_the_packing_leaves_nothing(tmp_path, monkeypatch, flush):
    with pytest.raises(LabError, match=r"disk is full.*step-000040"):
        _save_on_a_disk_that_is_full_once(tmp_path, monkeypatch, flush)
    assert list(tmp_path.iterdir()) == []


def test_without_its_answer_a_state_that_is_not_on_the_disk_would_count(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_raise_error_of", lambda flush: None)  # the mutant
    _save_on_a_disk_that_is_full_once(tmp_path, monkeypatch, 1)
    assert checkpoint.latest_checkpoint(tmp_path) is not None


def test_a_state_is_flushed_beside_its_packing_by_another_thread(tmp_path, monkeypatch):
    threads, real = [], os.fsync
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_FLUSHED_AT_ONCE", 0)
        patch.setattr(checkpoint.os, "fsync", lambda file: (threads.append(threading.current_thread()), real(file)))
        path = _save(tmp_path, 40)
    assert threading.main_thread() is threads[-1] is not threads[0]
    assert _is_state(checkpoint.load_checkpoint(path), 40)


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path, monkeypatch):
    _save(tmp_path, 20)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", _full_disk)
        with pytest.raises(LabError, match=r"disk is full.*step-000040"):
            _save(tmp_path, 40)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000020"]
    assert _is_state(checkpoint.load_checkpoint(tmp_path / "step-000020"), 20)


# --- Steps -----------------------------------------------------------------------------------------


def test_the_newest_steps_are_kept(tmp_path):
    for step in (1, 2, 3):
        _save(tmp_path / "two", step)
        _save(tmp_path / "all", step, keep=None)
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["step-000002", "step-000003"]
    assert len(list((tmp_path / "all").iterdir())) == 3


def test_steps_are_ordered_as_numbers(tmp_path):
    for step in (999_999, 1_000_000):
        _save(tmp_path, step)
    assert checkpoint.latest_checkpoint(tmp_path).name == "step-1000000"


@pytest.mark.parametrize("step", [39, 40])
def test_existing_evidence_is_not_overwritten(tmp_path, step):
    path = _save(tmp_path, 40)
    before = storage.sha256_tree(tmp_path)
    with pytest.raises(EvidenceExistsError, match=r"step-000040 already exists.*resume.*fresh"):
        _save(tmp_path, step)
    assert storage.sha256_tree(tmp_path) == before
    checkpoint.remove_checkpoints(tmp_path)
    assert checkpoint.latest_checkpoint(tmp_path) is None
    assert _save(tmp_path, 40) == path


def test_no_checkpoint_is_none(tmp_path):
    (tmp_path / "step-40").mkdir()
    assert checkpoint.latest_checkpoint(tmp_path) is None
    assert checkpoint.latest_checkpoint(tmp_path / "gone") is None
    checkpoint.remove_checkpoints(tmp_path / "gone")


@pytest.mark.parametrize(
    ("options", "error"),
    [({"step": -1}, "step"), ({"step": True}, "step"), ({"step": 1.0}, "step"), ({"keep": 0}, "keep=0")],
)
def test_bad_arguments(tmp_path, options, error):
    with pytest.raises(CheckpointError, match=error):
        checkpoint.save_checkpoint(tmp_path, **{"step": 1, "tensors": {}, "record": {}, "identity": {}, **options})


def test_a_record_that_json_cannot_hold_leaves_nothing(tmp_path):
    with pytest.raises(StorageError, match="JSON"):
        checkpoint.save_checkpoint(tmp_path, 1, {}, {"loss": float("nan")}, {})
    assert list(tmp_path.iterdir()) == []


# --- Damage ----------------------------------------------------------------------------------------

FILES = (checkpoint.TENSORS, checkpoint.RECORD, checkpoint.DURATIONS, checkpoint.MANIFEST)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_refused_by_the_name_of_the_file(tmp_path, name):
    path = _save(tmp_path, 40)
    data = (path / name).read_bytes()
    for position in range(0, len(data), max(1, len(data) // 200)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        (path / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"{name} is damaged"):
            checkpoint.load_checkpoint(path)
    (path / name).write_bytes(data)
    assert _is_state(checkpoint.load_checkpoint(path), 40)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_cut_file_is_named(tmp_path, name):
    path = _save(tmp_path, 40)
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=name):
        checkpoint.load_checkpoint(path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        checkpoint.load_checkpoint(path)


def test_an_additional_file_is_named(tmp_path):
    path = _save(tmp_path, 40)
    (path / "notes.txt").write_text("")
    with pytest.raises(CheckpointError, match=r"unexpected files: notes\.txt"):
        checkpoint.load_checkpoint(path)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        checkpoint.load_checkpoint(tmp_path / "step-000001")


def _forge(path, change):
    """Rewrite the manifest consistently after `change` of a tensor's entry, as a faulty writer would."""
    manifest = json.loads((path / checkpoint.MANIFEST).read_bytes())
    record = json.loads((path / checkpoint.RECORD).read_bytes())
    del manifest["manifest_sha256"]
    manifest["state_sha256"] = "of the change"
    change(manifest)
    if manifest["state_sha256"] == "of the change":
        described = {"tensors": manifest["tensors"], "record": record}
        manifest["state_sha256"] = storage.sha256_bytes(storage.canonical_json(described))
    manifest["manifest_sha256"] = storage.sha256_bytes(storage.canonical_json(manifest))
    storage.atomic_write_json(path / checkpoint.MANIFEST, manifest)


FORGERIES = {
    "dtype": (
        lambda m: m["tensors"]["adam.step"].update(dtype="float64"),
        r"adam\.step has dtype float32 instead of float64",
    ),
    "shape": (
        lambda m: m["tensors"]["model.weight"].update(shape=[5, 7]),
        r"model\.weight has shape \[7, 5\] instead of \[5, 7\]",
    ),
    "hash": (
        lambda m: m["tensors"]["model.weight"].update(sha256="0"),
        r"model\.weight has sha256 .* instead",
    ),
    "missing": (lambda m: m["tensors"].update(extra=m["tensors"]["adam.step"]), "extra is missing"),
    "unexpected": (lambda m: m["tensors"].pop("adam.step"), r"adam\.step is unexpected"),
    "state": (lambda m: m.update(state_sha256="0"), r"record\.json does not belong"),
    "format": (lambda m: m.update(format="v0"), "format 'v0'"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_names_shapes_dtypes_and_hashes_are_checked_strictly(tmp_path, what):
    change, sentence = FORGERIES[what]
    path = _save(tmp_path, 40)
    _forge(path, change)
    with pytest.raises(CheckpointError, match=sentence):
        _ = checkpoint.load_checkpoint(path).tensors


# --- Identity --------------------------------------------------------------------------------------


def test_another_identity_is_refused_naming_what_differs_and_only_that(tmp_path):
    path = _save(tmp_path, 40)
    other = {**IDENTITY, "config": "e" * 64, "seed": "49"}
    del other["data"]
    with pytest.raises(IdentityError) as caught:
        checkpoint.load_checkpoint(path, other)
    sentence = str(caught.value)
    assert "config (saved aaaaaaaaaaaa…aaaa, now eeeeeeeeeeee…eeee)" in sentence
    assert "data (saved dddddddddddd…dddd, now absent)" in sentence
    assert "seed (saved absent, now 49)" in sentence
    assert "base (" not in sentence
    assert "code (" not in sentence
    assert "fresh" in sentence


def test_the_code_fingerprint_follows_names_and_contents_but_not_the_place(tmp_path):
    def package(name, sources):
        root = tmp_path / name
        for path, text in sources.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(text)
        return checkpoint.code_fingerprint([root / "a.py", root / "sub"], root)

    sources = {"a.py": b"x = 1\n", "sub/b.py": b"y = 2\n", "sub/notes.txt": b"no code", "unused.py": b""}
    first = package("first", sources)
    assert package("moved", {**sources, "a.py": b"x = 1\r\n", "sub/notes.txt": b"", "unused.py": b"z"}) == first
    assert package("edited", {**sources, "sub/b.py": b"y = 3\n"}) != first
    assert package("more", {**sources, "sub/c.py": b""}) != first
    with pytest.raises(CheckpointError, match=r"gone\.py, which does not exist"):
        checkpoint.code_fingerprint([tmp_path / "gone.py"], tmp_path)


# --- Models ----------------------------------------------------------------------------------------


class Tied(torch.nn.Module):
    """Input embedding and output projection are one tensor, as in the bases of this project."""

    def __init__(self, seed, tie=True):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(11, 4)
        self.head = torch.nn.Linear(4, 11, bias=False)
        self.register_buffer("scale", torch.tensor(float(seed)))
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids) * self.scale)


IDS = torch.arange(11)


def _load_by_replacing(model, tensors):
    """Mutant: each name gets a parameter of its own, and the tie is gone."""
    for name in ("embed", "head"):
        getattr(model, name).weight = torch.nn.Parameter(tensors["embed.weight"].clone())
    model.scale = tensors["scale"]


def _same_before_and_after_an_update(load, tmp_path):
    model, other = Tied(1), Tied(2)
    path = checkpoint.save_checkpoint(tmp_path, 0, checkpoint.untied_state_dict(model), {}, {})
    load(other, checkpoint.load_checkpoint(path).tensors)
    assert torch.equal(model(IDS), other(IDS))
    for each in (model, other):
        each(IDS).square().sum().backward()
        torch.optim.SGD(each.parameters(), lr=0.1).step()
    return torch.equal(model(IDS), other(IDS))


@pytest.mark.parametrize(("load", "tied"), [(checkpoint.load_untied, True), (_load_by_replacing, False)])
def test_a_tie_survives_saving_and_loading(tmp_path, load, tied):
    assert _same_before_and_after_an_update(load, tmp_path) is tied


def test_shared_tensors_are_stored_once_and_otherwise_refused(tmp_path):
    model = Tied(1)
    assert list(checkpoint.untied_state_dict(model)) == ["scale", "embed.weight"]
    with pytest.raises(CheckpointError, match="untied_state_dict"):
        checkpoint.save_checkpoint(tmp_path, 0, model.state_dict(), {}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop("scale"), "scale is missing"),
        (lambda t: t.update(extra=t["scale"]), "extra is unexpected"),
        (lambda t: t.update(scale=t["scale"].double()), "scale has dtype float64 instead of float32"),
        (lambda t: t.update(scale=t["scale"][None]), r"scale has shape \[1\] instead of \[\]"),
    ],
)
def test_weights_that_do_not_fit_are_named_and_change_nothing(change, sentence):
    model, tensors = Tied(1), dict(checkpoint.untied_state_dict(Tied(2)))
    change(tensors)
    before = model(IDS)
    with pytest.raises(CheckpointError, match=f"Weights for Tied.*{sentence}"):
        checkpoint.load_untied(model, tensors)
    assert torch.equal(model(IDS), before)


def test_weights_of_a_tied_model_do_not_load_into_one_without_the_tie():
    with pytest.raises(CheckpointError, match=r"head\.weight is missing"):
        checkpoint.load_untied(Tied(1, tie=False), checkpoint.untied_state_dict(Tied(2)))


METADATA = {f"key{i}": str(i) for i in range(8)}


def test_exported_weights_are_the_same_bytes_and_read_by_safetensors(tmp_path):
    tensors = checkpoint.untied_state_dict(Tied(1))
    path = tmp_path / "models" / "final.safetensors"
    digest = checkpoint.save_model_weights(path, tensors, METADATA)
    assert digest == storage.sha256_file(path)
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    assert list(header["__metadata__"]) == sorted(header["__metadata__"])
    loaded, metadata = checkpoint.load_model_weights(path)
    assert metadata == {"format": "pt", **METADATA}
    for read in (loaded, safetensors.torch.load_file(path)):
        assert checkpoint.state_sha256(read, {}) == checkpoint.state_sha256(tensors, {})


def test_exported_weights_are_replaced_only_when_asked(tmp_path):
    path = tmp_path / "final.safetensors"
    digest = checkpoint.save_model_weights(path, {"a": ZERO})
    assert checkpoint.save_model_weights(path, {"a": ZERO}) == digest
    with pytest.raises(EvidenceExistsError, match=r"final\.safetensors holds other weights.*fresh"):
        checkpoint.save_model_weights(path, {"a": ZERO + 1})
    assert checkpoint.save_model_weights(path, {"a": ZERO + 1}, fresh=True) != digest


def test_unreadable_weights_are_named(tmp_path):
    path = tmp_path / "final.safetensors"
    with pytest.raises(CheckpointError, match=r"final\.safetensors cannot be read"):
        checkpoint.load_model_weights(path)
    checkpoint.save_model_weights(path, {"a": ZERO})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"final\.safetensors cannot be read"):
        checkpoint.load_model_weights(path)
