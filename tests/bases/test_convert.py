"""A GGUF file becomes a base: the same weights, the tokenizer it was trained with, and the same bytes every time."""

import gguf
import pytest
import stand_ins
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from labs_lib.checkpoint import untied_state_dict
from labs_lib.config import load_profile
from labs_lib.errors import BaseModelError
from labs_lib.models.base import load_folder
from labs_lib.models.chat import decode_answer, encode_prompt, pad_id
from labs_lib.storage import sha256_tree
from labs_lib.tools.bases.convert import convert_gguf

IDS = torch.tensor([[1, 40, 41, 42, 60, 61, 2]])
SHAPE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rope_parameters",
    "tie_word_embeddings",
    "hidden_act",
    "attention_bias",
    "rms_norm_eps",
    "mlp_bias",
)
BUDGET = load_profile("smollm2-135m").budget


@pytest.fixture(scope="module")
def llama():
    return stand_ins.small_llama()


@pytest.fixture(scope="module")
def file(llama, tmp_path_factory):
    return stand_ins.write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", llama)


@pytest.fixture(scope="module")
def folder(file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    convert_gguf(file, folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def pieces(tokenizer, text):
    return tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])


# --- Weights ---------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_converted_model_computes_what_the_original_does(llama, tmp_path):
    convert_gguf(stand_ins.write_gguf(tmp_path / "exact.gguf", llama, quantised=False), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    own, converted = untied_state_dict(llama), untied_state_dict(model)
    assert own.keys() == converted.keys()
    assert all(torch.equal(own[name], converted[name]) for name in own)
    torch.testing.assert_close(model(IDS).logits, llama(IDS).logits, rtol=1e-5, atol=1e-5)
    # The mutant: query rows taken in the file's own order.
    weight = model.model.layers[0].self_attn.q_proj.weight
    weight.copy_(torch.from_numpy(stand_ins.interleaved(weight.numpy(), 6)))
    assert (model(IDS).logits - llama(IDS).logits).abs().max() > 0.01


def test_quantised_values_are_the_fp32_ones_that_the_blocks_stand_for(llama, folder):
    saved = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in saved and all(tensor.dtype == torch.float32 for tensor in saved.values())
    name = "model.layers.1.mlp.down_proj.weight"
    kind = gguf.GGMLQuantizationType.Q4_1
    original = untied_state_dict(llama)[name].numpy()
    expected = gguf.quants.dequantize(gguf.quants.quantize(original, kind), kind)
    assert torch.equal(saved[name], torch.from_numpy(expected.copy()))
    assert not torch.equal(saved[name], torch.from_numpy(original))


def test_config_and_shape_are_those_of_the_file(llama, folder):
    config = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).config
    for key in SHAPE:
        assert getattr(config, key) == getattr(llama.config, key), key
    assert config.architectures == ["LlamaForCausalLM"] and "gguf" not in (folder / "config.json").read_text()
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 0)


def test_a_conversion_gives_the_same_bytes_every_time(file, folder, tmp_path):
    convert_gguf(file, tmp_path)
    assert sha256_tree(tmp_path) == sha256_tree(folder)
    assert {path.name for path in tmp_path.iterdir()} == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_it_loads_as_a_base(llama, folder):
    profile = stand_ins.profile_for("smollm2-135m", llama)
    loaded = load_folder(folder, profile, None)
    assert pad_id(loaded.tokenizer) == 0 and loaded.tokenizer.pad_token_id == 0 != loaded.tokenizer.eos_token_id == 2


# --- Tokenizer -------------------------------------------------------------------------------------


def test_every_digit_is_a_token_and_does_not_take_the_space_before_it(tokenizer):
    cases = {"a 12": ["a", "Ġ", "1", "2"], "a  12": ["a", "ĠĠ", "1", "2"], "a  a": ["a", "Ġ", "Ġa"]}
    for text, expected in cases.items():
        assert pieces(tokenizer, text) == expected
    # The mutant: GPT-2's rule alone, which is what transformers takes for a name that it does not know.
    tokenizer.backend_tokenizer.pre_tokenizer, right = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        tokenizer.backend_tokenizer.pre_tokenizer,
    )
    assert pieces(tokenizer, "a  12") == ["a", "Ġ", "Ġ", "1", "2"]
    tokenizer.backend_tokenizer.pre_tokenizer = right


def test_a_chat_is_encoded_as_its_template_says_and_comes_back(tokenizer):
    ids = encode_prompt(tokenizer, "he", "a 1", BUDGET, "x")
    text = "<|im_start|>system\nhe<|im_end|>\n<|im_start|>user\na 1<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids.count(1) == 3 and ids.count(2) == 2
    answer = tokenizer('{"a":1} é 漢', add_special_tokens=False)["input_ids"]
    assert decode_answer(tokenizer, [*answer, 2]) == '{"a":1} é 漢'


@given(st.text())
def test_every_text_comes_back(tokenizer, text):
    assume(not any(token in text for token in stand_ins.SPECIAL))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert decode_answer(tokenizer, ids) == text and not {0, 1, 2} & set(ids)


# --- Refusals --------------------------------------------------------------------------------------


def test_a_pre_tokenizer_that_is_not_known_is_refused(llama, tmp_path):
    file = stand_ins.write_gguf(tmp_path / "other.gguf", llama, pre="surprise")
    with pytest.raises(BaseModelError, match=r"other\.gguf cuts text as 'surprise'.*smollm"):
        convert_gguf(file, tmp_path)
