"""The Triton kernels against FP64, in small tiles: on the CPU under Triton's interpreter, with `make gpu` on CUDA."""

import json
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_lib.errors import LabError
from labs_lib.kernels import kl as kl_module
from labs_lib.kernels.kl import exact_kl_reference, prefix_statistics, prefix_statistics_from_hidden
from labs_lib.kernels.logprobs import entropy, selected_logprobs
from labs_lib.paths import ROOT

triton = pytest.importorskip("triton", reason="Triton exists for Linux on x86-64 only")
tl = pytest.importorskip("triton.language")

from labs_lib.kernels import triton_kl  # noqa: E402 (needs triton)

INF = torch.inf
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SMALL = triton_kl.Tile(rows=8, columns=32, depth=16, warps=4)
# FP32 sums of values of a few units, over about a hundred terms. BF16 logits are exact in FP32, their gradient is
# rounded to 8 bits (cut off by the interpreter), a product of BF16 operands takes the gradient of logits rounded.
VALUES, SINGLE, HALF = 1e-5, 1e-5, 2**-7
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

pytestmark = [
    # Numpy, which interprets the kernels, warns of inf - inf; kernels have it, and mask it, by design.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if request.param == "cpu" and not INTERPRETED:
        pytest.skip("on the CPU the kernels need TRITON_INTERPRET=1")
    use_small_tiles(monkeypatch)
    return request.param


def use_small_tiles(monkeypatch):
    """Several row tiles, blocks and splits also in a small case; 16 is the least that a GPU multiplies."""
    monkeypatch.setattr(triton_kl, "FROM_LOGITS", SMALL)
    for name in ("FROM_HIDDEN_HALF", "FROM_HIDDEN_SINGLE"):
        monkeypatch.setattr(triton_kl, name, SMALL._replace(rows=16))
    monkeypatch.setattr(triton_kl, "PROGRAMS", 4)


def randn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ids_for(policy):
    return torch.arange(policy[..., 0].numel()).view(policy.shape[:-1]) * 5 % policy.shape[-1]


# Rising logits make the running maximum grow in every block: the case in which rescaling matters.
def rising_pair(rows=10, columns=70):
    rise = torch.arange(columns) * (20.0 / columns)
    return 3 * randn(rows, columns, seed=1) + rise, 3 * randn(rows, columns, seed=2) + 0.8 * rise


def pair(*shape):
    return 3 * randn(*shape, seed=1), 3 * randn(*shape, seed=2)


def extreme_pair():
    policy = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [1e4, 1e4, 1e4], [0.0, 0.0, 0.0]]).repeat(1, 11)
    reference = torch.tensor([[1e4, 0.0, -1e4], [1e4, -1e4, 0.0], [-1e4] * 3, [1e4, 1e4, 1e4]]).repeat(1, 11)
    return policy, reference


def blocks_without_support():
    """The first blocks hold only -inf: of the policy, of both, and single tokens that the policy excludes."""
    policy, reference = pair(3, 50)
    policy[:2, :33] = -INF
    reference[1, :33] = -INF
    policy[2, ::3] = -INF
    return policy, reference


CASES = {
    "rising": rising_pair,
    "one row": lambda: pair(1, 37),
    "no leading dimension": lambda: pair(19),
    "four dimensions": lambda: pair(2, 1, 3, 20),
    "whole blocks": lambda: pair(4, 64),
    "a block and one token": lambda: pair(5, 33),
    "one token": lambda: (torch.full((3, 1), 5.0), torch.full((3, 1), -4.0)),
    "all equal": lambda: (torch.full((5, 33), 2.0), torch.full((5, 33), -1.0)),
    "extreme": extreme_pair,
    "blocks of -inf": blocks_without_support,
}
IN_BF16 = ("rising", "four dimensions", "extreme", "blocks of -inf")  # the interpreter is slow


def weights_for(ids, device):
    """Gradients by log-prob, KL and entropy that differ from row to row."""
    steps = torch.linspace(-1, 2, ids.numel(), dtype=torch.float64).view(ids.shape)
    return [(steps + shift).to(device) for shift in (0.25, 0.5, -0.75)]


def through(statistics, policy, ids):
    """Three statistics and the gradient by `policy` of their weighted sum, all FP64 on the CPU."""
    leaf = policy.clone().requires_grad_()
    values = statistics(leaf)
    weights = weights_for(ids, policy.device)
    sum((weight * value).sum() for weight, value in zip(weights, values, strict=True)).backward()
    return [tensor.detach().double().cpu() for tensor in (*values, leaf.grad)]


