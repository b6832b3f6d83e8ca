"""`make data`: write the generated corpora again; the bytes must not change."""

from labs_lib.tasks.office_help import corpus as office
from labs_lib.tasks.office_help.audit import audit_corpus, count_courtesies, refuse_differences
from labs_lib.tasks.stock_arithmetic import corpus as stock
from labs_lib.tools.command_line import command_line


def main() -> int:
    """Write every corpus of the course and say what is in it; a corpus that fails its audit is an error."""
    stock.write_corpus()
    print(f"{stock.NAME}: {len(stock.build_corpus())} problems, seed {stock.SEED}, in data/{stock.DATA_FOLDER.name}/")
    office.write_corpus()
    corpus = office.load_corpus()
    checks = audit_corpus(corpus)
    refuse_differences(checks)
    courteous = {side: sum(counts.values()) for side, counts in count_courtesies(corpus.pairs).items()}
    print(
        f"{office.NAME}: {len(corpus.pairs)} pairs, {len(corpus.demonstrations)} demonstrations, "
        f"{len(corpus.rollouts)} rollout prompts, {len(corpus.probes)} probe rows, seed {office.SEED}, "
        f"in data/{office.DATA_FOLDER.name}/; courteous: {courteous['chosen']} chosen and {courteous['rejected']} "
        f"rejected answers; all {len(checks)} checks hold"
    )
    return 0


if __name__ == "__main__":
    command_line(main)
