"""Every check of a written book accepts a fit one and names what is wrong with one that is not."""

from pathlib import PurePosixPath

import pytest

from labs_lib.tools.book.checks import book_problems

PAGES = {
    "index.html": '<a href="labs/a.html">A</a> <a href="b.html#end">B</a>',
    "labs/a.html": '<link rel="stylesheet" href="../style.css"><link rel="icon" href="data:,"><h1 id="a">A</h1>'
    '<p>Costs 3 $.</p><pre>$x$ \\alpha</pre><code>$PATH:$HOME</code><a href="#a">up</a><math><mi>x</mi></math>'
    '<a href="https://example.org">a paper</a><img src="data:image/png;base64,x" alt="A plot of x.">',
    "b.html": '<h2 id="end">End</h2><a href="labs/a.html?x=1#a">A</a><a name="x">no link</a>',
    "style.css": 'body { background: url("data:image/png;base64,x"); } /* url of nothing */',
}
EXPECTED = [PurePosixPath("labs/a.html"), PurePosixPath("b.html")]

BROKEN = {
    "a link to a missing page": ("b.html", '<a href="c.html">C</a>', "b.html: c.html leads nowhere"),
    "a link to a folder": ("b.html", '<a href="labs/">C</a>', "leads nowhere"),
    "a link out of the book": ("b.html", '<a href="../b.html">C</a>', "leads nowhere"),
    "a link to a missing section": ("b.html", '<a href="labs/a.html#z">C</a>', "a.html#z names a section"),
    "a link to a missing section of the page": ("b.html", '<a href="#z">C</a>', "#z names a section"),
    "a missing image": ("b.html", '<img src="x.png" alt="A plot of x.">', "x.png leads nowhere"),
    "a missing style sheet": ("b.html", '<link rel="stylesheet" href="x.css">', "x.css leads nowhere"),
    "an id that is there twice": ("b.html", '<p id="end"></p>', "'end' is there twice"),
    "an image without alt": ("b.html", '<img src="data:,">', "has no alt text"),
    "an image with an empty alt": ("b.html", '<img src="data:," alt=" ">', "has no alt text"),
    "a script": ("b.html", "<script>1</script>", "it has a script"),
    "a script from elsewhere": ("b.html", '<script src="https://x.org/a.js"></script>', "it has a script"),
    "a style sheet from elsewhere": ("b.html", '<link rel="stylesheet" href="//x.org/a.css">', "loaded from elsewhere"),
    "an image from elsewhere": ("b.html", '<img src="https://x.org/a.png" alt="A plot">', "loaded from elsewhere"),
    "a frame from elsewhere": ("b.html", '<iframe src="https://x.org"></iframe>', "loaded from elsewhere"),
    "a font in a style element": ("b.html", "<style>@font-face {src: url(//x.org/f)}</style>", "loaded from elsewhere"),
    "a background in an attribute": ("b.html", "<p style=\"background: url('//x.org/f')\">", "loaded from elsewhere"),
    "a font in a style sheet": (
        "style.css",
        "@font-face { src: url('https://x.org/f.woff'); }",
        "https://x.org/f.woff",
    ),
    "an import in a style sheet": ("style.css", '@import "https://x.org/a.css";', "https://x.org/a.css"),
    "a formula in prose": ("b.html", "<p>the ratio $x$ is</p>", "'$x$' is not converted"),
    "a formula over two elements": ("b.html", "<p>the <em>ratio $x</em> + 1$ is</p>", "is not converted"),
    "a formula in a cell": ("b.html", "<table><tr><td>$$x$$</td></tr></table>", "is not converted"),
    "a command in prose": ("b.html", "<li>and \\beta</li>", "'\\\\beta' is not converted"),
    "a command in a formula": ("b.html", "<math><mi>\\foo</mi></math>", "is not converted as a whole"),
}


def write_book(folder, extra=None):
    for name, text in PAGES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + (extra or {}).get(name, ""), encoding="utf-8")
    return folder


def test_a_fit_book_has_no_problem(tmp_path):
    assert book_problems(write_book(tmp_path), EXPECTED) == []


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_is_named(tmp_path, case):
    name, extra, message = BROKEN[case]
    problems = book_problems(write_book(tmp_path, {name: extra}), EXPECTED)
    assert len(problems) == 1 or case == "a style sheet from elsewhere", problems
    assert message in problems[0]


def test_a_page_that_was_not_written_is_named(tmp_path):
    problems = book_problems(write_book(tmp_path), [*EXPECTED, PurePosixPath("c.html")])
    assert problems == ["c.html is missing", "c.html is not in the table of contents"]


def test_a_page_that_the_contents_leave_out_is_named(tmp_path):
    write_book(tmp_path)
    (tmp_path / "index.html").write_text('<a href="b.html">B</a>')
    assert book_problems(tmp_path, EXPECTED) == ["labs/a.html is not in the table of contents"]


def test_a_book_without_contents_is_named(tmp_path):
    assert book_problems(tmp_path, EXPECTED[:1])[0] == "labs/a.html is missing"
