"""The tiny base's model card: what it is, what it was trained on, the decontamination proof, measured figures.

Every figure in it is measured by `measure` on the files that lie in `assets/`, or read from the training record.
"""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from labs_lib.branches import load_policy, prompt_ids
from labs_lib.config import Profile
from labs_lib.evaluation import SAMPLED, evaluate, in_population, mixed_groups, success_by_problem
from labs_lib.models.base import LoadedBase
from labs_lib.models.tiny_base.build import BASE, RECIPE, TRAINING_RECORD
from labs_lib.paths import OUTPUTS_VARIABLE
from labs_lib.storage import atomic_write_bytes, atomic_write_json, read_json
from labs_lib.tasks.stock_arithmetic.corpus import load_split

MEASURED = "measured.json"
POLICIES = {
    "base": "raw base",
    "warmstart": "warm start",
    "base-weak": "raw weak base",
    "warmstart-weak": "weak warm start",
}


def _rates(profile: Profile, policy: LoadedBase, split: str) -> dict[str, Any]:
    """Greedy and per-sample success by population, valid JSON and mixed groups on one split."""
    examples = load_split(split, labels=True)
    prompts = [prompt_ids(profile, policy.tokenizer, example) for example in examples]
    evidence = evaluate(
        policy.model, policy.tokenizer, examples, prompts, 4, profile.budget.answer_tokens, profile.seed
    )
    table = {}
    for population in sorted({example.population for example in examples}):
        rows = {kind: in_population(evidence[kind], population) for kind in ("greedy", SAMPLED)}
        mixed = mixed_groups(rows[SAMPLED])
        table[f"{split} {population}"] = {
            **{kind: sum(success_by_problem(part).values()) / mixed["n"] for kind, part in rows.items()},
            "valid_json": sum(row["value"] is not None for row in rows[SAMPLED]) / len(rows[SAMPLED]),
            "mixed_groups": mixed["mixed"] / mixed["n"],
        }
    return table


