"""From a GGUF file of the llama architecture to a folder that `transformers` loads, the same bytes every time.

`transformers` dequantises the weights and reads the vocabulary. A GGUF file names its pre-tokenizer only, and
`transformers` does not know the name "smollm"; and SmolLM2 pads with its EOS. Both are put right here.
"""

import copy
from pathlib import Path

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from labs_lib.checkpoint import save_model_weights, untied_state_dict
from labs_lib.errors import BaseModelError
from labs_lib.models.locations import WEIGHTS

PADDING = "<|endoftext|>"
# Every digit is a token of its own, as SmolLM2 was trained: "  12" would be cut otherwise without this step.
PRE_TOKENIZERS = {
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
}


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write config, FP32 weights (tied ones once) and tokenizer of the model in `gguf` into `folder`, which exists.

    Raises:
        BaseModelError: text is cut in a way that is not known here.
    """
    tokenizer = gguf_tokenizer(gguf)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
    )
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.save_pretrained(folder)
    plain_config(model, tokenizer.pad_token_id).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_model_weights(folder / WEIGHTS, untied_state_dict(model), fresh=True)


def plain_config(model: PreTrainedModel, pad_token_id: int) -> PreTrainedConfig:
    """The configuration without traces of the GGUF file, which would have `transformers` look for its blocks."""
    config = copy.deepcopy(model.config)
    for name in ("quantization_config", "_model_name_or_path", "unk_token_id"):
        vars(config).pop(name, None)
    config.architectures = [type(model).__name__]
    config.pad_token_id = pad_token_id
    # GGUF keeps FP32 numbers: 1e-5 comes back as 9.999999747e-6, the same number to a model in FP32.
    config.rms_norm_eps = float(f"{config.rms_norm_eps:.6g}")
    return config


def gguf_tokenizer(gguf: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that a GGUF file describes, with the pre-tokenizer that it names and a padding that is not EOS."""
    read = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    name = GGUFReader(gguf).fields["tokenizer.ggml.pre"].contents()
    if name not in PRE_TOKENIZERS:
        raise BaseModelError(f"{gguf.name} cuts text as {name!r}, and only {', '.join(PRE_TOKENIZERS)} is known here.")
    backend = read.backend_tokenizer
    backend.pre_tokenizer = PRE_TOKENIZERS[name]
    # This class takes the tokenizer as it is saved; the others build it again, each in its own way.
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=read.eos_token,
        bos_token=read.bos_token,
        pad_token=PADDING,
        chat_template=read.chat_template,
    )
