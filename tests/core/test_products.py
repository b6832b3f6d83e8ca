"""Products by oneDNN: the linear layer's own values and gradients, whatever the number of rows."""

import copy
from dataclasses import replace

import pytest
import torch
from small_model import PROFILE, small_model
from torch.nn.functional import linear

from labs_lib.models import products
from labs_lib.models.base import load_base
from labs_lib.models.products import (
    FEW_ROWS,
    ROWS,
    OneDnnLinear,
    by_onednn,
    outer_product,
    product,
    use_onednn_products,
)
from labs_lib.seeding import named_generator

COUNTS = pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, ROWS, ROWS + 1, 5 * ROWS - 1])


def normal(*shape, name="products", dtype=torch.float32):
    return torch.randn(shape, generator=named_generator(48, f"test/{name}"), dtype=torch.float64).to(dtype)


def layers(dtype=torch.float32, bias=True):
    """Our layer and torch's FP64 one of the same weights, the tiny base's longest sum."""
    ours = OneDnnLinear(352, 24, bias=bias, dtype=dtype)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(normal(*parameter.shape, name="weights"))
    exact = torch.nn.Linear(352, 24, bias=bias, dtype=torch.float64)
    exact.load_state_dict(ours.state_dict())
    return ours, exact


def results(layer, x, upstream):
    """Output and all gradients."""
    x = x.clone().requires_grad_()
    out = layer(x)
    out.backward(upstream)
    return [out.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())]


def apart(found, expected):
    return max(((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True))


@COUNTS
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_fp64(rows, bias):
    ours, exact = layers(bias=bias)
    x, upstream = normal(rows, 352, name="x"), normal(rows, 24, name="upstream")
    found, expected = results(ours, x, upstream), results(exact, x.double(), upstream.double())
    assert [a.shape for a in found] == [b.shape for b in expected]
    assert apart(found, expected) < 1e-6
    assert apart(found, results(exact, x.double(), upstream.double() + 1e-4)) > 1e-6  # it can fail


@pytest.mark.parametrize("rows", [3, 3 * ROWS])
def test_leading_dimensions_and_strides_play_no_part(rows):
    ours, _ = layers()
    x, upstream = normal(rows, 2, 352, name="x"), normal(rows, 2, 24, name="upstream")
    together = results(ours, x, upstream)
    ours.zero_grad()
    flat = results(ours, x.view(2 * rows, 352), upstream.view(2 * rows, 24))
    ours.zero_grad()
    strided = results(ours, x.transpose(0, 1).contiguous().transpose(0, 1), upstream)
    assert all(torch.equal(a.flatten(), b.flatten()) for a, b in zip(together, flat, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(together, strided, strict=True))


def test_rows_of_zeros_that_are_added_change_no_bit():
    """So a batch gives the same numbers whether its size is a whole multiple of ROWS or not."""
    ours, _ = layers()
    x = normal(2 * ROWS, 352, name="x")
    few = ours(x[: ROWS + 3])
    assert few.shape == (ROWS + 3, 24) and torch.equal(few, ours(x)[: ROWS + 3])


@pytest.mark.parametrize("rows", [4, 40])
def test_the_formulas_pass_gradcheck_in_fp64(rows):
    ours = OneDnnLinear(5, 3, dtype=torch.float64)
    x = normal(rows, 5, name="x", dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, w, b: products._Product.apply(x, w, b), (x, ours.weight, ours.bias), check_grad_dtypes=True
    )


def test_only_wanted_gradients_are_computed(monkeypatch):
    """A frozen layer passes its upstream back; the gradient of its weight, half of the work, is not made."""
    ours, _ = layers()
    ours.requires_grad_(False)
    monkeypatch.setattr(products, "outer_product", lambda *_: pytest.fail("a weight's gradient was computed"))
    x = normal(40, 352, name="x").requires_grad_()
    ours(x).sum().backward()
    assert x.grad is not None and ours.weight.grad is None and ours.bias.grad is None
    with torch.no_grad():
        assert not ours(x).requires_grad


def test_what_goes_to_onednn():
    assert by_onednn(torch.zeros(FEW_ROWS + 1, 8)) and by_onednn(torch.zeros(2, FEW_ROWS, 8))
    assert not by_onednn(torch.zeros(FEW_ROWS, 8)) and not by_onednn(torch.zeros(40, 8, dtype=torch.float64))


def test_where_torch_has_no_onednn_it_multiplies_itself(monkeypatch):
    """As in torch's builds for Apple's processors."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(products, "_onednn", lambda *_: pytest.fail("oneDNN was called"))
    x, w, b = normal(40, 352), normal(24, 352, name="w"), normal(24, name="b")
    assert torch.equal(product(x, w, b), linear(x, w, b))
    assert torch.equal(outer_product(x[:, :24], x), x[:, :24].T @ x)


# --- In a model ---------------------------------------------------------------------------------------------------


def test_a_model_keeps_its_parameters_names_and_numbers():
    plain = small_model()
    ours = use_onednn_products(copy.deepcopy(plain))
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in plain.named_parameters()]
    kept = dict(ours.named_parameters())
    changed = use_onednn_products(ours)
    assert all(parameter is kept[name] for name, parameter in changed.named_parameters())
    assert not any(module.training for module in ours.modules())
    ids = torch.arange(5, 65).view(2, 30)
    states = [model.model(input_ids=ids).last_hidden_state for model in (ours, plain)]
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-4)
    upstream = normal(*states[0].shape, name="upstream")  # states are normalised: their squares have no gradient
    for state in states:
        state.backward(upstream)
    for (name, a), b in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert (a.grad - b.grad).norm() <= 1e-4 * b.grad.norm(), name


def test_a_pinned_fp32_base_has_them_and_no_other():
    def kinds(profile):
        layers = [m for m in load_base(profile).model.model.modules() if isinstance(m, torch.nn.Linear)]
        return {type(layer) for layer in layers}

    assert kinds(PROFILE) == {OneDnnLinear}
    assert kinds(replace(PROFILE, pin_cpu=False)) == kinds(replace(PROFILE, dtype="bfloat16")) == {torch.nn.Linear}
