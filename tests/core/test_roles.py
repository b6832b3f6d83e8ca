"""The four roles: what they learned is theirs alone, the base under them stays the base, and all is counted."""

import copy
from dataclasses import replace

import pytest
import torch
from small_model import PROFILE, small_model
from small_office import LORA, fill_adapters, small_actor, small_backbone, small_critic, small_judge

from labs_lib.errors import CheckpointError, VerificationError
from labs_lib.models.base import load_base
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.models.half_precision import EAGER_FP32_PRODUCTS, use_fp32_products
from labs_lib.models.lora import adapters, add_adapters
from labs_lib.models.roles import (
    HEAD_DEVIATION,
    Scalar,
    backbone_fingerprint,
    backbone_tensors,
    learned_fingerprint,
    learned_tensors,
    load_adapted,
    load_learned,
    require_frozen_backbone,
    require_separate,
    role_costs,
)
from labs_lib.seeding import named_generator

FP32, BF16 = torch.float32, torch.bfloat16
DTYPES = pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
ROLES = pytest.mark.parametrize("make", [small_actor, small_judge, small_critic])
IDS = torch.tensor([[5, 6, 7, 8]])


def states(model):
    backbone = model.backbone if isinstance(model, Scalar) else model
    hidden = backbone.model(input_ids=IDS).last_hidden_state
    return model(hidden) if isinstance(model, Scalar) else hidden


# --- The scalar head ----------------------------------------------------------------------------------------


def test_the_judges_head_is_drawn_and_the_critics_is_zero():
    judge, again, other, critic = small_judge(1), small_judge(1), small_judge(2), small_critic(1)
    for role in (judge, critic):
        assert role.head.weight.shape == (1, 32) and role.head.weight.dtype == role.head.bias.dtype == FP32
        assert not role.head.bias.any() and not role.training
        assert role.head.weight.requires_grad and role.head.bias.requires_grad
    assert not critic.head.weight.any() and not states(critic).any()
    assert torch.equal(judge.head.weight, again.head.weight) and not torch.equal(judge.head.weight, other.head.weight)


def test_head_weights_have_the_protocols_deviation():
    wide = small_backbone()
    wide.config.hidden_size = 10_000  # a head is as wide as the config says
    weights = Scalar(wide, named_generator(50, "office/head")).head.weight
    assert HEAD_DEVIATION == 0.02
    assert weights.std().item() == pytest.approx(0.02, rel=0.03) and abs(weights.mean().item()) < 0.001


@DTYPES
def test_a_score_is_fp32_whatever_the_backbone(dtype):
    judge = small_judge(dtype=dtype, learned=True)
    hidden = judge.backbone.model(input_ids=IDS).last_hidden_state
    scores = judge(hidden)
    assert hidden.dtype == dtype and scores.dtype == FP32 and scores.shape == (1, 4)
    expected = hidden.double() @ judge.head.weight[0].double() + judge.head.bias.double()
    assert (scores - expected).abs().max() < 1e-6
    narrow = (hidden.to(BF16) @ judge.head.weight[0].to(BF16)).double()  # what a head in BF16 would say
    assert (narrow - expected).abs().max() > 1e-4


# --- What a role learned ------------------------------------------------------------------------------------


@ROLES
@DTYPES
def test_what_is_learned_moves_to_a_fresh_role_and_is_all_that_differs(make, dtype):
    trained, fresh = make(3, dtype, True), make(4, dtype)
    assert not torch.equal(states(trained), states(fresh))
    kept = {name: tensor.clone() for name, tensor in learned_tensors(trained).items()}
    load_learned(fresh, kept)
    assert torch.equal(states(trained), states(fresh))
    assert learned_fingerprint(trained) == learned_fingerprint(fresh)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in learned_tensors(fresh).items())
    require_separate({"trained": trained, "fresh": fresh})  # copied, not shared


