"""What is wrong with a lab as a page shows it: judged on plain data, so that each fault is tested without a page."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

from labs_lib.tools.notebooks import SHORTEST_ALT, code_cells

COUNT = re.compile(r"\[(\d+)\]:")
LIVE_FRAME = re.compile(r"(\d+)% \|[█░]+\| \d+/\d+ \[\d\d:\d\d")
FRAME = re.compile(r"(\d+)% \|[█░]+\| \d+/\d+")
# JupyterLab shows an error's traceback under the same type as text on stderr.
STDERR = "application/vnd.jupyter.stderr"
TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Image:
    """An `img` of an output: its text, whether the browser has it, and its own size in pixels (0: broken)."""

    alt: str
    complete: bool
    width: int
    height: int


@dataclass(frozen=True)
class Cell:
    """One cell, from the top: `kind` is code or markdown, `prompt` what stands beside a code cell (`[3]:`).

    `outputs` are (MIME type, text) of each output; `bad_formulas` what MathJax says of formulas that it cannot
    set, `too_wide` the elements that are cut off at the right.
    """

    kind: str
    prompt: str = ""
    outputs: tuple[tuple[str, str], ...] = ()
    images: tuple[Image, ...] = ()
    bad_formulas: tuple[str, ...] = ()
    too_wide: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shown:
    """A page after a run. `frames` are the distinct moving frames of progress bars that were on it meanwhile."""

    cells: tuple[Cell, ...]
    frames: tuple[str, ...] = ()
    dialogs: tuple[str, ...] = ()
    script_errors: tuple[str, ...] = ()


def faults(shown: Shown, figures: int, live: bool) -> list[str]:
    """Everything that a student should not meet, each as a sentence; empty when the lab was shown as it should be.

    `figures` is how many it should show at least; `live` whether progress bars must have been seen to move.
    """
    found = list(_count_faults(shown.cells))
    for number, cell in enumerate(shown.cells):
        found += [f"cell {number}: {fault}" for fault in _cell_faults(cell)]
    seen = sum(len(cell.images) for cell in shown.cells)
    if seen < figures:
        found.append(f"it shows {seen} figures of {figures}")
    if live and not any(0 < int(LIVE_FRAME.search(frame)[1]) < 100 for frame in shown.frames):
        found.append("no progress bar was seen to move")
    found += [f"a dialog: {text}" for text in shown.dialogs]
    return found + [f"an error in the page's scripts: {text}" for text in shown.script_errors]


def _count_faults(cells: tuple[Cell, ...]) -> Iterator[str]:
    prompts = [(number, cell.prompt) for number, cell in enumerate(cells) if cell.kind == "code"]
    if not prompts:
        yield "it has no code cell"
    for expected, (number, prompt) in enumerate(prompts, start=1):
        count = COUNT.fullmatch(prompt)
        if not count:
            yield f"cell {number}: it was not executed, its prompt is {prompt}"
        elif int(count[1]) != expected:
            yield f"cell {number}: its count is {count[1]} and not {expected}"


def _cell_faults(cell: Cell) -> Iterator[str]:
    for kind, text in cell.outputs:
        if kind == STDERR and TRACEBACK in text:
            yield f"it failed: {text.strip().splitlines()[-1]}"
        elif kind == STDERR:
            yield f"it has text on stderr: {text.strip()[:200]}"
        for share in FRAME.findall(text):
            if int(share) < 100:
                yield f"a progress bar stopped at {share}%"
    for image in cell.images:
        if len(image.alt.strip()) < SHORTEST_ALT:
            yield f"a figure has no alt text that says what it shows, only {image.alt!r}"
        if not (image.complete and image.width and image.height):
            yield f"a figure does not load: {image.alt[:60]}"
    for problem in cell.bad_formulas:
        yield f"MathJax cannot set a formula: {problem}"
    for element in cell.too_wide:
        yield f"it does not fit into the window: {element}"


def committed_figures(notebook: NotebookNode) -> int:
    """How many figures the saved outputs of a notebook show."""
    outputs = (output for cell in code_cells(notebook) for output in cell.outputs)
    return sum(str(output.get("data", {}).get("text/html", "")).count("<img ") for output in outputs)
