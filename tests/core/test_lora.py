"""LoRA against the paper's formula in FP64 and against PEFT with the same A and B, which no lab needs."""

import copy
import json

import peft
import pytest
import torch
from small_model import PROFILE
from small_office import LORA, small_actor, small_backbone
from test_profiles_real import CONFIGS

from labs_lib.config import Lora
from labs_lib.errors import BaseModelError
from labs_lib.models.base import meta_model
from labs_lib.models.half_precision import frozen_linear
from labs_lib.models.lora import PROJECTIONS, LoraLinear, adapters, add_adapters
from labs_lib.models.roles import Scalar
from labs_lib.seeding import named_generator
from labs_lib.training.optimizer import ScheduledAdamW

# PEFT asks transformers for a name that is about to change.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
FP32, BF16 = torch.float32, torch.bfloat16
DTYPES = pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
BF16_STEP = 2.0**-7  # from one BF16 number to the next, relative to the smaller


def generator(name="lora"):
    return named_generator(48, f"test/{name}")


def lora_linear(dtype, layer_class=LoraLinear, inputs=40, outputs=24, rows=64):
    """A layer with all it has (bias, B not zero) and an input of several magnitudes."""
    draws = generator()
    base = torch.nn.Linear(inputs, outputs)
    with torch.no_grad():
        base.weight.normal_(0, inputs**-0.5, generator=draws)
        base.bias.normal_(generator=draws)
    layer = layer_class(base.to(dtype), LORA, draws)
    with torch.no_grad():
        layer.B.normal_(0, 1, generator=draws)
    return layer, torch.randn(rows, inputs, generator=draws).to(dtype)


# --- One layer against the formula --------------------------------------------------------------------------


def by_the_formula(layer, x):
    """W x rounded to the base's dtype, plus alpha / r times B (A x), rounded to it once more; sums in FP64."""
    dtype = x.dtype
    x, weight, bias, a, b = (
        part.detach().double() for part in (x, layer.base.weight, layer.base.bias, layer.A, layer.B)
    )
    kept = (x @ weight.T + bias).to(dtype).double()
    return (kept + LORA.alpha / LORA.rank * (x @ a.T) @ b.T).to(dtype)


def unequal_share(found, expected):
    return (found != expected).double().mean().item()


class AlphaAlone(LoraLinear):
    """Scales by alpha, not by alpha / rank."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scaling = LORA.alpha


class AlphaByRoot(AlphaAlone):
    """Scales by alpha / sqrt(rank): another method (rsLoRA)."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scaling = LORA.alpha / LORA.rank**0.5


class NarrowBranch(LoraLinear):
    """Computes the branch in the base's dtype."""

    def forward(self, x):
        branch = x @ self.A.to(x.dtype).T @ self.B.to(x.dtype).T
        return frozen_linear(x, self.base) + self.scaling * branch


class RoundedBranch(LoraLinear):
    """Computes the branch in FP32 and rounds it before the sum."""

    def forward(self, x):
        branch = self.scaling * (x.float() @ self.A.T @ self.B.T)
        return frozen_linear(x, self.base) + branch.to(x.dtype)


def test_in_fp32_the_layer_is_the_formula():
    layer, x = lora_linear(FP32)
    torch.testing.assert_close(layer(x), by_the_formula(layer, x), rtol=0, atol=1e-5)  # of numbers around 10
    for mutant in (AlphaAlone, AlphaByRoot):
        layer, x = lora_linear(FP32, mutant)
        assert (layer(x) - by_the_formula(layer, x)).abs().max() > 1


def test_in_bf16_the_layer_is_the_formula_bit_by_bit_but_for_ties():
    """FP32 and FP64 sums round to different BF16 numbers only beside a tie: about one number in 2**16."""
    layer, x = lora_linear(BF16, rows=400)
    assert unequal_share(layer(x), by_the_formula(layer, x)) < 1e-3
    for mutant in (AlphaAlone, AlphaByRoot, NarrowBranch, RoundedBranch):
        layer, x = lora_linear(BF16, mutant, rows=400)
        assert unequal_share(layer(x), by_the_formula(layer, x)) > 0.1


@DTYPES
def test_with_b_at_zero_the_layer_is_its_base_bit_by_bit(dtype):
    layer, x = lora_linear(dtype)
    torch.nn.init.zeros_(layer.B)
    assert layer(x).dtype == dtype and torch.equal(layer(x), frozen_linear(x, layer.base))
    torch.nn.init.ones_(layer.B)
    assert not torch.equal(layer(x), frozen_linear(x, layer.base))


# --- A whole model against PEFT -----------------------------------------------------------------------------


def peft_twin(ours):
    """PEFT's model on an equal base, native eager BF16 on the CPU, with copies of our A and B."""
    base = small_backbone(ours.dtype)
    base.set_attn_implementation("eager")
    settings = peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=list(PROJECTIONS))
    theirs = peft.get_peft_model(base, settings).base_model.model.eval()
    with torch.no_grad():
        for name, adapter in adapters(ours).items():
            layer = theirs.get_submodule(name)
            layer.lora_A["default"].weight.copy_(adapter.A)
            layer.lora_B["default"].weight.copy_(adapter.B)
    return theirs


