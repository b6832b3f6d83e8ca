"""Three verifiers that look reasonable and pay for wrong answers. For lab 01 only: never train on them.

Same signature and result as `verifier.verify`. Each ignores the finish reason and the token ids, and each
has its own hole: any text around the number, Python's idea of an integer, whatever follows the first object.
"""

import json
import re

from labs_lib.tasks.stock_arithmetic.problem import Problem
from labs_lib.tasks.stock_arithmetic.verifier import FIELD, Verdict


def verify_digits(text: str, finish_reason: str, problem: Problem, ids_known: bool) -> Verdict:
    """Pays when the last run of digits in the text is the right number."""
    numbers = re.findall(r"\d+", text)
    if not numbers:
        return Verdict(0, "no_number")
    return _compare(int(numbers[-1]), problem)


def verify_isinstance(text: str, finish_reason: str, problem: Problem, ids_known: bool) -> Verdict:
    """Pays when `json.loads` gives a dict whose final_stock passes `isinstance(..., int)`."""
    try:
        answer = json.loads(text)
    except ValueError:
        return Verdict(0, "not_json")
    value = answer.get(FIELD) if isinstance(answer, dict) else None
    if not isinstance(value, int):
        return Verdict(0, "not_an_integer")
    return _compare(value, problem)


def verify_first_object(text: str, finish_reason: str, problem: Problem, ids_known: bool) -> Verdict:
    """Pays when the first JSON object anywhere in the text holds the right number."""
    start = text.find("{")
    try:
        answer, _ = json.JSONDecoder().raw_decode(text, max(start, 0))
    except ValueError:
        return Verdict(0, "not_json")
    value = answer.get(FIELD) if isinstance(answer, dict) else None
    return _compare(value, problem)


def _compare(value: object, problem: Problem) -> Verdict:
    right = value == problem.final_stock
    return Verdict(int(right), "correct" if right else "wrong_value", value)


NAIVE_VERIFIERS = {
    "digits": verify_digits,
    "isinstance": verify_isinstance,
    "first object": verify_first_object,
}
