"""A whole course of runs in seconds: every branch of a shortened protocol, trained by the real code on a toy policy.

The toy looks up a prompt's answer and writes it with mistakes, by position; its only parameters are an offset to
the logits. All else is real: trainers, checkpoints, verifier, evaluations, summaries and report.
"""

import hashlib
import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from labs_lib import branches, evaluation, evidence, scoring
from labs_lib.checkpoint import load_model_weights, save_model_weights
from labs_lib.config import Profile, load_profile
from labs_lib.kernels.logprobs import selected_logprobs
from labs_lib.models.base import LoadedBase
from labs_lib.paths import ASSETS, OUTPUTS_VARIABLE, ROOT
from labs_lib.rollout import EOS, LENGTH, Rollout, choose_tokens
from labs_lib.storage import sha256_file
from labs_lib.tasks.stock_arithmetic.corpus import build_corpus, load_split
from labs_lib.tools.report import write_report
from labs_lib.training import grpo

TOKENS = 10  # the answer budget: targets have eight or nine, so that some answers are cut
HELD_OUT = 6  # validation problems, and test problems of each population
BASES = ("tiny-base", "tiny-base-weak")


def toy_profile() -> Profile:
    profile = load_profile("tiny")
    return replace(
        profile,
        budget=replace(profile.budget, answer_tokens=TOKENS),
        warmstart=replace(profile.warmstart, examples=16, epochs=2, learning_rate=0.02),
        sft=replace(profile.sft, examples=24, epochs=2, learning_rate=0.02),
        grpo=replace(profile.grpo, iterations=4, interrupt_at=2, checkpoint_every=2, learning_rate=0.5),
        group_size_runs=replace(profile.group_size_runs, iterations=2, interrupt_at=1),
        evaluation=replace(profile.evaluation, bootstrap_draws=200),
    )


class ToyPolicy(torch.nn.Module):
    """Logits (T, V) of one prompt's answer: its target at 12, the likely mistakes near, noise; plus `offset`."""

    def __init__(self, offset: torch.Tensor, targets: dict[tuple, list[int]], digits: list[int]):
        super().__init__()
        self.offset = torch.nn.Parameter(offset)
        self.targets, self.digits = targets, digits
        # The hidden states are the logits themselves.
        self.head = SimpleNamespace(weight=torch.eye(offset.shape[1]))

    device = torch.device("cpu")

    def get_output_embeddings(self) -> SimpleNamespace:
        return self.head

    def given_logits(self, prompt: list[int]) -> torch.Tensor:
        target = self.targets[tuple(prompt)]
        seed = int.from_bytes(hashlib.sha256(bytes(prompt)).digest()[:4], "big")
        logits = 0.1 * torch.randn(self.offset.shape, generator=torch.Generator().manual_seed(seed))
        for position in range(len(logits)):
            right = target[min(position, len(target) - 1)]
            if right in self.digits:
                logits[position, self.digits] = 9.5
            logits[position, target[-2]] = 11.3 if position >= len(target) - 1 else 0.0  # one more closing brace
            logits[position, right] = 12.0
        logits[0, self.digits[0]] = 11.5  # no opening brace
        return logits

    def logits(self, prompts: list[list[int]], group_size: int) -> torch.Tensor:
        given = torch.stack([self.given_logits(prompt) for prompt in prompts])
        return (given + self.offset).repeat_interleave(group_size, dim=0)


