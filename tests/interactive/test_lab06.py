"""Lab 06's controls: the bench's weights for two answers of every pair of lengths."""

import pytest
import torch
from control_positions import positions
from hypothesis import given, settings
from matplotlib import pyplot

from labs_lib.bench.losses import VARIANTS, bench_loss
from labs_lib.figures.style import render_png, use_style
from labs_lib.interactive import lab06
from labs_lib.tasks.padded_bits.environment import MAX_TOKENS

LENGTHS = lab06.two_answers()


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    pyplot.close("all")


def test_the_static_figure_renders(recwarn):
    view = LENGTHS.view(**LENGTHS.start())
    assert render_png(view.figure).startswith(b"\x89PNG")
    assert [str(warning.message) for warning in recwarn] == []
    assert view.numbers.splitlines()[0] == ("answer    token 0.250, 0.100 (× 0.40)  answer 0.500, 0.500 (× 1.00)")


@settings(max_examples=30)
@given(positions(LENGTHS))
def test_the_bars_are_the_gradients_of_the_benchs_loss(position):
    lengths = position["first"], position["second"]
    figure = LENGTHS.view(**position).figure
    per_token, per_answer = ([bar.get_height() for bar in axes.patches] for axes in figure.axes)
    mask = torch.arange(MAX_TOKENS) < torch.tensor(lengths).unsqueeze(1)
    for place, name in enumerate(("grpo", "constant", "token_mean")):
        weights = torch.tensor([per_token[place], per_token[3 + place]], dtype=torch.float64)
        logprobs = torch.full((2, MAX_TOKENS), -1.0, dtype=torch.float64, requires_grad=True)
        parts, _ = bench_loss(logprobs, logprobs.detach(), -torch.ones(2).double(), mask, weights, VARIANTS[name])
        (gradient,) = torch.autograd.grad(parts.sum(), logprobs)
        pulls = gradient.sum(dim=1).tolist()
        assert [per_answer[place], per_answer[3 + place]] == pytest.approx(pulls)
    for axes in figure.axes:
        assert all(0 < bar.get_height() <= axes.get_ylim()[1] for bar in axes.patches)
    pyplot.close(figure)


@pytest.mark.parametrize(("title", "moves"), [("answer", False), ("constant", False), ("batch", True)])
def test_who_notices_that_the_other_answer_grew(title, moves):
    """What the lab asks its readers to predict."""
    short, long = (lab06.token_weights((2, second))[title][0] for second in (5, 8))
    assert (short != long) is moves


def test_weights_are_those_of_the_lab():
    assert lab06.token_weights((2, 5)) == {
        "answer": pytest.approx([0.25, 0.1]),
        "constant": pytest.approx([0.0625, 0.0625]),
        "batch": pytest.approx([1 / 7, 1 / 7]),
    }
