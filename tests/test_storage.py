"""Atomic files, canonical JSON and hashes."""

import errno
import hashlib
import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs_lib import storage
from labs_lib.errors import LabError, StorageError

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
SHA256_OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-4, its first example
# Lone surrogates have no UTF-8 form; hypothesis' text() leaves them out.


@given(JSON_VALUES)
def test_canonical_json_round_trip_is_exact(value):
    data = storage.canonical_json(value)
    assert json.loads(data) == value
    assert storage.canonical_json(json.loads(data)) == data


def test_canonical_json_does_not_depend_on_insertion_order():
    assert storage.canonical_json({"b": 1, "a": [0.1, "é"]}) == '{"a":[0.1,"é"],"b":1}'.encode()
    assert storage.canonical_json({"a": 1, "b": 2}) == storage.canonical_json({"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (float("nan"), "JSON"),
        ([float("inf")], "JSON"),
        ({"a": {1: 2}}, "in a"),
        ({"rows": [{None: 2}]}, r"rows\[0\]"),
        ({"a": object()}, "JSON"),
        ("\ud800", "JSON"),
    ],
)
def test_canonical_json_refuses_what_would_not_come_back(value, names):
    with pytest.raises(StorageError, match=names):
        storage.canonical_json(value)


def test_json_and_jsonl_files_round_trip(tmp_path):
    storage.atomic_write_json(tmp_path / "new" / "a.json", {"x": 0.1})
    storage.atomic_write_jsonl(tmp_path / "rows.jsonl", ({"i": i} for i in range(3)))
    assert storage.read_json(tmp_path / "new" / "a.json") == {"x": 0.1}
    assert storage.read_jsonl(tmp_path / "rows.jsonl") == [{"i": 0}, {"i": 1}, {"i": 2}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "rows.jsonl"]


def test_jsonl_keeps_unicode_line_separators_inside_a_row(tmp_path):
    storage.atomic_write_jsonl(tmp_path / "rows.jsonl", ["a\u2028b\x85c\rd", "e"])
    assert storage.read_jsonl(tmp_path / "rows.jsonl") == ["a\u2028b\x85c\rd", "e"]


def test_unreadable_files_are_named(tmp_path):
    (tmp_path / "bad.jsonl").write_bytes(b"1\n{\n")
    with pytest.raises(StorageError, match=r"bad\.jsonl, line 2"):
        storage.read_jsonl(tmp_path / "bad.jsonl")
    with pytest.raises(StorageError, match=r"gone\.json cannot be read"):
        storage.read_json(tmp_path / "gone.json")


def _full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(tmp_path, monkeypatch, call):
    target = tmp_path / "result.json"
    target.write_bytes(b"old")
    monkeypatch.setattr(storage.os, call, _full_disk)
    with pytest.raises(LabError, match=r"disk is full.*result\.json"):
        storage.atomic_write_bytes(target, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert target.read_bytes() == b"old"


def test_a_real_write_limit_in_the_middle_of_a_file_leaves_no_part(tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(LabError, match="disk is full"):
            storage.atomic_write_bytes(tmp_path / "big", b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_another_refusal_names_the_file(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"file/below cannot be written"):
        storage.atomic_write_bytes(tmp_path / "file" / "below", b"")


def _write_without_fsync(path, data):
    """Mutant: after a power cut the renamed file may be empty."""
    partial = path.with_name(".partial-x")
    partial.write_bytes(data)
    os.replace(partial, path)


def _order_of_calls(monkeypatch, write, path):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(storage.os, name, lambda *a, n=name, r=real: (calls.append(n), r(*a))[1])
    write(path, b"data")
    return calls


@pytest.mark.parametrize(("write", "durable"), [(storage.atomic_write_bytes, True), (_write_without_fsync, False)])
def test_data_reaches_the_disk_before_the_name_does(tmp_path, monkeypatch, write, durable):
    calls = _order_of_calls(monkeypatch, write, tmp_path / "a")
    assert (calls == ["fsync", "replace", "fsync"]) is durable


def test_hashes(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"abc")
    assert storage.sha256_bytes(b"abc") == hashlib.sha256(b"abc").hexdigest()
    assert storage.sha256_file(tmp_path / "sub" / "a") == storage.sha256_bytes(b"abc")
    tree = storage.sha256_tree(tmp_path)
    (tmp_path / ".partial-b").write_bytes(b"unfinished")
    assert storage.sha256_tree(tmp_path) == tree
    (tmp_path / "sub" / "a").rename(tmp_path / "a")
    assert storage.sha256_tree(tmp_path) != tree
    with pytest.raises(StorageError, match="not a folder"):
        storage.sha256_tree(tmp_path / "gone")


@pytest.fixture
def read(monkeypatch):
    """How often bytes were hashed, as a list that grows."""
    begun, real = [], hashlib.sha256
    monkeypatch.setattr(storage, "_known_digests", {})
    monkeypatch.setattr(storage.hashlib, "sha256", lambda: (begun.append(1), real())[1])
    return begun


def test_a_file_that_is_not_touched_is_read_once(tmp_path, monkeypatch, read):
    (tmp_path / "state").write_bytes(b"abc")
    monkeypatch.setattr(storage, "_SETTLED", -(10**9))  # whatever was changed a moment ago counts as old
    assert {storage.sha256_file(tmp_path / "state") for _ in range(3)} == {SHA256_OF_ABC}
    assert len(read) == 1


def test_a_file_of_the_last_seconds_is_read_each_time(tmp_path, read):
    (tmp_path / "state").write_bytes(b"abc")
    assert {storage.sha256_file(tmp_path / "state") for _ in range(3)} == {SHA256_OF_ABC}
    assert len(read) == 3


def _by_name_only(path, known={}):  # noqa: B006
    """Mutant: a file is known by its path."""
    return known.setdefault(path, hashlib.sha256(path.read_bytes()).hexdigest())


def _by_size_and_set_time(path, known={}):  # noqa: B006
    """Mutant: a time stamp that can be set back is believed."""
    found = path.stat()
    version = (path, found.st_size, found.st_mtime_ns)
    return known.setdefault(version, hashlib.sha256(path.read_bytes()).hexdigest())


def _overwrite(path):
    path.write_bytes(b"abd")


def _replace(path):
    path.with_name("new").write_bytes(b"abd")
    os.replace(path.with_name("new"), path)


def _overwrite_and_set_the_time_back(path):
    before = path.stat()
    path.write_bytes(b"abd")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = (_overwrite, _replace, _overwrite_and_set_the_time_back)


def _notices(digest_of, folder, change):
    path = folder / f"{digest_of.__name__}-{change.__name__}"
    path.write_bytes(b"abc")
    before = digest_of(path)
    time.sleep(0.02)  # the clock of the file system goes on
    change(path)
    return digest_of(path) != before


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_read_again(tmp_path, monkeypatch, change):
    monkeypatch.setattr(storage, "_SETTLED", -(10**9))
    assert _notices(storage.sha256_file, tmp_path, change)


@pytest.mark.parametrize("mutant", [_by_name_only, _by_size_and_set_time])
def test_the_change_of_a_file_is_lost_on_a_weaker_memory(tmp_path, mutant):
    assert not all(_notices(mutant, tmp_path, change) for change in CHANGES)