def measure(profile: Profile) -> dict[str, Any]:
    """Figures of the raw bases and of their warm starts, trained in a temporary folder."""
    previous = os.environ.get(OUTPUTS_VARIABLE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[OUTPUTS_VARIABLE] = folder
        try:
            return {
                name: _rates(profile, load_policy(profile, name), "validation")
                | _rates(profile, load_policy(profile, name), "test")
                for name in POLICIES
            }
        finally:
            os.environ.pop(OUTPUTS_VARIABLE)
            if previous is not None:
                os.environ[OUTPUTS_VARIABLE] = previous


def _measured_rows(measured: dict[str, Any]) -> list[str]:
    return [
        f"| {POLICIES[name]} | {where} | "
        + " | ".join(f"{100 * row[key]:.1f} %" for key in ("greedy", "sampled", "valid_json", "mixed_groups"))
        + " |"
        for name, table in measured.items()
        for where, row in table.items()
    ]


def render_card(training: dict[str, Any], measured: dict[str, Any], parameters: int) -> str:
    """The card as Markdown."""
    recipe, proof = replace(RECIPE, **training["recipe"]), training["decontamination"]
    points = [p for p in training["curve"] if p["stage"] == 2 or p["step"] % 800 == 0 or p["step"] == recipe.weak_step]
    curve = [f"| {p['stage']} | {p['step']:,} | {p['greedy']:.3f} | {p['probability']:.3f} |" for p in points]
    return CARD.format(
        parameters=parameters,
        recipe=recipe,
        proof=proof,
        sha256=training["sha256"],
        final_rate=recipe.learning_rate_at(recipe.stop - 1),
        measured="\n".join(_measured_rows(measured)),
        curve="\n".join(curve),
    )


def write_card(profile: Profile, folder: Path = BASE) -> None:
    """Measure and write `measured.json` and `README.md` beside the weights."""
    measured = measure(profile)
    atomic_write_json(folder / MEASURED, measured)
    card = render_card(read_json(folder / TRAINING_RECORD), measured, profile.base.parameters)
    atomic_write_bytes(folder / "README.md", card.encode())


CARD = """\
# tiny-base

A Qwen2-architecture causal transformer of {parameters:,} parameters ({recipe.layers} layers, hidden size
{recipe.hidden}, {recipe.heads} heads with {recipe.kv_heads} key-value heads, tied embeddings), trained from scratch by
this repository so that every lab runs on a laptop without a network. It is an honest stand-in, not a good model: it
knows a chat format, small sums in five sentence patterns, and short office-help phrases, and nothing else.

Weights: BF16, SHA-256 `{sha256}`. The early checkpoint after {recipe.weak_step:,} updates is `../tiny-base-weak`, the
"weak base" of lab 03. License: Apache-2.0, as the repository.

## Training

`make tiny-base` runs the recipe on one thread, in two stages of AdamW updates on {recipe.batch_size} fresh chats each.

1. {recipe.stop:,} updates, one instruction per answer format. The schedule is laid out for {recipe.steps:,}: warm-up
   over {recipe.warmup}, constant {recipe.learning_rate:g}, then linear decrease over the last {recipe.anneal:,}; it
   stops at {final_rate:.2e}.
2. {recipe.varied_steps} updates at {recipe.varied_learning_rate:g} on many instructions. Without this stage a new
   instruction hid the arithmetic: a warm start of 48 updates from a first-stage checkpoint (4,400 updates) solved 3 %
   of the validation problems, although the same checkpoint solved a quarter of fresh ones under its own instruction.

How far a base was trained decides what reinforcement learning can gain from it, so the stopping points were chosen,
on validation problems only, for a warm start between 20 % and 60 %. So was the warm start's learning rate: a lower one
(3e-4) left 16 % of the sampled answers without valid JSON. Rebuilding gives the same bytes on the same kind of
processor, and a model of the same quality elsewhere.

- Inventory problems: operands 0..50 (a quarter 0..20; in every second problem many are 0), five sentence patterns,
  answers as a number, a sentence, or JSON under one of many keys. The task's own instruction never occurs
  ({proof[task_instruction_seen]} times), and its key `final_stock` only in 8 % of the JSON answers whose instruction
  names no key: the raw base knows the chat format, not the task's.
- Office help: six actions, three manners (one of them unjustified certainty), optional courtesy; 15 % of the proposed
  actions are drawn at random; three of eight symptoms of each action never occur.

| stage | updates | greedy accuracy | mean probability of the right answer |
|---|---|---|---|
{curve}

(256 problems of a stream of their own, operands 0..50, answered as a number.)

## Decontamination

The training text is a pure function of the recipe, so it can be replayed: `make tiny-base ARGS=--check` does, and a
test compares it with these numbers. Of {proof[chats]:,} chats, {proof[stock_problems]:,} were inventory problems with
{proof[distinct_stock_keys]:,} distinct normalised keys (SHA-256 of the sorted list `{proof[stock_keys_sha256]}`).

- of {proof[corpus_problems]:,} StockArithmetic-v1 problems, by key: **{proof[corpus_problems_seen]}** seen
- of their statements, literally: **{proof[corpus_statements_seen]}** seen
- office prompts ({proof[distinct_office_prompts]:,} distinct ones in the text) that name a context reserved for
  OfficeHelpPrefs-v1 or its probes: **{proof[reserved_office_prompts_seen]}** seen

## Measured

Profile `tiny`; one greedy and four sampled answers per problem; a group is mixed when its four answers are neither all
right nor all wrong. Validation chose the checkpoint, the test columns are for the record.

| policy | problems | greedy | per sample | valid JSON (sampled) | mixed groups of 4 |
|---|---|---|---|---|---|
{measured}

## Limits

Numbers above 100, other wordings, more than four movements, any other language or subject: not learned.
"""
