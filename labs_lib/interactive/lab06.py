"""Lab 06 to play with: what a token of a short and of a long answer weighs under each normalisation."""

import torch

from labs_lib.bench.losses import VARIANTS, answer_weights
from labs_lib.figures.lab06 import token_weight_bars
from labs_lib.interactive.play import Play, Slider, View
from labs_lib.tasks.padded_bits.environment import MAX_TOKENS

NORMALISATIONS = {"answer": "grpo", "constant": "constant", "batch": "token_mean"}


def two_answers() -> Play:
    """Two answers of the bench, of 1 to 8 tokens each."""
    controls = {
        "first": Slider("tokens of answer 1", 2, 1, MAX_TOKENS, 1),
        "second": Slider("tokens of answer 2", 5, 1, MAX_TOKENS, 1),
    }
    alt = (
        "Two groups of bars, for one token and for the whole answer: what two answers of different lengths weigh in "
        "the loss when it is divided by the answer's length, by a constant, and by the tokens of the batch."
    )
    return Play(_two, controls, "06-play-lengths", alt)


def token_weights(lengths: tuple[int, int]) -> dict[str, list[float]]:
    """Normalisation -> what one token of each answer is multiplied by."""
    stopped = torch.ones(1, len(lengths), dtype=torch.bool)
    return {
        title: answer_weights(torch.tensor([lengths]), stopped, VARIANTS[name])[0].tolist()
        for title, name in NORMALISATIONS.items()
    }


def _two(first: int, second: int) -> View:
    lengths = first, second
    weights = token_weights(lengths)
    lines = []
    for title, (one, other) in weights.items():
        whole = first * one, second * other
        lines.append(
            f"{title:<9} token {one:.3f}, {other:.3f} (× {other / one:.2f})  "
            f"answer {whole[0]:.3f}, {whole[1]:.3f} (× {whole[1] / whole[0]:.2f})"
        )
    return View(token_weight_bars(lengths, weights), "\n".join(lines))
