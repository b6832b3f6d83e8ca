"""Optional requirements: said in one sentence where they are missing, imported by nothing that does without them."""

import ast
import subprocess
import sys

import pytest

from labs_lib import optional
from labs_lib.errors import LabError
from labs_lib.paths import NOTEBOOKS, ROOT
from labs_lib.scale import engine
from labs_lib.tools.notebooks import code_cells, read_notebook

PACKAGE = ROOT / "labs_lib"
# What may use the engine's package: its command, the studies, the table of labs for its names, and the benchmarks for
# its prompts.
USERS = {"tools/scale.py", "tools/studies.py", "tools/labs.py"}
USERS |= {"tools/benchmarks/grpo_trl.py", "tools/benchmarks/sampling_hf.py"}


def imported(tree):
    """Names of the modules that a tree imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def users_of(package, sources):
    return {
        name
        for name, text in sources.items()
        if any(f"{m}.".startswith(f"{package}.") for m in imported(ast.parse(text)))
    }


def library():
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}


def test_only_lab_07_uses_the_package_of_the_engine():
    found = {name for name in users_of("labs_lib.scale", library()) if not name.startswith("scale/")}
    assert found == USERS
    books = {
        path.name: "\n".join(cell.source for cell in code_cells(read_notebook(path)))
        for path in NOTEBOOKS.glob("[0-9]*.ipynb")
    }
    assert users_of("labs_lib.scale", books) == {"07_scale_out.ipynb"}
    assert users_of("labs_lib.scale", {"mutant": "def f():\n    from labs_lib import scale"}) == {"mutant"}


def test_the_engine_is_imported_where_it_is_used_and_nowhere_before():
    for name, text in library().items():
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                roots = {module.split(".")[0] for module in imported(statement)}
                assert not roots & set(engine.PACKAGES), f"{name} imports {roots} when it is imported"


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    assert optional.absent(["json", "no_such_package"]) == ["no_such_package"]
    optional.require_installed(["json"], "make it", "This")
    with pytest.raises(
        LabError, match="^This needs no_such_package and nor_this, which `make it` installs; nothing else"
    ):
        optional.require_installed(["json", "no_such_package", "nor_this"], "make it", "This")
    monkeypatch.setattr(engine, "PACKAGES", ("no_such_package",))
    with pytest.raises(LabError, match="Lab 07 needs no_such_package, which `make scale` installs"):
        engine.require_engine()


@pytest.mark.parametrize(
    ("module", "early"), [("labs_lib.tools.scale", "[]"), ("labs_lib.tools.run_all", "['papermill']")]
)
def test_make_scale_pins_before_anything_imports_numpy(module, early):
    """papermill imports numpy where pyarrow is installed, as the engine installs it; `start` must come before."""
    said = f"import sys, {module}; print([name for name in ('papermill', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == early
