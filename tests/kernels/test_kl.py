import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import kl_div

from labs_lib.errors import LabError
from labs_lib.kernels.kl import (
    exact_kl_reference,
    prefix_statistics,
    prefix_statistics_from_hidden,
    sampled_kl_estimators,
)
from labs_lib.kernels.logprobs import entropy, selected_logprobs

INF = torch.inf


def randn(*shape, seed, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def torch_kl(policy, reference):
    """The formula of torch.nn.functional: kl_div(input=log q, target=log p) = sum p (log p - log q)."""
    logq, logp = torch.log_softmax(reference, -1), torch.log_softmax(policy, -1)
    return kl_div(logq, logp, log_target=True, reduction="none").sum(-1)


def any_ids(policy):
    return torch.arange(policy[..., 0].numel()).view(policy.shape[:-1]) % policy.shape[-1]


def streaming_kl(policy, reference, block=7):
    return prefix_statistics(policy, reference, any_ids(policy), block).kl


def logit_pair(shape, scale=3.0, dtype=torch.float64):
    return randn(*shape, seed=1).mul(scale).to(dtype), randn(*shape, seed=2).mul(scale).to(dtype)


# Rising logits make the running maximum grow in every block: the case in which rescaling matters.
def rising_pair():
    policy, reference = logit_pair((6, 40))
    return policy + torch.arange(40) * 0.5, reference + torch.arange(40) * 0.4


# --- The bugs the checks below have to reject ---------------------------------------------------------------


def blockwise_normalised_kl(policy, reference, block=7):
    """Mutant: every vocabulary block is normalised by itself, as if it were the whole vocabulary."""
    pairs = zip(policy.split(block, -1), reference.split(block, -1), strict=True)
    return sum(exact_kl_reference(z, y) for z, y in pairs)


def kl_without_rescaling(policy, reference, block=7):
    """Mutant: the running maximum grows, the sums taken under the old maximum stay as they are."""
    m = n = torch.full(policy.shape[:-1], -1e30, dtype=policy.dtype)
    s = r = t = torch.zeros_like(m)
    for z, y in zip(policy.split(block, -1), reference.split(block, -1), strict=True):
        m, n = torch.maximum(m, z.amax(-1)), torch.maximum(n, y.amax(-1))
        weight = (z - m[..., None]).exp()
        s, r = s + weight.sum(-1), r + (y - n[..., None]).exp().sum(-1)
        t = t + (weight * (z - y)).sum(-1)
    return t / s - (m + s.log()) + (n + r.log())


def kl_of_swapped_policies(policy, reference):
    return exact_kl_reference(reference, policy)


def agrees_with_torch(function, policy, reference, atol):
    expected = torch_kl(policy.double(), reference.double())
    return torch.allclose(function(policy, reference).double(), expected, rtol=atol, atol=atol)


def gradient(function, policy, reference):
    leaf = policy.clone().requires_grad_()
    kl = function(leaf, reference)
    (kl * torch.linspace(0.5, 2, kl.numel(), dtype=kl.dtype).view(kl.shape)).sum().backward()
    return leaf.grad


# --- Exact KL: values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [exact_kl_reference, streaming_kl])
@pytest.mark.parametrize("shape", [(1, 5), (6, 40), (3, 4, 21), (9,), (2, 2, 2, 10)])
def test_values_equal_torch(function, shape):
    policy, reference = logit_pair(shape)
    assert agrees_with_torch(function, policy, reference, 1e-12)
    assert agrees_with_torch(function, policy.float(), reference.float(), 1e-5)


@pytest.mark.parametrize("block", [1, 2, 7, 39, 40, 41, 4096])
def test_any_block_size_gives_the_same_values(block):
    policy, reference = rising_pair()
    assert agrees_with_torch(lambda z, y: streaming_kl(z, y, block), policy, reference, 1e-12)


@pytest.mark.parametrize("mutant", [blockwise_normalised_kl, kl_without_rescaling, kl_of_swapped_policies])
def test_the_value_check_rejects_mutants(mutant):
    policy, reference = rising_pair()
    assert agrees_with_torch(streaming_kl, policy, reference, 1e-12)
    assert not agrees_with_torch(mutant, policy, reference, 1e-2)


def test_a_block_normalised_by_itself_is_right_only_when_there_is_one_block():
    policy, reference = logit_pair((4, 30))
    one_block = blockwise_normalised_kl(policy, reference, block=30)
    torch.testing.assert_close(one_block, torch_kl(policy, reference), rtol=0, atol=1e-12)
    assert ((blockwise_normalised_kl(policy, reference, 10) - one_block).abs() > 1e-2).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [exact_kl_reference, streaming_kl])
