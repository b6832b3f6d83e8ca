"""`make book`: the real series becomes a fit book; what links, figures and widgets become; what is refused."""

import pytest
from book_tree import FIGURE, FIRST, LABS, lab, output, write_tree
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.errors import LabError
from labs_lib.paths import NOTEBOOKS, OUTPUTS_VARIABLE, ROOT
from labs_lib.tools.book.__main__ import main
from labs_lib.tools.book.building import build_book
from labs_lib.tools.book.checks import read_pages
from labs_lib.tools.book.headings import introduction, mark_headings, slug
from labs_lib.tools.book.pages import CONTENTS, all_pages
from labs_lib.tools.labs import LABS as SERIES
from labs_lib.tools.notebooks import read_notebook


def soup(html):
    return BeautifulSoup(html, "html.parser")


# --- The series --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """The committed series as a book; building it runs every check of labs_lib.tools.book.checks."""
    folder = tmp_path_factory.mktemp("series") / "book"
    build_book(ROOT, folder, SERIES)
    return folder


def test_every_lab_and_every_solution_is_in_the_contents_with_its_sections(series):
    contents = soup((series / CONTENTS).read_text("utf-8"))
    links = {tag["href"] for tag in contents.find_all("a", href=True)}
    for item in SERIES:
        assert f"notebooks/{item.name}.html" in links
        assert any(link.startswith(f"notebooks/{item.name}.html#") for link in links), item.name
    assert len(contents.select(".lab .duration")) == sum(not item.name.startswith("solutions") for item in SERIES)


def test_every_figure_and_every_hint_of_the_series_is_in_the_book(series):
    pages = read_pages(series)
    for page in all_pages(ROOT, SERIES):
        if page.source.suffix == ".ipynb":
            cells = read_notebook(ROOT / page.source).cells
            shown = [entry for cell in cells for entry in cell.get("outputs", [])]
            figures = sum("<img" in entry.get("data", {}).get("text/html", "") for entry in shown)
            hints = sum(cell.source.count("<details") for cell in cells if cell.cell_type == "markdown")
            main_text = pages[page.target].find("main")
            assert len(main_text.find_all("img")) == figures, page.source
            assert len(main_text.select(".text details")) == hints, page.source


def test_formulas_of_the_series_are_mathml(series):
    formulas = [math for page in read_pages(series).values() for math in page.find_all("math")]
    assert len(formulas) > 100, "the series has more formulas: the conversion missed some"
    assert sum(math["display"] == "block" for math in formulas) > 10


# --- A small repository ------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path / "repository")


def built(tree):
    folder = tree.parent / "book"
    build_book(tree, folder, LABS)
    return read_pages(folder)


def page_of(pages, name):
    return next(page for path, page in pages.items() if path.name == name)


def test_links_lead_to_pages(tree):
    links = {tag.get_text(): tag["href"] for tag in page_of(built(tree), "01_first.html").select(".text a")}
    assert links["the second lab"] == "02_second.html#1--the-end"
    assert links["the solution"] == "solutions/01_solutions.html"
    assert links["a text"] == "../docs/glossary.html#the-kl"
    assert links["source"] == "../labs_lib/code.py.html"
    assert links["figure"] == "../figures/a.png"
    assert links["here"] == "#1-the-start"
    assert links["the paper"] == "https://example.org/paper"
    assert "data" not in links, "a link to a folder is plain text"


def test_what_is_linked_is_there(tree):
    pages = built(tree)
    assert "def reward():" in page_of(pages, "code.py.html").get_text()
    assert (tree.parent / "book" / "figures" / "a.png").read_bytes() == (tree / "figures" / "a.png").read_bytes()


def test_pages_follow_each_other_within_their_group(tree):
    pages = built(tree)
    ways = {
        name: [tag.get("href") for tag in page_of(pages, name).select_one(".pager").find_all("a")]
        for name in ("01_first.html", "02_second.html", "01_solutions.html")
    }
    assert ways["01_first.html"] == ["../index.html", "02_second.html"]
    assert ways["02_second.html"] == ["01_first.html", "../index.html"]
    assert ways["01_solutions.html"] == ["../../index.html"]


def test_contents_say_what_a_lab_asks_and_how_long_it_takes(tree):
    cards = [card.get_text("\n", strip=True) for card in page_of(built(tree), "index.html").select(".lab")]
    assert "What is a reward?" in cards[0] and "About 2.5 minutes and 0.6 GB on two cores\n" in cards[0]
    assert "Why?" in cards[1] and "About 9 minutes\n" in cards[1]
    assert "1. The start" in cards[0]


def test_a_hint_holds_its_text_and_nothing_after_it(tree):
    hint = page_of(built(tree), "01_first.html").select_one(".text details")
    assert hint.find("summary").get_text() == "Hint" and hint.find("code").get_text() == "two"
    assert not hint.select(".cell")


def test_a_new_build_replaces_the_old_one(tree):
    build_book(tree, tree.parent / "book", LABS)
    (tree.parent / "book" / "gone.html").write_text("<p>of an earlier lab</p>")
    assert all(path.name != "gone.html" for path in built(tree))


