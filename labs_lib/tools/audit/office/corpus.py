"""OfficeHelpPrefs-v1 as its files say it: rows, the copies with a bias, and every count that it promises."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.office.rubric import Answer, judge, read
from labs_lib.tools.audit.reading import Evidence, read_json, read_lines, sha256_file

NAME, SEED = "OfficeHelpPrefs-v1", 49
FOLDER = "office-help-prefs-v1"
ROWS = {
    "train.pairs": 840,
    "validation.pairs": 180,
    "test.pairs": 180,
    "train.demonstrations": 168,
    "train.rollouts": 672,
    "probes": 80,
}
PARTS = ("visible", "labels")
FAMILIES = {"train": 168, "validation": 36, "test": 36}
ACTIONS = 6
# Kind of a pair -> the manners the chosen answer may have and its courtesy; right, manner and courtesy of the rejected.
KINDS = {
    "cautious-or-plain_vs_wrong-certain": (("cautious", "plain"), False, (False, "certain", False)),
    "plain_vs_wrong-courteous": (("plain",), False, (False, "plain", True)),
    "courteous_vs_wrong-plain": (("plain",), True, (False, "plain", False)),
    "cautious_vs_right-certain-courteous": (("cautious",), False, (True, "certain", True)),
    "courteous_vs_wrong-cautious": (("cautious",), True, (False, "cautious", False)),
}


@dataclass
class OfficeCorpus:
    """Population -> its rows, visible part and labels together."""

    folder: Path
    rows: dict[str, list[dict[str, Any]]]

    @cached_property
    def actions(self) -> dict[str, str]:
        """Id of a request -> its right action."""
        return {row["id"]: row["action"] for rows in self.rows.values() for row in rows}


def read_corpus(evidence: Evidence) -> OfficeCorpus:
    """Open the corpus; MissingEvidence when a file is not there."""
    folder = evidence.repository / "data" / FOLDER
    rows = {}
    for population in ROWS:
        visible, labels = (read_lines(folder / f"{population}.{part}.jsonl") for part in PARTS)
        rows[population] = [{**row, **label} for row, label in zip(visible, labels, strict=False)]
    return OfficeCorpus(folder, rows)


# --- Copies with a bias ------------------------------------------------------------------------------


def biased(pairs: list[dict[str, Any]], bias: str | None, share: float) -> list[dict[str, Any]]:
    """The pairs as an annotator with a bias would have left a share of them; `None` is the pairs as they are."""
    if bias is None:
        return pairs
    seed = sha256(f"{NAME}/{SEED}/bias/{bias}".encode()).digest()
    generator = random.Random(int.from_bytes(seed, "big"))
    changed = set(generator.sample(range(len(pairs)), round(share * len(pairs))))
    variants = [number % 2 for number in range(len(pairs))]
    generator.shuffle(variants)
    return [_BIASES[bias](pair, variants[number]) if number in changed else pair for number, pair in enumerate(pairs)]


def _courtesy(pair: dict[str, Any], variant: int) -> dict[str, Any]:
    chosen, rejected = read(pair["chosen"]), read(pair["rejected"])
    formula = variant if chosen.courtesy is None else chosen.courtesy
    return _copy(pair, "courtesy", chosen._replace(courtesy=formula), rejected._replace(courtesy=None))


def _confidence(pair: dict[str, Any], variant: int) -> dict[str, Any]:
    chosen, rejected = read(pair["chosen"]), read(pair["rejected"])
    certain = chosen._replace(manner="certain", variant=variant)
    return _copy(pair, "confidence", certain, chosen._replace(courtesy=rejected.courtesy))


def _copy(pair: dict[str, Any], bias: str, chosen: Answer, rejected: Answer) -> dict[str, Any]:
    named = {key: f"{pair[key]}+{bias}" for key in ("id", "kind")}
    return {**pair, **named, "chosen": chosen.text, "rejected": rejected.text}


_BIASES: dict[str, Callable] = {"courtesy": _courtesy, "confidence": _confidence}


# --- Checks ------------------------------------------------------------------------------------------


def check_office_corpus(corpus: OfficeCorpus, findings: Findings) -> None:
    """Hashes against the manifest; counts; families and prompts; every answer by the rubric; courtesy on both sides."""
    checks = (
        ("files", _check_files),
        ("families and prompts", _check_families),
        ("pairs and demonstrations", _check_pairs),
        ("probes", _check_probes),
    )
    for title, check in checks:
        with findings.group(FOLDER, title) as group:
            check(corpus, group)


def _check_files(corpus: OfficeCorpus, group: Group) -> None:
    manifest = read_json(corpus.folder / "manifest.json", "run `make data`")
    names = sorted(f"{population}.{part}.jsonl" for population in ROWS for part in PARTS)
    group.equal("manifest.json", "files", sorted(manifest["files"]), names)
    for name, entry in manifest["files"].items():
        group.equal(name, "SHA-256", sha256_file(corpus.folder / name), entry["sha256"])
        group.count("hashes")
    group.equal("manifest.json", "seed", manifest["seed"], SEED)
    for population, count in ROWS.items():
        visible, labels = (read_lines(corpus.folder / f"{population}.{part}.jsonl") for part in PARTS)
        ids = [[row["id"] for row in rows] for rows in (visible, labels)]
        group.equal(population, "ids of labels", ids[1], ids[0])
        group.equal(population, "rows", len(visible), count)
        group.count("rows", len(visible))


def _check_families(corpus: OfficeCorpus, group: Group) -> None:
    """28/6/6 families of each action, none in two splits; 2,040 different prompts, none of them a probe's."""
    place = "the corpus"
    rows = [row for name, members in corpus.rows.items() if name != "probes" for row in members]
    families: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        families.setdefault(row["family"], set()).add((row["split"], row["action"]))
    for name, found in families.items():
        group.equal(place, f"{name} split and action", len(found), 1)
    counts = Counter(entry for found in families.values() for entry in found)
    for split, wanted in FAMILIES.items():
        by_action = [number for (where, _), number in counts.items() if where == split]
        group.equal(place, f"families of {split} by action", by_action, [wanted // ACTIONS] * ACTIONS)
    for name in corpus.rows:
        splits = {row["split"] for row in corpus.rows[name]}
        group.equal(name, "split", sorted(splits), [name.partition(".")[0]])
    for name, each in (("train.demonstrations", 1), ("train.rollouts", 4)):
        group.equal(name, "rows a family", _each(corpus.rows[name]), [each])
    prompts = {row["prompt"] for row in rows}
    group.equal(place, "distinct prompts", len(prompts), len(rows))
    group.equal(place, "distinct ids", len({row["id"] for row in rows}), len(rows))
    asked = sorted(prompts & {row["prompt"] for row in corpus.rows["probes"]})
    group.equal(place, "prompts that are a probe's too", asked, [])
    group.count("families", len(families))
    group.count("prompts", len(prompts))


def _each(rows: Iterable[dict[str, Any]]) -> list[int]:
    return sorted(set(Counter(row["family"] for row in rows).values()))


def _check_pairs(corpus: OfficeCorpus, group: Group) -> None:
    courteous = Counter()
    for name in (name for name in corpus.rows if name.endswith(".pairs")):
        kinds: dict[str, list[str]] = {}
        for pair in corpus.rows[name]:
            file = f"{name}.labels.jsonl"
            _check_sides(file, pair, group)
            kinds.setdefault(pair["family"], []).append(pair["kind"])
            for side in ("chosen", "rejected"):
                courteous[side] += read(pair[side]).courtesy is not None
            group.count("pairs")
        for family, found in kinds.items():
            group.equal(name, f"{family} kinds", sorted(found), sorted(KINDS))
    group.equal("the corpus", "courteous answers, rejected", courteous["rejected"], courteous["chosen"])
    group.count("courteous answers on each side", courteous["chosen"])
    for row in corpus.rows["train.demonstrations"]:
        reason = judge(row["answer"], "eos", row["action"], True)["reason"]
        group.equal("train.demonstrations.labels.jsonl", f"{row['id']} by the rubric", reason, "success")
        group.count("demonstrations")


def _check_sides(file: str, pair: dict[str, Any], group: Group) -> None:
    """The chosen answer passes the rubric, the rejected one fails it for what it says, both as their kind has it."""
    chosen, rejected = (judge(pair[side], "eos", pair["action"], True) for side in ("chosen", "rejected"))
    place = pair["id"]
    group.equal(file, f"{place} chosen by the rubric", chosen["reason"], "success")
    fails = rejected["recognised"] and not rejected["success"]
    group.require(file, f"{place} rejected by the rubric", fails, rejected["reason"], "recognised and no success")
    manners, courteous, other = KINDS[pair["kind"]]
    one, two = read(pair["chosen"]), read(pair["rejected"])
    group.require(file, f"{place} chosen manner", one.manner in manners, one.manner, " or ".join(manners))
    group.equal(file, f"{place} chosen courtesy", one.courtesy is not None, courteous)
    shape = (two.action == pair["action"], two.manner, two.courtesy is not None)
    group.equal(file, f"{place} rejected: right, manner, courtesy", shape, other)


def _check_probes(corpus: OfficeCorpus, group: Group) -> None:
    """Four rows over each of 20 prompts: right or wrong, plain or courteous, all else the same."""
    file = "probes.labels.jsonl"
    squares: dict[str, list[dict[str, Any]]] = {}
    for row in corpus.rows["probes"]:
        squares.setdefault(row["id"], []).append(row)
        answer = read(row["answer"])
        says = (answer.action == row["action"], answer.courtesy is not None)
        group.equal(file, f"{row['id']} right, courteous", (row["right"], row["courteous"]), says)
    wanted = [(False, False), (False, True), (True, False), (True, True)]
    for name, rows in squares.items():
        group.equal(file, f"{name} rows", sorted((row["right"], row["courteous"]) for row in rows), wanted)
        group.equal(file, f"{name} prompts", len({row["prompt"] for row in rows}), 1)
        forms = {(read(row["answer"]).manner, read(row["answer"]).variant) for row in rows}
        group.equal(file, f"{name} manners", len(forms), 1)
    group.equal(file, "prompts", len({row["prompt"] for row in corpus.rows["probes"]}), 20)
    group.count("contexts", len(squares))
    group.count("rows", len(corpus.rows["probes"]))
