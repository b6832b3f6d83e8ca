"""`make bench`: what it times, how it shares the machine, what it prints. No test looks at how long anything took."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from labs_lib.errors import BaseModelError, LabError
from labs_lib.paths import ROOT
from labs_lib.runtime import CPU_PINS
from labs_lib.tools import bench
from labs_lib.tools.bench import BENCHMARKS, main
from labs_lib.tools.benchmarks import (
    bias,
    grpo,
    grpo_phases,
    kl_rows,
    measuring,
    options,
    phases,
    ppo,
    ppo_ours,
    sampling,
)
from labs_lib.tools.benchmarks.cases import GrpoCase, RolloutCase, payment, problems
from labs_lib.tools.benchmarks.measuring import Comparison, Measured, seconds_by_turns
from labs_lib.tools.benchmarks.options import Options, profiles_here, require_here
from labs_lib.tools.benchmarks.phases import Phases, Stopwatch
from labs_lib.tools.benchmarks.turns import Contender, measure

# --- What is printed ---------------------------------------------------------------------------------------------


def comparison(usual, ours, **changes):
    rows = (Measured(way, tuple(seconds), peak) for way, seconds, peak in (("usual", *usual), ("ours", *ours)))
    return Comparison("work", "step", *rows, **changes)


def test_ratios_are_usual_over_ours_of_medians_and_turn_by_turn():
    found = comparison(([8.0, 80.0, 12.0], None), ([2.0, 4.0, 3.0], None))
    assert found.ratio == 4.0 and found.ratios == [4.0, 20.0, 4.0] and found.share is None
    lines = found.lines()
    assert "12 s per step (8..80 in 3)" in lines[1] and "3 s per step (2..4 in 3)" in lines[2]
    assert lines[3].strip() == "4.00 times faster (turn by turn 4.00..20.00)" and len(lines) == 4


@pytest.mark.parametrize(
    "ours, faster, share, said",
    [
        (([0.5], 550.0), 4.0, 0.55, ["4.00 times.*>= 4: reached", "0.55 of the peak memory.*<= 0.55: reached"]),
        (([0.6], 551.0), 4.0, 0.55, ["3.33 times.*>= 4: NOT reached", "0.55 of.*NOT reached"]),
        (([0.6], 551.0), None, None, [r"3.33 times faster \(turn by turn 3.33..3.33\)$", "memory$"]),
    ],
    ids=["reached", "missed", "no target"],
)
def test_targets_are_only_compared(ours, faster, share, said):
    lines = comparison(([2.0], 1000.0), ours, faster=faster, memory_share=share).lines()
    assert all(re.search(pattern, line) for pattern, line in zip(said, lines[-2:], strict=True))


def test_short_times_are_in_milliseconds_memory_in_gigabytes_and_others_are_shown():
    other = Measured("between", (0.0125,), 2048.0)
    lines = comparison(([0.25], 1024.0), ([0.005], 512.0), others=(other,)).lines()
    assert [re.search(r"[\d.]+ ms .*peak [\d.]+ GB", line)[0].split(" per")[0] for line in lines[1:4]] == [
        "250 ms",
        "12.5 ms",
        "5 ms",
    ]
    assert "2.00 GB" in lines[2] and lines[2].startswith("  between")


def test_both_take_turns_and_the_first_of_each_is_not_counted(monkeypatch):
    calls, now = [], [0.0]

    def worker(name, seconds):
        def advance():
            calls.append(name)
            now[0] += seconds if calls.count(name) > 1 else 1000.0

        return advance

    monkeypatch.setattr(measuring, "perf_counter", lambda: now[0])
    assert seconds_by_turns(3, worker("a", 2.0), worker("b", 0.5)) == [[2.0] * 3, [0.5] * 3]
    assert calls == ["a", "b"] * 4


# --- Contenders ---------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
from labs_lib.errors import LabError
from labs_lib.tools.benchmarks.turns import serve

def work(options, turns):
    print("a library that talks")
    if "refuses" in options:
        raise LabError(options["refuses"])
    number = 0
    while True:
        turns.begin()
        number += 1
        if number == options.get("dies"):
            os._exit(3)
        pins = [name for name in options.get("looks", []) if name in os.environ]
        turns.end(answers=options["answers"], pins=pins)

if __name__ == "__main__":
    serve(work)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    (tmp_path / "contender_of_a_test.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    return "contender_of_a_test"


def test_contenders_take_turns_and_report_memory(program, monkeypatch):
    order, turn = [], Contender.turn
    monkeypatch.setattr(Contender, "turn", lambda self: order.append(self.way) or turn(self))
    found = measure([("a", program, {"answers": 4}), ("b", program, {"answers": 4})], turns=2)
    assert order == ["a", "b"] * 3
    assert [(row.way, len(row.seconds)) for row in found] == [("a", 2), ("b", 2)]
    assert sys.platform != "linux" or all(1 < row.peak_mb < 500 for row in found)


def test_other_work_is_refused(program):
    with pytest.raises(LabError, match=r"b did .*'answers': 5.* and a did .*'answers': 4.*not the same work"):
        measure([("a", program, {"answers": 4}), ("b", program, {"answers": 5})], turns=1)


@pytest.mark.parametrize(
    "given, said", [({"refuses": "No base here."}, "No base here."), ({"dies": 2}, "a library that talks")]
)
def test_a_contender_that_ends_is_named_with_its_last_words(program, given, said):
    with pytest.raises(LabError, match=f"this way could not be measured: {said}"):
        measure([("this way", program, {"answers": 4, **given})], turns=2)


def test_no_contender_inherits_the_pins(program, monkeypatch):
    for name, value in CPU_PINS.items():
        monkeypatch.setenv(name, value)
    with Contender("a", program, {"answers": 1, "looks": [*CPU_PINS, "PYTHONPATH"]}) as contender:
        contender.turn()
        assert contender.done["pins"] == ["PYTHONPATH"]


# --- The benchmarks ------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch):
    """What the benchmarks ask to be measured; every turn of the usual way takes 6 s, of others 2 s."""
    asked = []

    def fake(contenders, count):
        asked.append((contenders, count))
        return [Measured(way, (2.0 if "project" in way else 6.0,) * count, 100.0) for way, _, _ in contenders]

    for module in (grpo, sampling):
        monkeypatch.setattr(module, "measure", fake)
    return asked


def test_grpo_is_measured_on_the_same_case_and_promised_at_one_place(measured, monkeypatch):
    monkeypatch.setattr(grpo, "find_spec", lambda name: object())
    monkeypatch.setattr(grpo, "version", lambda name: "9.9")
    by_phases = []
    monkeypatch.setattr(grpo, "measure_phases", lambda *asked: by_phases.append(asked) or Phases(asked[0], 1, {}, 1))
    shown = list(grpo.compare(Options(("tiny", "smollm2-135m"), 2, threads=1)))
    found = shown[::2]
    assert [row[1:] for row in by_phases] == [
        (grpo.BY_PHASES, GrpoCase(**ours[2]), 2)
        for contenders, _ in measured
        if len(contenders) == 2
        for ours in contenders[1:]
    ]
    pairs = [(contenders, count) for contenders, count in measured if len(contenders) == 2]
    for (usual, ours), count in pairs:
        assert usual[2] == ours[2] and count == 2 and (usual[1], ours[1]) == (grpo.TRL, grpo.OURS)
    assert [(ours[2]["profile"], ours[2]["answer_tokens"]) for (_, ours), _ in pairs] == [
        (profile, tokens) for profile in ("tiny", "smollm2-135m") for tokens in grpo.ANSWER_TOKENS
    ]
    assert [(row.faster, row.memory_share, len(row.others)) for row in found] == [
        (None, None, 0),
        (None, None, 0),
        (4, 0.55, 1),
        (None, None, 0),
    ]
    assert "TRL 9.9" in found[0].usual.way and "2 updates" in found[0].work and "4 prompts x 4 answers" in found[0].work


def test_without_trl_there_is_a_sentence(monkeypatch):
    monkeypatch.setattr(grpo, "find_spec", lambda name: None)
    with pytest.raises(LabError, match="TRL is not installed.*make bench"):
        list(grpo.compare(Options()))


def test_sampling_is_measured_on_the_same_case(measured):
    found = list(sampling.compare(Options(("tiny",), 7)))
    assert [count for _, count in measured] == [7, 7] and [row.ratio for row in found] == [3.0, 3.0]
    assert all(usual[2] == ours[2] for (usual, ours), _ in measured)


def test_the_kl_row_shows_memory_beside_what_both_hold(monkeypatch):
    def case(rows, repeats, threads):
        assert (rows, repeats, threads) == (512, 4, 2)
        return {"dense": kl_rows_measured([4.0], 200), "blockwise": kl_rows_measured([5.0], 20)}

    def kl_rows_measured(seconds, megabytes):
        from labs_lib.tools.benchmarks import kl

        return kl.Measured(seconds, megabytes << 20)

    monkeypatch.setattr(kl_rows, "kl_case", case)
    (row,) = kl_rows.compare(Options(iterations=4, threads=2))
    assert row.share == pytest.approx(0.1) and row.ratio == pytest.approx(0.8)
    assert (row.faster, row.memory_share) == (0.67, 0.05)
    assert "512 rows" in row.work and "151,936" in row.work


def test_the_bias_benchmark_divides_by_models(monkeypatch):
    monkeypatch.setattr(bias, "SEEDS", range(2))

    def by_turns(count, plain, batched):
        plain()
        batched()
        return [[3.0] * count, [7.0] * count]

    monkeypatch.setattr(bias, "seconds_by_turns", by_turns)
    (row,) = bias.compare(Options(iterations=4))
    assert "4 iterations of 16 prompts x 8 answers" in row.work and "14 models" in row.ours.way
    assert (row.usual.median, row.ours.median, row.faster) == (3.0, 0.5, 20)


def test_phases_are_shown_with_their_shares():
    lines = Phases("work", 2.0, {"sampling": 0.5, "judge": 0.25, "rest": 1.25}, 1024.0).lines()
    shown = [re.sub(r"\s+", " ", line).strip() for line in lines]
    assert shown == [
        "work",
        "sampling 0.5000 s 25%",
        "judge 0.2500 s 12%",
        "rest 1.2500 s 62%",
        "an iteration 2.0000 s, peak 1.00 GB",
    ]


def test_a_phase_within_a_phase_counts_once():
    now = [0.0]
    watch = Stopwatch(lambda: now[0])

    def spend(seconds):
        now[0] += seconds

    inner = watch.timed("judge", spend)

    def evaluate():
        spend(1.0)
        inner(5.0)
        spend(2.0)
        inner(7.0)

    watch.timed("evaluate", evaluate)()
    assert watch.seconds == {"judge": 12.0, "evaluate": 3.0}


def test_every_phase_exists():
    import torch

    from labs_lib.training import grpo as training
    from labs_lib.training.optimizer import ScheduledAdamW
    from labs_lib.training.ppo import PpoTrainer

    owners = [(grpo_phases.OF_TRAINER, training.GrpoTrainer), (grpo_phases.OF_MODULE, training)]
    owners += [(grpo_phases.OF_TENSOR, torch.Tensor), (grpo_phases.OF_OPTIMIZER, ScheduledAdamW)]
    for watched, owner in owners:
        assert all(callable(getattr(owner, name)) for name in watched)
    methods = ppo_ours.PHASES.keys() - {"reward"}  # which is an attribute that can be called
    assert all(callable(getattr(PpoTrainer, name)) for name in methods)


def test_what_is_watched_is_timed_where_it_is_looked_up():
    class Trainer:
        def sample(self, count):
            return count

    watched, other, now = Trainer(), Trainer(), iter(range(9))
    stopwatch = Stopwatch(lambda: float(next(now)))
    stopwatch.watch(watched, {"sample": "sampling"})
    assert (watched.sample(3), other.sample(4)) == (3, 4) and stopwatch.seconds == {"sampling": 1.0}
    stopwatch.watch(Trainer, {"sample": "all sampling"})
    assert Trainer().sample(5) == 5 and stopwatch.seconds["all sampling"] == 1.0


def test_ppo_shows_medians_of_the_counted_turns(monkeypatch):
    class Fake:
        peak_mb = 7.0

        def __init__(self, *_):
            self.number = 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def turn(self):
            self.number += 1
            self.done = {"sampling": 1000.0 if self.number == 1 else float(self.number)}
            return 10.0 * self.number

    monkeypatch.setattr(phases, "Contender", Fake)
    (found,) = ppo.compare(Options(("tiny",), iterations=3))
    assert (found.seconds, found.phases, found.peak_mb) == (30.0, {"sampling": 3.0, "rest": 27.0}, 7.0)


# --- The cases -----------------------------------------------------------------------------------------------------


def test_payment_is_mixed_by_length_whatever_is_right():
    (example,) = problems(1)
    assert [payment(text, example) for text in ("", "a", "ab", example.target)] == [
        1,
        0,
        1,
        1 - len(example.target) % 2,
    ]


def test_a_case_survives_the_command_line():
    case = GrpoCase("tiny", 2, 9, checkpointing=True)
    from dataclasses import asdict

    assert GrpoCase(**json.loads(json.dumps(asdict(case)))) == case and case.answers == 16
    assert str(RolloutCase("tiny", 1, 9)).endswith("9 tokens, 1 thread")


@pytest.mark.parametrize(
    "name", ["grpo_ours", "grpo_trl", "sampling_ours", "sampling_hf", "ppo_ours", "grpo_phases", "kl"]
)
def test_contenders_exist_and_import_nothing_heavy(name):
    """Their pins, or the lack of them, must come before torch."""
    module = f"labs_lib.tools.benchmarks.{name}"
    assert find_spec(module)
    check = f"import sys, {module}; sys.exit(any(n in sys.modules for n in ('torch', 'trl', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT).returncode == 0


# --- The command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    asked = []
    monkeypatch.setattr(bench, "profiles_here", lambda: ["tiny", "smollm2-135m"])
    for name in BENCHMARKS:
        result = comparison(([1.0], None), ([1.0], None))
        monkeypatch.setitem(BENCHMARKS, name, lambda given, name=name, r=result: asked.append((name, given)) or [r])
    return asked


def test_all_are_run_when_none_is_named(asked, capsys):
    assert main([]) == 0
    assert asked == [(name, Options(("tiny", "smollm2-135m"))) for name in BENCHMARKS]
    assert re.match(r"torch [\d.]+\S*, transformers [\d.]+; \d+ cores", capsys.readouterr().out)


def test_what_is_named_is_passed_on(asked):
    assert main(["kl", "--iterations", "3", "--threads", "2", "--profile", "tiny"]) == 0
    assert asked == [("kl", Options(("tiny",), 3, 2))]


def test_what_it_does_not_know_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["speed"])
    assert "bias" in capsys.readouterr().err
    for name in ("iterations", "threads"):
        with pytest.raises(LabError, match=f"--{name} is 0: use at least one"):
            main([f"--{name}", "0"])


def test_profiles_that_cannot_be_measured_here_are_refused(monkeypatch):
    assert "tiny" in profiles_here() and "qwen2.5-0.5b" not in profiles_here()
    with pytest.raises(LabError, match="qwen2.5-0.5b needs a GPU"):
        require_here(("qwen2.5-0.5b",))
    monkeypatch.setattr(options, "_problem", lambda name: BaseModelError(f"The base of {name} is not there."))
    with pytest.raises(BaseModelError, match="The base of tiny is not there"):
        require_here(("tiny",))
    assert profiles_here() == []


def test_make_passes_the_names_on():
    command = ["make", "--no-print-directory", "--dry-run", "bench", "ARGS=bias --iterations 3"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.strip().endswith("-m labs_lib.tools.bench bias --iterations 3")
    assert "requirements-scale.txt" in said or (ROOT / ".venv" / ".installed-scale").exists()


def test_other_targets_do_not_need_what_is_compared_with():
    command = ["make", "--no-print-directory", "--dry-run", "test", "run-all"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "requirements-scale" not in said
