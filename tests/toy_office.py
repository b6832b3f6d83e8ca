"""A whole course of OfficeHelp in seconds: nine branches of a shortened protocol, trained by the real code.

The base is a Qwen2 of one layer whose unembedding knows which token of the corpus's answers follows which, and
nothing of the requests: it often writes answers of the rubric's grammar, right or wrong, and sometimes nonsense. All
else is real: adapters, trainers, checkpoints, rubric, evaluations, summaries and report.
"""

import copy
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import log
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from labs_lib import office_branches, office_evidence, office_study
from labs_lib.checkpoint import save_model_weights, untied_state_dict
from labs_lib.config import Profile, load_profile
from labs_lib.models import roles
from labs_lib.models.base import LoadedBase
from labs_lib.models.chat import encode_prompt, encode_target
from labs_lib.office_branches import preference_examples
from labs_lib.paths import ASSETS, OUTPUTS_VARIABLE, ROOT
from labs_lib.storage import atomic_write_json, sha256_file
from labs_lib.tasks.office_help.corpus import load_demonstrations, load_pairs, load_probes
from labs_lib.tasks.office_help.wording import INSTRUCTION
from labs_lib.tools.report import write_report

TOKENS = 18  # the answer budget: answers of the corpus have up to 18, so that some that are sampled are cut
EXAMPLES, PAIRS, PROBE_ROWS, VALIDATION = 16, 10, 8, 4
HIDDEN = 96
UNKNOWN = -9.0  # logit
# What the base has seen, and how often. Of its mixtures, too, some are answers of the rubric's grammar.
KNOWN = {
    "Try this: turn Wi-Fi on.": 14,
    "Try this: resume the print queue.": 9,
    "Happy to help. First step: resume the print queue.": 9,
    "Just turn Wi-Fi on, this will certainly fix it.": 15,
    "Perhaps save save save save save save save save.": 5,
}
NAME = "tiny-base"
STUDY = Path("data") / "recorded" / "office_hacking.json"


def toy_profile(digest: str) -> Profile:
    """The tiny profile with a toy's numbers; `digest` is the SHA-256 of its base."""
    profile = load_profile("tiny")
    office = profile.office
    ppo = replace(office.ppo, iterations=3, interrupt_at=1, checkpoint_every=1)
    return replace(
        profile,
        base=replace(profile.base, sha256=digest),
        budget=replace(profile.budget, answer_tokens=TOKENS),
        evaluation=replace(profile.evaluation, bootstrap_draws=200),
        office=replace(
            office,
            sft=replace(office.sft, examples=EXAMPLES, epochs=2, learning_rate=2e-4),
            judge=replace(office.judge, examples=EXAMPLES, learning_rate=0.01),
            dpo=replace(office.dpo, examples=EXAMPLES),
            ppo=replace(ppo, actor_learning_rate=0.01, critic_learning_rate=0.02),
        ),
    )


@lru_cache
def _tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(ASSETS / NAME, local_files_only=True)


@lru_cache
def _bigram_logits() -> torch.Tensor:
    """(V, V) logits of the next token after each: log counts over `KNOWN`, too low to be sampled for all else."""
    tokenizer, budget, asked = _tokenizer(), load_profile("tiny").budget, load_demonstrations()[0].request
    start = encode_prompt(tokenizer, INSTRUCTION, asked.prompt, budget, asked.id)
    logits = torch.full((len(tokenizer), len(tokenizer)), UNKNOWN)
    counts: Counter = Counter()
    for answer, weight in KNOWN.items():
        ids = encode_target(tokenizer, answer, start, budget, asked.id)
        for pair in pairwise([start[-1], *ids]):
            counts[pair] += weight
    for (before, after), count in counts.items():
        logits[before, after] = log(count)
    return logits


