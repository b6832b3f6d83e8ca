"""Write the book: every page, the table of contents, the style sheet, and the files to which pages link."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from bs4 import BeautifulSoup
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

from labs_lib.errors import LabError
from labs_lib.storage import PARTIAL_PREFIX, storage_errors
from labs_lib.tools.book.checks import book_problems
from labs_lib.tools.book.headings import Introduction, Section, introduction, mark_headings, title_of
from labs_lib.tools.book.links import Rewriter, file_target, relative
from labs_lib.tools.book.pages import CONTENTS, LABS_GROUP, README, Page, all_pages
from labs_lib.tools.book.rendering import TEMPLATES, body_html
from labs_lib.tools.labs import Lab
from labs_lib.tools.locks import exclusive

STYLE = PurePosixPath("style.css")
README_TITLE = "The repository: commands, profiles, layout"  # its own title is that of the whole book
LIGHT_CODE, DARK_CODE = "default", "github-dark"
_SHOWN_PROBLEMS = 5


@dataclass(frozen=True)
class Document:
    """A page with what it holds; `introduction` is there for labs only."""

    page: Page
    soup: BeautifulSoup
    sections: list[Section]
    title: str
    introduction: Introduction | None


def build_book(root: Path, folder: Path, labs: Iterable[Lab]) -> int:
    """Write the book of the repository `root` to `folder`, replacing an earlier one; returns the number of pages.

    Raises LabError, and leaves an earlier book as it was, when a source is unfit or the book would be: a link that
    leads nowhere, an image without alt text, a formula that did not convert.
    """
    pages = all_pages(root, labs)
    documents = [_read(root, page) for page in pages]
    rewriter = Rewriter(
        root,
        {page.source: page.target for page in pages},
        {document.page.source: {tag["id"] for tag in document.soup.find_all(id=True)} for document in documents},
    )
    for document in documents:
        rewriter.rewrite(document.soup, document.page.source)
    partial = folder.with_name(PARTIAL_PREFIX + folder.name)
    with exclusive(folder), storage_errors(folder):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _write(partial, root, documents, rewriter.files)
            _refuse_problems(book_problems(partial, [page.target for page in pages]))
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return len(pages)


def _read(root: Path, page: Page) -> Document:
    soup = BeautifulSoup(body_html(root / page.source), "html.parser")
    intro = introduction(soup, str(page.source)) if page.group == LABS_GROUP else None
    sections = mark_headings(soup)
    title = README_TITLE if page.source == README else title_of(sections, str(page.source))
    return Document(page, soup, sections, title, intro)


def _refuse_problems(problems: list[str]) -> None:
    if problems:
        more = [f"{len(problems) - _SHOWN_PROBLEMS} more"] if len(problems) > _SHOWN_PROBLEMS else []
        raise LabError(f"The book is not written: {'; '.join([*problems[:_SHOWN_PROBLEMS], *more])}.")


# --- Files -------------------------------------------------------------------------------------------


def _write(folder: Path, root: Path, documents: Sequence[Document], files: Iterable[PurePosixPath]) -> None:
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    _write_text(folder / STYLE, (TEMPLATES / "book.css").read_text("utf-8") + _code_colours())
    context = _site(documents, CONTENTS)
    _write_text(folder / CONTENTS, templates.get_template("contents.html.j2").render(context))
    for document in documents:
        _write_text(
            folder / document.page.target, templates.get_template("page.html.j2").render(_context(document, documents))
        )
    for path in files:
        target = file_target(root, path)
        if target == path:
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / path, folder / target)
        else:
            text = {"title": path.as_posix(), "body": _highlighted(root / path), "sections": []}
            page = _site(documents, target) | text | {"previous": None, "next": None}
            _write_text(folder / target, templates.get_template("page.html.j2").render(page))


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _highlighted(path: Path) -> Markup:
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    code = highlight(path.read_text("utf-8"), lexer, HtmlFormatter(cssclass="highlight"))
    return Markup("<h1>{}</h1>\n").format(path.name) + Markup(code)


def _code_colours() -> str:
    """Rules for highlighted code: one set of colours, and another where the reader prefers dark pages."""
    light, dark = (HtmlFormatter(style=style).get_style_defs(".highlight") for style in (LIGHT_CODE, DARK_CODE))
    return f"\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


# --- What the templates get --------------------------------------------------------------------------


def _site(documents: Sequence[Document], target: PurePosixPath) -> dict[str, Any]:
    """What every page needs, with URLs as the page `target` writes them: the pages by group, in order."""
    groups = [
        (name, [_entry(document, target) for document in members])
        for name, members in groupby(documents, key=lambda document: document.page.group)
    ]
    return {"groups": groups, "contents": relative(CONTENTS, target), "style": relative(STYLE, target)}


def _entry(document: Document, target: PurePosixPath) -> dict[str, Any]:
    return {
        "title": document.title,
        "url": relative(document.page.target, target),
        "current": document.page.target == target,
        "introduction": document.introduction,
        "sections": _listed(document),
    }


def _listed(document: Document) -> list[Section]:
    return [section for section in document.sections if section.level in (2, 3)]


def _context(document: Document, documents: Sequence[Document]) -> dict[str, Any]:
    """One page; the ones before and after it are those of its group."""
    target = document.page.target
    group = [other for other in documents if other.page.group == document.page.group]
    place = group.index(document)
    before, after = group[:place][-1:], group[place + 1 :][:1]
    return _site(documents, target) | {
        "title": document.title,
        "body": Markup(str(document.soup)),
        "sections": _listed(document),
        "previous": _entry(before[0], target) if before else None,
        "next": _entry(after[0], target) if after else None,
    }