def dense(policy, reference, ids):
    """The formulas, in FP64 from the rounded logits that the kernel saw."""
    reference = reference.double().cpu()

    def statistics(leaf):
        return selected_logprobs(leaf, ids), exact_kl_reference(leaf, reference), entropy(leaf)

    return through(statistics, policy.double().cpu(), ids)


def from_logits(policy, reference, ids, use_triton=True):
    ids_there = ids.to(policy.device)
    return through(lambda leaf: prefix_statistics(leaf, reference, ids_there, 7, use_triton), policy, ids)


def agree(ours, expected, gradient_tolerance):
    """Values within VALUES; the gradient within its tolerance, absolutely and of itself."""
    tolerances = (VALUES, VALUES, VALUES, gradient_tolerance)
    return all(
        torch.allclose(a, b, rtol=tolerance, atol=min(tolerance, 2**-9), equal_nan=True)
        for a, b, tolerance in zip(ours, expected, tolerances, strict=True)
    )


def on(device, dtype, *tensors):
    return [tensor.to(device, dtype) for tensor in tensors]


# --- From logits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case, dtype", [*((case, "fp32") for case in CASES), *((case, "bf16") for case in IN_BF16)])
def test_values_and_gradients_equal_fp64(device, case, dtype):
    policy, reference = on(device, DTYPES[dtype], *CASES[case]())
    ids = ids_for(policy)
    ours = from_logits(policy, reference, ids)
    tolerance = SINGLE if dtype == "fp32" else HALF
    assert agree(ours, dense(policy, reference, ids), tolerance)
    assert agree(ours, from_logits(policy, reference, ids, use_triton=False), tolerance)


@settings(max_examples=6)
@given(st.integers(1, 12), st.integers(1, 90), st.sampled_from([0.01, 1.0, 30.0]), st.integers(0, 10_000))
def test_any_shape_and_scale_from_logits(rows, columns, scale, seed):
    if not INTERPRETED:
        pytest.skip("the same on CUDA is `test_values_and_gradients_equal_fp64`")
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_small_tiles(monkeypatch)
        policy, reference = (scale * randn(rows, columns, seed=seed + side).float() for side in (0, 1))
        ids = ids_for(policy)
        ours = from_logits(policy, reference, ids)
        # A row's probabilities and logarithms are as precise as its logits, which reach `4 * scale`.
        assert agree(ours, dense(policy, reference, ids), SINGLE * max(1.0, scale))
        assert (ours[1] >= -1e-6).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_identical_policies_have_no_kl_and_no_gradient(device, dtype):
    (policy,) = on(device, DTYPES[dtype], 10 * randn(5, 70, seed=3))
    leaf = policy.clone().requires_grad_()
    kl = prefix_statistics(leaf, policy, ids_for(policy).to(device), 7, True).kl
    kl.sum().backward()
    assert (kl == 0).all() and (leaf.grad == 0).all()


def test_ids_at_the_edges_of_blocks_and_splits(device):
    policy, reference = on(device, torch.float32, *rising_pair())
    ids = torch.tensor([0, 1, 30, 31, 32, 33, 63, 64, 65, 69])
    assert agree(from_logits(policy, reference, ids), dense(policy, reference, ids), SINGLE)


def test_rows_that_are_not_contiguous(device):
    padded = [side.to(device) for side in pair(2, 3, 50)]
    views = {
        "slices": [side.float()[:, 1:-1] for side in padded],
        "every other column": [side.float()[..., ::2] for side in padded],
        "columns first": [side.float().permute(2, 0, 1).contiguous().permute(1, 2, 0) for side in padded],
        "one reference for all": [padded[0].float(), padded[1][:1, :1].float().expand(2, 3, 50)],
    }
    for name, (policy, reference) in views.items():
        ids = ids_for(policy).repeat_interleave(2, dim=-1)[..., ::2]
        assert agree(from_logits(policy, reference, ids), dense(policy, reference, ids), SINGLE), name