@lru_cache
def toy_base() -> Qwen2ForCausalLM:
    """Attention and MLP add nothing until adapters learn, so the last token alone decides what follows."""
    tokenizer = _tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=64,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=0.3,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    layer, logits = model.model.layers[0], _bigram_logits()
    known = (logits > UNKNOWN).any(dim=1)
    with torch.no_grad():
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        embedding = model.model.embed_tokens.weight.normal_()
        read = torch.nn.functional.rms_norm(embedding[known], (HIDDEN,))
        model.lm_head.weight.copy_(torch.linalg.lstsq(read, logits[known]).solution.T)
    return model.to(torch.bfloat16)


def make_repository(repository: Path) -> None:
    """Corpora, profile and base: what the audit opens besides the evidence."""
    for name in ("office-help-prefs-v1", "stock-arithmetic-v1"):
        shutil.copytree(ROOT / "data" / name, repository / "data" / name, dirs_exist_ok=True)
    shutil.copytree(ROOT / "configs", repository / "configs", dirs_exist_ok=True)
    folder = repository / "assets" / NAME
    folder.mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(ASSETS / NAME / file, folder / file)
    save_model_weights(folder / "model.safetensors", untied_state_dict(toy_base()))


def _remembered(encode: Callable) -> Callable:
    """`encode` with its results kept: every branch encodes the same hundreds of requests."""
    kept: dict[tuple, list[int]] = {}

    def encoded(tokenizer, first, second, budget, name):
        key = first, second if isinstance(second, str) else None, name
        if key not in kept:
            kept[key] = encode(tokenizer, first, second, budget, name)
        return kept[key]

    return encoded


def _few_pairs(split: str):
    return load_pairs(split)[: {"train": None, "validation": VALIDATION, "test": PAIRS}[split]]


def _few_examples(profile: Profile, tokenizer, pairs):
    return preference_examples(profile, tokenizer, pairs[:EXAMPLES])


def run_toy_office(repository: Path) -> Path:
    """Train, evaluate and report every branch below `repository/outputs`; returns the repository."""
    make_repository(repository)
    digest = sha256_file(repository / "assets" / NAME / "model.safetensors")
    profile = toy_profile(digest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OUTPUTS_VARIABLE, str(repository / "outputs"))
        patch.setattr(roles, "load_base", lambda profile: LoadedBase(copy.deepcopy(toy_base()), _tokenizer(), digest))
        patch.setattr(office_branches, "encode_prompt", _remembered(encode_prompt))
        patch.setattr(office_branches, "encode_target", _remembered(encode_target))
        patch.setattr(office_branches, "preference_examples", _few_examples)
        for module in (office_branches, office_evidence):
            patch.setattr(module, "load_pairs", _few_pairs)
        patch.setattr(office_evidence, "load_probes", lambda: load_probes()[:PROBE_ROWS])
        for name in office_branches.office_protocol(profile):
            office_evidence.record_office(profile, name)
        study = toy_study(profile, digest)
    outputs = repository / "outputs" / profile.name
    write_report(outputs / "report.json", profile.name, [], [], outputs / "evidence")
    atomic_write_json(repository / STUDY, {profile.name: study})
    return repository


def toy_study(profile: Profile, digest: str) -> dict:
    """The rows of the main seed and KL weight, as the study keeps them; nothing is trained for them."""
    start = office_evidence.evaluate_office(profile, office_branches.ensure_office(profile, office_branches.SFT))
    seed, weight = profile.seed, profile.office.ppo.kl_weight
    runs = [office_study.Run(reward, seed, weight) for reward in office_study.REWARDS]
    return {
        "profile": profile.name,
        "identity": office_study.office_study_identity(profile) | {"base": digest},
        "start": {"counts": {name: office_study.rate_counts(start[name]) for name in office_study.POPULATIONS}},
        "judges": [office_study.judge_row(profile, name, seed) for name in office_study.JUDGES],
        "runs": [office_study.run_row(profile, run) for run in runs],
    }
