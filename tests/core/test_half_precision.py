"""BF16 on the CPU by its definition: BF16 operands, FP32 sums, one rounding, told by FP64 sums rounded once."""

import pytest
import torch
from small_office import small_actor, small_backbone
from torch.nn.functional import linear
from transformers import DynamicCache

from labs_lib.models import half_precision
from labs_lib.models.half_precision import EAGER_FP32_PRODUCTS, frozen_linear, use_fp32_products
from labs_lib.models.products import FEW_ROWS, ROWS
from labs_lib.models.unembedding import logits_of, unembedding
from labs_lib.seeding import named_generator

BF16 = torch.bfloat16
COUNTS = pytest.mark.parametrize("rows", [1, FEW_ROWS - 1, FEW_ROWS, FEW_ROWS + 1, 150])


def normal(*shape, name="half", dtype=BF16):
    return torch.randn(shape, generator=named_generator(48, f"test/{name}")).to(dtype)


def frozen_layer(inputs=352, outputs=128, bias=True, dtype=BF16):
    """The tiny base's longest sum."""
    layer = torch.nn.Linear(inputs, outputs, bias=bias).to(dtype).requires_grad_(False)
    layer.weight.copy_(normal(outputs, inputs, name="weight"))
    if bias:
        layer.bias.copy_(normal(outputs, name="bias"))
    return layer


def unequal_share(found, expected):
    assert found.shape == expected.shape and found.dtype == expected.dtype == BF16
    return (found != expected).double().mean().item()


# --- The projections ----------------------------------------------------------------------------------------


def by_definition(x, weight, bias=None):
    return linear(x.double(), weight.double(), None if bias is None else bias.double()).to(BF16)


@COUNTS
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_the_exact_one_rounded_once(rows, bias):
    """FP32 and FP64 sums round apart only beside a tie; a rounding more, or BF16 sums, would be seen everywhere."""
    layer, x = frozen_layer(bias=bias), normal(rows, 352)
    expected = by_definition(x, layer.weight, layer.bias)
    assert unequal_share(frozen_linear(x, layer), expected) <= 1e-3
    in_parts = sum(by_definition(x[:, part], layer.weight[:, part]) for part in (slice(0, 176), slice(176, 352)))
    assert unequal_share(in_parts, expected) > 0.1  # the partial sums rounded
    if bias:
        added_later = by_definition(x, layer.weight) + layer.bias
        assert unequal_share(added_later, expected) > 0.03


@COUNTS
def test_the_gradient_is_that_of_the_upcast_formula_for_x_alone(rows):
    layer = frozen_layer()
    x, plain = (normal(rows, 352).requires_grad_() for _ in range(2))
    upstream = normal(rows, 128, name="upstream")
    frozen_linear(x, layer).backward(upstream)
    linear(plain.float(), layer.weight.float(), layer.bias.float()).to(BF16).backward(upstream)
    assert layer.weight.grad is None and layer.bias.grad is None
    assert unequal_share(x.grad, plain.grad) <= 1e-3
    assert unequal_share(x.grad, by_definition(upstream, layer.weight.T)) <= 1e-3
    assert unequal_share(x.grad, by_definition(upstream, layer.weight.T.abs())) > 0.9  # it can fail


