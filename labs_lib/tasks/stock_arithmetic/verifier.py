"""The exact verifier of StockArithmetic-v1: reward 1 for a complete and correct answer, otherwise 0.

No style bonus, no partial credit, no execution of generated text. The model sees the statement and the
format instruction; the verifier gets the structured problem separately.
"""

import json
from dataclasses import dataclass
from enum import StrEnum

from labs_lib.tasks.stock_arithmetic.problem import FINAL_STOCK_MAX, Problem

MAX_CHARACTERS = 256
FIELD = "final_stock"


class Reason(StrEnum):
    """Why a completion got its reward; the values are stable, they are written into the evidence."""

    CORRECT = "correct"
    NOT_FINISHED = "not_finished"
    NOT_TEXT = "not_text"
    TOO_LONG = "too_long"
    UNKNOWN_ID = "unknown_id"
    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    WRONG_FIELDS = "wrong_fields"
    NOT_AN_INTEGER = "not_an_integer"
    OUT_OF_RANGE = "out_of_range"
    WRONG_VALUE = "wrong_value"


@dataclass(frozen=True)
class Verdict:
    """Reward 0 or 1, the reason, and the integer that was read (None when none was)."""

    reward: int
    reason: str
    value: int | None = None


def verify(text: object, finish_reason: object, problem: Problem, ids_known: bool) -> Verdict:
    """Judge one decoded completion. Total: whatever `text` is, the result is a verdict, never an error.

    Args:
        text: the completion, decoded without skipping special tokens; only the terminal EOS is removed.
        finish_reason: "eos", or anything else for an answer that was cut.
        problem: the structured problem, which the model never sees.
        ids_known: True when every generated id exists in the tokenizer (only `True` itself counts).
    """
    # `type(...) is` and not isinstance: a subclass of str could bring its own len() or ==.
    if type(finish_reason) is not str or finish_reason != "eos":
        return Verdict(0, Reason.NOT_FINISHED)
    if type(text) is not str:
        return Verdict(0, Reason.NOT_TEXT)
    if len(text) > MAX_CHARACTERS:
        return Verdict(0, Reason.TOO_LONG)
    if ids_known is not True:
        return Verdict(0, Reason.UNKNOWN_ID)
    value, reason = read_final_stock(text)
    if value is None:
        return Verdict(0, reason)
    reason = judge_value(value, problem)
    return Verdict(int(reason == Reason.CORRECT), reason, value)


def read_final_stock(text: str) -> tuple[int | None, Reason | None]:
    """(N, None) for a text that is exactly one '{"final_stock": N}', otherwise (None, why not)."""
    # The field, the digits and JSON's white space are all ASCII: a BOM, a no-break space or a digit of
    # another script can only make the text wrong. A key may still be written with JSON escapes.
    if not text.isascii():
        return None, Reason.NOT_JSON
    try:
        # Objects become tuples of (key, value) pairs: a dict would forget a duplicate field.
        answer = json.loads(text, object_pairs_hook=tuple, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None, Reason.NOT_JSON
    if type(answer) is not tuple:
        return None, Reason.NOT_AN_OBJECT
    if [key for key, _ in answer] != [FIELD]:
        return None, Reason.WRONG_FIELDS
    value = answer[0][1]
    if type(value) is not int:  # bool is a subclass of int: isinstance would let True pass for 1
        return None, Reason.NOT_AN_INTEGER
    return value, None


def judge_value(value: int, problem: Problem) -> Reason:
    """The arithmetic half of the rule; lab 01 proves it equal to its statement in Z3, for every integer."""
    if not 0 <= value <= FINAL_STOCK_MAX:
        return Reason.OUT_OF_RANGE
    return Reason.CORRECT if value == problem.final_stock else Reason.WRONG_VALUE


def _refuse_constant(name: str) -> None:
    # Python's json reads NaN and Infinity, which are not JSON (RFC 8259, section 6).
    raise ValueError(f"{name} is not JSON")