@ROLES
def test_what_is_learned_is_adapters_and_head_as_live_views(make):
    model = make(learned=True)
    tensors = learned_tensors(model)
    heads = {"head.weight", "head.bias"} if isinstance(model, Scalar) else set()
    assert {name for name in tensors if not name.endswith((".A", ".B"))} == heads
    assert len(tensors) == 2 * 2 * 7 + len(heads) and all(t.dtype == FP32 for t in tensors.values())
    assert set(tensors) == {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(tensors[name].data_ptr() == dict(model.named_parameters())[name].data_ptr() for name in tensors)
    assert not any(tensor.requires_grad for tensor in tensors.values())


def test_of_a_model_without_adapters_everything_is_learned():
    model = small_model()
    assert learned_fingerprint(model) == policy_fingerprint(model)
    assert "lm_head.weight" not in learned_tensors(model)  # tied, once


def damaged(kind):
    tensors = {name: tensor.clone() for name, tensor in learned_tensors(small_judge(3, learned=True)).items()}
    name = "backbone.model.layers.1.mlp.up_proj.B"
    if kind == "missing":
        del tensors[name]
    elif kind == "unexpected":
        tensors["backbone.model.norm.weight"] = torch.ones(32)
    elif kind == "shape":
        tensors[name] = tensors[name][:1]
    elif kind == "dtype":
        tensors[name] = tensors[name].to(BF16)
    elif kind == "no head":
        tensors = {key.removeprefix("backbone."): tensor for key, tensor in tensors.items() if "head" not in key}
    return tensors


@pytest.mark.parametrize(
    "kind, named",
    [
        ("missing", r"layers\.1\.mlp\.up_proj\.B"),
        ("unexpected", r"backbone\.model\.norm\.weight"),
        ("shape", r"layers\.1\.mlp\.up_proj\.B"),
        ("dtype", r"layers\.1\.mlp\.up_proj\.B"),
        ("no head", "Weights for Scalar"),
    ],
)
def test_other_tensors_are_refused_and_nothing_is_loaded(kind, named):
    judge = small_judge(4)
    before = learned_fingerprint(judge)
    with pytest.raises(CheckpointError, match=named):
        load_learned(judge, damaged(kind))
    assert learned_fingerprint(judge) == before


# --- Fingerprints -------------------------------------------------------------------------------------------


@DTYPES
@ROLES
def test_the_backbones_fingerprint_is_the_bases(make, dtype):
    expected = policy_fingerprint(small_backbone(dtype))
    assert backbone_fingerprint(make(dtype=dtype, learned=True)) == expected
    assert policy_fingerprint(make(dtype=dtype)) != expected
    other = {FP32: BF16, BF16: FP32}[dtype]
    assert backbone_fingerprint(make(dtype=other)) != expected


def test_backbone_and_learned_tensors_are_all_there_is():
    judge = small_judge(learned=True)
    together = sum(t.numel() for part in (backbone_tensors, learned_tensors) for t in part(judge).values())
    assert together == sum(p.numel() for p in judge.parameters())


def nudge(tensor):
    with torch.no_grad():
        tensor.view(-1)[-1] += 0.5


@ROLES
@pytest.mark.parametrize("part", [learned_tensors, backbone_tensors])
def test_each_fingerprint_sees_its_own_tensors_only(make, part):
    model = make(learned=True)
    own, other = (learned_fingerprint, backbone_fingerprint)[:: 1 if part is learned_tensors else -1]
    seen, kept = {own(model)}, other(model)
    for count, tensor in enumerate(part(model).values(), start=2):
        nudge(tensor)
        seen.add(own(model))
        assert len(seen) == count and other(model) == kept


# --- Separate storage ---------------------------------------------------------------------------------------


def four_roles():
    return {
        "actor": small_actor(1, learned=True),
        "reference": small_actor(1, learned=True),
        "judge": small_judge(2, learned=True),
        "critic": small_critic(1),
    }


def shared_backbone(roles):
    roles["critic"] = Scalar(roles["judge"].backbone)


def shared_base(roles):
    """Adapters of its own on a base that is another role's: here the storage of one frozen weight."""
    roles["reference"].model.embed_tokens.weight = roles["actor"].model.embed_tokens.weight


def shared_heads(roles):
    roles["critic"].head = roles["judge"].head


def one_shared_adapter(roles):
    first, second = (adapters(roles[role])["model.layers.1.mlp.down_proj"] for role in ("actor", "reference"))
    second.B = first.B


def one_shared_view(roles):
    first = adapters(roles["actor"])["model.layers.0.self_attn.k_proj"]
    second = adapters(roles["critic"])["backbone.model.layers.0.self_attn.k_proj"]
    second.A = torch.nn.Parameter(first.A.detach()[:, :])


def same_model(roles):
    roles["reference"] = roles["actor"]


def test_four_roles_of_their_own_pass():
    require_separate(four_roles())
    require_separate({"actor": small_actor()})


@pytest.mark.parametrize(
    "share, named",
    [
        (shared_backbone, "judge and critic share"),
        (shared_base, r"actor and reference share (lm_head|model\.embed_tokens)\.weight"),
        (shared_heads, r"judge and critic share head\.(weight|bias)"),
        (one_shared_adapter, r"actor and reference share model\.layers\.1\.mlp\.down_proj\.B"),
        (one_shared_view, r"actor and critic share backbone\.model\.layers\.0\.self_attn\.k_proj\.A"),
        (same_model, "actor and reference share"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_shared_storage_is_refused_with_both_roles_and_a_tensor(share, named):
    roles = four_roles()
    share(roles)
    with pytest.raises(VerificationError, match=named):
        require_separate(roles)


def test_why_with_a_shared_backbone_the_reward_moves():
    """The fault behind the check: the critic's update changes the judge's score."""
    for shared in (False, True):
        roles = four_roles()
        if shared:
            shared_backbone(roles)
        before = states(roles["judge"]).detach()
        with torch.no_grad():
            fill_adapters(roles["critic"], seed=9)
        assert torch.equal(states(roles["judge"]), before) != shared


# --- Frozen backbones ---------------------------------------------------------------------------------------


@ROLES
@DTYPES
def test_a_role_as_made_has_a_frozen_backbone_in_its_dtype(make, dtype):
    require_frozen_backbone(make(dtype=dtype, learned=True), dtype)
    frozen = make(dtype=dtype).requires_grad_(False)  # a reference or a judge during PPO
    require_frozen_backbone(frozen, dtype)
    with pytest.raises(VerificationError, match=f"{dtype}, not"):
        require_frozen_backbone(make(dtype=dtype), {FP32: BF16, BF16: FP32}[dtype])


def in_train_mode(role):
    role.train()


def unfrozen_embedding(role):
    role.backbone.model.embed_tokens.weight.requires_grad_(True)


def unfrozen_projection(role):
    role.backbone.model.layers[0].self_attn.q_proj.base.weight.requires_grad_(True)


def adapter_in_bf16(role):
    adapter = role.backbone.model.layers[1].mlp.gate_proj
    adapter.A = torch.nn.Parameter(adapter.A.detach().to(BF16))


def head_in_bf16(role):
    role.head.to(BF16)


def norm_in_fp32(role):
    role.backbone.model.norm.to(FP32)


def all_in_bf16(role):
    role.to(BF16)


FROZEN_MUTANTS = [
    (in_train_mode, r"train\(\) mode"),
    (unfrozen_embedding, r"backbone\.model\.embed_tokens\.weight belongs to the frozen backbone"),
    (unfrozen_projection, r"layers\.0\.self_attn\.q_proj\.base\.weight belongs to the frozen backbone"),
    (adapter_in_bf16, r"layers\.1\.mlp\.gate_proj\.A is torch\.bfloat16, not torch\.float32"),
    (head_in_bf16, r"head\.(weight|bias) is torch\.bfloat16, not torch\.float32"),
    (norm_in_fp32, r"model\.norm\.weight is torch\.float32, not torch\.bfloat16"),
    (all_in_bf16, r"is torch\.bfloat16, not torch\.float32"),
]


@pytest.mark.parametrize("mutate, named", FROZEN_MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_other_modes_gradients_and_dtypes_are_refused_by_name(mutate, named):
    role = small_judge(dtype=BF16)
    mutate(role)
    with pytest.raises(VerificationError, match=named):
        require_frozen_backbone(role, BF16)


def test_one_part_in_train_mode_is_refused_too():
    role = small_judge()
    role.backbone.model.layers[1].train()
    with pytest.raises(VerificationError, match=r"train\(\) mode"):
        require_frozen_backbone(role, FP32)


def dropping_out(dtype):
    """A role on a base whose config asks for dropout of one half."""
    model = small_model(attention_dropout=0.5).to(dtype)
    if dtype == BF16:
        use_fp32_products(model)
    return add_adapters(model, LORA, named_generator(1, "office/adapters")).eval()


@DTYPES
def test_dropout_in_the_config_changes_nothing_in_eval_mode(dtype):
    model = dropping_out(dtype)
    require_frozen_backbone(model, dtype)
    assert torch.equal(states(model), states(model))
    if dtype == FP32:  # this is what it looks like; the BF16 attention has no dropout at all
        model.train()
        assert not torch.equal(states(model), states(model))
        with pytest.raises(VerificationError, match=r"train\(\) mode"):
            require_frozen_backbone(model, dtype)


# --- The tiny base ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
    return load_adapted(PROFILE, named_generator(49, "office/adapters"))


def test_the_tiny_role_is_the_tiny_base_in_bf16_with_fp32_adapters(tiny):
    model = tiny.model
    require_frozen_backbone(model, BF16)
    assert not any(module.training for module in model.modules())
    assert model.config._attn_implementation == EAGER_FP32_PRODUCTS
    base = load_base(replace(PROFILE, dtype="bfloat16")).model
    assert backbone_fingerprint(model) == policy_fingerprint(base)
    assert len(adapters(model)) == 4 * 7 and not any(layer.B.any() for layer in adapters(model).values())
    assert all(layer.A.shape[0] == PROFILE.office.lora.rank for layer in adapters(model).values())


def test_an_fp32_profile_keeps_eager_attention():
    office = replace(PROFILE.office, dtype="float32")
    model = load_adapted(replace(PROFILE, office=office), named_generator(49, "office/adapters")).model
    require_frozen_backbone(model, FP32)
    assert model.config._attn_implementation == "eager"
    assert backbone_fingerprint(model) == policy_fingerprint(load_base(PROFILE).model)


def test_each_load_is_a_role_of_its_own_and_the_same_seed_the_same_role(tiny):
    again = load_adapted(PROFILE, named_generator(49, "office/adapters"))
    other = load_adapted(PROFILE, named_generator(50, "office/adapters"))
    assert learned_fingerprint(again.model) == learned_fingerprint(tiny.model) != learned_fingerprint(other.model)
    require_separate({"actor": tiny.model, "reference": again.model, "critic": Scalar(other.model)})


def test_the_tiny_roles_parameters_and_bytes(tiny):
    """4 layers of width 128, key and value 64, inner 352: 8 (2 x 256 + 2 x 192 + 3 x 480) a layer."""
    assert role_costs("actor", tiny.model).adapters == 74_752 == 4 * 8 * (2 * 256 + 2 * 192 + 3 * 480)
    for role, model, head in (("actor", tiny.model, 0), ("judge", Scalar(copy.deepcopy(tiny.model)), 129)):
        costs = role_costs(role, model)
        assert (costs.role, costs.backbone, costs.head) == (role, 821_376, head)
        assert costs.learning == 74_752 + head
        assert costs.weight_bytes == 2 * 821_376 + 4 * costs.learning
        assert costs.state_bytes == 2 * 4 * costs.learning
    frozen = role_costs("reference", copy.deepcopy(tiny.model).requires_grad_(False))
    assert frozen.learning == frozen.state_bytes == 0 and frozen.adapters == 74_752
