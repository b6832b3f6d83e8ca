"""Train the tiny base from scratch: causal language modelling of the answers, given the chats.

The learning rate rises over `warmup` steps, stays, and falls linearly to `final_fraction` over the last
`anneal` steps. How far a base was annealed decides what RL can gain from it (see the model card), so the
recipe is part of what the course teaches.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from labs_lib.models.tiny_base.text import Chat, draw_problem
from labs_lib.tasks.stock_arithmetic.statements import PATTERNS, statement

IGNORED = -100  # torch's cross_entropy skips this label


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the tiny base's weights, apart from the processor.

    First stage: the schedule is laid out for `steps` updates and ends after `stop` of them, before it has wholly
    come down; `weak_step` is the early checkpoint that serves as the weak base. Second stage: `varied_steps` updates
    on many instructions at a constant rate, so that a new instruction does not hide what the model can compute.
    """

    seed: int = 7
    vocabulary: int = 640
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 352
    batch_size: int = 64
    steps: int = 6_000
    stop: int = 5_600
    weak_step: int = 1_000
    warmup: int = 100
    anneal: int = 3_000
    final_fraction: float = 0.1
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    varied_steps: int = 600
    varied_warmup: int = 20
    varied_learning_rate: float = 2e-4

    def second_stage(self) -> "Recipe":
        """The second stage as a recipe of its own."""
        return replace(
            self,
            steps=self.varied_steps,
            stop=self.varied_steps,
            warmup=self.varied_warmup,
            anneal=0,
            learning_rate=self.varied_learning_rate,
        )

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of update `step` (0-based)."""
        rise = min(1.0, (step + 1) / self.warmup)
        left = (self.steps - step) / self.anneal if self.anneal else 1.0
        return self.learning_rate * rise * max(min(1.0, left), self.final_fraction)


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """A randomly initialised Qwen2 with tied embeddings, FP32, seeded by the recipe."""
    torch.manual_seed(recipe.seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        intermediate_size=recipe.intermediate,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return Qwen2ForCausalLM(config)


def encode(tokenizer: PreTrainedTokenizerFast, batch: list[Chat]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids (chats, tokens) int64 and labels, `IGNORED` except on answer tokens and EOS."""
    messages = [[{"role": "system", "content": chat.system}, {"role": "user", "content": chat.user}] for chat in batch]
    prompts = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    answers = tokenizer([chat.answer for chat in batch])["input_ids"]
    width = max(len(p) + len(a) + 1 for p, a in zip(prompts, answers, strict=True))
    ids = torch.full((len(batch), width), tokenizer.pad_token_id)
    labels = torch.full((len(batch), width), IGNORED)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        scored = torch.tensor([*answer, tokenizer.eos_token_id])
        start, end = len(prompt), len(prompt) + len(scored)
        ids[row, :start] = torch.tensor(prompt)
        ids[row, start:end] = scored
        labels[row, start:end] = scored
    return ids, labels


def answer_logits(model: Qwen2ForCausalLM, ids: torch.Tensor, labels: torch.Tensor):
    """Logits (scored tokens, vocabulary) and their targets: only answer positions are unembedded."""
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    scored = labels[:, 1:] != IGNORED
    return model.lm_head(hidden[scored]), labels[:, 1:][scored]


@torch.no_grad()
def arithmetic_accuracy(model, tokenizer, problems: int = 256, operand_max: int = 50) -> tuple[float, float]:
    """(greedy accuracy, mean probability of the right answer) on problems from a stream of their own."""
    rng = random.Random(f"tiny-base/probe/{operand_max}")
    drawn = [draw_problem(rng, operand_max) for _ in range(problems)]
    batch = [
        Chat("Reply with a number.", statement(p, rng.randrange(len(PATTERNS))), str(p.final_stock)) for p in drawn
    ]
    ids, labels = encode(tokenizer, batch)
    logits, targets = answer_logits(model, ids, labels)
    owner = (labels[:, 1:] != IGNORED).nonzero()[:, 0]
    wrong = torch.zeros(problems).index_add(0, owner, (logits.argmax(-1) != targets).float())
    logprobs = -torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    success = torch.zeros(problems).index_add(0, owner, logprobs).exp()
    return (wrong == 0).float().mean().item(), success.mean().item()


def training_steps(
    recipe: Recipe, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, stream: Iterator[Chat]
) -> Iterator[tuple[int, float]]:
    """Make one update after the other, yielding (updates made, mean loss of the batch in nats per token)."""
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    model.train()
    for step in range(recipe.stop):
        optimizer.param_groups[0]["lr"] = recipe.learning_rate_at(step)
        ids, labels = encode(tokenizer, list(islice(stream, recipe.batch_size)))
        logits, targets = answer_logits(model, ids, labels)
        loss = torch.nn.functional.cross_entropy(logits, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield step + 1, loss.item()
