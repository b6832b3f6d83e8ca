"""TeX to MathML, which browsers show without a script and without network.

latex2mathml translates; what it leaves wrong for today's browsers (MathML Core) is repaired here: escapes in text,
script and double-struck letters, and TeX's spaces around `log` or `min`, a sign, a slash. It lets unknown commands
through as text; here they are refused, so that no page shows half a formula.
"""

import re
import unicodedata
from itertools import pairwise
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import latex2mathml.exceptions
from latex2mathml.converter import convert

from labs_lib.errors import LabError

_NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'
_CHILDREN = {"mfrac": 2, "mroot": 2, "msub": 2, "msup": 2, "munder": 2, "mover": 2, "msubsup": 3, "munderover": 3}
_SCRIPTED = set(_CHILDREN) - {"mfrac", "mroot"}
_LETTERS = {"script": "SCRIPT", "double-struck": "DOUBLE-STRUCK"}
_LARGE_OPERATORS = "∑∏∫"
_SIGNS = ("+", "-", "−")
_CLOSING = (")", "]", "}", "|", "‖")
_THIN = "0.167em"
_REFUSED = tuple(kind for kind in vars(latex2mathml.exceptions).values() if isinstance(kind, type))


def mathml(tex: str, display: str) -> str:
    """The `<math>` element of a formula; `display` is "inline" or "block".

    Raises LabError for TeX that does not convert as a whole.
    """
    try:
        root = ElementTree.fromstring(convert(tex, display=display).replace(_NAMESPACE, "", 1))
    except (*_REFUSED, ElementTree.ParseError, IndexError, KeyError) as error:
        raise _refusal(tex, type(error).__name__) from error
    for element in list(root.iter()):
        _repair_token(element)
    for element in list(root.iter()):
        _sign_numbers(element)
        _space_names(element)
    if problem := _problem(root):
        raise _refusal(tex, problem)
    return ElementTree.tostring(root, encoding="unicode")


def _refusal(tex: str, reason: str) -> LabError:
    return LabError(f"The formula {' '.join(tex.split())!r} cannot be converted ({reason}): write it in plainer TeX.")


def _problem(root: Element) -> str:
    """What did not convert, or an empty string."""
    for element in root.iter():
        text = element.text or ""
        if "\\" in text or text == "&":
            return f"{text} is unknown"
        if element.tag == "mo" and not text:
            return "an operator is empty"
        if len(element) != _CHILDREN.get(element.tag, len(element)):
            return f"{element.tag} lacks a part"
    return ""


def _repair_token(element: Element) -> None:
    text = element.text or ""
    if element.tag == "mtext":
        element.text = re.sub(r"\\([_%&#$])", r"\1", text)
    elif element.tag == "mo" and _is_name(text):
        element.tag = "mi"  # as an operator, a browser would put wide spaces around it
        element.attrib.clear()
    elif element.tag == "mo" and text == "/":
        element.attrib.update(lspace="0", rspace="0")
    elif element.tag == "mi" and text == "~":
        element.tag, element.text = "mo", "∼"
    elif element.get("mathvariant") in _LETTERS and len(text) == 1 and text.isalpha():
        element.text = _styled(text, _LETTERS[element.attrib.pop("mathvariant")])


def _is_name(text: str) -> bool:
    """Whether this is `log`, `min` and the like."""
    return len(text) > 1 and text.isascii() and text.isalpha()


def _styled(letter: str, style: str) -> str:
    """Unicode's own letter; MathML Core knows no `mathvariant` but normal."""
    name = f"{style} {'CAPITAL' if letter.isupper() else 'SMALL'} {letter.upper()}"
    try:
        return unicodedata.lookup(f"MATHEMATICAL {name}")
    except KeyError:  # some were in Unicode before the mathematical block
        return unicodedata.lookup(name)


def _sign_numbers(row: Element) -> None:
    """A plus or minus after another operator is a sign and stands close to its number: A = +1."""
    for left, right in pairwise(row):
        if left.tag == right.tag == "mo" and right.text in _SIGNS and left.text not in _CLOSING:
            right.set("form", "prefix")


def _space_names(row: Element) -> None:
    """Put a thin space between a name and its neighbours, where TeX has one."""
    if row.tag in _CHILDREN:
        return
    for left, right in pairwise(list(row)):
        named = _is_name(_core(left).text or "") or _is_name(_core(right).text or "")
        if named and not any(_closes_up(side) for side in (left, right)):
            row.insert(list(row).index(right), Element("mspace", width=_THIN))


def _core(element: Element) -> Element:
    """The base of a scripted element, or the element."""
    return _core(element[0]) if element.tag in _SCRIPTED and len(element) else element


def _closes_up(element: Element) -> bool:
    core = _core(element)
    return core.tag == "mspace" or (core.tag == "mo" and (core.text or "") not in _LARGE_OPERATORS)
