"""One page's cells as HTML, by nbconvert with a template of ours; a Markdown file is a notebook of one cell."""

import functools
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import pass_context
from nbconvert.exporters.templateexporter import TemplateExporter
from nbconvert.filters import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from traitlets.config import Config

from labs_lib.errors import LabError
from labs_lib.tools.book.formulas import mathml
from labs_lib.tools.notebooks import committed_problems, read_notebook

TEMPLATES = Path(__file__).parent / "templates"
# No widgets and no scripts: what a widget leaves beside itself for readers without a front end is shown.
_SHOWN = ["text/html", "text/markdown", "image/png", "text/plain"]


class _Renderer(IPythonRenderer):
    """Markdown as in a notebook, with formulas as MathML."""

    def block_math(self, body: str) -> str:
        return mathml(body, "block")

    def inline_math(self, body: str) -> str:
        return mathml(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(rf"\begin{{{name}}}{body}\end{{{name}}}", "block")


class _Exporter(TemplateExporter):
    """nbconvert's machinery without the scripts, fonts and placeholder texts of its HTML exporter."""

    file_extension = ".html"
    output_mimetype = "text/html"

    @property
    def default_config(self) -> Config:
        config = Config({"NbConvertBase": {"display_data_priority": _SHOWN}})
        config.merge(super().default_config)
        return config

    @pass_context
    def _markdown(self, context: Any, source: str) -> str:
        renderer = _Renderer(escape=False, exclude_anchor_links=True)
        return MarkdownWithMath(renderer=renderer).render(source)

    def default_filters(self) -> Any:
        yield from super().default_filters()
        yield "markdown2html", self._markdown
        yield "highlight_code", Highlight2HTML(pygments_lexer="python3", parent=self)


@functools.cache
def _exporter() -> _Exporter:
    return _Exporter(template_name="cells", extra_template_basedirs=[str(TEMPLATES)])


def body_html(path: Path) -> str:
    """The HTML of the cells of a notebook, or of a Markdown file.

    Raises LabError for a file that is missing or not what it seems, a notebook whose outputs are not those of a
    refresh, and a formula that does not convert.
    """
    notebook = _executed(path) if path.suffix == ".ipynb" else _as_notebook(path)
    try:
        return _exporter().from_notebook_node(notebook)[0]
    except LabError as error:
        raise LabError(f"{path.name}: {error}") from error


def _executed(path: Path) -> NotebookNode:
    notebook = read_notebook(path)
    if problems := committed_problems(notebook):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise LabError(f"{path.name} cannot go into the book: {problems[0]}{more}.")
    return notebook


def _as_notebook(path: Path) -> NotebookNode:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path} cannot be read: {error}.") from error
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
