"""Headings of a page: their anchors, the sections that the contents list, and what a lab's introduction says."""

import re
from dataclasses import dataclass

from bs4 import BeautifulSoup, Tag

from labs_lib.errors import LabError

_HEADINGS = re.compile(r"h[1-6]")
_MINUTES = re.compile(r"\d\s+minutes?\b")
_CLAUSE_END = re.compile(r"\s\(|[.;](?:\s|$)")


@dataclass(frozen=True)
class Section:
    """A heading: its level (1 to 6), the id that links use, and its text."""

    level: int
    anchor: str
    title: str


@dataclass(frozen=True)
class Introduction:
    """What a lab asks, and how long it takes in its own words."""

    question: str
    duration: str


def slug(text: str) -> str:
    """The anchor of a heading as GitHub makes it; JupyterLab's anchors (`1.-Start`) have the same slug."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def mark_headings(soup: BeautifulSoup) -> list[Section]:
    """Give every heading an id of its own and a link to itself; return the headings in their order."""
    sections = []
    taken = {tag["id"] for tag in soup.find_all(id=True)}
    for heading in soup.find_all(_HEADINGS):
        title = plain_text(heading)
        anchor = heading["id"] = heading.get("id") or _free(slug(title) or "section", taken)
        taken.add(anchor)
        sections.append(Section(int(heading.name[1]), anchor, title))
        label = f"Link to the section {title}"
        link = soup.new_tag("a", attrs={"href": f"#{anchor}", "class": "anchor", "aria-label": label}, string="#")
        heading.append(link)
    return sections


def _free(anchor: str, taken: set[str]) -> str:
    names = [anchor, *(f"{anchor}-{number}" for number in range(1, len(taken) + 2))]
    return next(name for name in names if name not in taken)


def plain_text(tag: Tag) -> str:
    """The text of an element on one line."""
    return " ".join(tag.get_text().split())


def title_of(sections: list[Section], name: str) -> str:
    """The first heading of the first level; LabError if there is none."""
    for section in sections:
        if section.level == 1:
            return section.title
    raise LabError(f"{name} has no title: begin it with a line `# Title`.")


def introduction(soup: BeautifulSoup, name: str) -> Introduction:
    """Question and duration, from what stands before the first section.

    Raises LabError unless there is a paragraph that begins with `Question:` and a text with a number of minutes.
    """
    first = soup.find("h2")
    texts = [plain_text(tag) for tag in (first.find_all_previous if first else soup.find_all)(["p", "td"])]
    texts = texts[::-1] if first else texts  # find_all_previous walks backwards
    questions = [text.partition(":")[2].strip() for text in texts if text.startswith("Question:")]
    durations = [_CLAUSE_END.split(text)[0] for text in texts if _MINUTES.search(text)]
    if not questions or not durations:
        lacks = "a paragraph `**Question:** …`" if not questions else "the minutes that it takes"
        raise LabError(f"{name} lacks {lacks} before its first section; the table of contents shows it.")
    return Introduction(*(text[:1].upper() + text[1:] for text in (questions[0], durations[0])))
