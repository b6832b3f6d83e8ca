"""A prompt as the conversation that TRL's datasets hold; imports no torch, for those who must pin it first."""

from labs_lib.tasks.stock_arithmetic.statements import INSTRUCTION


def messages(statement: str) -> list[dict[str, str]]:
    """A prompt as a conversation, as `labs_lib.branches.prompt_ids` puts it."""
    return [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": statement}]