def test_no_support_in_the_reference_is_an_infinite_kl_and_a_masked_row_has_no_gradient(device):
    policy = torch.tensor([[0.0, -INF, 1.0, -INF], [0.0] * 4, [0.0, 0.0, 0.0, 1e4]])
    reference = torch.tensor([[0.5, 0.0, 1.0, -INF], [0.0, 0.0, 0.0, -INF], [-INF, 0.0, 0.0, 0.0]])
    policy, reference = on(device, torch.float32, policy, reference)
    ids = torch.tensor([2, 0, 3])
    leaf = policy.clone().requires_grad_()
    got = prefix_statistics(leaf, reference, ids.to(device), 4, True)
    assert got.kl[0] < 1 and (got.kl[1:] == INF).all()
    # Rows 1 and 2 have an infinite KL, but only their log-prob and entropy enter the loss.
    (got.kl[0] + got.entropy.sum() + got.logprobs.sum()).backward()
    twin = policy.clone().requires_grad_()
    usual = prefix_statistics(twin, reference, ids.to(device), 4, False)
    (usual.kl[0] + usual.entropy.sum() + usual.logprobs.sum()).backward()
    assert leaf.grad.isfinite().all() and (leaf.grad[0, [1, 3]] == 0).all()
    torch.testing.assert_close(leaf.grad, twin.grad, rtol=SINGLE, atol=SINGLE)


def test_no_rows(device):
    empty = torch.zeros(0, 5, device=device, requires_grad=True)
    statistics = prefix_statistics(empty, empty.detach(), torch.zeros(0, device=device).long(), 2, True)
    assert all(value.shape == (0,) for value in statistics)
    sum(value.sum() for value in statistics).backward()
    assert empty.grad.shape == (0, 5)


def refusals(call):
    """The sentences of both versions."""
    sentences = []
    for use_triton in (True, False):
        with pytest.raises(LabError) as raised:
            call(use_triton)
        sentences.append(str(raised.value))
    return sentences


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("side", [0, 1])
def test_rows_without_a_distribution_are_refused_in_the_same_words(device, value, side):
    logits = [torch.zeros(3, 4, 40, device=device) for _ in range(2)]
    logits[side][2, 1, slice(None) if value == "-inf" else 38] = float(value)
    ids = torch.zeros(3, 4, device=device).long()
    ours, theirs = refusals(lambda use_triton: prefix_statistics(*logits, ids, 7, use_triton))
    assert ours == theirs and "prompt/answer row 2, position 1" in ours
    assert ("policy", "reference")[side] in ours


# --- Mutants: what the comparison with FP64 has to reject -----------------------------------------------------


@triton.jit
def combine_without_rescaling(m, n, s, r, t, u, other_m, other_n, other_s, other_r, other_t, other_u):
    """Mutant: the maxima grow, the sums taken under the old ones stay as they are."""
    return tl.maximum(m, other_m), tl.maximum(n, other_n), s + other_s, r + other_r, t + other_t, u + other_u


@triton.jit
def combine_normalised_blocks(m, n, s, r, t, u, other_m, other_n, other_s, other_r, other_t, other_u):
    """Mutant: every block is normalised by itself, as if it were the whole vocabulary, and the KLs are added."""
    kl = other_t / other_s - tl.log(other_s) + tl.log(other_r)
    before = tl.where(s > 0, t / tl.maximum(s, 1e-30) - tl.log(s) + tl.log(r), 0.0)
    return other_m, other_n, other_s, other_r, other_s * (before + kl + tl.log(other_s) - tl.log(other_r)), other_u


@triton.jit
def combine_one_maximum(m, n, s, r, t, u, other_m, other_n, other_s, other_r, other_t, other_u):
    """Mutant: t, centred by both maxima, is only scaled when they grow, not moved to the new centres."""
    top, reference_top = tl.maximum(m, other_m), tl.maximum(n, other_n)
    shrink, other_shrink = tl.exp(m - top), tl.exp(other_m - top)
    u = shrink * (u + s * (m - top)) + other_shrink * (other_u + other_s * (other_m - top))
    t = shrink * t + other_shrink * other_t
    s = shrink * s + other_shrink * other_s
    r = tl.exp(n - reference_top) * r + tl.exp(other_n - reference_top) * other_r
    return top, reference_top, s, r, t, u


@pytest.mark.skipif(not INTERPRETED, reason="a compiled kernel keeps the helpers it was compiled with")
@pytest.mark.parametrize("mutant", [combine_without_rescaling, combine_normalised_blocks, combine_one_maximum])
def test_the_comparison_rejects_mutants(monkeypatch, mutant):
    use_small_tiles(monkeypatch)
    policy, reference = on("cpu", torch.float32, *rising_pair())
    ids = ids_for(policy)
    exact = dense(policy, reference, ids)
    assert agree(from_logits(policy, reference, ids), exact, SINGLE)
    monkeypatch.setattr(triton_kl, "_combine", mutant)
    ours = from_logits(policy, reference, ids)
    assert not agree(ours, exact, 1e-2) and (ours[1] - exact[1]).abs().max() > 1e-2


# --- From hidden states -------------------------------------------------------------------------------------


