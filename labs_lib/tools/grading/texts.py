"""A student's texts on one line of a terminal."""


def first_line(source: str) -> str:
    """The first line of a cell that says something."""
    return printable(next((line for line in source.splitlines() if line.strip()), ""))


def one_line(error: BaseException) -> str:
    """An error's type and text."""
    text = f"{type(error).__name__}: {getattr(error, 'msg', None) or error}".rstrip(": ")
    line = getattr(error, "lineno", None)
    return printable(f"{text}, line {line}" if isinstance(error, SyntaxError) and line else text)


def printable(text: str, longest: int = 300) -> str:
    """One line without control characters, whatever a student's exception says."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
