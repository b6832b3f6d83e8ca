"""The profiles of real models, checked without their weights: shapes on the meta device, real BPE ranks.

With LABS_LARGE=1 also one iteration of GRPO and of PPO on Qwen's real shapes with random weights.
"""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from qwen_stand_in import QWEN_CONFIG, QwenRanks
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
    "qwen2.5-0.5b": QWEN_CONFIG,
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


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("LABS_LARGE") != "1", reason="minutes and 13 GB: set LABS_LARGE=1")
@pytest.mark.parametrize("kind, learning, memory", [("grpo", ["policy"], 14.0), ("ppo", ["actor", "critic"], 10.0)])
def test_an_iteration_on_qwens_real_shapes_with_random_weights(kind, learning, memory):
    script = Path(__file__).with_name("qwen_iteration.py")
    environment = {**os.environ, "PYTHONPATH": str(script.parents[2])}
    done = subprocess.run([sys.executable, script, kind], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    row = result.pop("evidence")
    print(f"{kind}: {result}")
    assert result["answers"] == {"grpo": 16, "ppo": 4}[kind] and result["updates"] == 2
    assert result["optimiser_steps"] == dict.fromkeys(learning, 2)
    assert result["peak_gb"] < memory
    assert row["score_check"] < QWEN.grpo.logprob_tolerance or kind == "ppo"
    assert all(math.isfinite(value) for answer in row["answers"] for value in answer["logprobs"])


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
