"""Lab 02's controls: the kernels' numbers at every position, drawn as they are."""

import math

import pytest
import torch
from control_positions import positions
from hypothesis import given, settings
from matplotlib import pyplot

from labs_lib.figures.style import render_png, use_style
from labs_lib.interactive import lab02
from labs_lib.kernels.advantages import group_advantages
from labs_lib.kernels.surrogate import clipped_surrogate

GROUP, TOKEN = lab02.group_of_answers(), lab02.one_token(0.2, 0.2)


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    pyplot.close("all")


def at(play, **moved):
    return play.view(**{**play.start(), **moved})


def heights(axes):
    return [bar.get_height() for bar in axes.patches]


@pytest.mark.parametrize("play", [GROUP, TOKEN], ids=["group", "token"])
def test_the_static_figure_renders(play, recwarn):
    assert render_png(at(play).figure).startswith(b"\x89PNG")
    assert [str(warning.message) for warning in recwarn] == []


# --- A group -----------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(positions(GROUP))
def test_the_bars_of_a_group_are_the_kernels_numbers_within_the_axes(position):
    paid, compared = at(GROUP, **position).figure.axes
    rewards = torch.tensor([heights(paid)], dtype=torch.float64)
    assert rewards.shape == (1, position["group_size"])
    assert heights(compared) == lab02.advantages_at(rewards, position["divided_by"])[0].tolist()
    assert abs(sum(heights(compared))) < 1e-6
    for axes in (paid, compared):
        low, high = axes.get_ylim()
        assert all(low <= height <= high for height in heights(axes))
    pyplot.close("all")


def test_what_a_group_is_divided_by():
    rewards = torch.tensor([[1.1, 1.0, 1.0, 1.0]], dtype=torch.float64)
    expected = {"std + 1e-8": group_advantages(rewards), "nothing": rewards - rewards.mean()}
    expected["std + 0.1"] = (rewards - rewards.mean()) / (rewards.std(correction=0) + 0.1)
    for name, advantages in expected.items():
        assert torch.allclose(lab02.advantages_at(rewards, name), advantages, rtol=0, atol=1e-12)
    assert set(GROUP.controls["divided_by"].options) == set(expected)


def test_a_group_of_answers_that_are_paid_alike_is_constant_and_flat():
    for right in (0, 4, 8):
        view = at(GROUP, right=right, divided_by="nothing")
        assert "constant group" in view.numbers and "mixed" not in view.numbers
        assert heights(view.figure.axes[1]) == [0.0] * 4
    assert "mixed group" in at(GROUP).numbers and "mixed group" in at(GROUP, right=4, bonus=0.1).numbers


def test_a_bonus_in_a_solved_group_is_worth_what_the_lone_right_answer_is():
    """What the lab asks its readers to predict."""
    bonus, lone = (heights(at(GROUP, **moved).figure.axes[1]) for moved in ({"right": 4, "bonus": 0.05}, {"right": 1}))
    assert bonus == pytest.approx(lone, abs=1e-5) and lone[0] == pytest.approx(math.sqrt(3))
    assert heights(at(GROUP, right=4, bonus=0.05, divided_by="nothing").figure.axes[1])[0] < 0.04


# --- One token ---------------------------------------------------------------------------------------


def mark(axes):
    (line,) = (line for line in axes.get_lines() if line.get_marker() == "o")
    return line.get_xdata()[0], line.get_ydata()[0]


@settings(max_examples=40)
@given(positions(TOKEN))
def test_the_mark_lies_on_the_curve_and_within_the_axes(position):
    view = at(TOKEN, **position)
    for axes in view.figure.axes:
        curves = {line.get_label(): line for line in axes.get_lines()}
        assert all(math.isfinite(y) for line in axes.get_lines() for y in line.get_ydata())
        x, y = mark(axes)
        total = curves["sum"]
        nearest = min(range(len(total.get_xdata())), key=lambda place: abs(total.get_xdata()[place] - x))
        around = total.get_ydata()[max(0, nearest - 1) : nearest + 2]
        assert min(around) - 0.02 <= y <= max(around) + 0.02
        low, high = axes.get_ylim()
        assert low < y < high and x == position["ratio"]
    pyplot.close("all")


def test_curves_are_the_kernels_and_their_gradients_follow():
    ratios = torch.tensor([0.5, 0.9, 1.0, 1.3, 2.0], dtype=torch.float64)
    found = lab02.token_forces(ratios, -1.0, 0.5, 0.2, 0.3)
    now = ratios.log().unsqueeze(1)
    kernel = clipped_surrogate(now, torch.zeros_like(now), -torch.ones(5).double(), 0.2, 0.3)
    assert found.surrogate.loss == pytest.approx(kernel.loss[:, 0].tolist())
    p = ratios / 3
    kl = p * ratios.log() + (1 - p) * ((1 - p) * 1.5).log()
    assert found.kl == pytest.approx(kl.tolist())
    assert found.penalty.loss == pytest.approx((0.5 * kl).tolist())
    # By the token's logit: dp = p (1 - p), and -A times the ratio where no clip acts.
    slope = torch.where(kernel.clip_active[:, 0], 0.0, ratios * (1 - p))
    assert found.surrogate.gradient == pytest.approx(slope.tolist())
    assert found.penalty.gradient == pytest.approx((0.5 * p * (ratios.log() - kl)).tolist())
    sums = [a + b for a, b in zip(found.surrogate.gradient, found.penalty.gradient, strict=True)]
    assert found.total.gradient == pytest.approx(sums)


def test_beyond_the_clip_only_the_kl_acts():
    """What the lab asks its readers to predict."""
    assert "sum -0.651: token goes up" in at(TOKEN, ratio=1.2).numbers
    beyond = at(TOKEN, ratio=1.25).numbers
    assert "surrogate +0.000" in beyond and "token goes down" in beyond
    assert "token stays" in at(TOKEN, ratio=1.25, kl_weight=0.0).numbers
    assert "token goes up" in at(TOKEN, ratio=1.25, clip_high=0.28).numbers
    assert "-0.0000 nats" not in at(TOKEN).numbers


@pytest.mark.parametrize("play", [GROUP, TOKEN], ids=["group", "token"])
def test_numbers_fit_into_half_a_window(play):
    moved = {"group_size": 8} if play is GROUP else {"ratio": 2.5, "sign": "-1", "kl_weight": 3.0}
    assert max(map(len, play.numbers_at(**moved).splitlines())) <= 72