def hidden_case(device, dtype, leading=(3, 6), hidden=16, vocabulary=70, reference_hidden=24):
    """Logits of a few units: states of size 1, unembeddings of size 2 / sqrt(hidden). More rows than a tile has."""
    rows, reference_rows = randn(*leading, hidden, seed=1), randn(*leading, reference_hidden, seed=3)
    matrix = 2 * randn(vocabulary, hidden, seed=2) / hidden**0.5
    reference_matrix = 2 * randn(vocabulary, reference_hidden, seed=4) / reference_hidden**0.5
    ids = torch.randint(vocabulary, leading, generator=torch.Generator().manual_seed(5))
    return [*on(device, dtype, rows, matrix, reference_rows, reference_matrix), ids.to(device)]


def from_hidden(case, block, use_triton):
    """Statistics and the gradients by hidden states and unembedding, all FP64 on the CPU."""
    hidden, matrix, *constants = case
    hidden, matrix = hidden.clone().requires_grad_(), matrix.clone().requires_grad_()
    values = prefix_statistics_from_hidden(hidden, matrix, *constants, block, use_triton)
    weights = weights_for(constants[-1], hidden.device)
    sum((weight * value).sum() for weight, value in zip(weights, values, strict=True)).backward()
    assert hidden.grad.dtype == hidden.dtype and matrix.grad.dtype == matrix.dtype
    assert all(value.dtype == torch.promote_types(hidden.dtype, torch.float32) for value in values)
    return [tensor.detach().double().cpu() for tensor in (*values, hidden.grad, matrix.grad)]


def hidden_agrees(ours, exact, values, gradients):
    """Gradients against the largest entry: an entry is a sum of parts of both signs, each rounded on its own."""
    close = [torch.allclose(a, b, rtol=values, atol=values) for a, b in zip(ours[:3], exact[:3], strict=True)]
    return all(close) and all(
        ((a - b).abs().max() <= gradients * b.abs().max()) for a, b in zip(ours[3:], exact[3:], strict=True)
    )


@pytest.mark.parametrize("dtype, tolerance", [("fp32", SINGLE), ("bf16", HALF)])
@pytest.mark.parametrize("leading, block", [((3, 6), 32), ((3,), 19), ((1,), 70), ((), 100)])
def test_from_hidden_equals_fp64(device, dtype, tolerance, leading, block):
    case = hidden_case(device, DTYPES[dtype], leading)
    exact = from_hidden([tensor.double() for tensor in case[:4]] + case[4:], block, use_triton=False)
    assert hidden_agrees(from_hidden(case, block, use_triton=True), exact, VALUES, tolerance)


def test_from_hidden_with_unlike_dtypes(device):
    case = hidden_case(device, torch.float32)
    case[1], case[2] = case[1].bfloat16(), case[2].bfloat16()
    exact = from_hidden([tensor.double() for tensor in case[:4]] + case[4:], 32, use_triton=False)
    assert hidden_agrees(from_hidden(case, 32, use_triton=True), exact, VALUES, HALF)


def test_from_hidden_with_strides(device):
    case = hidden_case(device, torch.float32, (4,))
    exact = from_hidden([tensor.double() for tensor in case[:4]] + case[4:], 32, use_triton=False)
    case[0] = torch.stack([case[0], case[0]], dim=-1)[..., 0]
    case[1], case[3] = case[1].T.contiguous().T, case[3].T.contiguous().T
    assert hidden_agrees(from_hidden(case, 32, use_triton=True), exact, VALUES, SINGLE)


