"""What is wrong with a book that has been written: read from its files alone, each problem a sentence."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup, NavigableString

from labs_lib.tools.book.links import is_elsewhere, path_of
from labs_lib.tools.book.pages import CONTENTS

Pages = Mapping[PurePosixPath, BeautifulSoup]

_LOADED = {"img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
_NOT_PROSE = {"pre", "code", "math", "style"}
_TEX = re.compile(r"\$[^$]+\$|\\[a-zA-Z]{2,}")
_CSS_URL = re.compile(r"""url\(\s*["']?(?!data:)([^"')]+)|@import\s+["']([^"']+)""")


def read_pages(folder: Path) -> dict[PurePosixPath, BeautifulSoup]:
    """Every HTML file below `folder`, by its path."""
    return {
        PurePosixPath(path.relative_to(folder).as_posix()): BeautifulSoup(path.read_bytes(), "html.parser")
        for path in sorted(folder.rglob("*.html"))
    }


def book_problems(folder: Path, expected: Iterable[PurePosixPath]) -> list[str]:
    """Everything wrong with the book in `folder`, which must hold the pages `expected`; empty when it is fit."""
    pages = read_pages(folder)
    return [
        *missing_pages(pages, expected),
        *broken_links(pages, folder),
        *images_without_alt(pages),
        *loaded_from_elsewhere(pages),
        *styles_from_elsewhere(folder),
        *unconverted_formulas(pages),
    ]


def missing_pages(pages: Pages, expected: Iterable[PurePosixPath]) -> Iterator[str]:
    """Pages that are not there, or not in the table of contents."""
    contents = pages.get(CONTENTS, BeautifulSoup("", "html.parser"))
    listed = {path_of(tag["href"], CONTENTS) for tag in contents.find_all("a", href=True)}
    for path in expected:
        if path not in pages:
            yield f"{path} is missing"
        if path not in listed:
            yield f"{path} is not in the table of contents"


def broken_links(pages: Pages, folder: Path) -> Iterator[str]:
    """Links and sources that lead to no file of the book or to no id of a page, and ids that are there twice."""
    ids = {path: Counter(tag["id"] for tag in soup.find_all(id=True)) for path, soup in pages.items()}
    for page, soup in pages.items():
        yield from (f"{page}: the id {name!r} is there twice" for name, count in ids[page].items() if count > 1)
        for tag in soup.find_all([*_LOADED, "a"]):
            url = tag.get("href", tag.get("src"))
            if url is None or is_elsewhere(url):
                continue
            path, fragment = path_of(url, page), unquote(urlsplit(url).fragment)
            if path.parts[:1] == ("..",) or not (folder / path).is_file():
                yield f"{page}: {url} leads nowhere"
            elif fragment and fragment not in ids.get(path, ()):
                yield f"{page}: {url} names a section that is not there"


def images_without_alt(pages: Pages) -> Iterator[str]:
    """Images that say nothing to whoever cannot see them."""
    for page, soup in pages.items():
        for tag in soup.find_all("img"):
            if not (tag.get("alt") or "").strip():
                yield f"{page}: the image {tag.get('src', '')[:40]!r} has no alt text"


def loaded_from_elsewhere(pages: Pages) -> Iterator[str]:
    """Scripts, of which a book needs none, and anything that a browser would fetch from a server."""
    for page, soup in pages.items():
        if soup.find("script"):
            yield f"{page}: it has a script"
        for tag in soup.find_all(list(_LOADED)):
            url = tag.get(_LOADED[tag.name], "")
            if is_elsewhere(url) and not url.startswith("data:"):
                yield f"{page}: {url} is loaded from elsewhere"
        for text in [*(tag.get_text() for tag in soup.find_all("style")), *(tag["style"] for tag in soup(style=True))]:
            yield from (f"{page}: {url} is loaded from elsewhere" for url in _fetched(text))


def styles_from_elsewhere(folder: Path) -> Iterator[str]:
    """Fonts, images and style sheets that a style sheet fetches: ours needs none."""
    for path in sorted(folder.rglob("*.css")):
        yield from (f"{path.name}: {url} is loaded from elsewhere" for url in _fetched(path.read_text("utf-8")))


def _fetched(css: str) -> list[str]:
    return [found[0] or found[1] for found in _CSS_URL.findall(css)]


def unconverted_formulas(pages: Pages) -> Iterator[str]:
    """TeX that a reader would see as TeX, in prose or inside of a formula."""
    for page, soup in pages.items():
        for block in soup.find_all(["p", "li", "td", "th", "dd", "h1", "h2", "h3", "summary"]):
            if found := _TEX.search(_prose(block)):
                yield f"{page}: the formula {found[0][:60]!r} is not converted"
        for formula in soup.find_all("math"):
            if "\\" in formula.get_text():
                yield f"{page}: the formula {formula.get_text()[:60]!r} is not converted as a whole"


def _prose(block: BeautifulSoup) -> str:
    strings = [text for text in block.find_all(string=True) if type(text) is NavigableString]
    return "".join(text for text in strings if not any(parent.name in _NOT_PROSE for parent in text.parents))
