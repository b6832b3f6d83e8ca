"""StockArithmetic-v1: counts, populations, distinctness, and bytes that never change."""

import json
from collections import Counter
from itertools import chain

import pytest

from labs_lib.storage import sha256_bytes
from labs_lib.tasks.stock_arithmetic import corpus
from labs_lib.tasks.stock_arithmetic.corpus import CorpusError, load_split
from labs_lib.tasks.stock_arithmetic.problem import solve
from labs_lib.tasks.stock_arithmetic.statements import PATTERNS, statement, target
from labs_lib.tasks.stock_arithmetic.verifier import verify

MANIFEST_SHA256 = "0a7dfd5e1ae25c9f3223fb520a6b1d6192b147b8ae073e098e57eb7fc22599bb"


@pytest.fixture(scope="module")
def splits():
    return {split: load_split(split, labels=True) for split in corpus.SPLITS}


def duplicated_keys(keys):
    """The check of distinctness itself, so that a mutant corpus can be shown to fail it."""
    return [key for key, count in Counter(keys).items() if count > 1]


def test_regenerating_gives_the_committed_bytes():
    files = corpus.corpus_files()
    assert {path.name for path in corpus.DATA_FOLDER.iterdir()} == set(files)
    for name, data in files.items():
        assert (corpus.DATA_FOLDER / name).read_bytes() == data, name


def test_the_bytes_are_the_ones_every_machine_makes():
    # Recorded once: a change of Python's generator or of the drawing order would show here.
    assert sha256_bytes(corpus.corpus_files()[corpus.MANIFEST]) == MANIFEST_SHA256


def test_another_seed_gives_another_corpus():
    assert corpus.normalised_keys(49) != corpus.normalised_keys(48)


def test_counts_and_populations(splits):
    counts = {split: Counter(e.population for e in examples) for split, examples in splits.items()}
    assert counts == {
        "train": {"ID50": 1000},
        "validation": {"ID50": 200},
        "test": {"ID50": 100, "OOD100": 100},
    }
    for example in chain.from_iterable(splits.values()):
        problem = example.problem
        operands = [problem.initial, *problem.deliveries, *problem.withdrawals]
        assert 0 <= min(operands) <= max(operands) <= 100
        assert (max(operands) > 50) == (example.population == "OOD100")


def test_targets_are_the_solvers_and_the_verifier_pays_them(splits):
    for example in chain.from_iterable(splits.values()):
        assert example.target == target(solve(example.problem.as_dict()))
        assert verify(example.target, "eos", example.problem, True).reward == 1


def test_no_permutation_crosses_a_split(splits):
    keys = [example.problem.key() for example in chain.from_iterable(splits.values())]
    assert len(keys) == 1400 and not duplicated_keys(keys)
    assert set(keys) == corpus.normalised_keys()
    # The believable bug: distinct by the problem as listed. A swapped copy passes that, and fails here.
    twin = splits["train"][0].problem
    twin = type(twin)(twin.initial, twin.deliveries[::-1], twin.withdrawals)
    problems = [example.problem for example in chain.from_iterable(splits.values())]
    assert not duplicated_keys([*problems, twin])
    assert duplicated_keys([*keys, twin.key()])


def test_ids_statements_and_patterns(splits):
    for split, examples in splits.items():
        assert [e.id for e in examples] == [f"{split}-{n:04}" for n in range(1, len(examples) + 1)]
        for number, example in enumerate(examples):
            assert example.statement == statement(example.problem, number % len(PATTERNS))


def test_warm_start_is_the_first_128(splits):
    warm, further = corpus.split_training(splits["train"])
    assert (len(warm), len(further)) == (128, 872)
    assert (warm[-1].id, further[0].id) == ("train-0128", "train-0129")


def test_visible_files_hold_no_label():
    for split in corpus.SPLITS:
        for line in (corpus.DATA_FOLDER / f"{split}.visible.jsonl").read_text().splitlines():
            assert set(json.loads(line)) == {"id", "split", "population", "statement"}
        for line in (corpus.DATA_FOLDER / f"{split}.labels.jsonl").read_text().splitlines():
            assert set(json.loads(line)) == {"id", "problem", "target"}
    assert all(e.problem is None and e.target is None for e in load_split("test", labels=False))


def test_without_labels_the_labels_file_is_not_needed(tmp_path):
    corpus.write_corpus(tmp_path)
    (tmp_path / "train.labels.jsonl").unlink()
    assert len(load_split("train", labels=False, folder=tmp_path)) == 1000
    with pytest.raises(CorpusError, match=r"train\.labels\.jsonl cannot be read .*make data"):
        load_split("train", labels=True, folder=tmp_path)


@pytest.mark.parametrize("name", ["test.visible.jsonl", "test.labels.jsonl"])
def test_a_changed_file_is_refused_by_name(tmp_path, name):
    corpus.write_corpus(tmp_path)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data.replace(b"1", b"2", 1))
    with pytest.raises(CorpusError, match=f"{name} is not the file its manifest describes"):
        load_split("test", labels=True, folder=tmp_path)


def test_missing_corpus_and_unknown_split(tmp_path):
    with pytest.raises(CorpusError, match="manifest.json cannot be read .*make data"):
        load_split("train", labels=False, folder=tmp_path)
    with pytest.raises(CorpusError, match="unknown split 'dev': choose one of train, validation, test"):
        load_split("dev", labels=False)


def test_manifest_says_what_is_in_the_files():
    manifest = json.loads((corpus.DATA_FOLDER / corpus.MANIFEST).read_text())
    assert manifest["seed"] == 48 and manifest["examples"] == 1400
    assert "deterministic solver already solves every problem" in manifest["description"]
    assert set(manifest["files"]) == {f"{s}.{k}.jsonl" for s in corpus.SPLITS for k in ("visible", "labels")}
    for name, entry in manifest["files"].items():
        data = (corpus.DATA_FOLDER / name).read_bytes()
        assert entry == {"examples": data.count(b"\n"), "sha256": sha256_bytes(data)}