def test_the_number_of_splits_changes_rounding_only_and_the_same_call_gives_the_same_bits(device, monkeypatch):
    case = hidden_case(device, torch.float32, (3,))
    shared_out, again = (from_hidden(case, 32, use_triton=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(shared_out, again, strict=True))
    monkeypatch.setattr(triton_kl, "PROGRAMS", 1)
    assert hidden_agrees(from_hidden(case, 32, use_triton=True), shared_out, VALUES, SINGLE)


def test_a_frozen_unembedding_and_the_reference_get_no_gradient(device):
    hidden, matrix, reference_hidden, reference_matrix, ids = hidden_case(device, torch.float32)
    for tensor in (hidden, reference_hidden, reference_matrix):
        tensor.requires_grad_()
    prefix_statistics_from_hidden(hidden, matrix, reference_hidden, reference_matrix, ids, 32, True).kl.sum().backward()
    assert hidden.grad.abs().max() > 0
    assert matrix.grad is None and reference_hidden.grad is None and reference_matrix.grad is None


def test_no_logits_are_saved_and_bad_states_are_refused_in_the_same_words(device):
    hidden, *others = hidden_case(device, torch.float32, (20,), hidden=4, vocabulary=60, reference_hidden=4)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        prefix_statistics_from_hidden(hidden.requires_grad_(), *others, 50, True)
    assert saved and max(saved) <= 60 * 4 < 20 * 60
    spoiled = hidden.detach().clone()
    spoiled[5, 2] = torch.nan
    ours, theirs = refusals(lambda use_triton: prefix_statistics_from_hidden(spoiled, *others, 50, use_triton))
    assert ours == theirs and "NaN or +inf in the policy logits at row 5" in ours


def test_no_rows_of_hidden_states(device):
    hidden, matrix, *constants = hidden_case(device, torch.float32, (0,))
    got = prefix_statistics_from_hidden(hidden.requires_grad_(), matrix.requires_grad_(), *constants, 32, True)
    assert all(value.shape == (0,) for value in got)
    got.kl.sum().backward()
    assert hidden.grad.shape == (0, 16) and (matrix.grad == 0).all()


# --- Which version is chosen --------------------------------------------------------------------------------


class _Kind:
    def __init__(self, is_cuda, dtype=torch.float32):
        self.is_cuda, self.dtype = is_cuda, dtype


def test_triton_is_chosen_on_cuda_alone_and_can_be_forced(monkeypatch):
    chooses = kl_module._chooses_triton
    for compiles in (True, False):
        monkeypatch.setattr(kl_module, "_triton_compiles", lambda compiles=compiles: compiles)
        assert chooses(_Kind(True), None) is compiles and chooses(_Kind(True, torch.bfloat16), None) is compiles
        assert not chooses(_Kind(False), None) and not chooses(_Kind(True, torch.float64), None)
        assert chooses(_Kind(False), True) and not chooses(_Kind(True), False)


@pytest.mark.skipif(not INTERPRETED, reason="about the interpreter")
def test_interpreted_kernels_are_for_tests_only():
    assert not kl_module._triton_compiles()


def test_what_the_kernels_cannot_compute_is_refused(monkeypatch):
    logits, ids = torch.zeros(2, 5), torch.zeros(2).long()
    with pytest.raises(LabError, match="FP32.*use_triton=False for FP64"):
        prefix_statistics(logits.double(), logits.double(), ids, 4, use_triton=True)
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(LabError, match="need CUDA tensors.*TRITON_INTERPRET=1"):
        prefix_statistics(logits, logits, ids, 4, use_triton=True)


# --- Compiled, without a GPU --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_kernels_compile_and_read_memory_as_they_should(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tests/kernels/compile_kernels.py"), "90"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr[-2000:]
    built = json.loads(said.stdout)
    assert len(built) == len(DTYPES) * 4
    for name, kernel in built.items():
        assert kernel["shared"] <= 99 << 10, f"{name}: more shared memory than the smaller GPUs have"
        assert not kernel["tf32"] and not kernel["atomics"], name
        if "logits" in name or "gradient" in name:
            assert kernel["wide_loads"], f"{name} reads logits one by one"
        assert kernel["tensor_cores"] == ("hidden bf16" in name), name


# --- As large as in training --------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_call_of_grpo_from_logits_on_cuda(dtype):
    """512 tokens of Qwen's vocabulary, default tiles, against torch in FP32."""
    generator = torch.Generator("cuda").manual_seed(1)
    policy, reference = (
        (2 * torch.randn(512, 151_936, generator=generator, device="cuda")).to(DTYPES[dtype]) for _ in range(2)
    )
    ids = torch.randint(151_936, (512,), generator=torch.Generator().manual_seed(2))
    ours = from_logits(policy, reference, ids)
    theirs = from_logits(policy.float(), reference.float(), ids, use_triton=False)
    assert agree(ours, theirs, SINGLE if dtype == "fp32" else HALF)
    # Beside the chosen tokens' entries, of size 1, all others are too small for an absolute tolerance.
    rest, expected = (gradient.scatter(1, ids[:, None], 0.0) for gradient in (ours[-1], theirs[-1]))
    assert (rest - expected).norm() <= (1e-4 if dtype == "fp32" else HALF) * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, tolerance", [("fp32", 1e-4), ("bf16", HALF)])
def test_a_call_of_grpo_from_hidden_states_on_cuda(dtype, tolerance):
    case = hidden_case("cuda", DTYPES[dtype], (512,), hidden=896, vocabulary=151_936, reference_hidden=896)
    theirs = from_hidden([tensor.float() for tensor in case[:4]] + case[4:], 4096, use_triton=False)
    assert hidden_agrees(from_hidden(case, 4096, use_triton=True), theirs, 1e-4, tolerance)
