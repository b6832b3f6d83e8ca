"""A contender: GRPO iterations of this project, timed phase by phase."""

from typing import Any

from labs_lib.tools.benchmarks.cases import GrpoCase
from labs_lib.tools.benchmarks.grpo_ours import trainer
from labs_lib.tools.benchmarks.phases import Stopwatch
from labs_lib.tools.benchmarks.turns import Turns, serve

OF_TRAINER = {
    "sample": "sampling",
    "read": "reading by the policy, for the check and the first update",
    "check_captured": "comparison with the captured log-probabilities",
}
OF_MODULE = {
    "masked_hidden": "reading by the reference",
    "score_against_reference": "exact KL, and reading again for the later updates",
}
OF_TENSOR = {"backward": "backward"}
OF_OPTIMIZER = {"step": "clipping and AdamW"}


def work(options: dict[str, Any], turns: Turns) -> None:
    """One iteration a turn, for ever; says the seconds of each phase."""
    ours, stopwatch = trainer(GrpoCase(**options)), Stopwatch()
    import torch

    from labs_lib.training import grpo

    stopwatch.watch(ours, OF_TRAINER)
    stopwatch.watch(grpo, OF_MODULE)
    stopwatch.watch(torch.Tensor, OF_TENSOR)
    stopwatch.watch(ours.optimizer, OF_OPTIMIZER)
    stopwatch.serve_iterations(ours.advance, turns)


if __name__ == "__main__":
    serve(work)
