"""Build `assets/tiny-base` and its early checkpoint `assets/tiny-base-weak` from nothing."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from labs_lib.checkpoint import save_model_weights, untied_state_dict
from labs_lib.models.tiny_base.decontamination import check_decontamination, training_chats
from labs_lib.models.tiny_base.text import chats
from labs_lib.models.tiny_base.tokenizer import tokenizer_sample, train_tokenizer
from labs_lib.models.tiny_base.train import Recipe, arithmetic_accuracy, build_model, training_steps
from labs_lib.paths import ASSETS
from labs_lib.progress import ProgressBar
from labs_lib.storage import atomic_write_json
from labs_lib.tasks.stock_arithmetic.corpus import normalised_keys

RECIPE = Recipe()
BASE, WEAK = ASSETS / "tiny-base", ASSETS / "tiny-base-weak"
TRAINING_RECORD = "training.json"


def export_base(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> str:
    """Write one base in the format of the hub; returns the SHA-256 of the weights.

    The weights are rounded to BF16, as released models are: a frozen BF16 backbone is then exactly the base.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.config.dtype = "bfloat16"
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in untied_state_dict(model).items()}
    return save_model_weights(folder / "model.safetensors", rounded, fresh=True)


def build(recipe: Recipe = RECIPE, base: Path = BASE, weak: Path = WEAK) -> dict[str, Any]:
    """Train by the recipe and export both bases; returns the training record, also written beside the base.

    Weights are equal on the same machine and thread count. Other processors give others, of the same quality:
    that is why the base is kept in the repository.
    """
    torch.set_num_threads(1)
    held_out = normalised_keys()
    seen = training_chats(recipe, held_out)
    proof = check_decontamination(seen)
    tokenizer = train_tokenizer(tokenizer_sample(iter(seen)), recipe.vocabulary)
    model = build_model(recipe, tokenizer)
    curve = []
    stages = (recipe, chats(recipe.seed, held_out)), (recipe.second_stage(), chats(recipe.seed, held_out, varied=True))
    with ProgressBar("tiny base", recipe.stop + recipe.varied_steps) as bar:
        for stage, (settings, stream) in enumerate(stages, start=1):
            for step, _ in training_steps(settings, model, tokenizer, stream):
                bar.advance()
                if step % 200 == 0:
                    greedy, probability = arithmetic_accuracy(model, tokenizer)
                    curve.append({"stage": stage, "step": step, "greedy": greedy, "probability": probability})
                if stage == 1 and step == recipe.weak_step:
                    export_base(model, tokenizer, weak)
    digest = export_base(model, tokenizer, base)
    record = {"recipe": vars(recipe), "curve": curve, "decontamination": proof, "sha256": digest}
    atomic_write_json(base / TRAINING_RECORD, record)
    return record
