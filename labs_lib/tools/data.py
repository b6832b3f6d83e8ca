"""`make data`: write the generated corpora again; the bytes must not change."""

from labs_lib.tasks.stock_arithmetic.corpus import DATA_FOLDER, NAME, SEED, build_corpus, write_corpus
from labs_lib.tools.command_line import command_line


def main() -> int:
    """Write every corpus of the course."""
    write_corpus()
    print(f"{NAME}: {len(build_corpus())} problems, seed {SEED}, in data/{DATA_FOLDER.name}/")
    return 0


if __name__ == "__main__":
    command_line(main)
