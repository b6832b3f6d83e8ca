"""JupyterLab as `make lab` starts it, on a folder of notebooks, with nothing of this machine's user and nothing left
behind: a free port, settings and results in a scratch folder, and an end for every process that it started.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from labs_lib.paths import FIGURES_VARIABLE, OUTPUTS_VARIABLE, ROOT

START_TIMEOUT = 300
STOP_TIMEOUT = 30
UNUSED = 900
JUPYTER_FOLDERS = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
LAB_FOLDERS = ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
# pytest's own, which ipykernel heeds: these kernels stand for a student's. And what a `make` around the tests was told.
DROPPED = ("PYTEST_CURRENT_TEST", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")


@contextmanager
def jupyter_lab(notebooks: Path, scratch: Path, settings: dict[str, dict] | None = None) -> Iterator[str]:
    """Run JupyterLab on `notebooks` and yield its address, token included, once it answers.

    `scratch` gets its settings, its log (`server.log`), and what the labs write. `settings` are a user's, by plugin
    (`apputils-extension:themes`). Raises RuntimeError when the server does not start. On leaving, the server, its
    kernels and their children are ended, also those that do not go by themselves.
    """
    environment = _environment(scratch)
    _write_settings(Path(environment["JUPYTERLAB_SETTINGS_DIR"]), settings or {})
    with (scratch / "server.log").open("w") as log:
        server = subprocess.Popen(
            _command(notebooks), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield _address(server, Path(environment["JUPYTER_RUNTIME_DIR"]), scratch / "server.log")
    finally:
        end(server)


def left_running(scratch: Path) -> list[str]:
    """The commands of all processes that belong to a JupyterLab of this scratch folder."""
    marker = str(scratch / JUPYTER_FOLDERS[0].lower())
    running = psutil.process_iter(["environ", "cmdline"])
    ours = [found.info for found in running if (found.info["environ"] or {}).get(JUPYTER_FOLDERS[0]) == marker]
    return [" ".join(info["cmdline"] or ()) for info in ours]


def _command(notebooks: Path) -> list[str]:
    """`make lab` itself, in this Python; its set-up counts as done, whether or not this is the one of .venv."""
    token = secrets.token_hex(16)
    # Port 0 is one that the system knows to be free: no other process can take it in between.
    options = f"--no-browser --ip=127.0.0.1 --port=0 --IdentityProvider.token={token}"
    # Where the tests themselves were killed nobody ends it: then it ends by itself, and its kernels before it.
    options += f" --MappingKernelManager.cull_idle_timeout={UNUSED} --ServerApp.shutdown_no_activity_timeout={UNUSED}"
    make = ["make", "--no-print-directory", "--old-file=.venv/.installed"]
    return [*make, "lab", f"PY={sys.executable}", f"NOTEBOOKS={notebooks}", f"ARGS={options}"]


def _environment(scratch: Path) -> dict[str, str]:
    folders = {name: str(scratch / name.lower()) for name in (*JUPYTER_FOLDERS, *LAB_FOLDERS)}
    results = {OUTPUTS_VARIABLE: str(scratch / "outputs"), FIGURES_VARIABLE: str(scratch / "outputs" / "figures")}
    kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
    return kept | {"PYTHONPATH": str(ROOT)} | folders | results


def _write_settings(folder: Path, settings: dict[str, dict]) -> None:
    # A new user is asked once whether JupyterLab may fetch news: the test reaches for nothing outside this machine.
    quiet = {"apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
    for plugin, values in (quiet | settings).items():
        path = folder / "@jupyterlab" / f"{plugin.replace(':', '/')}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


def _address(server: subprocess.Popen, runtime: Path, log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and server.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            try:
                found = json.loads(path.read_text())
            except json.JSONDecodeError:  # it is being written
                continue
            return f"{found['url']}lab?token={found['token']}"
        time.sleep(0.2)
    raise RuntimeError(f"`make lab` did not start:\n{log.read_text()[-3000:]}")


def end(server: subprocess.Popen) -> None:
    """End a process and everything that it started: politely, so that kernels are shut down, then by force."""
    try:
        started = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        started = []
    server.terminate()  # make passes it on
    _, alive = psutil.wait_procs(started, timeout=STOP_TIMEOUT)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=STOP_TIMEOUT)
    server.wait()
