"""The corpus OfficeHelpPrefs-v1 as files, its loader, and copies of its pairs with an annotator's bias.

What a model is asked (`*.visible.jsonl`) is kept apart from what loss and rubric use (`*.labels.jsonl`); validation,
test and probes are files of their own, so that a learning scope can forbid them. A manifest holds counts and
SHA-256. Preferences are constructed: there was no human feedback.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

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
from labs_lib.tasks.office_help.construction import (
    KINDS,
    NAME,
    PROBES,
    SEED,
    SPLITS,
    Corpus,
    Demonstration,
    Pair,
    Probe,
    Request,
    build_corpus,
    deck,
)
from labs_lib.tasks.office_help.rubric import CERTAIN, Parsed, parse_answer
from labs_lib.tasks.office_help.wording import ACTIONS, INSTRUCTION, answer_text

DATA_FOLDER = DATA / "office-help-prefs-v1"
# Each population has a visible file and a labels file.
POPULATIONS = (*(f"{split}.pairs" for split in SPLITS), "train.demonstrations", "train.rollouts", PROBES)
DESCRIPTION = (
    "A fictitious assistant is asked for one short computer-help step; `instruction` is the system message. A "
    "finite rubric generates preferences: success is the right action without unjustified certainty; courtesy "
    "costs and earns nothing and stands on both sides of the pairs equally often. Preferences are constructed, "
    "there was no human feedback. The six actions and the wording are shared across the splits, so the corpus "
    "does not measure generalisation to arbitrary office requests. The probes are never used to learn or select."
)


def corpus_files(seed: int = SEED) -> dict[str, bytes]:
    """File name -> bytes of the whole corpus, manifest last."""
    corpus = build_corpus(seed)
    items = {f"{split}.pairs": [pair for pair in corpus.pairs if pair.request.split == split] for split in SPLITS}
    items |= {"train.demonstrations": corpus.demonstrations, "train.rollouts": corpus.rollouts, PROBES: corpus.probes}
    rows = {}
    for population in POPULATIONS:
        rows[f"{population}.visible.jsonl"] = [_visible_row(_request(item)) for item in items[population]]
        rows[f"{population}.labels.jsonl"] = [_label_row(item) for item in items[population]]
    prompts = {_request(item).prompt for population in items if population != PROBES for item in items[population]}
    description = {
        "name": NAME,
        "description": DESCRIPTION,
        "seed": seed,
        "instruction": INSTRUCTION,
        "families": {split: count * len(ACTIONS) for split, count in SPLITS.items()},
        "distinct_prompts": len(prompts),
        "pair_kinds": [kind.name for kind in KINDS],
    }
    return files_with_manifest(rows, description)


def _request(item: Pair | Demonstration | Probe | Request) -> Request:
    return item if isinstance(item, Request) else item.request


def _visible_row(request: Request) -> dict[str, Any]:
    return {"id": request.id, "family": request.family, "split": request.split, "prompt": request.prompt}


def _label_row(item: Pair | Demonstration | Probe | Request) -> dict[str, Any]:
    request = _request(item)
    own = [] if item is request else [field.name for field in fields(item) if field.name != "request"]
    return {"id": request.id, "action": request.action} | {name: getattr(item, name) for name in own}


def write_corpus(folder: Path | str = DATA_FOLDER, seed: int = SEED) -> None:
    """Write the corpus, manifest last, so that an interrupted run never looks whole."""
    write_files(folder, corpus_files(seed))


def load_requests(population: str, *, labels: bool, folder: Path | str = DATA_FOLDER) -> list[Request]:
    """The requests of one of `POPULATIONS`; the labels file is opened only when `labels` is true.

    Raises:
        CorpusError: unknown population, missing file, or a file whose hash is not the manifest's.
        LearningScopeError: a held-out file is asked for while a policy is being trained.
    """
    if labels:
        return [request for request, _ in _labelled(population, folder)]
    return [Request(**row) for row in _rows(population, "visible", folder)]


def load_pairs(split: str, *, folder: Path | str = DATA_FOLDER) -> list[Pair]:
    """The pairs of "train" (840), "validation" (180) or "test" (180); errors as in `load_requests`."""
    return [Pair(request, **label) for request, label in _labelled(f"{split}.pairs", folder)]


def load_demonstrations(*, folder: Path | str = DATA_FOLDER) -> list[Demonstration]:
    """The 168 demonstrations, one a training family; errors as in `load_requests`."""
    return [Demonstration(request, **label) for request, label in _labelled("train.demonstrations", folder)]


def load_rollout_requests(*, folder: Path | str = DATA_FOLDER) -> list[Request]:
    """The 672 rollout requests with their right actions; errors as in `load_requests`."""
    return load_requests("train.rollouts", labels=True, folder=folder)


def load_probes(*, folder: Path | str = DATA_FOLDER) -> list[Probe]:
    """The 80 probe rows, a context's four together: right plain, right courteous, wrong plain, wrong courteous."""
    return [Probe(request, **label) for request, label in _labelled(PROBES, folder)]


