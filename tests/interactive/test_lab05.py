"""Lab 05's controls: GAE of one answer, from the kernels, at every position."""

import pytest
import torch
from control_positions import positions
from hypothesis import given, settings
from matplotlib import pyplot

from labs_lib.config import load_profile
from labs_lib.figures.lab05 import TOKEN_COLUMNS
from labs_lib.figures.style import render_png, use_style
from labs_lib.interactive import lab05
from labs_lib.kernels.gae import generalised_advantages_reference

PPO = load_profile("tiny").office.ppo
TOKENS = ["Try", " this", " now", ".", "<|im_end|>"]
ANSWER = {
    "logprobs": [-0.1, -0.5, -0.2, -3.0, -0.1],
    "reference_logprobs": [-0.2, -0.3, -0.4, -30.0, -0.1],
    "values": [2.06, 2.1, -1.5, 3.0, 2.04],
    "score": 5.19,
    "finish_reason": "eos",
}
CREDIT = lab05.answer_credit(TOKENS, ANSWER, PPO)


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    pyplot.close("all")


def bars(play, **moved):
    """The heights drawn at a position, by row."""
    figure = play.view(**{**play.start(), **moved}).figure
    rows = {
        name: [bar.get_height() for bar in axes.patches] for name, axes in zip(TOKEN_COLUMNS, figure.axes, strict=True)
    }
    limits = [axes.get_ylim() for axes in figure.axes]
    pyplot.close(figure)
    return rows, limits


def test_the_static_figure_renders(recwarn):
    view = CREDIT.view(**CREDIT.start())
    assert render_png(view.figure).startswith(b"\x89PNG")
    assert [str(warning.message) for warning in recwarn] == []
    assert "advantage first token ≈" in view.numbers and "last ≈3.16" in view.numbers


def test_the_controls_start_where_the_run_was():
    start = {"gamma": PPO.gamma, "gae_lambda": PPO.gae_lambda, "score": 5.2, "end": "EOS"}
    assert CREDIT.start() == start
    cut = lab05.answer_credit(TOKENS, {**ANSWER, "score": -11.0, "finish_reason": "length"}, PPO).start()
    assert (cut["score"], cut["end"]) == (-lab05.FURTHEST_SCORE, lab05.CUT)


LIMITS = bars(CREDIT)[1]


@settings(max_examples=20)
@given(positions(CREDIT))
def test_the_bars_are_equation_16_within_axes_that_stay(position):
    rows, limits = bars(CREDIT, **position)
    rewards, values = (torch.tensor([rows[name]], dtype=torch.float64) for name in ("reward", "value"))
    active = torch.ones_like(rewards, dtype=torch.bool)
    expected = generalised_advantages_reference(rewards, values, active, position["gamma"], position["gae_lambda"])
    assert rows["value"] == ANSWER["values"]
    assert rows["advantage"] == pytest.approx(expected.advantages[0].tolist(), abs=1e-12)
    assert rows["return"] == pytest.approx(expected.returns[0].tolist(), abs=1e-12)
    for row, (low, high) in zip(rows.values(), limits, strict=True):
        assert low <= min(row) and max(row) <= high
    assert limits == LIMITS


def test_only_the_last_reward_knows_score_and_end():
    start, cut = bars(CREDIT)[0]["reward"], bars(CREDIT, end=lab05.CUT, score=1.0)[0]["reward"]
    assert start[:-1] == cut[:-1] == pytest.approx([-0.002, 0.004, -0.004, -0.54])
    assert (start[-1], cut[-1]) == pytest.approx((5.2, 0.0))


def test_what_lambda_does():
    """What the lab asks its readers to predict."""
    one_step = bars(CREDIT, gae_lambda=0.0)[0], bars(CREDIT, gae_lambda=0.0, score=-5.0)[0]
    assert one_step[0]["advantage"][:-1] == one_step[1]["advantage"][:-1]
    whole = bars(CREDIT, gae_lambda=1.0)[0]
    assert whole["return"] == pytest.approx([sum(whole["reward"][place:]) for place in range(5)])
