"""The progress bar: what stays in a saved output depends on the work and not on the clock."""

import contextlib
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs_lib import progress as module
from labs_lib.errors import LabError
from labs_lib.progress import WIDTH, ProgressBar, announce, frame, progress, rewrite_line

# nbclient, papermill and nbval all keep of a line what follows its last carriage return.
OVERWRITTEN = re.compile(r"^.*\r(?=[^\n])", re.MULTILINE)


class Clock:
    """A clock that advances by the same step whenever it is read."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


def run_bar(monkeypatch, step, bar=progress, steps=7):
    """(all that was written, what survives of it) for a run whose clock ticks by `step` seconds."""
    monkeypatch.setattr(module, "time", Clock(step))
    file = io.StringIO()
    assert list(bar(range(steps), "training", file=file)) == list(range(steps))
    return file.getvalue(), OVERWRITTEN.sub("", file.getvalue())


def timed_last_frame(iterable, desc, file):
    """The believable bug: the last frame tells the time, as tqdm's does."""
    with ProgressBar(desc, len(iterable), file) as bar:
        for item in iterable:
            yield item
            bar.advance()
        last = bar._live_suffix()
        bar._count = lambda: last


def test_saved_output_does_not_depend_on_the_clock(monkeypatch):
    _, fast = run_bar(monkeypatch, 0.001)
    _, slow = run_bar(monkeypatch, 90.0)
    assert fast == slow == frame("training", 7, 7, "7/7") + "\n"


def test_a_bar_that_ends_with_the_time_is_caught(monkeypatch):
    _, fast = run_bar(monkeypatch, 0.001, timed_last_frame)
    _, slow = run_bar(monkeypatch, 90.0, timed_last_frame)
    assert fast != slow


def test_live_frames_show_time_and_have_one_width(monkeypatch):
    everything, _ = run_bar(monkeypatch, 90.0)
    frames = everything.removesuffix("\n").split("\r")[1:]
    assert len(frames) == 9  # the empty one, one an item, the last
    assert {len(shown) for shown in frames} == {WIDTH}
    assert re.search(r"1/7 \[\d\d:\d\d<[\d:]+\]$", frames[1])


def test_frames_are_not_written_faster_than_a_reader_sees(monkeypatch):
    everything, _ = run_bar(monkeypatch, 1e-6, steps=1000)
    assert everything.count("\r") == 2


@given(
    st.text(st.characters(exclude_characters="\r\n"), max_size=200),
    st.integers(0, 10**6),
    st.none() | st.integers(0, 10**6),
)
def test_every_frame_has_the_same_width(desc, done, total):
    assert len(frame(desc, done, total, f"{done}/{total}")) == WIDTH


def test_an_error_in_the_loop_leaves_how_far_it_came():
    file = io.StringIO()
    with pytest.raises(ValueError, match="stop"):
        for item in progress(range(5), "training", file=file):
            if item == 2:
                raise ValueError("stop")
    assert file.getvalue().endswith(frame("training", 2, 5, "2/5") + "\n")


@pytest.mark.parametrize(("items", "last"), [([], "0/0"), (iter([1, 2]), "2")])
def test_empty_and_endless_iterables(items, last):
    file = io.StringIO()
    list(progress(items, "reading", file=file))
    assert file.getvalue().endswith(f"| {last}\n")


def test_the_bar_goes_to_the_stdout_of_the_moment(capsys):
    list(progress([1], "now"))
    assert capsys.readouterr().out.endswith("| 1/1\n")


@given(st.text(st.characters(exclude_characters="\r\n"), max_size=200), st.floats(0, 10**6))
def test_a_rewritten_line_is_as_wide_as_a_frame(text, seconds):
    with contextlib.redirect_stdout(io.StringIO()) as written:
        rewrite_line(text, seconds)
    assert re.fullmatch(rf"\r[^\r\n]{{{WIDTH}}}", written.getvalue())


def test_a_rewritten_line_tells_the_time(capsys):
    rewrite_line("waiting", 61.5)
    assert capsys.readouterr().out.rstrip() == "\rwaiting [01:01]"


@pytest.mark.parametrize(("say", "gone"), [(rewrite_line, True), (lambda text, seconds: print(text), False)])
def test_the_next_bar_is_drawn_over_a_rewritten_line(capsys, say, gone):
    say("waiting", 3.0)
    list(progress([1], "now"))
    assert (OVERWRITTEN.sub("", capsys.readouterr().out) == frame("now", 1, 1, "1/1") + "\n") is gone


def test_a_negative_total_is_refused():
    with pytest.raises(LabError, match="0 or more"):
        ProgressBar("x", -1)


def test_durations_are_announced_behind_the_sign(capsys):
    announce("Training", 44.6)
    announce("Training", 300)
    assert capsys.readouterr().out == "Training takes ≈45 s on two cores.\nTraining takes ≈5 min on two cores.\n"
