"""`make bench`: what it times, how it shares the machine, what it prints. No test looks at how long anything took."""

import re
import subprocess

import pytest

from labs_lib.errors import LabError
from labs_lib.paths import ROOT
from labs_lib.tools import bench
from labs_lib.tools.bench import BENCHMARKS, Comparison, main, seconds_by_turns


def comparison(usual_seconds, our_seconds):
    return Comparison("work", "step", "usual", usual_seconds, "ours", our_seconds, target=20)


@pytest.mark.parametrize("usual, said", [(0.04, "ratio 20.0; target 20: reached"), (0.039, "NOT reached")])
def test_the_ratio_is_usual_over_ours_and_the_target_is_only_compared(usual, said):
    lines = comparison(usual, 0.002).lines()
    assert said in lines[-1] and comparison(usual, 0.002).ratio == pytest.approx(usual / 0.002)
    assert f"{1000 * usual:.4f} ms per step" in lines[1] and "2.0000 ms per step" in lines[2]


def test_both_take_turns_and_the_first_of_each_is_not_counted(monkeypatch):
    calls, now = [], [0.0]

    def worker(name, seconds):
        def advance():
            calls.append(name)
            now[0] += seconds if calls.count(name) > 1 else 1000.0

        return advance

    monkeypatch.setattr(bench, "perf_counter", lambda: now[0])
    assert seconds_by_turns(3, worker("a", 2.0), worker("b", 0.5)) == [6.0, 1.5]
    assert calls == ["a", "b"] * 4


def test_the_bias_benchmark_divides_by_iterations_and_models(monkeypatch, capsys):
    monkeypatch.setattr(bench, "SEEDS", range(2))

    def turns(iterations, plain, batched):
        plain()
        batched()
        return [3.0 * iterations, 7.0 * iterations]

    monkeypatch.setattr(bench, "seconds_by_turns", turns)
    assert main(["bias", "--iterations", "4"]) == 0
    shown = capsys.readouterr().out
    assert "4 iterations of 16 prompts x 8 answers" in shown and "batched, 14 models" in shown
    assert re.findall(r"([\d.]+) ms", shown) == ["3000.0000", "500.0000"] and "ratio 6.0; target 20: NOT" in shown


def test_all_are_run_when_none_is_named(monkeypatch):
    asked = []
    for name in BENCHMARKS:
        monkeypatch.setitem(BENCHMARKS, name, lambda n, name=name: asked.append((name, n)) or comparison(1.0, 1.0))
    assert main([]) == 0 and asked == [(name, 100) for name in BENCHMARKS]


def test_what_it_does_not_know_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["speed"])
    assert "bias" in capsys.readouterr().err
    with pytest.raises(LabError, match="--iterations is 0: time at least one"):
        main(["--iterations", "0"])


def test_make_passes_the_names_on():
    command = ["make", "--no-print-directory", "--dry-run", "bench", "ARGS=bias --iterations 3"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.strip().endswith("-m labs_lib.tools.bench bias --iterations 3")