def test_identical_policies_have_no_kl_and_no_gradient(function, dtype):
    policy = randn(8, 333, seed=3, dtype=dtype) * 10
    assert function(policy, policy.clone()).abs().max() <= 1e-7
    # The dense formula's gradient is left with FP32 rounding, the streaming one's is exactly 0.
    allowed = 0.0 if function is streaming_kl else 1e-6
    assert gradient(function, policy, policy.clone()).abs().max() <= allowed


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 70),
    st.sampled_from([1e-6, 1e-3, 1.0]),
    st.sampled_from([1.0, 30.0]),
    st.floats(-1e4, 1e4),
    st.integers(0, 10_000),
)
def test_kl_is_never_negative_in_fp32(vocabulary, block, distance, scale, shift, seed):
    policy = randn(5, vocabulary, seed=seed, dtype=torch.float32) * scale
    reference = policy + distance * randn(5, vocabulary, seed=seed + 1, dtype=torch.float32)
    kl = streaming_kl(policy, reference + shift, block)
    assert (kl >= -1e-6).all()
    exact = torch_kl(policy.double(), (reference + shift).double())
    torch.testing.assert_close(kl.double(), exact, rtol=1e-5, atol=1e-5)


def test_kl_and_entropy_do_not_depend_on_the_sampled_token():
    policy, reference = logit_pair((5, 20))
    first = prefix_statistics(policy, reference, torch.zeros(5).long(), 6)
    second = prefix_statistics(policy, reference, torch.full((5,), 19), 6)
    assert torch.equal(first.kl, second.kl) and torch.equal(first.entropy, second.entropy)
    assert not torch.equal(first.logprobs, second.logprobs)


def test_logprobs_and_entropy_equal_the_dense_kernels():
    policy, reference = rising_pair()
    ids = any_ids(policy)
    got = prefix_statistics(policy, reference, ids, 7)
    torch.testing.assert_close(got.logprobs, selected_logprobs(policy, ids), rtol=0, atol=1e-12)
    torch.testing.assert_close(got.entropy, entropy(policy), rtol=0, atol=1e-12)


# --- Awkward logits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 2, 3, 6])
@pytest.mark.parametrize("function", [exact_kl_reference, streaming_kl])
def test_infinite_logits(function, block):
    policy = torch.tensor(
        [
            [0.0, -INF, 1.0, -INF, 0.0, 2.0],  # p = 0 where q > 0, and where q = 0: contributes 0
            [-INF, -INF, -INF, 0.0, 1.0, 2.0],  # whole first blocks impossible
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],  # p > 0 where q = 0
            [0.0, 0.0, 0.0, 0.0, 0.0, 1e4],  # p > 0 in exact arithmetic, underflowed, where q = 0
        ]
    ).double()
    reference = torch.tensor(
        [
            [0.5, 0.0, 1.0, -INF, 0.0, 0.0],
            [-INF, -INF, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, -INF, 0.0, 0.0],
            [-INF, 0.0, 0.0, 0.0, 0.0, 0.0],
        ]
    ).double()
    got = streaming_kl(policy, reference, block) if function is streaming_kl else function(policy, reference)
    for row in (0, 1):
        support = policy[row] > -INF
        logp, logq = policy[row].log_softmax(-1)[support], reference[row].log_softmax(-1)[support]
        assert abs(got[row] - (logp.exp() * (logp - logq)).sum()) < 1e-12
    assert got[2] == INF and got[3] == INF