def test_markdown_outputs_are_rendered(tmp_path):
    text = output(markdown="| a |\n|---:|\n| $x_1$ |", plain="<Markdown object>")
    page = page_of(built(write_tree(tmp_path / "r", lab(FIRST, [text]))), "01_first.html")
    assert page.select_one(".outputs td math") and "Markdown object" not in page.get_text()


def test_text_of_outputs_is_no_html(tmp_path):
    page = page_of(built(write_tree(tmp_path / "r", lab(FIRST, [output(plain="<b>$x$</b> \\alpha")]))), "01_first.html")
    assert page.select_one(".outputs pre").get_text() == "<b>$x$</b> \\alpha"


# --- What is refused ---------------------------------------------------------------------------------


def not_executed():
    book = lab(FIRST)
    book.cells[2].execution_count = None
    return book


REFUSED = {
    "without outputs": (not_executed, "01_first.ipynb cannot go into the book: .* `make refresh`"),
    "widget": (lambda: lab(FIRST, [output(widget={"model_id": "1"}, plain="a")]), "it shows a widget"),
    "widget beside a figure": (lambda: lab(FIRST, [output(widget={"model_id": "1"}, html=FIGURE)]), "shows a widget"),
    "no alt text": (lambda: lab(FIRST, [output(html="<img src='data:image/png;base64,x'>")]), "without alt text"),
    "no alt text in Markdown": (lambda: lab(FIRST + "\n![](../figures/a.png)"), "has no alt text"),
    "script": (lambda: lab(FIRST, [output(html="<script>1</script>")]), "has a script"),
    "loaded image": (lambda: lab(FIRST + "\n![A plot](https://example.org/a.png)"), "loaded from elsewhere"),
    "broken link": (lambda: lab(FIRST + "\n[x](03_third.ipynb)"), "03_third.ipynb leads nowhere"),
    "link out of the repository": (lambda: lab(FIRST + "\n[x](../../book/x)"), "leads nowhere"),
    "broken anchor": (lambda: lab(FIRST + "\n[x](02_second.ipynb#other)"), "#other names a section that is not there"),
    "formula": (lambda: lab(FIRST + "\n$\\unknown{x}$"), "01_first.ipynb: The formula .* cannot be converted"),
    "formula across a list": (lambda: lab(FIRST + "\n$x\n+ \\beta$"), "is not converted"),
    "no title": (lambda: lab(FIRST.replace("# 01", "01", 1)), "has no title"),
    "no question": (lambda: lab(FIRST.replace("Question", "Aim")), "lacks a paragraph"),
    "no minutes": (lambda: lab(FIRST.replace("minutes", "apples")), "lacks the minutes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_unfit_source_is_refused_in_a_sentence_and_the_old_book_stays(tmp_path, case):
    make, message = REFUSED[case]
    folder = tmp_path / "book"
    folder.mkdir()
    (folder / "index.html").write_text("the old book")
    with pytest.raises(LabError, match=message) as refusal:
        build_book(write_tree(tmp_path / "r", make()), folder, LABS)
    assert "\n" not in str(refusal.value)
    assert (folder / "index.html").read_text() == "the old book"
    assert not list(tmp_path.glob(".partial-*"))


def test_a_missing_lab_is_named(tree):
    (tree / "notebooks" / "02_second.ipynb").unlink()
    with pytest.raises(LabError, match=r"02_second\.ipynb is missing"):
        built(tree)


def test_a_text_that_is_no_text_is_named(tree):
    (tree / "docs" / "glossary.md").write_bytes(b"\xff\xfe")
    with pytest.raises(LabError, match=r"glossary\.md cannot be read"):
        built(tree)


def test_the_command_says_where_the_book_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    monkeypatch.setattr("labs_lib.tools.book.__main__.ROOT", write_tree(tmp_path / "r"))
    monkeypatch.setattr("labs_lib.tools.book.__main__.LABS", LABS)
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("5 pages") and (tmp_path / "book" / "index.html").exists()


# --- Headings ----------------------------------------------------------------------------------------


def test_anchors_are_those_of_github_and_of_jupyterlab():
    assert slug("1. From text to log-probabilities") == "1-from-text-to-log-probabilities"
    for github, jupyterlab in [("1--the-start", "1-·-The-start"), ("2-old_logprobs", "2.-old_logprobs")]:
        assert slug(jupyterlab) == github == slug(github)


@given(st.lists(st.text(alphabet="ab 1.·-_$", max_size=6), max_size=12))
def test_every_heading_has_an_anchor_of_its_own(titles):
    page = soup("".join(f"<h2>{title}</h2>" for title in titles) + '<p id="a"></p>')
    sections = mark_headings(page)
    anchors = [section.anchor for section in sections]
    assert len(anchors) == len(set(anchors)) == len(titles) and "a" not in anchors
    assert [page.find(id=anchor).name for anchor in anchors] == ["h2"] * len(titles)


def test_what_stands_after_the_first_section_is_no_introduction():
    with pytest.raises(LabError, match="lacks"):
        introduction(soup("<h1>A</h1><h2>B</h2><p>Question: why?</p><p>9 minutes</p>"), "x")


def test_the_labs_of_the_table_are_those_of_the_folder():
    sources = {page.source.as_posix() for page in all_pages(ROOT, SERIES)}
    assert {f"notebooks/{path.name}" for path in NOTEBOOKS.glob("[0-9]*.ipynb")} <= sources
    assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md")} <= sources
