"""From a statement to prompt ids and from answer ids back to text.

Answers are never re-encoded: decoding and encoding again may give other ids, and then the log-probabilities
would belong to something that was never sampled.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from labs_lib.config import Budget
from labs_lib.errors import BudgetError


def encode_prompt(tokenizer: PreTrainedTokenizerBase, system: str, user: str, budget: Budget, name: str) -> list[int]:
    """Ids of the chat template up to where the assistant begins to speak.

    Raises:
        BudgetError: over `budget.prompt_tokens`; names the example (`name`), since nothing is ever truncated.
    """
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    ids = list(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])
    if len(ids) > budget.prompt_tokens:
        raise BudgetError(
            f"The prompt of {name} has {len(ids)} tokens, over the budget of {budget.prompt_tokens}: shorten it."
        )
    return ids


def encode_target(
    tokenizer: PreTrainedTokenizerBase, text: str, prompt: Sequence[int], budget: Budget, name: str
) -> list[int]:
    """Ids of a supervised answer with its EOS.

    Raises:
        BudgetError: over the answer's or the total budget; names the example.
    """
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    if len(ids) > budget.answer_tokens or len(prompt) + len(ids) > budget.total_tokens:
        raise BudgetError(
            f"The answer of {name} has {len(ids)} tokens after a prompt of {len(prompt)}, over the budget of "
            f"{budget.answer_tokens} (total {budget.total_tokens}): shorten it."
        )
    return ids


def decode_answer(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of an answer: only the one terminal EOS is removed, special tokens stay visible."""
    shown = ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids
    return tokenizer.decode(list(shown), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def ids_known(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> bool:
    """Whether every id exists in the tokenizer; a padded unembedding can emit ids that decoding would drop."""
    return all(0 <= i < len(tokenizer) for i in ids)


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """An id to fill rows with, different from EOS. Masks are made by position, never by comparing with it."""
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id != tokenizer.eos_token_id:
        return tokenizer.pad_token_id
    return 0 if tokenizer.eos_token_id != 0 else 1
