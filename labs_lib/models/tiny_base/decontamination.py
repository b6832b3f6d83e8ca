"""The proof that no evaluation problem and no reserved prompt was in the tiny base's training text.

The text is a pure function of the recipe, so the proof is a replay: draw the same stream again and look.
"""

from itertools import islice
from typing import Any

from labs_lib.models.tiny_base.text import Chat, chats
from labs_lib.models.tiny_base.train import Recipe
from labs_lib.storage import canonical_json, sha256_bytes
from labs_lib.tasks.office_help.wording import is_corpus_or_probe_prompt
from labs_lib.tasks.stock_arithmetic.corpus import build_corpus
from labs_lib.tasks.stock_arithmetic.statements import INSTRUCTION


def training_chats(recipe: Recipe, held_out: frozenset) -> list[Chat]:
    """Every chat that training has seen; the tokenizer's sample is the beginning of the first stage's stream."""
    first = islice(chats(recipe.seed, held_out), recipe.stop * recipe.batch_size)
    second = islice(chats(recipe.seed, held_out, varied=True), recipe.varied_steps * recipe.batch_size)
    return [*first, *second]


def check_decontamination(seen: list[Chat]) -> dict[str, Any]:
    """Counts of what was seen, and of what must not have been; the last four entries are 0 when all is well."""
    corpus = build_corpus()
    held_out = {example.problem.key() for example in corpus}
    statements = {example.statement for example in corpus}
    problems = [chat.problem for chat in seen if chat.problem is not None]
    office = {chat.user for chat in seen if chat.problem is None}
    keys = sorted({problem.key() for problem in problems})
    return {
        "chats": len(seen),
        "stock_problems": len(problems),
        "distinct_stock_keys": len(keys),
        "stock_keys_sha256": sha256_bytes(canonical_json(keys)),
        "distinct_office_prompts": len(office),
        "corpus_problems": len(held_out),
        "corpus_problems_seen": sum(key in held_out for key in keys),
        "corpus_statements_seen": sum(chat.user in statements for chat in seen),
        "task_instruction_seen": sum(chat.system == INSTRUCTION for chat in seen),
        "reserved_office_prompts_seen": sum(map(is_corpus_or_probe_prompt, office)),
    }
