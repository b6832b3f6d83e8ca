"""What the book consists of: a page for each lab, each solution and each Markdown file, in the repository's folders.

A page lies where its source lies, with another ending, so that links between sources stay what they are.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from labs_lib.tools.labs import Lab, is_solution

LABS_GROUP, SOLUTIONS_GROUP, TEXTS_GROUP = "Labs", "Solutions", "About the series"
CONTENTS = PurePosixPath("index.html")
README = PurePosixPath("README.md")


@dataclass(frozen=True)
class Page:
    """One page: its source, a path below the repository's root, and the group under which it is listed."""

    source: PurePosixPath
    group: str

    @property
    def target(self) -> PurePosixPath:
        """Path of the page below the book's folder."""
        return self.source.with_suffix(".html")


def all_pages(root: Path, labs: Iterable[Lab]) -> list[Page]:
    """The labs and their solutions in the order of the table, then notebooks/*.md, docs/*.md and README.md."""
    notebooks = [
        Page(PurePosixPath("notebooks", f"{lab.name}.ipynb"), SOLUTIONS_GROUP if is_solution(lab) else LABS_GROUP)
        for lab in labs
    ]
    found = [path for folder in ("notebooks", "docs") for path in sorted((root / folder).glob("*.md"))]
    texts = [PurePosixPath(path.relative_to(root).as_posix()) for path in found]
    texts += [README] if (root / README).exists() else []
    return [*notebooks, *(Page(source, TEXTS_GROUP) for source in texts)]