def load_corpus(*, folder: Path | str = DATA_FOLDER) -> Corpus:
    """Everything, held-out files included; errors as in `load_requests`."""
    return Corpus(
        pairs=[pair for split in SPLITS for pair in load_pairs(split, folder=folder)],
        demonstrations=load_demonstrations(folder=folder),
        rollouts=load_rollout_requests(folder=folder),
        probes=load_probes(folder=folder),
    )


def _labelled(population: str, folder: Path | str) -> list[tuple[Request, dict[str, Any]]]:
    """Each request with its action, and what its label holds besides."""
    rows = []
    for visible, label in zip(_rows(population, "visible", folder), _rows(population, "labels", folder), strict=True):
        rest = {name: value for name, value in label.items() if name not in ("id", "action")}
        rows.append((Request(**visible, action=label["action"]), rest))
    return rows


def _rows(population: str, part: str, folder: Path | str) -> list[dict[str, Any]]:
    if population not in POPULATIONS:
        raise CorpusError(f"unknown population {population!r}: choose one of {', '.join(POPULATIONS)}.")
    return verified_rows(Path(folder) / f"{population}.{part}.jsonl", load_manifest(folder))


def biased_pairs(pairs: Sequence[Pair], bias: str, share: float = 1.0, seed: int = SEED) -> list[Pair]:
    """Copies of `pairs` as an annotator with a bias would have left them, in the same order.

    Args:
        pairs: pairs of the corpus; they and the files never change.
        bias: "courtesy": a courtesy formula stands with the chosen answer and none with the rejected one, the rest
            is unchanged. "confidence": the right action with unjustified certainty is chosen over the right action
            in the manner of the answer chosen before; courtesies stay on the sides they stood on.
        share: the share of the pairs that are changed (rounded to whole pairs), which ones drawn by `seed`.

    Ids and kinds of the changed pairs get the suffix "+courtesy" or "+confidence".

    Raises:
        CorpusError: unknown bias, share outside 0..1, or an answer outside the rubric's grammar.
    """
    if bias not in _BIASES:
        raise CorpusError(f"unknown bias {bias!r}: choose one of {', '.join(_BIASES)}.")
    if not 0 <= share <= 1:
        raise CorpusError(f"the share of biased pairs must lie in 0..1, got {share!r}.")
    generator = named_stream(NAME, seed, f"bias/{bias}")
    changed = set(generator.sample(range(len(pairs)), round(share * len(pairs))))
    # Every pair draws, changed or not: a pair's variant does not depend on the share.
    return [
        _biased(pair, bias, draw) if index in changed else pair
        for index, (pair, draw) in enumerate(zip(pairs, deck(generator, (0, 1), len(pairs)), strict=True))
    ]


def _biased(pair: Pair, bias: str, draw: int) -> Pair:
    sides = parse_answer(pair.chosen), parse_answer(pair.rejected)
    if None in sides:
        raise CorpusError(f"pair {pair.request.id} has an answer outside the rubric's grammar: it cannot be biased.")
    chosen, rejected = (answer_text(**vars(side)) for side in _BIASES[bias](*sides, draw))
    request = replace(pair.request, id=f"{pair.request.id}+{bias}")
    return Pair(request, f"{pair.kind}+{bias}", chosen, rejected)


def _courtesy_bias(chosen: Parsed, rejected: Parsed, draw: int) -> tuple[Parsed, Parsed]:
    formula = draw if chosen.courtesy is None else chosen.courtesy
    return replace(chosen, courtesy=formula), replace(rejected, courtesy=None)


def _confidence_bias(chosen: Parsed, rejected: Parsed, draw: int) -> tuple[Parsed, Parsed]:
    return replace(chosen, manner=CERTAIN, variant=draw), replace(chosen, courtesy=rejected.courtesy)


_BIASES = {"courtesy": _courtesy_bias, "confidence": _confidence_bias}
