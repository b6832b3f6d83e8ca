"""Links between sources become links between pages; linked files of the repository become part of the book."""

import mimetypes
import posixpath
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urlsplit

from bs4 import BeautifulSoup, Tag

from labs_lib.tools.book.headings import slug


def relative(target: PurePosixPath, page: PurePosixPath) -> str:
    """The URL of `target` as `page` writes it, both below one folder."""
    return quote(posixpath.relpath(target.as_posix(), page.parent.as_posix()))


def is_elsewhere(url: str) -> bool:
    """Whether a URL names a scheme or a server, and so nothing in the repository or the book."""
    parts = urlsplit(url)
    return bool(parts.scheme or parts.netloc)


def path_of(url: str, page: PurePosixPath) -> PurePosixPath:
    """Where a relative URL on `page` leads; the page itself for `#anchor`. Begins with `..` outside of the root."""
    path = unquote(urlsplit(url).path)
    return PurePosixPath(posixpath.normpath((page.parent / path).as_posix())) if path else page


def file_target(root: Path, path: PurePosixPath) -> PurePosixPath:
    """Where a linked file goes: a text to a page that shows it, anything else to a copy."""
    return path.with_name(f"{path.name}.html") if is_text(root / path) else path


def is_text(path: Path) -> bool:
    """Whether a file is shown as text: it is no image, and UTF-8."""
    if (mimetypes.guess_type(path.name)[0] or "").startswith("image/"):
        return False
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


@dataclass
class Rewriter:
    """Rewrites the links of all pages; `files` collects the repository's files to which they lead.

    `targets` maps each page's source to its path in the book, `anchors` to the ids on it.
    """

    root: Path
    targets: Mapping[PurePosixPath, PurePosixPath]
    anchors: Mapping[PurePosixPath, Set[str]]
    files: set[PurePosixPath] = field(default_factory=set)

    def rewrite(self, soup: BeautifulSoup, source: PurePosixPath) -> None:
        """Make the links and images of one page lead into the book.

        A link to a folder becomes plain text. What leads nowhere stays as it is: the checks name it.
        """
        for tag in soup.find_all("img", src=True):
            if not is_elsewhere(tag["src"]) and (self.root / (path := path_of(tag["src"], source))).is_file():
                self.files.add(path)
                tag["src"] = relative(path, source)
        for tag in soup.find_all("a", href=True):
            if not is_elsewhere(tag["href"]):
                self._rewrite_link(tag, source)

    def _rewrite_link(self, tag: Tag, source: PurePosixPath) -> None:
        path, fragment = path_of(tag["href"], source), unquote(urlsplit(tag["href"]).fragment)
        if path in self.targets:
            anchor = fragment if fragment in self.anchors[path] else slug(fragment)
            page = "" if path == source else relative(self.targets[path], source)
            tag["href"] = page + (f"#{quote(anchor)}" if fragment else "")
        elif path.parts[:1] == ("..",):
            return
        elif (self.root / path).is_dir():
            tag.unwrap()
        elif (self.root / path).is_file():
            self.files.add(path)
            tag["href"] = relative(file_target(self.root, path), source)
