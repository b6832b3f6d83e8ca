"""The corpus StockArithmetic-v1: 1,400 distinct problems from one seed, and its loader.

What a model may see (`*.visible.jsonl`: id, split, population, statement) is kept apart from the labels
(`*.labels.jsonl`: id, problem structure, target), so that opening one never opens the other. A manifest
holds counts and SHA-256; a file that differs from it is refused. Targets are computed, never annotated.
`python -m labs_lib.tasks.stock_arithmetic.corpus` writes the files; the same seed gives the same bytes.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labs_lib.paths import DATA
from labs_lib.tasks.corpus_files import MANIFEST as MANIFEST  # part of this module's names
from labs_lib.tasks.corpus_files import (
    CorpusError,
    files_with_manifest,
    load_manifest,
    named_stream,
    verified_rows,
    write_files,
)
from labs_lib.tasks.stock_arithmetic.problem import OPERAND_MAX, Problem, parse_problem
from labs_lib.tasks.stock_arithmetic.statements import PATTERNS, TEMPLATE_VERSION, statement, target

NAME = "StockArithmetic-v1"
SEED = 48
DATA_FOLDER = DATA / "stock-arithmetic-v1"
WARM_START_EXAMPLES = 128
ID_OPERAND_MAX = 50
# Split -> its populations and their counts, in the order of the ids.
SPLITS = {
    "train": (("ID50", 1000),),
    "validation": (("ID50", 200),),
    "test": (("ID50", 100), ("OOD100", 100)),
}
DESCRIPTION = (
    "A fictitious inventory exercise: the stock starts at `initial`, two deliveries arrive, two withdrawals "
    "leave, and the answer is the final stock. ID50 has operands 0..50; OOD100 has operands 0..100, at least "
    "one above 50. The problems are distinct by (initial, sorted deliveries, sorted withdrawals) over all "
    "splits. The first 128 training problems are the warm start's, the other 872 serve further SFT or RL "
    "prompts. A model may see the visible files; the labels are for loss and verifier. Every target is "
    "computed: the deterministic solver already solves every problem, so costly learning may be useless "
    "for such a task."
)


@dataclass(frozen=True)
class Example:
    """One problem in words; `problem` and `target` are None where the labels were not loaded.

    `target` is the supervised text, for example '{"final_stock":27}'.
    """

    id: str
    split: str
    population: str
    statement: str
    problem: Problem | None = None
    target: str | None = None


def _draw_problems(generator: random.Random, population: str) -> Iterator[Problem]:
    """Endless valid problems of a population, uniform over operands, by rejection."""
    largest = ID_OPERAND_MAX if population == "ID50" else OPERAND_MAX
    while True:
        i, a, b, c, d = (generator.randrange(largest + 1) for _ in range(5))
        problem = Problem(i, (a, b), (c, d))
        out_of_distribution = max(i, a, b, c, d) > ID_OPERAND_MAX
        if min(problem.stocks()) >= 0 and out_of_distribution == (population == "OOD100"):
            yield problem


def build_corpus(seed: int = SEED) -> list[Example]:
    """All 1,400 labelled examples, in the order train, validation, test; a pure function of `seed`."""
    examples, seen = [], set()
    for split, populations in SPLITS.items():
        number = 0
        for population, count in populations:
            draws = _draw_problems(named_stream(NAME, seed, f"{split}/{population}"), population)
            end = number + count
            while number < end:
                problem = next(draws)
                if problem.key() in seen:
                    continue
                seen.add(problem.key())
                # Patterns in turn: every population and every run of five examples is balanced in wording.
                text = statement(problem, number % len(PATTERNS))
                number += 1
                gold = target(problem.final_stock)
                examples.append(Example(f"{split}-{number:04}", split, population, text, problem, gold))
    return examples


def normalised_keys(seed: int = SEED) -> frozenset[tuple]:
    """`Problem.key()` of all 1,400 problems, for decontaminating other data; opens no file."""
    return frozenset(example.problem.key() for example in build_corpus(seed))


def corpus_files(seed: int = SEED) -> dict[str, bytes]:
    """File name -> bytes of the whole corpus, manifest included."""
    examples, rows = build_corpus(seed), {}
    for split in SPLITS:
        chosen = [example for example in examples if example.split == split]
        rows[f"{split}.visible.jsonl"] = [_visible_row(e) for e in chosen]
        rows[f"{split}.labels.jsonl"] = [_label_row(e) for e in chosen]
    description = {
        "name": NAME,
        "description": DESCRIPTION,
        "seed": seed,
        "template_version": TEMPLATE_VERSION,
        "examples": len(examples),
        "populations": {split: dict(populations) for split, populations in SPLITS.items()},
        "warm_start_examples": WARM_START_EXAMPLES,
    }
    return files_with_manifest(rows, description)


def _visible_row(example: Example) -> dict:
    return {
        "id": example.id,
        "split": example.split,
        "population": example.population,
        "statement": example.statement,
    }


def _label_row(example: Example) -> dict:
    return {"id": example.id, "problem": example.problem.as_dict(), "target": example.target}


def write_corpus(folder: Path | str = DATA_FOLDER, seed: int = SEED) -> None:
    """Write the corpus, manifest last, so that an interrupted run never looks whole."""
    write_files(folder, corpus_files(seed))


def load_split(split: str, *, labels: bool, folder: Path | str = DATA_FOLDER) -> list[Example]:
    """The examples of one split in id order; the labels file is opened only when `labels` is true.

    Raises:
        CorpusError: unknown split, missing file, or a file whose hash is not the manifest's.
        LearningScopeError: a held-out file is asked for while a policy is being trained.
    """
    if split not in SPLITS:
        raise CorpusError(f"unknown split {split!r}: choose one of {', '.join(SPLITS)}.")
    folder = Path(folder)
    manifest = load_manifest(folder)
    visible = verified_rows(folder / f"{split}.visible.jsonl", manifest)
    if not labels:
        return [Example(**row) for row in visible]
    gold = verified_rows(folder / f"{split}.labels.jsonl", manifest)
    return [
        Example(**row, problem=parse_problem(label["problem"]), target=label["target"])
        for row, label in zip(visible, gold, strict=True)
    ]


def split_training(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """The training split as (128 warm-start examples, 872 for further SFT or RL prompts)."""
    return examples[:WARM_START_EXAMPLES], examples[WARM_START_EXAMPLES:]


if __name__ == "__main__":
    write_corpus()
    print(f"{NAME}: {len(build_corpus())} problems, seed {SEED}, in data/{DATA_FOLDER.name}/")
