"""The exercise checks: right passes, a stub is not attempted, and no plausible wrong answer gets through."""

import numpy
import pytest
import torch

from labs_lib.errors import LabError
from labs_lib.exercises.check import Comparison, Exercise, Property, Result, assert_discriminates, close, gradients
from labs_lib.exercises.snapshot import same, snapshot

REWARDS = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0]])
CONSTANT = torch.full((1, 8), 0.1)
MASK = torch.tensor([[True, True, False], [True, True, True]])
LOSSES = torch.tensor([[1.0, 3.0, 9.0], [2.0, 2.0, 5.0]], dtype=torch.float64)


def solution(rewards):
    spread = rewards.std(dim=1, keepdim=True, correction=0)
    advantages = (rewards - rewards.mean(dim=1, keepdim=True)) / (spread + 1e-8)
    constant = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    return torch.where(constant, torch.zeros_like(rewards), advantages)


EXERCISE = Exercise(
    "group_advantages",
    (
        Property("the best answer of four gets the square root of 3", lambda f: close(f(REWARDS), solution(REWARDS))),
        Property("equal rewards give exactly zero", lambda f: close(f(CONSTANT), torch.zeros(1, 8), atol=0.0)),
    ),
)


def stub(rewards):
    raise NotImplementedError


def ellipsis_stub(rewards):
    advantages = ...
    return advantages


def flipped_sign(rewards):
    return -solution(rewards)


def sample_deviation(rewards):
    return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-8)


def naive_on_equal_rewards(rewards):
    spread = rewards.std(1, keepdim=True, correction=0)
    return (rewards - rewards.mean(1, keepdim=True)) / (spread + 1e-8)


def zeros(rewards):
    return torch.zeros_like(rewards)


def nans(rewards):
    return solution(rewards) + float("nan")


def double_precision(rewards):
    return solution(rewards).double()


def flattened(rewards):
    return solution(rewards).flatten()


def truthy_tuple(rewards):
    return solution(rewards), "looks right"


def a_list(rewards):
    return solution(rewards).tolist()


def nothing(rewards):
    solution(rewards)


def in_place(rewards):
    rewards -= rewards.mean(1, keepdim=True)
    return rewards / (rewards.std(1, keepdim=True, correction=0) + 1e-8)


def restores_shape_but_not_values(rewards):
    result = solution(rewards)
    rewards.zero_()
    return result


def noisy(rewards):
    return solution(rewards) + torch.rand(()) * 1e-7


def crashes(rewards):
    return solution(rewards)[:, 10]


def exits(rewards):
    raise SystemExit(0)


def recurses(rewards):
    return recurses(rewards)


def other_not_implemented(rewards):
    raise NotImplementedError("this dtype is not supported on this device")


MUTANTS = [
    flipped_sign,
    sample_deviation,
    naive_on_equal_rewards,
    zeros,
    nans,
    double_precision,
    flattened,
    truthy_tuple,
    a_list,
    nothing,
    in_place,
    restores_shape_but_not_values,
    noisy,
    crashes,
    exits,
    recurses,
    other_not_implemented,
    "not a function",
    None,
]


def test_sample_exercise_discriminates():
    assert_discriminates(EXERCISE, solution, stub, MUTANTS)
    assert_discriminates(EXERCISE, solution, ellipsis_stub, MUTANTS)
    assert_discriminates(EXERCISE, solution, ..., MUTANTS)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (solution, "✓ group_advantages"),
        (stub, "○ not attempted: group_advantages"),
        (zeros, "✗ group_advantages: the best answer of four gets the square root of 3 (some values differ)"),
        (nans, "(the result contains NaN)"),
        (double_precision, "(the dtype is torch.float64 and should be torch.float32)"),
        (flattened, "(the shape is (8,) and should be (2, 4))"),
        (truthy_tuple, "(the result is of type tuple and should be a tensor)"),
        (nothing, "(the result is None; is a `return` missing?)"),
        (in_place, "(it changes its arguments in place; work on a copy)"),
        (noisy, "(two calls with equal arguments give different results)"),
        (naive_on_equal_rewards, "✗ group_advantages: equal rewards give exactly zero"),
        (crashes, "(IndexError: index 10 is out of bounds"),
        (exits, "(SystemExit: 0)"),
    ],
)
def test_the_line_names_the_property_and_what_is_wrong(answer, line, capsys):
    result = EXERCISE.check(answer)
    printed = capsys.readouterr().out
    assert printed == result.line + "\n"
    assert line in printed


