"""What pytest needs to know about this repository: skipped marks, workers, and nbval made strict and safe.

Workers are those of pytest-xdist, `-n`. The second half changes nbval only in runs with --nbval, and touches its
internals, hence the exact pin. The comparison itself stays strict; `tests/nbval_sanitize.cfg` lists the two things that
it leaves out.
"""

import os
import shutil
import time
from importlib.metadata import version
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from labs_lib.cores import side_by_side
from labs_lib.errors import LabError
from labs_lib.paths import FIGURES_VARIABLE, OUTPUTS_VARIABLE, outputs_base
from labs_lib.tools.environment import kernel_environment
from labs_lib.tools.labs import LABS, longest_first
from labs_lib.tools.locks import exclusive

ROOT = Path(__file__).parent
NBVAL = "0.11.0"
TEST_OUTPUTS = "outputs/test"
CELL_TIMEOUT = 900  # seconds; nbval's own default is 2,000
OUTPUT_TIMEOUT = 60
START_TIMEOUT = 120
SECONDS_BETWEEN_SIGNS_OF_LIFE = 1.0


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "with --nbval: the labs find what outputs/ (or $LABS_OUTPUTS) holds, in place of an empty folder"
    parser.addoption("--keep-outputs", action="store_true", help=what)


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "nbval", False) or getattr(config.option, "nbval_lax", False):
        _configure_nbval(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """How many workers `-n auto` starts."""
    return side_by_side()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _longest_notebooks_first(items)
    for item in items:
        if item.get_closest_marker("gpu") and (reason := _why_no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("network") and os.environ.get("LABS_NETWORK") != "1":
            item.add_marker(pytest.mark.skip(reason="downloads something: set LABS_NETWORK=1 to run it"))


def _longest_notebooks_first(items: list[pytest.Item]) -> None:
    """So no worker is left alone with the longest lab; what a lab needs comes before it. Cells keep their order."""
    place = {ROOT / "notebooks" / f"{lab.name}.ipynb": number for number, lab in enumerate(longest_first(LABS))}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def _why_no_gpu() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return "needs a CUDA GPU and this machine has none"
    # Set in tests/conftest.py: here the kernels are interpreted, and Triton cannot do both in one process.
    return "runs with compiled kernels: make gpu" if os.environ.get("TRITON_INTERPRET") == "1" else None


# --- nbval -------------------------------------------------------------------------------------------


def _configure_nbval(config: pytest.Config) -> None:
    option = config.option
    if version("nbval") != NBVAL:
        raise pytest.UsageError(f"conftest.py changes the internals of nbval {NBVAL}: run `make setup`.")
    if option.nbval_lax:
        raise pytest.UsageError("--nbval-lax compares nothing here: use --nbval.")
    if not option.nbval_sanitize_with:
        option.nbval_sanitize_with = str(ROOT / "tests" / "nbval_sanitize.cfg")
    if option.nbval_cell_timeout == 2000:  # not chosen on the command line
        option.nbval_cell_timeout = CELL_TIMEOUT
    option.nbval_kernel_startup_timeout = max(option.nbval_kernel_startup_timeout, START_TIMEOUT)
    option.nbval_current_env = True  # this Python, whatever a notebook or a user's kernels say
    if not hasattr(config, "workerinput"):  # a worker of xdist finds all of this done and inherits the variables
        _keep_cells_together(option)
        _clean_outputs(config)
        os.environ.update(kernel_environment())
    _patch_nbval()


def _keep_cells_together(option: Any) -> None:
    """With `-n`, hand out whole notebooks in the order of collection, each to the first worker that is free."""
    if getattr(option, "dist", "no") != "no":
        option.dist = "loadscope"
        option.loadscopereorder = False


def _clean_outputs(config: pytest.Config) -> None:
    """Give the labs an empty outputs folder: with an earlier run's states they would not be executed.

    With --keep-outputs it is what was asked for: a lab that only shows a run is compared after that run.
    """
    os.environ.pop(FIGURES_VARIABLE, None)  # never into the tracked figures/
    if getattr(config.option, "keep_outputs", False):
        os.environ.setdefault(OUTPUTS_VARIABLE, "outputs")
        return
    if OUTPUTS_VARIABLE not in os.environ:
        os.environ[OUTPUTS_VARIABLE] = TEST_OUTPUTS
        lock = exclusive(ROOT / TEST_OUTPUTS)
        try:
            lock.__enter__()
        except LabError as error:
            raise pytest.UsageError(str(error)) from None
        config.add_cleanup(lambda: lock.__exit__(None, None, None))
        shutil.rmtree(ROOT / TEST_OUTPUTS, ignore_errors=True)
    if outputs_base().exists() and any(outputs_base().iterdir()):
        raise pytest.UsageError(
            f"{OUTPUTS_VARIABLE} names {outputs_base()}, which is not empty: the labs would reuse its states "
            "and not be executed. Empty it, or unset the variable."
        )


def _patch_nbval() -> None:
    import nbval.kernel
    import nbval.plugin

    _ignore_stderr(nbval.plugin)
    _keep_history(nbval.kernel)
    _hide_pytest_from_kernels(nbval.kernel)
    _notice_dead_kernels(nbval.kernel)
    _wait_for_outputs(nbval.plugin)


def _ignore_stderr(plugin: Any) -> None:
    """Stderr holds warnings with paths and process ids; a refresh drops it, so it is not compared."""
    init = plugin.IPyNbFile.__init__

    def with_stderr_skipped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.skip_compare = (*self.skip_compare, "stderr")

    plugin.IPyNbFile.__init__ = with_stderr_skipped


def _keep_history(kernel: Any) -> None:
    """With history off, as in nbval, IPython ignores a trailing `;` and shows the value that it hides."""

    def execute(self: Any, cell_input: str, allow_stdin: bool | None = None) -> str:
        return self.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)

    kernel.RunningKernel.execute_cell_input = execute


def _hide_pytest_from_kernels(kernel: Any) -> None:
    """Under pytest's variable ipykernel stops capturing what is written to file descriptors."""
    start = kernel.start_new_kernel

    def start_outside_pytest(*args: Any, **kwargs: Any) -> Any:
        kwargs["env"] = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        try:
            return start(*args, **kwargs)
        except RuntimeError:  # the kernel of another worker took its port between the choice and the use
            return start(*args, **kwargs)

    kernel.start_new_kernel = start_outside_pytest


def _notice_dead_kernels(kernel: Any) -> None:
    """nbval waits out the whole cell timeout for a kernel that has died."""

    def await_reply(self: Any, msg_id: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                message = self.get_message("shell", timeout=SECONDS_BETWEEN_SIGNS_OF_LIFE)
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("the kernel died while it ran this cell") from None
                if time.monotonic() > deadline:
                    raise
                continue
            if message["parent_header"].get("msg_id") == msg_id:
                if message["content"]["status"] == "aborted":
                    raise RuntimeError("the kernel aborted this cell")
                return

    kernel.RunningKernel.await_reply = await_reply


def _wait_for_outputs(plugin: Any) -> None:
    """nbval gives a cell's outputs five seconds to arrive after its reply, too few on a busy machine."""
    init = plugin.IPyNbCell.__init__

    def with_patience(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.output_timeout = OUTPUT_TIMEOUT

    plugin.IPyNbCell.__init__ = with_patience
