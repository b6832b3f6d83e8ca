"""A second reading of answers: from ids to text, and from text to the verdict of the rule in the specification.

Written from the specification alone. The reward comes from one regular expression, the reason from Python's
JSON parser: the two must agree.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_CHARACTERS = 256
MAX_STOCK = 300
# RFC 8259: only these four characters are white space, and a number has no leading zero.
_SPACE = r"[ \t\n\r]*"
_STRING = r'"((?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*)"'
_ANSWER = re.compile(rf"{_SPACE}\{{{_SPACE}{_STRING}{_SPACE}:{_SPACE}(-?(?:0|[1-9][0-9]*)){_SPACE}\}}{_SPACE}")


@dataclass(frozen=True)
class Judgement:
    """Reward 0 or 1, the reason, and the integer that was read (None when none was)."""

    reward: int
    reason: str
    value: int | None = None


def final_stock(problem: dict[str, Any]) -> int:
    """The final stock of a problem; ValueError for one that breaks a rule of the task."""
    if sorted(problem) != ["deliveries", "initial", "withdrawals"]:
        raise ValueError(f"a problem with the keys {sorted(problem)}")
    deliveries, withdrawals = problem["deliveries"], problem["withdrawals"]
    numbers = [problem["initial"], *deliveries, *withdrawals]
    if len(deliveries) != 2 or len(withdrawals) != 2 or any(type(n) is not int or not 0 <= n <= 100 for n in numbers):
        raise ValueError(f"a problem with the operands {numbers}")
    stock = problem["initial"]
    for change in (*deliveries, *(-amount for amount in withdrawals)):
        stock += change
        if stock < 0:
            raise ValueError(f"a stock of {stock} on the way through {numbers}")
    return stock


def judge(text: Any, finish_reason: Any, target: int, ids_known: bool) -> Judgement:
    """What the rule says about one completion, in the rule's order of checks."""
    if finish_reason != "eos":
        return Judgement(0, "not_finished")
    if not isinstance(text, str):
        return Judgement(0, "not_text")
    if len(text) > MAX_CHARACTERS:
        return Judgement(0, "too_long")
    if not ids_known:
        return Judgement(0, "unknown_id")
    value = read_stock(text)
    if value is None:
        return Judgement(0, why_unreadable(text))
    if not 0 <= value <= MAX_STOCK:
        return Judgement(0, "out_of_range", value)
    return Judgement(1, "correct", value) if value == target else Judgement(0, "wrong_value", value)


def read_stock(text: str) -> int | None:
    """N for a text that is exactly one object {"final_stock": N} with an integer N, otherwise None."""
    match = _ANSWER.fullmatch(text) if text.isascii() else None
    # A key written with JSON escapes is the same key.
    if match is None or json.loads(f'"{match[1]}"') != "final_stock":
        return None
    return int(match[2])


def why_unreadable(text: str) -> str:
    """The reason for a text in which no integer was read; "readable" if the two readings disagree."""
    try:
        pairs = json.loads(text, object_pairs_hook=tuple, parse_constant=int) if text.isascii() else _no_json(text)
    except (ValueError, RecursionError):
        return "not_json"
    if not isinstance(pairs, tuple):
        return "not_an_object"
    if [key for key, _ in pairs] != ["final_stock"]:
        return "wrong_fields"
    return "readable" if type(pairs[0][1]) is int else "not_an_integer"


def _no_json(text: str) -> None:
    raise ValueError(text)


class Tokenizer:
    """Just enough of a byte-level BPE tokenizer to turn ids into text: the vocabulary and the byte alphabet."""

    def __init__(self, file: Path):
        tokenizer = json.loads(file.read_text(encoding="utf-8"))
        settings = json.loads(file.with_name("tokenizer_config.json").read_text(encoding="utf-8"))
        self.tokens = {index: token for token, index in tokenizer["model"]["vocab"].items()}
        self.tokens |= {added["id"]: added["content"] for added in tokenizer["added_tokens"]}
        end = settings["eos_token"]
        end = end["content"] if isinstance(end, dict) else end
        self.eos = next(index for index, token in self.tokens.items() if token == end)
        self._bytes = {character: byte for byte, character in byte_alphabet().items()}

    def knows(self, ids: list[int]) -> bool:
        """Whether every id exists."""
        return all(index in self.tokens for index in ids)

    def text(self, ids: list[int]) -> str:
        """The text of an answer: only the one terminal EOS is removed, other special tokens stay visible."""
        shown = ids[:-1] if ids and ids[-1] == self.eos else ids
        tokens = [self.tokens[index] for index in shown if index in self.tokens]
        return b"".join(map(self._token_bytes, tokens)).decode("utf-8", errors="replace")

    def _token_bytes(self, token: str) -> bytes:
        if all(character in self._bytes for character in token):
            return bytes(self._bytes[character] for character in token)
        return token.encode()


def byte_alphabet() -> dict[int, str]:
    """Byte -> the printable character that stands for it in a byte-level vocabulary (as in GPT-2)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}
