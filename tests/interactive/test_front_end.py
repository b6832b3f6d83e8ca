"""Who is taken for a front end: pretended shells, and a real kernel with both kinds of requests."""

import queue
from types import SimpleNamespace

import pytest
from jupyter_client.manager import start_new_kernel

from labs_lib.interactive import front_end
from labs_lib.paths import ROOT
from labs_lib.tools.environment import kernel_environment

# What nbclient and nbval send, and what JupyterLab 4.6 sends.
BY_A_PROGRAM = {}
BY_JUPYTERLAB = {"cellId": "02-group-advantages-061", "deletedCells": [], "recordTiming": False, "trusted": True}


class ColabShell:
    """As `google.colab._shell.Shell`, by the name of its module."""

    def __init__(self):
        self.user_ns = {}

    def get_parent(self):
        return {"metadata": {}}


ColabShell.__module__ = "google.colab._shell"


def shell(metadata, **user_ns):
    return SimpleNamespace(user_ns=user_ns, get_parent=lambda: {"header": {}, "metadata": metadata})


TERMINAL = SimpleNamespace(user_ns={})  # IPython in a terminal: no message, so nothing to ask for
CASES = {
    "no IPython": (None, False),
    "IPython in a terminal": (TERMINAL, False),
    "nbclient, papermill, nbval": (shell(BY_A_PROGRAM), False),
    "a request without metadata": (SimpleNamespace(user_ns={}, get_parent=dict), False),
    "JupyterLab": (shell(BY_JUPYTERLAB), True),
    "VS Code": (shell({}, __vsc_ipynb_file__="lab.ipynb"), True),
    "Colab": (ColabShell(), True),
}


@pytest.fixture(autouse=True)
def no_choice_by_variable(monkeypatch):
    monkeypatch.delenv(front_end.WIDGETS_VARIABLE, raising=False)


@pytest.mark.parametrize("case", CASES)
def test_a_front_end_is_known_by_its_marks(monkeypatch, case):
    found, expected = CASES[case]
    monkeypatch.setattr(front_end, "get_ipython", lambda: found)
    assert front_end.front_end_is_there() is expected


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_of_our_own_tools_has_none(monkeypatch, case):
    monkeypatch.setattr(front_end, "get_ipython", lambda: CASES[case][0])
    for name, value in kernel_environment().items():
        monkeypatch.setenv(name, value)
    assert not front_end.front_end_is_there()


@pytest.mark.parametrize("name", ["JPY_SESSION_NAME", "JPY_PARENT_PID", "VSCODE_PID", "COLAB_RELEASE_TAG"])
def test_what_a_notebook_hands_down_to_the_kernels_it_starts_is_no_mark(monkeypatch, name):
    monkeypatch.setenv(name, "notebooks/02_group_advantages.ipynb")
    monkeypatch.setattr(front_end, "get_ipython", lambda: shell(BY_A_PROGRAM))
    assert not front_end.front_end_is_there()


# --- A real kernel -----------------------------------------------------------------------------------

ASK = "from labs_lib.interactive.front_end import front_end_is_there\nprint(front_end_is_there())"
FAILING = """
from labs_lib.interactive.play import Play, Slider, with_controls

def view(size):
    raise ValueError(f"no picture for {size}")

def shown(position):
    widget = with_controls(Play(view, {"size": Slider("size", 1, 0, 9, 1)}, "02-none", "never drawn"))
    widget.children[0].children[0].value = position
"""


@pytest.fixture(scope="module")
def kernel():
    inherited = {"JPY_SESSION_NAME": "notebooks/02_group_advantages.ipynb", "PYTHONPATH": str(ROOT)}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTEST_CURRENT_TEST", front_end.WIDGETS_VARIABLE):
            patch.delenv(name, raising=False)
        for name, value in inherited.items():
            patch.setenv(name, value)
        manager, client = start_new_kernel(kernel_name="python3", startup_timeout=120)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, code, metadata):
    """Send one cell as a front end or a program would; the messages that it gives until it is done."""
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
    request = client.session.msg("execute_request", content, metadata=metadata)
    client.shell_channel.send(request)
    messages = []
    while True:
        try:
            message = client.get_iopub_msg(timeout=60)
        except queue.Empty:
            raise AssertionError(f"the kernel did not finish {code!r}") from None
        if message["parent_header"].get("msg_id") != request["header"]["msg_id"]:
            continue
        messages.append(message)
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return messages


def printed(messages):
    return "".join(m["content"]["text"] for m in messages if m["msg_type"] == "stream")


def test_a_real_kernel_tells_a_program_from_jupyterlab(kernel):
    """Also where a notebook has started it: the variable of its session is inherited."""
    assert printed(run(kernel, ASK, BY_A_PROGRAM)) == "False\n"
    assert printed(run(kernel, ASK, BY_JUPYTERLAB)) == "True\n"


def test_an_error_of_a_view_is_shown_and_not_swallowed(kernel):
    messages = run(kernel, f"{FAILING}\nshown(7)", BY_JUPYTERLAB)
    errors = [m["content"]["evalue"] for m in messages if m["msg_type"] == "error"]
    assert errors == ["no picture for 1", "no picture for 7"]
