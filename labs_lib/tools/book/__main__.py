"""`make book`: the executed series as static HTML, for reading without Jupyter; nothing is executed."""

import argparse
from collections.abc import Sequence

from labs_lib.paths import ROOT, outputs_base
from labs_lib.tools.book.building import build_book
from labs_lib.tools.book.pages import CONTENTS
from labs_lib.tools.command_line import command_line
from labs_lib.tools.labs import LABS


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the book, check it, and say where it is."""
    argparse.ArgumentParser(prog="make book", description=__doc__).parse_args(arguments)
    folder = outputs_base() / "book"
    count = build_book(ROOT, folder, LABS)
    print(f"{count} pages, no broken link, every image described. Open {folder / CONTENTS} in a browser.")
    return 0


if __name__ == "__main__":
    command_line(main)
