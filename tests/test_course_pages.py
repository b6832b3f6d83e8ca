"""The pages beside the labs: glossary, map of the series, teacher notes, installation."""

import re

import pytest
from course_pages import broken_links, defined, exercise_minutes, links, names_in_code, resolve, symbols, tables

from labs_lib.errors import LabError
from labs_lib.paths import NOTEBOOKS, ROOT
from labs_lib.tools.labs import LABS, is_solution
from labs_lib.tools.notebooks import read_notebook
from labs_lib.tools.stubs import stubs

GLOSSARY = NOTEBOOKS / "glossary.md"
MAP = NOTEBOOKS / "series-map.md"
TEACHER = ROOT / "docs" / "teacher-notes.md"
INSTALL = ROOT / "docs" / "install.md"
PAGES = [GLOSSARY, MAP, TEACHER, INSTALL, ROOT / "README.md"]
LAB_FILES = [NOTEBOOKS / f"{lab.name}.ipynb" for lab in LABS if not is_solution(lab)]


def prose(path):
    """The Markdown of a page or of a notebook."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    return "\n\n".join(cell.source for cell in read_notebook(path).cells if cell.cell_type == "markdown")


# --- The glossary ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", LAB_FILES, ids=lambda path: path.stem)
def test_every_symbol_of_the_formulas_is_in_the_glossary(path):
    missing = symbols(prose(path)) - defined(prose(GLOSSARY))
    assert not missing, f"{path.stem} has formulas with {sorted(missing)}: add a row to notebooks/glossary.md"


def test_a_symbol_without_a_row_is_seen():
    glossary = prose(GLOSSARY)
    (row,) = (line for line in glossary.splitlines() if line.startswith(r"| $\rho_t$"))
    assert r"\rho" in defined(glossary) and r"\rho" not in defined(glossary.replace(row, ""))
    assert symbols(r"the price is $\rho_t \zeta$ and `$\xi$`") == {r"\rho", "t", r"\zeta"}


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"$\frac{1}{2}(V - \text{return})^2$", {"V"}),
        (r"$\pi_{\rm old}$", {r"\pi"}),
        ("$$\nA_i = \\min(x)\n$$", {"A", "i", "x"}),
        (r"$\epsilon_{low}$", {r"\epsilon"}),
        ("costs `5 $x$`", set()),
    ],
)
def test_symbols_of_a_formula(formula, expected):
    assert symbols(formula) == expected


def test_names_in_code_exist():
    names = names_in_code(prose(GLOSSARY))
    assert len(names) > 50, "the glossary's column of names in code was not found"
    for name in names:
        resolve(name)


@pytest.mark.parametrize(
    "name", ["kernels.surrogate.clip", "kernel.surrogate", "config.Grpo.kl_wait", "config.Grpo.kl_weight.x"]
)
def test_a_name_that_does_not_exist_is_seen(name):
    with pytest.raises(LabError, match="there is no"):
        resolve(name)


def test_rows_of_the_glossary_are_whole():
    for head, rows in tables(prose(GLOSSARY)):
        for row in rows:
            assert len(row) == len(head), f"a bar in a cell cuts the row of {row[0]}"
            assert row[0] and row[1], row


# --- Links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*PAGES, *LAB_FILES], ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    assert broken_links(path, links(prose(path))) == []


def test_a_broken_link_is_seen():
    text = "[a](02_group_advantages.ipynb#3.-Group-advantages) [b](nowhere.ipynb) [c](glossary.md#Nothing) `[d](x.md)`"
    assert broken_links(GLOSSARY, links(text)) == ["nowhere.ipynb", "glossary.md#Nothing"]
    assert links("[site](https://example.org/x)") == []


def test_the_pages_are_within_reach_of_a_student():
    for path in (NOTEBOOKS / "00_start_here.ipynb", ROOT / "README.md"):
        found = links(prose(path))
        for page in (GLOSSARY, MAP):
            assert any(target.endswith(page.name) for target in found), f"{path.name} does not lead to {page.name}"
    for page in (GLOSSARY, MAP):
        outside = [target for target in links(prose(page)) if target.startswith("..")]
        assert outside == [], "JupyterLab is opened on notebooks/: what lies above is out of its reach"


def test_the_map_names_every_lab():
    found = links(prose(MAP))
    for path in LAB_FILES:
        assert any(target.startswith(path.name) for target in found), f"the map does not lead to {path.name}"


# --- Numbers that the pages repeat -------------------------------------------------------------------


def column(path, title, heads):
    """{number of the lab: cell of the column `title`} of the table whose head has both `heads`."""
    (found,) = ((head, rows) for head, rows in tables(prose(path)) if {*heads, title} <= set(head))
    head, rows = found
    return {re.search(r"\d\d", row[0])[0]: row[head.index(title)] for row in rows}


def test_minutes_are_those_of_the_readme():
    measured = column(ROOT / "README.md", "minutes", {"lab", "peak memory"})
    assert column(MAP, "minutes of computing", {"lab"}) == measured
    assert dict(re.findall(r"lab (\d\d) (\d+\.\d)", prose(TEACHER))) == measured


def test_exercises_and_points_are_those_of_the_labs():
    for path in LAB_FILES[1:]:
        number, minutes = path.stem[:2], exercise_minutes(prose(path))
        worth = {stub.exercise: stub.stars for stub in stubs(read_notebook(path), path.stem)}  # as `make grade` reads
        assert column(TEACHER, "points", {"lab", "exercises"})[number] == str(sum(worth.values()))
        assert column(TEACHER, "exercises", {"lab", "points"})[number] == str(len(worth))
        assert column(MAP, "exercises", {"lab"})[number] == f"{len(minutes)}, {sum(minutes)} minutes"
        assert len(minutes) == len(worth)


def test_minutes_of_exercises_are_read_in_every_spelling():
    text = "### Exercise 1 · ★★ · 12 minutes\n\n### Exercise 2 · Name (★, 5 minutes)\n\n"
    assert exercise_minutes(text + "### Exercise 2.3: a\n*Difficulty ★★★, 15 minutes.*") == [12, 5, 15]
    with pytest.raises(LabError, match="Exercise 4"):
        exercise_minutes("### Exercise 4 · no mark")
