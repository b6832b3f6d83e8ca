"""Resumable states and exported weights: no pickle, whole or absent, verified on every load.

A file that has not changed since this process hashed it is not read again for its hash.

A checkpoint is a folder `<root>/step-000040/` with four files:

- `tensors.safetensors.gz`: parameters, optimiser moments, generator states (gzip level 1, lossless);
- `record.json`: everything else that decides the next step (schedule, cursor, permutation, history);
- `durations.json`: seconds measured on the way, outside of the comparable state;
- `manifest.json`: hashes and sizes of the other three, names, shapes, dtypes and hashes of the tensors,
  the identity (config, base, data, code fingerprints), and `state_sha256`.

The folder is written under an unfinished name and renamed as a whole, and a folder to be deleted is
first renamed back to an unfinished name: a process killed at any moment leaves only complete steps.
One process writes to a root at a time.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from isal import igzip, isal_zlib

from labs_lib import storage
from labs_lib.errors import CheckpointError, EvidenceExistsError, IdentityError, StorageError
from labs_lib.tensor_files import pieces, read_tensors, tensor_view

FORMAT = "labs-checkpoint-v1"
TENSORS, RECORD, DURATIONS, MANIFEST = (
    "tensors.safetensors.gz",
    "record.json",
    "durations.json",
    "manifest.json",
)
# How the names of Adam's moments begin, in states of GRPO and SFT and in those of PPO. They come last in the file: two
# thirds of a state, of no use to who wants its policy.
MOMENTS = ("adamw.", "optimizer.")
_FLUSHED_AT_ONCE = 1 << 26  # bytes: the disk writes while the processor packs what follows
_STEP_FOLDER = re.compile(r"step-(\d{6,})")

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint; `record` and `durations` are plain JSON values."""

    path: Path
    step: int
    record: dict[str, Any]
    durations: dict[str, Any]
    manifest: dict[str, Any]

    @property
    def state_sha256(self) -> str:
        """The hash of tensors and record; two runs are in the same state when these are equal."""
        return self.manifest["state_sha256"]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Its tensors on the CPU, read and verified anew each time: several states of a real model fill no memory.

        Raises CheckpointError naming a tensor that is not the manifest's.
        """
        return self.tensors_from("")

    def tensors_from(self, prefix: str) -> dict[str, torch.Tensor]:
        """Those whose names begin with `prefix`, read no further than the last of them; else as `tensors`.

        Raises CheckpointError also when there are none.
        """
        expected = {name: entry for name, entry in self.manifest["tensors"].items() if name.startswith(prefix)}
        if prefix and not expected:
            raise CheckpointError(f"{self.path} has no tensor whose name begins with {prefix!r}: it is another state.")
        return _read_tensors(self.path / TENSORS, prefix, expected)


# --- Hashes ----------------------------------------------------------------------------------------


def describe_tensors(tensors: Tensors) -> dict[str, dict[str, Any]]:
    """For each name its dtype, shape and SHA-256, so that a difference can be named."""
    return {
        name: {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "sha256": storage.sha256_bytes(tensor_view(tensor)),
        }
        for name, tensor in tensors.items()
    }


def state_sha256(tensors: Tensors, record: Mapping[str, Any]) -> str:
    """One hash over names, dtypes, shapes, bytes and the record; the order of insertion plays no part.

    Bit patterns count: 0.0 and -0.0 differ. Durations and paths do not belong in `record`.
    """
    return _state_hash(describe_tensors(tensors), record)


def _state_hash(described: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    return storage.sha256_bytes(storage.canonical_json({"tensors": described, "record": record}))


def code_fingerprint(paths: Iterable[Path | str], root: Path | str) -> str:
    """SHA-256 over the Python sources in `paths` (files, or folders taken with all below them).

    Names count relative to `root`, the package folder, so that a moved checkout has the same fingerprint;
    line endings do not count. Raises CheckpointError for a path that does not exist.
    """
    root = Path(root).resolve()
    sources: dict[str, str] = {}
    for path in (Path(path).resolve() for path in paths):
        if not path.exists():
            raise CheckpointError(f"The code fingerprint needs {path}, which does not exist.")
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            text = file.read_bytes().replace(b"\r\n", b"\n")
            sources[file.relative_to(root).as_posix()] = storage.sha256_bytes(text)
    return storage.sha256_bytes(storage.canonical_json(sources))


# --- Saving ----------------------------------------------------------------------------------------


def save_checkpoint(
    root: Path | str,
    step: int,
    tensors: Tensors,
    record: Mapping[str, Any],
    identity: Mapping[str, str],
    durations: Mapping[str, Any] | None = None,
    keep: int | None = 2,
) -> Path:
    """Write the state after `step` (updates, iterations or epochs: the caller's unit) and return its folder.

    Afterwards the `keep` newest steps stay (None: all). Steps only go up: a step at or below the newest
    one raises EvidenceExistsError. Raises CheckpointError for tensors that share storage, StorageError
    when the disk is full or the record is not JSON; the earlier checkpoints are intact in every case.
    """
    root = Path(root)
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise CheckpointError(f"A checkpoint's step must be an integer from 0, got {step!r}.")
    if keep is not None and keep < 1:
        raise CheckpointError(f"At least one checkpoint must be kept, got keep={keep}.")
    _refuse_overwrite(root, step)
    final = root / f"step-{step:06d}"
    partial = root / f"{storage.PARTIAL_PREFIX}{final.name}"
    with storage.storage_errors(final):
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        try:
            partial.mkdir()
            _write_parts(partial, step, tensors, record, identity, durations or {})
            storage.fsync_file(partial)
            os.rename(partial, final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        storage.fsync_file(root)
        for _, old in _steps(root)[: -keep if keep else 0]:
            _discard(old)
    return final


def _refuse_overwrite(root: Path, step: int) -> None:
    existing = _steps(root)
    if existing and existing[-1][0] >= step:
        raise EvidenceExistsError(
            f"{existing[-1][1]} already exists, so step {step} is not written over it: "
            "resume from it, or pass fresh to replace the run."
        )


def _write_parts(
    folder: Path,
    step: int,
    tensors: Tensors,
    record: Mapping[str, Any],
    identity: Mapping[str, str],
    durations: Mapping[str, Any],
) -> None:
    files = {TENSORS: _write_packed(folder / TENSORS, tensors)}
    for name, value in ((RECORD, record), (DURATIONS, durations)):
        data = storage.canonical_json(value) + b"\n"
        storage.write_synced(folder / name, data)
        files[name] = {"bytes": len(data), "sha256": storage.sha256_bytes(data)}
    described = describe_tensors(tensors)
    manifest = {
        "format": FORMAT,
        "step": step,
        "identity": dict(identity),
        "files": files,
        "tensors": described,
        "state_sha256": _state_hash(described, record),
    }
    # The manifest vouches for the other files and, by this last field, for itself.
    manifest["manifest_sha256"] = storage.sha256_bytes(storage.canonical_json(manifest))
    storage.write_synced(folder / MANIFEST, storage.canonical_json(manifest) + b"\n")


def _write_packed(path: Path, tensors: Tensors) -> dict[str, Any]:
    size = flushed = 0
    with open(path, "wb") as file, ThreadPoolExecutor(1) as disk:
        # No name and no time in the header: the same state gives the same bytes. ISA-L writes the same format about
        # fifteen times as fast as zlib, which matters for a state of 1.6 GB; anything that reads gzip reads it.
        flush: Future[None] | None = None
        with igzip.IGzipFile(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0) as packed:
            for piece in pieces(tensors, last=MOMENTS):
                packed.write(piece)
                size += len(piece)
                if size - flushed > _FLUSHED_AT_ONCE and (flush is None or flush.done()):
                    _raise_error_of(flush)
                    flush, flushed = disk.submit(os.fsync, file.fileno()), size
        _raise_error_of(flush)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": storage.sha256_file(path), "raw_bytes": size}


def _raise_error_of(flush: Future[None] | None) -> None:
    """A disk that is full may say so to the thread that flushes, and to nobody else."""
    if flush is not None:
        flush.result()


# --- Folders ---------------------------------------------------------------------------------------


def _steps(root: Path) -> list[tuple[int, Path]]:
    if not root.is_dir():
        return []
    found = ((_STEP_FOLDER.fullmatch(path.name), path) for path in root.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def latest_checkpoint(root: Path | str) -> Path | None:
    """The folder of the newest complete step below `root`, or None when there is none."""
    steps = _steps(Path(root))
    return steps[-1][1] if steps else None


def remove_checkpoints(root: Path | str) -> None:
    """Delete every checkpoint below `root`: the explicit `fresh`, and nothing else, asks for this."""
    root = Path(root)
    if root.is_dir():
        with storage.storage_errors(root):
            for _, folder in reversed(_steps(root)):
                _discard(folder)
            _sweep(root)


def _discard(folder: Path) -> None:
    # Deleting file by file is not atomic; under its own name a half-deleted step would pass for a whole one.
    doomed = folder.with_name(f"{storage.PARTIAL_PREFIX}removed-{folder.name}")
    os.rename(folder, doomed)
    shutil.rmtree(doomed)


def _sweep(root: Path) -> None:
    for leftover in root.glob(f"{storage.PARTIAL_PREFIX}*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


# --- Loading ---------------------------------------------------------------------------------------


def load_checkpoint(path: Path | str, identity: Mapping[str, str] | None = None) -> Checkpoint:
    """Read and verify one checkpoint folder; with `identity`, refuse one made by something else.

    The files are held to their hashes; what the packed one holds is unpacked when `tensors` is asked for.

    Raises CheckpointError naming the file or tensor that is missing, changed or unexpected, and
    IdentityError naming each identity key that differs, with both values.
    """
    path = Path(path)
    manifest = _read_manifest(path)
    if identity is not None:
        _check_identity(path, manifest["identity"], identity)
    present = {file.name for file in path.iterdir()} - {MANIFEST}
    if present != set(manifest["files"]):
        odd = sorted(present ^ set(manifest["files"]))
        raise CheckpointError(f"{path} has missing or unexpected files: {', '.join(odd)}.")
    for name, entry in manifest["files"].items():
        if storage.sha256_file(path / name) != entry["sha256"]:
            raise CheckpointError(f"{path / name} is damaged: its SHA-256 is not the manifest's. {_REMEDY}")
    record, durations = storage.read_json(path / RECORD), storage.read_json(path / DURATIONS)
    if _state_hash(manifest["tensors"], record) != manifest["state_sha256"]:
        raise CheckpointError(f"{path / RECORD} does not belong to the state that {MANIFEST} names. {_REMEDY}")
    return Checkpoint(path, manifest["step"], record, durations, manifest)


_REMEDY = "Resume from an earlier step, or pass fresh to start again."


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder} is no complete checkpoint: {MANIFEST} is missing. {_REMEDY}")
    try:
        data = path.read_bytes()
        manifest = storage.parse_json(data, str(path))
        promised = manifest.pop("manifest_sha256")
        if storage.sha256_bytes(storage.canonical_json(manifest)) != promised:
            raise ValueError("its own SHA-256 does not match")
        if storage.canonical_json({**manifest, "manifest_sha256": promised}) + b"\n" != data:
            raise ValueError("its bytes are not as they were written")
    except (StorageError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}. {_REMEDY}") from error
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {manifest.get('format')!r}; this code reads {FORMAT!r}.")
    return manifest


def _check_identity(path: Path, saved: Mapping[str, str], current: Mapping[str, str]) -> None:
    differing = [
        f"{key} (saved {_short(saved.get(key))}, now {_short(current.get(key))})"
        for key in sorted(saved.keys() | current.keys())
        if saved.get(key) != current.get(key)
    ]
    if differing:
        raise IdentityError(
            f"{path} was made by something else; what differs: {', '.join(differing)}. "
            "Resume with what made it, or pass fresh to start again."
        )


def _short(value: str | None) -> str:
    if value is None:
        return "absent"
    return value if len(value) <= 32 else f"{value[:12]}…{value[-4:]}"


def _read_tensors(path: Path, prefix: str, expected: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    try:
        with igzip.open(path) as file:
            tensors = read_tensors(file, prefix)
    except (OSError, EOFError, isal_zlib.error, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}. {_REMEDY}") from error
    check_tensors(tensors, expected, str(path))
    return tensors


def check_tensors(tensors: Tensors, expected: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Compare names, dtypes, shapes and (where `expected` has one) hashes; CheckpointError names the first
    tensors that differ and how."""
    found = describe_tensors(tensors)
    wrong = [f"{name} is missing" for name in expected.keys() - found.keys()]
    wrong += [f"{name} is unexpected" for name in found.keys() - expected.keys()]
    for name in expected.keys() & found.keys():
        for field in ("dtype", "shape", "sha256"):
            want = expected[name].get(field, found[name][field])
            if found[name][field] != want:
                wrong.append(f"{name} has {field} {found[name][field]} instead of {want}")
                break
    if wrong:
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        raise CheckpointError(f"{where}: {'; '.join(sorted(wrong)[:4])}{more}.")


def state_differences(first: Checkpoint, second: Checkpoint) -> list[str]:
    """What keeps two checkpoints from being bit-identical: tensor names and top-level record keys, sorted."""
    pairs = (
        ("tensor", first.manifest["tensors"], second.manifest["tensors"]),
        ("record", first.record, second.record),
    )
    missing = object()
    return [
        f"{kind} {name}"
        for kind, left, right in pairs
        for name in sorted(left.keys() | right.keys())
        if left.get(name, missing) != right.get(name, missing)
    ]


# --- Models ----------------------------------------------------------------------------------------


def untied_state_dict(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The model's state dict with every shared tensor once, under its first name.

    The values are views of the live parameters, not copies: save or clone them before the next update.
    """
    seen: set[tuple] = set()
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride())
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        tensors[name] = tensor
    return tensors


def load_untied(model: torch.nn.Module, tensors: Tensors) -> None:
    """Copy `tensors` into `model` in place, strictly, so that tied names stay one tensor.

    `model` must have the ties that the saved one had. Raises CheckpointError naming a missing or
    unexpected name, or one whose shape or dtype differs; the model is unchanged then.
    """
    own = untied_state_dict(model)
    expected = {
        name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        for name, tensor in own.items()
    }
    check_tensors(tensors, expected, f"Weights for {type(model).__name__}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def save_model_weights(
    path: Path | str, tensors: Tensors, metadata: Mapping[str, str] | None = None, fresh: bool = False
) -> str:
    """Export weights to one safetensors file that `transformers` reads, atomically; return its SHA-256.

    The same tensors and metadata (text to text) give the same bytes. An existing file with other bytes is
    replaced only with `fresh`, else EvidenceExistsError.
    """
    path = Path(path)
    parts = list(pieces(tensors, {"format": "pt", **(metadata or {})}))
    digest = storage.sha256_bytes(*parts)
    if path.exists() and not fresh and storage.sha256_file(path) != digest:
        raise EvidenceExistsError(f"{path} holds other weights already: resume, or pass fresh to replace it.")
    storage.atomic_write_bytes(path, *parts)
    return digest


def load_model_weights(path: Path | str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read tensors (on the CPU) and metadata from `save_model_weights`; CheckpointError if unreadable."""
    with _opened_weights(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def weights_metadata(path: Path | str) -> dict[str, str]:
    """What a file of `save_model_weights` says of itself, without its tensors; CheckpointError if unreadable."""
    with _opened_weights(path) as file:
        return dict(file.metadata() or {})


@contextmanager
def _opened_weights(path: Path | str) -> Iterator[Any]:
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            yield file
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}. Train or fetch it again.") from error
