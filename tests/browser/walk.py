"""Look at labs as a student sees them: open them in JupyterLab, run them, and keep screenshots of everything.

.venv/bin/python tests/browser/walk.py 02 03 --budget 0.02 --theme dark --width 700
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # labs_lib, where there is no .venv of this folder

from chromium import chromium
from lab_page import open_lab
from lab_server import jupyter_lab
from page_faults import committed_figures, faults
from playwright.sync_api import Browser

from labs_lib.paths import NOTEBOOKS, ROOT
from labs_lib.tools.labs import LABS, is_solution, select

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


def main() -> int:
    """Walk through the labs that are named; 1 if a student would meet a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labs", nargs="+", help="labs by number or name")
    parser.add_argument("--budget", type=float, help="typed into the parameters cell")
    parser.add_argument("--theme", choices=THEMES, default="light")
    parser.add_argument("--width", type=int, default=1400, help="of the window, in pixels")
    parser.add_argument("--step", action="store_true", help="Shift+Enter on every cell instead of Run All Cells")
    parser.add_argument("--look", action="store_true", help="only look at the committed outputs, run nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "browser" / "walk")
    options = parser.parse_args()
    settings = {"apputils-extension:themes": {"theme": THEMES[options.theme]}}
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        copy = shutil.copytree(NOTEBOOKS, Path(scratch) / "notebooks")
        with jupyter_lab(copy, Path(scratch), settings) as address:
            found = [
                fault
                for lab in select([lab for lab in LABS if not is_solution(lab)], options.labs)
                for fault in _walk(browser, address, copy / f"{lab.name}.ipynb", options)
            ]
    print("\n".join(found) or "no fault")
    return int(bool(found))


def _walk(browser: Browser, address: str, path: Path, options: argparse.Namespace) -> list[str]:
    name = f"{path.stem}-{options.theme}-{options.width}"
    with open_lab(browser, address, path, options.out, options.width) as lab:
        lab.page.keyboard.press("Control+b")  # the file browser would take a third of a narrow window
        if not options.look:
            lab.clear()
            if options.budget:
                lab.type_budget(options.budget)
            lab.step_through() if options.step else lab.run_all()
            lab.wait_for_the_end(committed_figures(lab.book))
        lab.pictures_of_all(options.out, name)
        return [f"{name}: {fault}" for fault in faults(lab.shown(), committed_figures(lab.book), live=False)]


if __name__ == "__main__":
    sys.exit(main())
