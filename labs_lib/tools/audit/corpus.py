"""Checks of the corpus: its hashes, targets, populations and splits."""

from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.judging import final_stock
from labs_lib.tools.audit.reading import SPLITS, Evidence, read_json, sha256_file

SIZES = {("train", "ID50"): 1000, ("validation", "ID50"): 200, ("test", "ID50"): 100, ("test", "OOD100"): 100}
WARM_START = 128


def check_corpus(evidence: Evidence, findings: Findings) -> None:
    """Hashes against the manifest; targets from the structure; counts; no problem twice, not even permuted."""
    with findings.group("corpus", "files") as group:
        _check_files(evidence, group)
    with findings.group("corpus", "problems") as group:
        _check_problems(evidence, group)


def _check_files(evidence: Evidence, group: Group) -> None:
    manifest = read_json(evidence.data / "manifest.json", "run `make data`")
    names = {f"{split}.{part}.jsonl" for split in SPLITS for part in ("visible", "labels")}
    group.equal("manifest.json", "files", sorted(manifest["files"]), sorted(names))
    for name, entry in manifest["files"].items():
        group.equal(name, "SHA-256", sha256_file(evidence.data / name), entry["sha256"])
        group.count("hashes")


def _check_problems(evidence: Evidence, group: Group) -> None:
    counts: dict[tuple[str, str], int] = {}
    first: dict[tuple, str] = {}
    for split, rows in evidence.corpus.items():
        file = f"{split}.labels.jsonl"
        for row in rows:
            problem = row["problem"]
            group.equal(file, f"{row['id']} target", row["target"], f'{{"final_stock":{final_stock(problem)}}}')
            operands = [problem["initial"], *problem["deliveries"], *problem["withdrawals"]]
            population = "OOD100" if max(operands) > 50 else "ID50"
            group.equal(f"{split}.visible.jsonl", f"{row['id']} population", row["population"], population)
            group.equal(f"{split}.visible.jsonl", f"{row['id']} split", row["split"], split)
            key = (problem["initial"], *sorted(problem["deliveries"]), *sorted(problem["withdrawals"]))
            group.equal(file, f"{row['id']} is the same problem as", first.setdefault(key, row["id"]), row["id"])
            counts[split, population] = counts.get((split, population), 0) + 1
            group.count("problems")
    group.equal("the corpus", "problems by split and population", counts, SIZES)


def pool(evidence: Evidence, kind: str) -> list[str]:
    """The training problems that a kind of training may use: the first 128, or the others."""
    train = [row["id"] for row in evidence.corpus["train"]]
    return train[:WARM_START] if kind == "warmstart" else train[WARM_START:]