def test_hints_never_show_the_right_values():
    for mutant in MUTANTS:
        line = EXERCISE.evaluate(mutant).line
        assert "1.73" not in line
        assert "0.57" not in line


def test_prints_of_the_student_do_not_reach_the_check(capsys):
    def talkative(rewards):
        print("shape:", rewards.shape)
        return solution(rewards)

    EXERCISE.check(talkative)
    assert capsys.readouterr().out == "✓ group_advantages\n"


def test_a_long_message_stays_one_line():
    def wordy(rewards):
        raise ValueError("first line\nsecond line " + "x" * 500)

    line = EXERCISE.evaluate(wordy).line
    assert "\n" not in line
    assert len(line) < 300


def test_keyboard_interrupt_stops_the_check():
    def interrupted(rewards):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EXERCISE.check(interrupted)


def test_result_is_not_shown_a_second_time_in_a_notebook(capsys):
    Result("x", "right")._ipython_display_()
    assert capsys.readouterr().out == ""


def test_only_true_passes():
    for outcome in [1, "yes", (False, "message"), torch.tensor(True), None, Comparison("differs"), numpy.True_]:
        exercise = Exercise("x", (Property("holds", lambda f, outcome=outcome: outcome),))
        assert exercise.evaluate(solution).status == "wrong"
    for outcome in [True, Comparison()]:
        exercise = Exercise("x", (Property("holds", lambda f, outcome=outcome: outcome),))
        assert exercise.evaluate(solution).status == "right"


def test_an_exercise_without_properties_is_refused():
    with pytest.raises(LabError, match="no property"):
        Exercise("empty", ())


def test_a_value_can_be_the_answer():
    exercise = Exercise("predict", (Property("the fifth answer", lambda value: close(value, 3)),))
    assert_discriminates(exercise, 3, ..., [4, 3.0, True, "3", torch.tensor(3)])


# --- gradients ---------------------------------------------------------------------------------------


def answer_mean(losses):
    return ((losses * MASK).sum(1) / MASK.sum(1)).mean()


LOSS_EXERCISE = Exercise(
    "answer_mean",
    (
        Property("the loss of two answers", lambda f: close(f(LOSSES), answer_mean(LOSSES))),
        Property(
            "every answer weighs the same in the gradient",
            lambda f: close(gradients(f, LOSSES)[0], gradients(answer_mean, LOSSES)[0]),
        ),
    ),
)


def detached(losses):
    return answer_mean(losses.detach())


def through_numpy(losses):
    return torch.tensor(float(answer_mean(losses)), dtype=losses.dtype)


def right_value_wrong_gradient(losses):
    return answer_mean(losses.detach()) + 0 * losses.sum()


def token_mean(losses):
    return (losses * MASK).sum() / MASK.sum()


def test_gradients_are_part_of_the_answer():
    mutants = [detached, through_numpy, right_value_wrong_gradient, token_mean]
    assert_discriminates(LOSS_EXERCISE, answer_mean, stub, mutants)
    assert "no gradient flows" in LOSS_EXERCISE.evaluate(detached).line


def test_an_input_that_is_not_used_is_named():
    exercise = Exercise("two", (Property("uses both", lambda f: gradients(f, LOSSES, LOSSES)[1] is not None),))
    assert "one of the inputs" in exercise.evaluate(lambda a, b: a * 2).line


def test_a_tolerance_that_lets_zero_pass_is_refused():
    tiny = torch.tensor([1e-7, -2e-7])
    with pytest.raises(LabError, match="from zero"):
        close(torch.zeros(2), tiny, atol=1e-6)
    assert close(tiny, tiny, atol=1e-10)
    assert not close(torch.zeros(2), tiny, atol=1e-10)


