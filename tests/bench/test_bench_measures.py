"""The published values of the three measures, and what each must be by hand."""

import pytest

from labs_lib.bench.measures import BUCKETS, BUFFER, bucket, bucket_gradients, clip_steps, difficulty
from labs_lib.errors import LabError

PUBLISHED = {"grpo": (59.727, 24.210, 60.395, 19.504), "dr_grpo": (7.983, 7.246, 8.072, 6.517)}
SETTINGS = {
    "grpo": {"length": None, "std": True, "correction": 1, "epsilon": 1e-4},
    "dr_grpo": {"length": 8, "std": False},
}


def means(**setting):
    rows = [bucket_gradients(seed=seed, **setting) for seed in range(5)]
    return {name: sum(row[name] for row in rows) / len(rows) for name in BUCKETS}


def ratios(found):
    return [round(found[f"{side} long"] / found[f"{side} short"], 2) for side in ("wrong", "right")]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_gradients_are_reproduced(name):
    found = means(**SETTINGS[name])
    assert [found[kind] for kind in BUCKETS] == pytest.approx(PUBLISHED[name], abs=2e-3)
    assert ratios(found) == {"grpo": [0.32, 0.41], "dr_grpo": [0.81, 0.91]}[name]


def test_the_ratios_are_the_lengths_doing_and_not_the_spreads():
    assert ratios(means(length=None, std=False)) == [0.32, 0.41]
    assert ratios(means(length=8, std=True)) == [0.81, 0.91]


def test_the_populations_spread_gives_other_values():
    """Bessel's correction is a factor of 0.935 for 8 rewards, four of them 1; the published table has it."""
    published, population = means(**SETTINGS["grpo"]), means(length=None, std=True)
    assert published["right short"] / population["right short"] == pytest.approx((7 / 8) ** 0.5, rel=1e-3)


def test_the_buffer_has_two_answers_of_every_kind():
    assert [bucket(answer) for answer in BUFFER] == [kind for kind in BUCKETS for _ in range(2)]


TABLE = {
    1: (2.65, -0.38, 0.88, -0.12, 3.02),
    2: (1.73, -0.58, 0.75, -0.25, 2.31),
    4: (1.00, -1.00, 0.50, -0.50, 2.00),
    6: (0.58, -1.73, 0.25, -0.75, 2.31),
    7: (0.38, -2.65, 0.12, -0.88, 3.02),
}


@pytest.mark.parametrize("right", TABLE)
def test_the_published_difficulty_table(right):
    assert difficulty(right) == pytest.approx(TABLE[right], abs=6e-3)


def test_divided_advantages_have_mean_0_and_mean_square_1():
    for right in range(1, 8):
        found = difficulty(right)
        assert right * found.right + (8 - right) * found.wrong == pytest.approx(0, abs=1e-12)
        assert (right * found.right**2 + (8 - right) * found.wrong**2) / 8 == pytest.approx(1, abs=1e-12)
        assert found.right / found.raw_right == pytest.approx(found.factor)


@pytest.mark.parametrize("right", [0, 8, 9, -1])
def test_a_constant_group_has_no_difficulty(right):
    with pytest.raises(LabError, match="constant group"):
        difficulty(right)


def test_the_published_numbers_of_steps():
    assert [round(clip_steps(0.01, 0.5, epsilon), 1) for epsilon in (0.2, 0.28, 0.4)] == [21.5, 15.8, 11.6]
    assert 0.01 * 1.2 ** clip_steps(0.01, 0.5, 0.2) == pytest.approx(0.5)


@pytest.mark.parametrize("start, goal, epsilon", [(0.5, 0.5, 0.2), (0, 0.5, 0.2), (0.1, 1.1, 0.2), (0.1, 0.5, 0)])
def test_a_climb_that_does_not_exist_is_refused(start, goal, epsilon):
    with pytest.raises(LabError, match="No climb"):
        clip_steps(start, goal, epsilon)