def our_gradients(model):
    return {f"{name}.{part}": getattr(layer, part).grad for name, layer in adapters(model).items() for part in "AB"}


def their_gradients(model):
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, peft.tuners.lora.Linear)]
    return {
        f"{name}.{part}": getattr(layer, f"lora_{part}")["default"].weight.grad
        for name, layer in layers
        for part in "AB"
    }


def measured(model, gradients, batch=3, tokens=7):
    """Hidden states, and gradients of a weighted sum of them to the input embeddings and to every A and B."""
    draws = generator("measured")
    x = torch.randn(batch, tokens, 32, generator=draws).to(model.dtype).requires_grad_()
    attention = torch.ones(batch, tokens, dtype=torch.int64)
    attention[0, :3] = 0
    hidden = model.model(inputs_embeds=x, attention_mask=attention).last_hidden_state
    upstream = torch.randn(hidden.shape, generator=draws).to(model.dtype) * attention[..., None]
    hidden.backward(upstream)
    kept = attention.bool()
    return {"hidden": hidden.detach()[kept], "input": x.grad[kept], **gradients(model)}


def distance(found, expected):
    """The largest of all relative distances |found - expected| / |expected| (Frobenius norms)."""
    assert found.keys() == expected.keys() and len(found) == 2 + 2 * 2 * 7
    assert all(expected[name].norm() > 1e-3 for name in expected)  # something is compared
    return max(
        ((found[name].double() - expected[name].double()).norm() / expected[name].double().norm()).item()
        for name in found
    )


def with_layers(model, layer_class):
    """`model`, with the forward of every adapter replaced by that of a mutant."""
    for layer in adapters(model).values():
        layer.__class__ = layer_class
        if layer_class is AlphaAlone:
            layer.scaling = LORA.alpha
    return model


def test_in_fp32_outputs_and_gradients_are_pefts():
    """To 1e-6 relative: the same FP32 sums, at most in another order."""
    ours = small_actor(learned=True)
    theirs = measured(peft_twin(ours), their_gradients)
    assert distance(measured(ours, our_gradients), theirs) < 1e-6
    mutant = with_layers(small_actor(learned=True), AlphaAlone)
    assert distance(measured(mutant, our_gradients), theirs) > 0.1


def test_in_bf16_outputs_and_gradients_are_pefts_as_far_as_bf16_goes():
    """Two orders of the same FP32 sums round apart beside ties, in few numbers, and later layers carry that on.

    No bound holds for all weights, so the yardstick is BF16 itself: how far PEFT's model is from exact arithmetic (FP64
    on the same weights), which rounds nothing. Ours must be several times closer to PEFT's than that.
    """
    ours = small_actor(dtype=BF16, learned=True)
    theirs = peft_twin(ours)
    exact = copy.deepcopy(theirs).double()
    exact.set_attn_implementation("sdpa")  # the eager softmax is FP32
    mine, native, exact = (
        measured(ours, our_gradients),
        measured(theirs, their_gradients),
        measured(exact, their_gradients),
    )
    rounding = distance(native, exact)
    assert 1e-3 < rounding < 0.2
    assert distance(mine, native) < rounding / 3
    for layer_class in (AlphaAlone, NarrowBranch, RoundedBranch):
        mutant = with_layers(small_actor(dtype=BF16, learned=True), layer_class)
        assert distance(measured(mutant, our_gradients), native) > rounding / 3


def pefts_layer(base):
    settings = peft.LoraConfig(r=LORA.rank, lora_alpha=LORA.alpha)
    return peft.tuners.lora.Linear(base, "default", settings, r=LORA.rank, lora_alpha=LORA.alpha)


def one_layer(layer, x, parameters):
    x = x.clone().requires_grad_()
    out = layer(x)
    out.backward(torch.randn(out.shape, generator=generator("upstream")).to(x.dtype))
    return {"output": out.detach(), "input": x.grad, **{part: parameters[part].grad for part in "AB"}}


@pytest.mark.parametrize("dtype, rounding", [(FP32, 1e-6), (BF16, BF16_STEP)], ids=["fp32", "bf16"])
def test_one_layer_is_pefts(dtype, rounding):
    """In BF16 an output or input gradient may be a neighbouring number; A and B have FP32 gradients in both."""
    ours, x = lora_linear(dtype)
    theirs = pefts_layer(copy.deepcopy(ours.base))
    weights = {"A": theirs.lora_A["default"].weight, "B": theirs.lora_B["default"].weight}
    with torch.no_grad():
        for part, weight in weights.items():
            weight.data = getattr(ours, part).clone()
    mine, native = one_layer(ours, x, {"A": ours.A, "B": ours.B}), one_layer(theirs, x, weights)
    for name in ("output", "input"):
        difference = (mine[name].double() - native[name].double()).abs()
        assert (difference <= rounding * native[name].double().abs() + 1e-6).all(), name
    for part in "AB":
        torch.testing.assert_close(mine[part], native[part], rtol=0, atol=1e-6 * native[part].abs().max().item())


