"""The recorded run of the series on a real model: what its labs measured, at which budget, at what cost.

A run of hours is not repeated after every edit. Its record says which config, base and code made it, and it is shown
as what it is: a measurement made once, beside what a lab measures itself.
"""

from collections.abc import Iterable
from typing import Any

from labs_lib.branch_runs import COMMON_CODE
from labs_lib.checkpoint import code_fingerprint
from labs_lib.config import Profile
from labs_lib.errors import LabError
from labs_lib.models.locations import WEIGHTS, base_folder
from labs_lib.paths import DATA, ROOT, report_path
from labs_lib.reduced import budget_note
from labs_lib.storage import atomic_write_json, read_json, sha256_file

RECORD = DATA / "recorded" / "real_runs.json"
SHOWN = "smollm2-135m"
RATE = "learning_rate"
# What belongs to the files of one machine.
DROPPED = ("checkpoints", "state_sha256")
TRAINING = ("03_grpo_training", "04_sft_and_reward_model", "05_ppo_gae")  # the labs whose branches are recorded


def record_run(profile: Profile, cores: int) -> dict[str, Any]:
    """Keep what `make run-all` of this profile reported, under the profile's file; returns it.

    Args:
        cores: how many the run had.

    Raises:
        LabError: there is no report, or a lab that trains did not end well in it.
    """
    path = report_path(profile.name)
    if not path.exists():
        raise LabError(f"There is no report of {profile.name}: run it with `make run-all` first.")
    report = read_json(path)
    labs = {lab["name"]: lab for lab in report["labs"]}
    for name in TRAINING:
        if labs.get(name, {}).get("status") not in ("ok", "up to date"):
            raise LabError(
                f"{name} did not end well in the run of {profile.name}: a record needs every lab that trains."
            )
    branches = {
        name: {key: value for key, value in entry.items() if key not in DROPPED}
        for name, entry in report["branches"].items()
    }
    run = {
        "profile": profile.file,
        "budget": profile.protocol_share,
        "cores": cores,
        "config": profile.fingerprint(),
        "learning_rates": {key: value for key, value in profile.numeric_items().items() if key.endswith(RATE)},
        "base": sha256_file(base_folder(profile) / WEIGHTS),
        "code": code_fingerprint([ROOT / "labs_lib" / name for name in COMMON_CODE], ROOT / "labs_lib"),
        "peak_memory_mb": {name: labs[name]["peak_rss_mb"] for name in TRAINING},
        "branches": branches,
    }
    atomic_write_json(RECORD, _all() | {profile.file: run})
    return run


def load_run(name: str = SHOWN) -> dict[str, Any] | None:
    """The recorded run of a profile's file, or None: a lab runs also before anything is recorded."""
    return _all().get(name)


def _all() -> dict[str, Any]:
    return read_json(RECORD) if RECORD.exists() else {}


def describe_run(run: dict[str, Any] | None) -> str:
    """Model, budget, machine, memory and learning rates in two lines; for None, how a run is recorded."""
    if run is None:
        return f"No run of {SHOWN} is recorded: run `make run-all PROFILE={SHOWN}`, then `make record`."
    peak = max(run["peak_memory_mb"].values()) / 1000
    budget = budget_note(run["budget"]) or "The whole budget."
    rates = ", ".join(f"{_rated(key)} {rate:g}" for key, rate in run["learning_rates"].items())
    return (
        f"{run['profile']}, recorded once: {run['cores']} cores, at most {peak:.1f} GB a lab. {budget}\n"
        f"learning rates: {rates}"
    )


def _recorded(run: dict[str, Any] | None, names: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
    """Names and entries of the policies that the run has."""
    return [] if run is None else [(name, run["branches"][name]) for name in names if name in run["branches"]]


def _rated(key: str) -> str:
    """What a learning rate is of: "office.ppo actor" for "office.ppo.actor_learning_rate"."""
    return key.removesuffix(RATE).rstrip("._").replace(".actor", " actor").replace(".critic", " critic")


STOCK_COLUMNS = (
    "updates, answers",
    "greedy",
    "sampled",
    "valid JSON",
    "mean tokens",
    "mixed groups in training",
    "training, minutes",
)


def stock_rows(run: dict[str, Any] | None, names: Iterable[str]) -> list[list[str]]:
    """A row for each policy of lab 03 under `STOCK_COLUMNS`, after its name."""
    rows = []
    for name, entry in _recorded(run, names):
        greedy, sampled = (entry["accuracy"][kind]["ALL"] for kind in ("greedy", "sampled"))
        quality, mixed = entry["quality"], entry["mixed_groups"]
        rows.append(
            [
                name,
                f"{entry['updates']}, {entry['answers']}",
                _share(greedy["correct"], greedy),
                _share(sampled["correct"], sampled),
                f"{quality['sampled']['valid_json']}/{quality['sampled']['n']}",
                f"{quality['greedy']['mean_tokens']:.2f}",
                "none sampled" if mixed is None else f"{100 * mixed:.0f} %",
                f"{entry['seconds']['total'] / 60:.1f}",
            ]
        )
    return rows


OFFICE_COLUMNS = ("rubric success", "recognised", "unjustified certainty", "predicted reward", "training, minutes")


def office_rows(run: dict[str, Any] | None, names: Iterable[str]) -> list[list[str]]:
    """A row for each actor of labs 04 and 05 under `OFFICE_COLUMNS`, after its name: greedy answers to test prompts."""
    rows = []
    for name, entry in _recorded(run, names):
        rates = [entry[key] for key in ("rubric_success", "recognised_share", "unjustified_certainty")]
        reward = entry["mean_predicted_reward"]["judge"]
        shown = [f"{reward['value']:.2f}{_interval(reward, 1, 2)}"]
        rows.append([name, *map(_rate, rates), *shown, f"{entry['seconds']['total'] / 60:.1f}"])
    return rows


JUDGE_COLUMNS = ("right on the test pairs", "training, minutes")


def judge_rows(run: dict[str, Any] | None, names: Iterable[str]) -> list[list[str]]:
    """A row for each judge under `JUDGE_COLUMNS`, after its name."""
    entries = _recorded(run, names)
    return [[name, _rate(e["accuracy"]["test"]), f"{e['seconds']['total'] / 60:.1f}"] for name, e in entries]


def _rate(entry: dict[str, Any]) -> str:
    return _share(entry["count"], entry) if entry["n"] else "0/0"


def _share(count: int, entry: dict[str, Any]) -> str:
    """A count with the interval of its share in percent."""
    return f"{count}/{entry['n']}{_interval(entry, 100, 1, ' %')}"


def _interval(entry: dict[str, Any], factor: float, digits: int, unit: str = "") -> str:
    """What follows a value: its interval, `factor` times as large and in `unit`, if there is one.

    A bootstrap over problems or families that are all alike gives an interval without width, which says nothing about
    those that were not drawn.
    """
    if entry["low"] == entry["high"]:
        return ", no spread"
    low, high = (f"{factor * entry[end]:.{digits}f}" for end in ("low", "high"))
    return f" [{low}, {high}]{unit}"