def toy_hidden(policy: ToyPolicy, prompts, ids: torch.Tensor, pad_id: int) -> torch.Tensor:
    """Stands in for `answer_hidden`: (A, T, V)."""
    return policy.logits(prompts, len(ids) // len(prompts))[:, : ids.shape[1]]


@torch.no_grad()
def toy_generate(policy: ToyPolicy, prompts, group_size: int, max_tokens: int, eos_id: int, pad_id: int, draws):
    """Stands in for `generate`, position by position."""
    logits = policy.logits(prompts, group_size)
    ids = torch.full(logits.shape[:2], pad_id)
    mask, running = torch.zeros(ids.shape, dtype=torch.bool), torch.ones(len(ids), dtype=torch.bool)
    for position in range(max_tokens):
        tokens = choose_tokens(logits[:, position], None if draws is None else draws[:, position])
        ids[running, position], mask[running, position] = tokens[running], True
        running &= tokens != eos_id
    logprobs = torch.zeros(ids.shape).masked_scatter(mask, selected_logprobs(logits[mask], ids[mask]))
    longest = int(mask.sum(dim=1).max())
    reasons = tuple(LENGTH if goes_on else EOS for goes_on in running.tolist())
    kept = (tensor[:, :longest].contiguous() for tensor in (ids, mask, logprobs))
    return Rollout(*kept, reasons, logits[::group_size, 0].clone())


def toy_prompt(name: str) -> list[int]:
    """Stands in for the chat template: the example's own name, a byte an id."""
    return list(name.encode())


def make_repository(repository: Path) -> None:
    """Corpus, profile and two bases: what the audit opens besides the evidence."""
    shutil.copytree(ROOT / "data" / "stock-arithmetic-v1", repository / "data" / "stock-arithmetic-v1")
    shutil.copytree(ROOT / "configs", repository / "configs")
    for number, name in enumerate(BASES):
        folder = repository / "assets" / name
        folder.mkdir(parents=True)
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(ASSETS / name / file, folder / file)
        vocabulary = len(_tokenizer(folder))
        offset = 0.1 * torch.randn(TOKENS, vocabulary, generator=torch.Generator().manual_seed(number))
        save_model_weights(folder / "model.safetensors", {"offset": offset.to(torch.bfloat16)})


def _tokenizer(folder: Path):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def _base_loader(repository: Path):
    tokenizers = {name: _tokenizer(repository / "assets" / name) for name in BASES}

    def targets(tokenizer) -> dict[tuple, list[int]]:
        texts = {tuple(toy_prompt(example.id)): example.target for example in build_corpus()}
        encoded = tokenizer(list(texts.values()), add_special_tokens=False)["input_ids"]
        return {prompt: [*ids, tokenizer.eos_token_id] for prompt, ids in zip(texts, encoded, strict=True)}

    known = {name: targets(tokenizer) for name, tokenizer in tokenizers.items()}

    def load_toy_base(profile: Profile, weak: bool = False) -> LoadedBase:
        name = BASES[weak]
        path = repository / "assets" / name / "model.safetensors"
        offset = load_model_weights(path)[0]["offset"].float()
        digits = tokenizers[name].convert_tokens_to_ids(list("0123456789"))
        return LoadedBase(ToyPolicy(offset, known[name], digits).eval(), tokenizers[name], sha256_file(path))

    return load_toy_base


@lru_cache
def _few(split: str, *, labels: bool):
    """Stands in for `load_split`: some held-out problems of each population."""
    examples = load_split(split, labels=labels)
    if split == "train":
        return examples
    return [example for start in range(0, len(examples), 100) for example in examples[start : start + HELD_OUT]]


def run_toy_course(repository: Path) -> Path:
    """Train, evaluate and report every branch below `repository/outputs`; returns the repository."""
    make_repository(repository)
    profile = toy_profile()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OUTPUTS_VARIABLE, str(repository / "outputs"))
        patch.setattr(branches, "load_base", _base_loader(repository))
        for module in (branches, evidence):
            patch.setattr(module, "prompt_ids", lambda profile, tokenizer, example: toy_prompt(example.id))
            patch.setattr(module, "load_split", _few)
        for module in (grpo, evaluation):
            patch.setattr(module, "generate", toy_generate)
        for module in (grpo, scoring):
            patch.setattr(module, "answer_hidden", toy_hidden)
        for name in branches.protocol_branches(profile):
            evidence.record_branch(profile, name)
    outputs = repository / "outputs" / profile.name
    write_report(outputs / "report.json", profile.name, [], [], outputs / "evidence")
    return repository
