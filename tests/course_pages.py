"""What the pages beside the labs promise: symbols, names in code, links. Pure functions on their Markdown."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from labs_lib.errors import LabError
from labs_lib.paths import ROOT
from labs_lib.tools.notebooks import read_notebook

LIBRARY = ROOT / "labs_lib"
CODE_COLUMN = "in code"
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$", re.DOTALL)
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_WORDS = re.compile(r"\\(?:text|mathrm|operatorname)\s*\{[^}]*\}|\\rm\s+[a-z]+")
_ATOM = re.compile(r"\\[A-Za-z]+|[A-Za-z]+")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
# Typesetting, operators and functions that no reader looks up.
_NO_SYMBOL = {
    *(r"\bigl", r"\bigr", r"\Bigl", r"\Bigr", r"\qquad", r"\quad", r"\mid", r"\vert", r"\Vert", r"\dots", r"\cdot"),
    *(r"\exp", r"\ln", r"\log", r"\max", r"\min", r"\sqrt", r"\sum", r"\frac", r"\tfrac"),
    *(r"\mathcal", r"\rm", r"\text"),
}


def without_code(markdown: str) -> str:
    """Markdown without its code, where a dollar sign or a bracket means something else."""
    return _CODE.sub("", markdown)


def symbols(markdown: str) -> set[str]:
    """The letters and Greek names in the formulas of a text; words of three letters and more are no symbols."""
    found = set()
    for formula in _FORMULA.finditer(without_code(markdown)):
        for atom in _ATOM.findall(_WORDS.sub(" ", formula[1] or formula[2])):
            if atom.startswith("\\"):
                found.add(atom)
            elif len(atom) <= 2:
                found.update(atom)
    return found - _NO_SYMBOL


def tables(markdown: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """(head, rows) of every pipe table."""
    lines: list[str] = []
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|"):
            lines.append(line)
        elif lines:
            head, _, *rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in lines)
            yield head, rows
            lines = []


def defined(glossary: str) -> set[str]:
    """The symbols that the first column of a table of the glossary explains."""
    return symbols("\n".join(row[0] for _, rows in tables(glossary) for row in rows))


def names_in_code(glossary: str) -> list[str]:
    """The dotted names, below labs_lib, in the columns that give a name in code."""
    cells = []
    for head, rows in tables(glossary):
        place = next((i for i, title in enumerate(head) if title.startswith(CODE_COLUMN)), None)
        cells += [row[place] for row in rows if place is not None]
    return re.findall(r"`([^`]+)`", " ".join(cells))


def resolve(name: str) -> None:
    """Raise LabError unless labs_lib defines this module, function, class, constant or field; nothing is imported."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        place = Path(LIBRARY, *parts[:end])
        file = place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__init__.py"
        if file.exists():
            break
    else:
        raise LabError(f"{name}: there is no such module in labs_lib.")
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for part in parts[end:]:
        found = next((node for node in body if part in _names(node)), None)
        if found is None:
            raise LabError(f"{name}: there is no {part}.")
        body = getattr(found, "body", [])


def _names(node: ast.stmt) -> list[str]:
    """What a statement defines in its module or class."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def exercise_minutes(markdown: str) -> list[int]:
    """Minutes of every exercise of a lab, from its heading or the line below it."""
    found = []
    for title, text in re.findall(r"^### (Exercise \S+)(.*(?:\n.*)?)", markdown, re.MULTILINE):
        mark = re.search(r"★\D*?(\d+) minutes", text)
        if mark is None:
            raise LabError(f"{title} has no difficulty mark with minutes.")
        found.append(int(mark[1]))
    return found


@cache
def _headings(path: Path) -> frozenset[str]:
    """Fragments of the headings of a page or notebook, spelled as JupyterLab and nbconvert do."""
    cells = read_notebook(path).cells if path.suffix == ".ipynb" else []
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"] or [path.read_text(encoding="utf-8")]
    titles = re.findall(r"^#+ +(.+?) *$", "\n".join(re.sub(r"```.*?```", "", t, flags=re.DOTALL) for t in texts), re.M)
    return frozenset(title.replace(" ", "-") for title in titles)


def links(markdown: str) -> list[str]:
    """Targets of the links of a text, those to other sites left out."""
    return [target for target in _LINK.findall(_CODE.sub("`", markdown)) if "://" not in target]


def broken_links(page: Path, targets: Iterable[str]) -> list[str]:
    """Those targets, relative to the folder of `page`, whose file or heading does not exist."""
    broken = []
    for target in targets:
        name, _, fragment = unquote(target).partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (fragment and fragment not in _headings(path)):
            broken.append(target)
    return broken