def test_infinite_logits_keep_gradients_finite():
    policy = torch.tensor([[0.0, -INF, 1.0, -INF], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    reference = torch.tensor([[0.5, 0.0, 1.0, -INF], [0.0, 0.0, 0.0, -INF]], dtype=torch.float64)
    leaf = policy.clone().requires_grad_()
    statistics = prefix_statistics(leaf, reference, torch.tensor([2, 0]), 3)
    # Row 1 has an infinite KL, but only its log-prob enters the loss.
    (statistics.kl[0] + statistics.entropy.sum() + statistics.logprobs.sum()).backward()
    assert leaf.grad.isfinite().all() and (leaf.grad[0, [1, 3]] == 0).all()
    twin = policy.clone().requires_grad_()
    (exact_kl_reference(twin[0], reference[0]) + entropy(twin).sum()).backward()
    (selected_logprobs(twin, torch.tensor([2, 0])).sum()).backward()
    torch.testing.assert_close(leaf.grad, twin.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_extreme_logits(dtype, tolerance):
    policy = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [1e4, 1e4, 1e4], [0.0, 0.0, 0.0]], dtype=dtype)
    reference = torch.tensor([[1e4, 0.0, -1e4], [1e4, -1e4, 0.0], [-1e4] * 3, [1e4, 1e4, 1e4]], dtype=dtype)
    for block in (1, 2, 3):
        got = streaming_kl(policy, reference, block).double()
        expected = torch_kl(policy.double(), reference.double())
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    ours, theirs = (gradient(f, policy, reference) for f in (streaming_kl, torch_kl))
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_one_token_vocabulary_and_no_rows():
    one = torch.full((3, 1), 5.0)
    statistics = prefix_statistics(one, one - 9, torch.zeros(3).long(), 4)
    assert all((value == 0).all() for value in statistics)
    empty = torch.zeros(0, 5)
    assert prefix_statistics(empty, empty, torch.zeros(0).long(), 2).kl.shape == (0,)


# --- Gradients ----------------------------------------------------------------------------------------------


def gradients_agree(function, policy, reference, atol):
    theirs = gradient(torch_kl, policy.double(), reference.double())
    return torch.allclose(gradient(function, policy, reference).double(), theirs, rtol=atol, atol=atol)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("function", [exact_kl_reference, streaming_kl])
def test_kl_gradients_equal_torch(function, dtype, tolerance):
    policy, reference = rising_pair()
    assert gradients_agree(function, policy.to(dtype), reference.to(dtype), tolerance)


def test_the_gradient_is_p_times_log_ratio_minus_kl():
    policy, reference = logit_pair((1, 12))
    logp, logq = policy.log_softmax(-1), reference.log_softmax(-1)
    uncentred = 0.5 * logp.exp() * (logp - logq)  # mutant: the normaliser's part of the derivative forgotten
    kl = torch_kl(policy, reference)[:, None]
    ours = gradient(streaming_kl, policy, reference)
    torch.testing.assert_close(ours, uncentred - 0.5 * logp.exp() * kl, rtol=0, atol=1e-12)
    assert (ours - uncentred).abs().max() > 1e-2


def test_the_gradient_check_rejects_a_blockwise_normalised_kl():
    policy, reference = logit_pair((4, 30))
    assert gradients_agree(streaming_kl, policy, reference, 1e-12)
    assert not gradients_agree(blockwise_normalised_kl, policy, reference, 1e-2)


@pytest.mark.parametrize("block", [3, 5, 11])
def test_gradcheck_from_logits(block):
    policy, reference = logit_pair((2, 2, 11), scale=1.0)
    ids = any_ids(policy)
    assert torch.autograd.gradcheck(lambda z: prefix_statistics(z, reference, ids, block), (policy.requires_grad_(),))


def hidden_case(leading=(2, 3), hidden=4, vocabulary=11, reference_hidden=5, dtype=torch.float64):
    return (
        randn(*leading, hidden, seed=1, dtype=dtype),
        randn(vocabulary, hidden, seed=2, dtype=dtype),
        randn(*leading, reference_hidden, seed=3, dtype=dtype),
        randn(vocabulary, reference_hidden, seed=4, dtype=dtype),
        torch.randint(vocabulary, leading, generator=torch.Generator().manual_seed(5)),
    )


@pytest.mark.parametrize("block", [3, 11, 64])
@pytest.mark.parametrize("leading", [(2, 3), (1,), ()])
def test_gradcheck_from_hidden(block, leading):
    hidden, unembedding, *constants = hidden_case(leading)
    assert torch.autograd.gradcheck(
        lambda h, w: prefix_statistics_from_hidden(h, w, *constants, block),
        (hidden.requires_grad_(), unembedding.requires_grad_()),
    )


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_hidden_and_logits_paths_agree_in_values_and_gradients(dtype, tolerance):
    hidden, unembedding, r_hidden, r_unembedding, ids = hidden_case((5, 6), 16, 50, 16, dtype)
    results = []
    for streamed in (True, False):
        h, w = hidden.clone().requires_grad_(), unembedding.clone().requires_grad_()
        if streamed:
            got = prefix_statistics_from_hidden(h, w, r_hidden, r_unembedding, ids, 7)
        else:
            got = prefix_statistics(h @ w.T, r_hidden @ r_unembedding.T, ids, 50)
        (got.logprobs.mean() + 0.3 * got.kl.mean() + 0.1 * got.entropy.mean()).backward()
        results.append((*got, h.grad, w.grad))
    for ours, dense in zip(*results, strict=True):
        torch.testing.assert_close(ours, dense, rtol=tolerance, atol=tolerance)


def test_the_reference_gets_no_gradient_and_a_frozen_unembedding_none():
    hidden, unembedding, r_hidden, r_unembedding, ids = hidden_case()
    for tensor in (hidden, r_hidden, r_unembedding):
        tensor.requires_grad_()
    prefix_statistics_from_hidden(hidden, unembedding, r_hidden, r_unembedding, ids, 4).kl.sum().backward()
    assert hidden.grad is not None and hidden.grad.abs().max() > 0
    assert unembedding.grad is None and r_hidden.grad is None and r_unembedding.grad is None


def test_bf16_operands_are_summed_in_fp32():
    case = hidden_case((4, 5), 32, 300, 32, torch.bfloat16)
    hidden, unembedding = case[0].requires_grad_(), case[1].requires_grad_()
    got = prefix_statistics_from_hidden(*case, 64)
    exact = prefix_statistics_from_hidden(*(tensor.detach().double() for tensor in case[:4]), case[4], 64)
    for ours, theirs in zip(got, exact, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    got.kl.sum().backward()
    assert hidden.grad.dtype == unembedding.grad.dtype == torch.bfloat16


def test_no_full_logits_are_saved_for_the_backward():
    hidden, unembedding, r_hidden, r_unembedding, ids = hidden_case((64,), 4, 500, 4)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        prefix_statistics_from_hidden(hidden.requires_grad_(), unembedding, r_hidden, r_unembedding, ids, 50)
    assert saved and max(saved) <= unembedding.numel() < 64 * 500


# --- Refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.nan, INF])
@pytest.mark.parametrize("side", [0, 1])
def test_unusable_logits_name_side_and_place(value, side):
    pair = [torch.zeros(3, 4, 9), torch.zeros(3, 4, 9)]
    pair[side][2, 1, 8] = value
    message = f"NaN or .inf in the {('policy', 'reference')[side]} logits at prompt/answer row 2, position 1"
    with pytest.raises(LabError, match=message):
        prefix_statistics(*pair, torch.zeros(3, 4).long(), 4)


@pytest.mark.parametrize("side", [0, 1])
def test_rows_of_only_minus_infinity_are_refused(side):
    pair = [torch.zeros(3, 9), torch.zeros(3, 9)]
    pair[side][1] = -INF
    with pytest.raises(LabError, match="only -inf in the .* logits at row 1"):
        prefix_statistics(*pair, torch.zeros(3).long(), 4)


def test_shapes_blocks_and_ids_are_checked():
    logits, ids = torch.zeros(3, 9), torch.zeros(3).long()
    with pytest.raises(LabError, match="reference_logits has shape"):
        prefix_statistics(logits, torch.zeros(1, 9), ids, 4)
    with pytest.raises(LabError, match="block is 0"):
        prefix_statistics(logits, logits, ids, 0)
    with pytest.raises(LabError, match="outside 0..8 at row 0"):
        prefix_statistics(logits, logits, ids + 9, 4)
    hidden, unembedding, r_hidden, r_unembedding, ids = hidden_case()
    with pytest.raises(LabError, match="reference_unembedding has shape"):
        prefix_statistics_from_hidden(hidden, unembedding, r_hidden, r_unembedding[:-1], ids, 4)
    with pytest.raises(LabError, match="reference_hidden has shape"):
        prefix_statistics_from_hidden(hidden, unembedding, r_hidden[:1], r_unembedding, ids, 4)


# --- Sampled estimators -------------------------------------------------------------------------------------


def estimates_over_the_vocabulary(policy, reference):
    """Every token once, with its probability: expectations without sampling noise."""
    logp = policy.log_softmax(-1)
    return logp.detach().exp(), sampled_kl_estimators(logp, reference.log_softmax(-1))


def test_estimators_by_hand():
    k1, k2, k3 = sampled_kl_estimators(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0]))
    torch.testing.assert_close(k1, torch.tensor([0.5, -1.0]))
    torch.testing.assert_close(k2, torch.tensor([0.125, 0.5]))
    torch.testing.assert_close(k3, torch.tensor([0.106530660, 0.718281828]))


