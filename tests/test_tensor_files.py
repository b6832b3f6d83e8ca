"""safetensors tensor by tensor: the library reads what is written, and what the library writes is read."""

import io
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load as library_read
from safetensors.torch import save as library_write

from labs_lib.errors import CheckpointError
from labs_lib.tensor_files import NAMES, pieces, read_tensors, tensor_view

SHAPES = st.lists(st.integers(0, 5), max_size=3)
FORMS = st.dictionaries(st.text(min_size=1, max_size=8), st.tuples(st.sampled_from(list(NAMES)), SHAPES), max_size=6)


def filled(forms):
    """Arbitrary bits of every form; a bool has only two."""
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name, (dtype, shape) in forms.items():
        size = torch.empty(shape, dtype=dtype).nbytes
        bits = torch.randint(2 if dtype == torch.bool else 256, (size,), generator=generator).to(torch.uint8)
        tensors[name] = bits.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    return tensors


def written(tensors, metadata=None):
    return b"".join(pieces(tensors, metadata))


def same(first, second):
    forms = [{name: (t.dtype, t.shape, bytes(tensor_view(t))) for name, t in part.items()} for part in (first, second)]
    return forms[0] == forms[1]


@given(FORMS)
def test_both_ways_with_the_library(forms):
    tensors = filled(forms)
    data = written(tensors, {"format": "pt"})
    assert same(library_read(data), tensors)
    assert same(read_tensors(io.BytesIO(data)), tensors)
    assert same(read_tensors(io.BytesIO(library_write(tensors))), tensors)


@given(FORMS)
def test_the_order_of_insertion_plays_no_part(forms):
    tensors = filled(forms)
    assert written(tensors) == written(dict(reversed(tensors.items())))


def test_strides_are_no_part_of_what_is_written_and_large_tensors_come_in_pieces(monkeypatch):
    monkeypatch.setattr("labs_lib.tensor_files.PIECE", 16)
    tensors = {"turned": torch.arange(12.0).view(3, 4).T}
    parts = list(pieces(tensors))
    assert [len(part) for part in parts[1:]] == [16, 16, 16]
    assert same(read_tensors(io.BytesIO(b"".join(parts))), {"turned": tensors["turned"].contiguous()})


def with_header(data, change):
    """The file with `change` made to its header."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


WHOLE = written({"a": torch.arange(4.0), "b": torch.arange(3)})
DAMAGED = {
    "cut in the data": (WHOLE[:-1], "cut short"),
    "cut in the header": (WHOLE[:20], "cut short"),
    "empty": (b"", "cut short"),
    "longer": (WHOLE + b"\0", "after the last tensor"),
    "a gap": (with_header(WHOLE, lambda h: h["b"].update(data_offsets=[24, 48])), r"b lies at \[24, 48\] instead of"),
    "another shape": (with_header(WHOLE, lambda h: h["a"].update(shape=[5])), "a lies at"),
    "no JSON": (b"\2\0\0\0\0\0\0\0{]", "Expecting"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_file_is_refused(what):
    data, sentence = DAMAGED[what]
    with pytest.raises(ValueError, match=sentence):
        read_tensors(io.BytesIO(data))


def test_shared_storage_and_odd_dtypes_are_refused_by_name():
    one = torch.arange(4.0)
    with pytest.raises(CheckpointError, match="untied_state_dict: first and second"):
        list(pieces({"first": one, "second": one.view(2, 2)}))
    assert len(list(pieces({"first": one, "second": one[::2]}))) == 3  # the slice is copied, it has holes
    with pytest.raises(CheckpointError, match=r"odd has dtype torch\.complex64"):
        list(pieces({"odd": torch.zeros(2, dtype=torch.complex64)}))


class _Counting(io.BytesIO):
    """How far it was read."""

    farthest = 0

    def readinto(self, view):
        count = super().readinto(view)
        self.farthest = max(self.farthest, self.tell())
        return count


@given(FORMS, st.text(max_size=2))
def test_names_to_come_last_and_a_part_by_its_prefix(forms, prefix):
    tensors = filled(forms)
    data = b"".join(pieces(tensors, last=prefix or ()))
    assert same(library_read(data), tensors)
    assert same(read_tensors(io.BytesIO(data), prefix), {n: t for n, t in tensors.items() if n.startswith(prefix)})
    others = [name for name in tensors if not name.startswith(prefix)]
    assert prefix == "" or [*read_tensors(io.BytesIO(data))] == [*sorted(others), *sorted(tensors.keys() - others)]


def test_a_part_is_read_no_further_than_its_last_tensor():
    tensors = {"adamw.a": torch.zeros(1000), "policy.a": torch.ones(10), "generator": torch.zeros(5)}
    behind, plain = (_Counting(b"".join(pieces(tensors, last=last))) for last in ("adamw.", ()))
    for file in (behind, plain):
        assert same(read_tensors(file, "policy."), {"policy.a": torch.ones(10)})
    assert len(behind.getvalue()) - behind.farthest == 4000
    assert plain.farthest == len(plain.getvalue())