# --- close and the guard -----------------------------------------------------------------------------


def test_close_on_infinities_and_integers():
    infinite = torch.tensor([float("inf"), 1.0, float("-inf")])
    assert close(infinite.clone(), infinite)
    assert not close(torch.tensor([float("inf"), 1.0, float("inf")]), infinite)
    assert not close(torch.tensor([1.0, 1.0, float("-inf")]), infinite)
    assert not close(torch.tensor([float("nan"), 1.0, float("-inf")]), infinite)
    assert close(torch.tensor([1, 2]), torch.tensor([1, 2]))
    assert not close(torch.tensor([1, 3]), torch.tensor([1, 2]))
    assert not close(torch.tensor([True]), torch.tensor([1]))
    assert close(torch.zeros(0), torch.zeros(0))


def test_close_on_plain_numbers():
    assert close(0.1 + 0.2, 0.3)
    assert close(1, 1.0)
    assert not close(True, 1.0)
    assert not close(0.3 + 2e-6, 0.3)
    assert not close(1.0, 1)
    assert not close(float("nan"), 0.3)


def test_a_generator_may_be_advanced_and_the_draws_are_compared_from_its_start():
    def draw(generator):
        return torch.rand(3, generator=generator)

    def draw_from_global(generator):
        return torch.rand(3)

    expected = draw(torch.Generator().manual_seed(1))
    exercise = Exercise(
        "draw", (Property("draws from the generator", lambda f: close(f(torch.Generator().manual_seed(1)), expected)),)
    )
    assert exercise.evaluate(draw).status == "right"
    assert "two calls" in exercise.evaluate(draw_from_global).line


def test_random_and_mutating_exercises_can_say_so():
    def shuffle(values):
        values.reverse()
        return values

    properties = (Property("reverses", lambda f: f([1, 2]) == [2, 1]),)
    assert Exercise("reverse", properties, mutates=True).evaluate(shuffle).status == "right"
    assert "in place" in Exercise("reverse", properties).evaluate(shuffle).line
    noise = (Property("is a number", lambda f: type(f()) is float),)
    draw = lambda: float(torch.rand(()))  # noqa: E731
    assert Exercise("noise", noise, deterministic=False).evaluate(draw).status == "right"
    assert Exercise("noise", noise).evaluate(draw).status == "wrong"


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (numpy.array([1.0, float("nan")]), numpy.array([1.0, float("nan")]), True),
        (numpy.array([1, 2]), numpy.array([1, 3]), False),
        ({"a": [torch.zeros(1)]}, {"a": [torch.zeros(1)]}, True),
        ({"a": 1}, {"b": 1}, False),
        ((1, "x"), (1, "x"), True),
        (1, True, False),
        (float("nan"), float("nan"), True),
        (object(), object(), True),
        ([1], [1, 2], False),
    ],
)
def test_snapshots_compare_by_value(first, second, equal):
    assert same(snapshot(first), snapshot(second)) is equal


def test_a_snapshot_of_a_model_sees_a_changed_weight():
    model = torch.nn.Linear(2, 1)
    before = snapshot(model)
    assert same(snapshot(model), before)
    with torch.no_grad():
        model.weight[0, 0] += 1
    assert not same(snapshot(model), before)


def test_assert_discriminates_fails_on_each_kind_of_bad_exercise():
    accepts_all = Exercise("lax", (Property("anything", lambda f: True),))
    with pytest.raises(AssertionError, match="untouched stub is called right"):
        assert_discriminates(accepts_all, solution, stub, MUTANTS[:3])
    calls_only = Exercise("lax", (Property("runs", lambda f: f(REWARDS) is not None),))
    with pytest.raises(AssertionError, match="lets the mutant flipped_sign through"):
        assert_discriminates(calls_only, solution, stub, MUTANTS[:3])
    with pytest.raises(AssertionError, match="at least three mutants"):
        assert_discriminates(EXERCISE, solution, stub, MUTANTS[:2])
    with pytest.raises(AssertionError, match="solution is rejected"):
        assert_discriminates(EXERCISE, zeros, stub, MUTANTS[:3])