def test_k1_and_k3_are_unbiased_k2_is_not_and_the_sign_of_d_matters():
    policy, reference = logit_pair((20,), scale=1.0)
    p, (k1, k2, k3) = estimates_over_the_vocabulary(policy, reference)
    exact = torch_kl(policy, reference)
    assert abs((p * k1).sum() - exact) < 1e-12 and abs((p * k3).sum() - exact) < 1e-12
    assert abs((p * k2).sum() - exact) > 1e-2
    assert (k1 < 0).any() and (k2 >= 0).all() and (k3 >= 0).all()
    mutant = torch.expm1(k1) - k1  # k3 with the log-ratio the wrong way round
    assert abs((p * mutant).sum() - exact) > 1e-2


def test_mean_gradients_of_the_estimators():
    policy, reference = logit_pair((20,), scale=1.0)
    gradients = []
    for name in ("k1", "k2", "k3"):
        leaf = policy.clone().requires_grad_()
        p, estimates = estimates_over_the_vocabulary(leaf, reference)
        (p * getattr(estimates, name)).sum().backward()
        gradients.append(leaf.grad)
    leaf = policy.clone().requires_grad_()
    torch_kl(leaf, reference).backward()
    forward = policy.softmax(-1) - reference.softmax(-1)  # gradient of KL(ref || policy)
    assert gradients[0].abs().max() < 1e-12
    torch.testing.assert_close(gradients[1], leaf.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients[2], forward, rtol=0, atol=1e-12)
    assert (gradients[2] - leaf.grad).abs().max() > 1e-2


def test_estimators_need_equal_shapes():
    with pytest.raises(LabError, match="reference_logprobs has shape"):
        sampled_kl_estimators(torch.zeros(2, 3), torch.zeros(3))
