"""One lab in JupyterLab, used as a student uses it, by menus, keys and the mouse, and read from what the page shows."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from page_faults import LIVE_FRAME, Cell, Image, Shown
from playwright.sync_api import Browser, Locator, Page, TimeoutError, expect

from labs_lib.tools.notebooks import PARAMETERS, read_notebook, tags

PATIENCE = 300_000  # milliseconds, for everything but cells: the machine may have other work
RUN_TIMEOUT = 900_000
FIGURES_TIMEOUT = 60_000
POLL = 250
SLICE = 2400  # pixels of height of one screenshot of many
HEIGHT = 1000
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
SETTLE = 300
SCRIPT = Path(__file__).with_name("lab_page.js")


class LabPage:
    """A notebook that is open in JupyterLab; `open_lab` makes one."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.book = read_notebook(path)
        self.script_errors: list[str] = []
        page.on("pageerror", lambda error: self.script_errors.append(str(error)))

    def menu(self, *names: str) -> None:
        """Choose an entry of the menu bar: `menu("Run", "Run All Cells")`."""
        bar, *entries = (re.compile(f"^{re.escape(name)}$") for name in names)
        self.page.locator(".lm-MenuBar-itemLabel", has_text=bar).click()
        for entry in entries:
            self.page.locator(".lm-Menu-itemLabel", has_text=entry).click()

    def cell(self, number: int) -> Locator:
        """The cell with this number, from 0, in the page."""
        return self.page.locator(f"{PANEL} .jp-Notebook .jp-Cell").nth(number)

    def wait(self, condition: str, *arguments: object, timeout: float = PATIENCE) -> None:
        """Until a function of lab_page.js says yes; playwright's TimeoutError if it never does."""
        call = f"arguments => window.labPage.{condition}(...arguments)"
        self.page.wait_for_function(call, arg=list(arguments), timeout=timeout, polling=POLL)

    def clear(self) -> None:
        """Clear the committed outputs and counts: what is there afterwards is of this run."""
        self.menu("Edit", "Clear Outputs of All Cells")
        self.wait("isClear")

    def type_budget(self, share: float) -> None:
        """Type another BUDGET into the parameters cell."""
        number = next(number for number, cell in enumerate(self.book.cells) if PARAMETERS in tags(cell))
        self.cell(number).locator(".cm-line", has_text="BUDGET").click()
        for key in ("Home", "Shift+End"):
            self.page.keyboard.press(key)
        self.page.keyboard.type(f"BUDGET = {share}")
        self.page.keyboard.press("Escape")

    def open_hint(self) -> None:
        """Unfold the first hint, which must show what was hidden."""
        hint = self.page.locator(f"{PANEL} details").first
        assert not hint.locator("p").first.is_visible()
        hint.locator("summary").click()
        hint.locator("p").first.wait_for(state="visible")

    def move_a_slider(self) -> None:
        """Move the first slider with an arrow key, and wait until its figure is another one."""
        handle = self.page.locator(".noUi-handle")
        cell = self.page.locator(f"{PANEL} .jp-CodeCell").filter(has=handle).first
        figure, handle = cell.locator("img"), cell.locator(".noUi-handle").first
        before = figure.get_attribute("src")
        handle.press("ArrowRight")
        expect(figure).not_to_have_attribute("src", before, timeout=PATIENCE)

    def save(self) -> None:
        """File > Save Notebook, and wait until it is in the file."""
        self.menu("File", "Save Notebook")
        self.wait("isSaved")

    def run_all(self) -> None:
        """Run > Run All Cells, on a cleared notebook; `wait_for_the_end` waits for it."""
        self.page.evaluate("frame => window.labPage.collectFrames(frame)", LIVE_FRAME.pattern)
        self.menu("Run", "Run All Cells")

    def step_through(self) -> None:
        """Shift+Enter on every cell from the first one, each when the one before it is done."""
        self.page.evaluate("frame => window.labPage.collectFrames(frame)", LIVE_FRAME.pattern)
        self.cell(0).click()
        self.page.keyboard.press("Escape")
        for number, cell in enumerate(self.book.cells):
            # On the last one Shift+Enter would add an empty cell.
            self.page.keyboard.press("Control+Enter" if cell is self.book.cells[-1] else "Shift+Enter")
            if cell.cell_type == "code":
                self.wait("hasCount", number, timeout=RUN_TIMEOUT)

    def wait_for_the_end(self, figures: int) -> None:
        """Until every cell has run or one has failed, and the figures are there or will not come."""
        self.wait("hasEnded", timeout=RUN_TIMEOUT)
        with suppress(TimeoutError):  # `faults` names what is missing
            self.wait("areLoaded", figures, timeout=FIGURES_TIMEOUT)

    def shown(self) -> Shown:
        """What the page shows now."""
        cells = [_cell(**found) for found in self.page.evaluate("window.labPage.read()")]
        frames, dialogs = (self.page.evaluate(f"window.labPage.{name}()") for name in ("frames", "dialogs"))
        return Shown(tuple(cells), tuple(frames), tuple(dialogs), tuple(self.script_errors))

    def picture(self, path: Path) -> None:
        """A screenshot of the window as it is."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path, animations="disabled")

    def picture_of_a_moving_bar(self, path: Path) -> None:
        """Wait until a progress bar moves, bring it to the middle of the window, and take a screenshot."""
        self.wait("hasMoved", timeout=RUN_TIMEOUT)
        self.page.evaluate("frame => window.labPage.showBar(frame)", LIVE_FRAME.pattern)
        self.picture(path)

    def pictures_of_all(self, folder: Path, name: str) -> None:
        """Screenshots from the top to the bottom of the notebook, in a window as tall as is practical."""
        width, height = self.page.viewport_size["width"], self.page.viewport_size["height"]
        self.page.set_viewport_size({"width": width, "height": SLICE})
        top, number = 0, 0
        while top is not None:
            following = self.page.evaluate("top => window.labPage.scrollTo(top)", top)
            self.page.wait_for_timeout(SETTLE)  # what came into view is rendered only now
            number += 1
            self.picture(folder / f"{name}-{number:02d}.png")
            top = following
        self.page.set_viewport_size({"width": width, "height": height})


@contextmanager
def open_lab(browser: Browser, address: str, path: Path, pictures: Path, width: int = 1400) -> Iterator[LabPage]:
    """Open JupyterLab in a window of its own, and there the notebook `path`, by a double click in the file browser.

    The notebook lies in the folder that JupyterLab shows. On leaving, its kernel is shut down and the window closed;
    what the window showed when something failed is kept in `pictures`.
    """
    page = browser.new_page(viewport={"width": width, "height": HEIGHT})
    page.set_default_timeout(PATIENCE)
    page.add_init_script(path=SCRIPT)
    lab = LabPage(page, path)
    try:
        page.goto(address.replace("/lab?", f"/lab/workspaces/{path.stem}?"))  # the tabs of the others are not restored
        page.locator(".jp-DirListing-item", has_text=path.name).dblclick()
        lab.wait("isOpen", len(lab.book.cells))
        yield lab
        lab.menu("Kernel", "Shut Down Kernel")
    except Exception:
        lab.picture(pictures / f"{path.stem}-failed.png")
        raise
    finally:
        page.close()


def _cell(images: list[dict], outputs: list[list[str]], **rest: Any) -> Cell:
    read = {name: tuple(value) if isinstance(value, list) else value for name, value in rest.items()}
    return Cell(
        **read,
        outputs=tuple((kind, text) for kind, text in outputs),
        images=tuple(Image(**image) for image in images),
    )
