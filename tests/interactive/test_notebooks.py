"""The committed labs hold the static figure where a student has sliders, and nothing of a widget."""

import base64
import re

import pytest

from labs_lib.paths import FIGURES, NOTEBOOKS
from labs_lib.tools.notebooks import code_cells, committed_problems, read_notebook

PLAYS = {
    "02_group_advantages": ["02-play-group", "02-play-clip-and-kl"],
    "05_ppo_gae": ["05-play-gae"],
    "06_bias_bench": ["06-play-lengths"],
}
PLAYED = re.compile(r"^play\(", re.MULTILINE)
IMAGE = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")


@pytest.mark.parametrize("lab", PLAYS)
def test_the_static_figure_stands_in_for_the_sliders(lab):
    book = read_notebook(NOTEBOOKS / f"{lab}.ipynb")
    cells = [cell for cell in code_cells(book) if PLAYED.search(cell.source)]
    assert [cell.id for cell in cells] == PLAYS[lab]
    for cell in cells:
        (numbers, shown) = cell.outputs
        assert numbers.output_type == "stream" and numbers.text.strip()
        (image,) = IMAGE.findall(shown.data["text/html"])
        assert base64.b64decode(image) == (FIGURES / f"{cell.id}.png").read_bytes()
    assert not [problem for problem in committed_problems(book) if "widget" in problem]


def test_no_other_lab_plays():
    playing = [
        path.stem
        for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))
        if any("labs_lib.interactive" in cell.source for cell in code_cells(read_notebook(path)))
    ]
    assert playing == list(PLAYS)
