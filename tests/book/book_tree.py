"""A small repository of which a book can be made: two labs, a solution, a text, and what they link to."""

from pathlib import Path

import nbformat
from notebook_files import notebook, write

from labs_lib.tools.labs import Lab
from labs_lib.tools.notebooks import code_cells

LABS = (Lab("01_first"), Lab("02_second"), Lab("solutions/01_solutions"))
FIGURE = '<img src="data:image/png;base64,iVBORw0KGgo=" alt="Four bars, of which the first is the tallest.">'
FIRST = """# 01 · First

**Question:** what is
a reward?

About 2.5 minutes and 0.6 GB on two cores (`make report` shows yours).

## 1. The start

$\\frac{1}{2} \\log p$, see [the second lab](02_second.ipynb#1-·-The-end), [the solution](solutions/01_solutions.ipynb),
[a text](../docs/glossary.md#the-kl), [source](../labs_lib/code.py), [figure](../figures/a.png), [data](../data),
[here](#1.-The-start) and [the paper](https://example.org/paper).

<details><summary>Hint</summary>

Divide by `two`.
</details>
"""
SECOND = (
    "# 02 · Second\n\n| | |\n|---|---|\n| Time | about 9 minutes; seconds |\n\n**Question: why?**\n\n## 1 · The end\n"
)
GLOSSARY = """# Glossary

## The *KL*

See [lab 1](../notebooks/01_first.ipynb#1-the-start).

![A plot](../figures/a.png)
"""


def lab(markdown: str, outputs: list | None = None):
    """An executed notebook with this text at its head."""
    book = notebook("print('x')")
    book.cells[0].source = markdown
    for count, cell in enumerate(code_cells(book), start=1):
        cell.execution_count = count
    code_cells(book)[1].outputs = outputs if outputs is not None else [output(html=FIGURE, plain="Figure")]
    return book


def output(**data):
    kinds = {"html": "text/html", "plain": "text/plain", "markdown": "text/markdown"}
    kinds["widget"] = "application/vnd.jupyter.widget-view+json"
    return nbformat.v4.new_output("display_data", data={kinds[kind]: value for kind, value in data.items()})


def write_tree(root: Path, first=None) -> Path:
    """The repository below `root`; `first` takes the place of the first lab."""
    write(root / "notebooks" / "01_first.ipynb", first or lab(FIRST))
    write(root / "notebooks" / "02_second.ipynb", lab(SECOND))
    write(root / "notebooks" / "solutions" / "01_solutions.ipynb", lab("# 01 · Solutions\n\n[Back](../01_first.ipynb)"))
    texts = {"docs/glossary.md": GLOSSARY, "labs_lib/code.py": "def reward():\n    return 1\n", "data/x.txt": "x"}
    for name, text in {**texts, "README.md": "# A series\n\nText.\n"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root / "figures").mkdir()
    (root / "figures" / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return root