def test_few_and_many_rows_take_their_own_paths_to_the_same_numbers(monkeypatch):
    layer, x = frozen_layer(), normal(FEW_ROWS + 1, 352)
    calls = []
    onednn = torch.ops.mkldnn._linear_pointwise

    def counted(*arguments):
        calls.append(len(arguments[0]))
        return onednn(*arguments)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    few, many = frozen_linear(x[:FEW_ROWS], layer), frozen_linear(x, layer)
    assert calls == [ROWS]  # filled up with rows of zeros
    assert unequal_share(few, many[:FEW_ROWS]) <= 1e-3
    frozen_linear(x.view(1, FEW_ROWS + 1, 352), layer)  # rows are counted over all leading dimensions
    frozen_linear(x[:FEW_ROWS].view(2, FEW_ROWS // 2, 352), layer)
    assert calls == [ROWS, ROWS]


@pytest.mark.parametrize("rows", [FEW_ROWS // 2, 3 * FEW_ROWS])
def test_leading_dimensions_strides_and_broadcast_gradients_play_no_part(rows):
    layer, x = frozen_layer(), normal(rows, 352)
    expected = frozen_linear(x, layer)
    assert torch.equal(frozen_linear(x.view(2, rows // 2, 352), layer), expected.view(2, rows // 2, 128))
    assert torch.equal(frozen_linear(x.T.contiguous().T, layer), expected)
    assert torch.equal(frozen_linear(torch.stack([x, -x], dim=1)[:, 0], layer), expected)
    first, second = (x.clone().requires_grad_() for _ in range(2))
    frozen_linear(first, layer).sum().backward()  # its gradient is one number, seen through strides of zero
    frozen_linear(second, layer).backward(torch.ones_like(expected))
    assert torch.equal(first.grad, second.grad)


def test_two_runs_of_one_product_are_bit_equal():
    layer, x = frozen_layer(), normal(100, 352)
    assert torch.equal(frozen_linear(x, layer), frozen_linear(x, layer))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes_are_torchs_own_product(dtype):
    layer = frozen_layer(dtype=dtype)
    x, plain = (normal(40, 352, dtype=dtype).requires_grad_() for _ in range(2))
    found, expected = frozen_linear(x, layer), layer(plain)
    assert torch.equal(found, expected) and found.dtype == dtype
    found.square().sum().backward()
    expected.square().sum().backward()
    assert torch.equal(x.grad, plain.grad)


def test_no_gradient_is_kept_where_none_is_wanted():
    assert not frozen_linear(normal(40, 352), frozen_layer()).requires_grad


# --- Attention ----------------------------------------------------------------------------------------------


@pytest.fixture
def batch():
    """The attention mask of three rows, two of them padded on the left."""
    attention = torch.ones(3, 24, dtype=torch.int64)
    attention[0, :7], attention[1, :1] = 0, 0
    return attention


def run(model, attention):
    """States at active positions and the gradient there of a weighted sum of them."""
    x = normal(*attention.shape, 32, name="x", dtype=model.dtype).requires_grad_()
    positions = (attention.cumsum(dim=1) - 1).clamp(min=0)
    hidden = model.model(inputs_embeds=x, attention_mask=attention, position_ids=positions).last_hidden_state
    upstream = normal(*hidden.shape, name="upstream", dtype=model.dtype) * attention[..., None]
    hidden.backward(upstream)
    kept = attention.bool()
    return torch.stack([hidden.detach()[kept], x.grad[kept]])


def distance(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def test_in_fp32_it_is_transformers_eager_attention(batch):
    eager = run(small_backbone(), batch)
    ours = use_fp32_products(small_backbone())
    assert ours.config._attn_implementation == EAGER_FP32_PRODUCTS
    assert distance(run(ours, batch), eager) < 1e-6
    assert distance(run(ours, torch.ones_like(batch))[:, :40], eager[:, :40]) > 1e-2  # the padding matters


@pytest.mark.parametrize("padded", [True, False])
def test_in_bf16_it_is_transformers_eager_attention_to_rounding(batch, padded):
    """The distance between the two is small against that of either to FP64, which rounds nothing."""
    attention = batch if padded else torch.ones_like(batch)
    ours, eager, exact = small_backbone(BF16), small_backbone(BF16), small_backbone(BF16).double()
    eager.set_attn_implementation("eager")
    exact.set_attn_implementation("sdpa")
    found, native, exact = (run(model, attention) for model in (ours, eager, exact))
    rounding = distance(native, exact)
    assert 1e-3 < rounding < 0.2 and distance(found, native) < rounding / 2


class Heads(torch.nn.Module):
    num_key_value_groups, training = 2, False


def attention_inputs(queries, keys, dtype=BF16):
    """Query (2, 4, T, 16), key and value (2, 2, S, 16), and the additive causal mask of the last T of S."""
    query, key, value = (
        normal(2, heads, length, 16, name=name, dtype=dtype)
        for name, heads, length in (("q", 4, queries), ("k", 2, keys), ("v", 2, keys))
    )
    allowed = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    allowed = allowed.repeat(2, 1, 1, 1)
    allowed[0, :, :, :3] = False  # padding on the left
    return query, key, value, torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


def attention_by_definition(query, key, value, mask, scaling):
    """Products exact, rounded to BF16 where a BF16 attention rounds: scores, scaled, masked, weights, output."""
    key, value = (tensor.double().repeat_interleave(2, dim=1) for tensor in (key, value))
    scores = (query.double() @ key.transpose(2, 3)).to(BF16) * scaling + mask
    weights = scores.double().softmax(dim=-1).to(BF16)
    return (weights.double() @ value).to(BF16).transpose(1, 2), weights


@pytest.mark.parametrize("queries, keys", [(9, 9), (1, 12), (5, 12)], ids=["prefill", "decoding", "answers"])
def test_one_attention_is_its_definition(queries, keys):
    inputs = attention_inputs(queries, keys)
    found, weights = half_precision._attention(Heads(), *inputs, scaling=0.25)
    expected, expected_weights = attention_by_definition(*inputs, scaling=0.25)
    assert found.shape == (2, queries, 4, 16) and found.is_contiguous()
    assert unequal_share(weights, expected_weights) <= 0.02  # a score beside a tie moves a whole row of weights
    assert unequal_share(found, expected) <= 0.02
    assert not weights[0, :, -1, :3].any() and weights[1, :, -1, :3].any()
    query, key, value, mask = inputs
    tiled = half_precision._attention(Heads(), query, *(t.roll(1, 1) for t in (key, value)), mask, scaling=0.25)[0]
    assert unequal_share(tiled, expected) > 0.9  # another key-value head for a query head


def test_in_fp32_nothing_is_rounded_on_the_way():
    inputs = attention_inputs(9, 9, torch.float32)
    found, weights = half_precision._attention(Heads(), *inputs, scaling=0.25)
    query, key, value, mask = (tensor.double() for tensor in inputs)
    key, value = key.repeat_interleave(2, dim=1), value.repeat_interleave(2, dim=1)
    exact = (query @ key.transpose(2, 3) * 0.25 + mask).softmax(-1) @ value
    assert found.dtype == weights.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact.transpose(1, 2), rtol=0, atol=1e-6)


def test_padding_on_the_left_moves_bf16_states_by_rounding_only():
    model = small_actor(dtype=BF16, learned=True)
    ids = torch.arange(10, 20)[None]
    padded = torch.nn.functional.pad(ids, (7, 0), value=0)
    attention = torch.nn.functional.pad(torch.ones_like(ids), (7, 0))
    positions = (attention.cumsum(dim=1) - 1).clamp(min=0)
    with torch.no_grad():
        alone = model.model(input_ids=ids).last_hidden_state
        beside = model.model(input_ids=padded, attention_mask=attention, position_ids=positions).last_hidden_state
        unmasked = model.model(input_ids=padded, position_ids=positions).last_hidden_state
    assert distance(beside[:, 7:], alone) < 0.02
    assert distance(unmasked[:, 7:], alone) > 0.1


def test_with_a_cache_bf16_states_are_those_without():
    model = small_actor(dtype=BF16, learned=True)
    ids = torch.arange(10, 30).view(2, 10)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        whole = model.model(input_ids=ids).last_hidden_state
        parts = [model.model(input_ids=part, cache=cache).last_hidden_state for part in ids.split([6, 3, 1], dim=1)]
    assert distance(torch.cat(parts, dim=1), whole) < 0.02


# --- The unembedding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, wide", [(BF16, torch.float32), (torch.float32,) * 2, (torch.float64,) * 2])
def test_logits_are_never_rounded_to_bf16(dtype, wide):
    model = small_backbone(torch.float32).to(dtype)
    hidden = normal(5, 32, dtype=dtype)
    logits = logits_of(model, hidden)
    expected = hidden.double() @ unembedding(model).double().T
    assert logits.dtype == wide
    torch.testing.assert_close(logits.double(), expected, rtol=0, atol=1e-4)
    assert (expected.to(BF16) - expected).abs().max() > 1e-2
