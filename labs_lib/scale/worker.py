"""What `accelerate launch` starts in every process: TRL's GRPOTrainer on StockArithmetic, from a job file to the end.

While it trains, held-out files cannot be opened, as in every training run of the labs. Each process writes the answers
that it sampled; the first one also counts the updates, and saves the policy.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from labs_lib.config import Profile
from labs_lib.errors import LabError
from labs_lib.paths import outputs_base
from labs_lib.runtime import start

PROGRESS, SECONDS, POLICY = "progress", "seconds.json", "policy"
FIRST = 0  # the process that counts and saves


def answers_file(folder: Path, process: int) -> Path:
    """Where a process writes the answers that it sampled, one JSON list of rows a rollout."""
    return folder / f"answers-{process}.jsonl"


def train(profile: Profile, job: dict[str, Any]) -> None:
    """One run: train, save, and say how long it took.

    Raises LabError when the launcher started another number of processes than the job is for.
    """
    from trl import GRPOTrainer

    from labs_lib.models.base import base_tokenizer
    from labs_lib.models.locations import base_folder
    from labs_lib.scale.settings import grpo_config
    from labs_lib.scale.task import VerifierReward, training_dataset
    from labs_lib.tasks.learning_scope import stock_arithmetic_scope

    folder, processes = Path(job["folder"]), job["processes"]
    config = grpo_config(profile, processes, str(folder / "trl"), **job["changes"])
    if config.world_size != processes:
        raise LabError(f"accelerate started {config.world_size} of {processes} processes: see configs/launch.")
    tokenizer = base_tokenizer(profile.base, base_folder(profile))
    with (
        open(answers_file(folder, config.process_index), "w", encoding="utf-8") as answers,
        stock_arithmetic_scope(outputs=outputs_base()),
    ):
        trainer = GRPOTrainer(
            job["start"],
            VerifierReward(tokenizer, lambda rows: _write(answers, rows)),
            config,
            training_dataset(),
            processing_class=tokenizer,
        )
        trainer.add_callback(_counter(folder))
        began = time.perf_counter()
        trainer.train(resume_from_checkpoint=job.get("resume"))
        seconds = time.perf_counter() - began
        trainer.save_model(str(folder / POLICY))
    if config.process_index == FIRST:
        (folder / SECONDS).write_text(json.dumps({"training": seconds}), encoding="utf-8")


def _write(file: Any, rows: list[dict[str, Any]]) -> None:
    file.write(json.dumps(rows) + "\n")
    file.flush()


def _counter(folder: Path):
    """A callback that keeps the number of finished updates in a file."""
    from transformers import TrainerCallback

    class Counter(TrainerCallback):
        def on_step_end(self, args, state, control, **_: Any) -> None:
            if state.is_world_process_zero:
                (folder / PROGRESS).write_text(str(state.global_step), encoding="ascii")

    return Counter()


def main(path: str) -> int:
    """Run the job that the JSON file at `path` describes."""
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    try:
        train(start(job["profile"], job["seed"], job["budget"]), job)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