# --- What learns --------------------------------------------------------------------------------------------


def test_a_is_drawn_as_pefts_and_b_is_zero():
    ours, again, other = (small_actor(seed=seed) for seed in (1, 1, 2))
    for name, layer in adapters(ours).items():
        bound = layer.base.in_features**-0.5
        for a in (layer.A, pefts_layer(layer.base).lora_A["default"].weight):
            assert 0.9 * bound < a.abs().max() <= bound and abs(a.mean()) < 0.15 * bound
            assert a.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
        assert not layer.B.any()
        assert torch.equal(layer.A, adapters(again)[name].A) and not torch.equal(layer.A, adapters(other)[name].A)
    draws = [layer.A.flatten()[0].item() for layer in adapters(ours).values()]
    assert len(set(draws)) == len(draws)


def frozen_tensors(model):
    return {name: p for name, p in model.named_parameters() if not name.endswith((".A", ".B"))}


def moved_or_given_gradients(model):
    """Names of frozen parameters that have a gradient, or other values after one step of AdamW."""
    before = {name: p.detach().clone() for name, p in frozen_tensors(model).items()}
    optimizer = ScheduledAdamW(model, PROFILE.optimizer, 10, 1e-2)
    model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits.float().square().sum().backward()
    given = {name for name, p in frozen_tensors(model).items() if p.grad is not None}
    optimizer.step()
    return given | {name for name, p in frozen_tensors(model).items() if not torch.equal(p, before[name])}


@DTYPES
def test_the_base_gets_no_gradient_and_stays_as_it_is(dtype):
    model = small_actor(dtype=dtype, learned=True)
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(learning) == 2 * 2 * 7 and all(name.endswith((".A", ".B")) for name in learning)
    assert all(p.dtype == FP32 for p in learning.values())
    assert all(p.dtype == dtype for p in frozen_tensors(model).values())
    before = {name: p.detach().clone() for name, p in learning.items()}
    assert moved_or_given_gradients(model) == set()
    assert not any(torch.equal(p, before[name]) for name, p in learning.items())


def test_a_base_that_learns_is_noticed():
    model = small_actor(learned=True)
    model.model.norm.weight.requires_grad_(True)
    model.model.layers[1].mlp.up_proj.base.weight.requires_grad_(True)
    assert moved_or_given_gradients(model) == {"model.norm.weight", "model.layers.1.mlp.up_proj.base.weight"}


def test_a_with_b_at_zero_has_no_gradient_yet_and_b_has():
    model = small_actor()
    model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits.square().sum().backward()
    assert all(layer.B.grad.any() and not layer.A.grad.any() for layer in adapters(model).values())


def test_alpha_and_rank_come_from_the_settings():
    layer = LoraLinear(torch.nn.Linear(6, 5), Lora(rank=3, alpha=12.0), generator())
    assert layer.A.shape == (3, 6) and layer.B.shape == (5, 3) and layer.scaling == 4.0


@pytest.mark.parametrize("name", PROJECTIONS)
def test_a_layer_without_a_projection_is_refused(name):
    model = small_backbone()
    layer = model.model.layers[1]
    owner = layer.self_attn if hasattr(layer.self_attn, name) else layer.mlp
    delattr(owner, name)
    with pytest.raises(BaseModelError, match=f"Layer 1 has no linear {name}"):
        add_adapters(model, LORA, generator())


def test_adapters_are_not_stacked_on_adapters():
    with pytest.raises(BaseModelError, match="Layer 0 has no linear q_proj"):
        add_adapters(small_actor(), LORA, generator())


# --- The real base, without its weights ---------------------------------------------------------------------


def qwen(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["qwen2.5-0.5b"]))
    return meta_model(tmp_path).to(BF16)


def test_qwens_168_projections_get_4_399_104_parameters(tmp_path):
    """24 layers; for each projection rank x (in + out)."""
    settings = Lora(rank=8, alpha=16.0)
    model = add_adapters(qwen(tmp_path), settings, generator())
    assert len(adapters(model)) == 168 == 24 * len(PROJECTIONS)
    kv, hidden, inner = 2 * 64, 896, 4_864
    ends = [(hidden, hidden), (hidden, kv), (hidden, kv), (hidden, hidden), (hidden, inner), (hidden, inner)]
    ends.append((inner, hidden))
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert learning == 4_399_104 == 24 * 8 * sum(a + b for a, b in ends)
    judge = Scalar(model, generator())
    assert sum(tensor.numel() for tensor in judge.head.parameters()) == 897
    assert sum(p.numel() for p in judge.parameters() if not p.requires_grad) == 494_032_768
    assert sum(p.numel() for p in judge.parameters() if p.requires_grad) == 4_399_104 + 897
