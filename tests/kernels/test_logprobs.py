import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_lib.errors import LabError
from labs_lib.kernels.logprobs import entropy, selected_logprobs


def random_case(shape, dtype=torch.float64, scale=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=generator, dtype=torch.float64).mul(scale).to(dtype)
    return logits, torch.randint(shape[-1], shape[:-1], generator=generator)


def textbook(logits, ids):
    return torch.log_softmax(logits, -1).gather(-1, ids[..., None])[..., 0]


@pytest.mark.parametrize("shape", [(7,), (1, 7), (5, 33), (3, 4, 50), (2, 1, 3, 9)])
def test_values_and_gradients_equal_log_softmax_in_fp64(shape):
    logits, ids = random_case(shape)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    weights = torch.linspace(-1, 2, max(1, ids.numel()), dtype=torch.float64).view(ids.shape)
    (selected_logprobs(ours, ids) * weights).sum().backward()
    (textbook(theirs, ids) * weights).sum().backward()
    torch.testing.assert_close(selected_logprobs(logits, ids), textbook(logits, ids), rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12)


def test_fp32_is_within_1e_5_and_half_precision_is_summed_in_fp32():
    logits, ids = random_case((20, 1000))
    exact = textbook(logits, ids)
    torch.testing.assert_close(selected_logprobs(logits.float(), ids).double(), exact, rtol=0, atol=1e-5)
    rounded = logits.bfloat16()
    result = selected_logprobs(rounded, ids)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), textbook(rounded.double(), ids), rtol=0, atol=1e-5)


def test_one_token_by_hand():
    logits = torch.tensor([[0.0, 1.0, 3.0]], dtype=torch.float64)
    e = torch.e
    expected = 1.0 - torch.log(torch.tensor(1 + e + e**3, dtype=torch.float64))
    assert abs(selected_logprobs(logits, torch.tensor([1])).item() - expected.item()) < 1e-12


def test_off_by_one_positions_are_seen():
    """Mutant: scoring id t with the logits of its own position instead of the one before."""
    logits, sequence = random_case((1, 6, 11))
    right = selected_logprobs(logits[:, :-1], sequence[:, 1:])
    by_hand = torch.log_softmax(logits[0, 2], -1)[sequence[0, 3]]
    assert torch.allclose(right[0, 2], by_hand)
    mutant = selected_logprobs(logits[:, 1:], sequence[:, 1:])
    assert not torch.allclose(mutant[0, 2], by_hand)


def test_extreme_and_impossible_logits():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [0.0, -torch.inf, 0.0]])
    got = selected_logprobs(logits, torch.tensor([1, 2, 1]))
    assert got[0] == -2e4 and abs(got[1] + torch.tensor(3.0).log()) < 1e-3 and got[2] == -torch.inf


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("function", [lambda z: selected_logprobs(z, torch.zeros(2, 3).long()), entropy])
def test_unusable_logits_name_row_and_position(value, function):
    logits = torch.zeros(2, 3, 5)
    logits[1, 2, 4] = value
    with pytest.raises(LabError, match="prompt/answer row 1, position 2"):
        function(logits)


def test_a_row_of_only_minus_infinity_is_refused():
    logits = torch.zeros(4, 5)
    logits[3] = -torch.inf
    with pytest.raises(LabError, match="only -inf in the logits at row 3"):
        selected_logprobs(logits, torch.zeros(4).long())


@pytest.mark.parametrize(
    "ids, message",
    [
        (torch.tensor([0, -100]), "outside 0..4 at row 1"),
        (torch.tensor([5, 0]), "outside 0..4 at row 0"),
        (torch.tensor([0, 1, 2]), "ids has shape"),
        (torch.tensor([0, 1], dtype=torch.int32), "int64"),
    ],
)
def test_wrong_ids_are_refused(ids, message):
    with pytest.raises(LabError, match=message):
        selected_logprobs(torch.zeros(2, 5), ids)


def test_entropy_of_known_distributions():
    logits = torch.tensor([[0.0] * 4, [0.0, -torch.inf, -torch.inf, -torch.inf], [0.0, 0.0, -torch.inf, -1e4]])
    expected = torch.tensor([4.0, 1.0, 2.0]).log()
    torch.testing.assert_close(entropy(logits), expected, rtol=0, atol=1e-6)


def test_entropy_gradient_is_finite_and_right():
    logits = random_case((3, 6))[0].requires_grad_()
    assert torch.autograd.gradcheck(entropy, (logits,))
    with_zero = torch.tensor([0.3, -torch.inf, 1.0], requires_grad=True)
    entropy(with_zero).backward()
    assert with_zero.grad.isfinite().all() and with_zero.grad[1] == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=9), st.floats(-100, 100), st.data())
def test_probabilities_sum_to_one_and_ignore_a_shift(row, shift, data):
    logits = torch.tensor(row, dtype=torch.float64)
    every = selected_logprobs(logits.expand(len(row), -1), torch.arange(len(row)))
    assert abs(every.exp().sum().item() - 1) < 1e-12
    shifted = selected_logprobs((logits + shift).expand(len(row), -1), torch.arange(len(row)))
    torch.testing.assert_close(every, shifted, rtol=0, atol=1e-11)
    assert -1e-12 <= entropy(logits).item() <= torch.tensor(float(len(row))).log().item() + 1e-6
