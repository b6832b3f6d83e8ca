"""The strict verifier: its language, its totality, and a mutant for every rule."""

import inspect
import json
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.tasks.stock_arithmetic import verifier as verifier_module
from labs_lib.tasks.stock_arithmetic.gallery import GALLERY, RIGHT, WORKED_PROBLEM, judge
from labs_lib.tasks.stock_arithmetic.problem import Problem
from labs_lib.tasks.stock_arithmetic.verifier import Reason, Verdict, verify

# An independent statement of what is accepted: no JSON parser, one regular expression (ASCII by its classes).
SPACE = r"[ \t\n\r]*"
KEY = "".join(rf"(?:{c}|\\u00(?i:{ord(c):02x}))" for c in "final_stock")
ANSWER = re.compile(rf'{SPACE}\{{{SPACE}"{KEY}"{SPACE}:{SPACE}(-?0|[1-9][0-9]*){SPACE}\}}{SPACE}')


def oracle_pays(text, finish_reason, problem, ids_known):
    if finish_reason != "eos" or not isinstance(text, str) or len(text) > 256 or ids_known is not True:
        return False
    match = ANSWER.fullmatch(text)
    return bool(match) and int(match[1]) == problem.final_stock


problems = st.builds(
    lambda i, a, b, share_c, share_d: Problem(i, (a, b), _withdrawals(i + a + b, share_c, share_d)),
    *[st.integers(0, 100)] * 3,
    *[st.floats(0, 1)] * 2,
)


def _withdrawals(stock, share_c, share_d):
    c = min(100, int(stock * share_c))
    return c, min(100, int((stock - c) * share_d))


# Pieces of which nearly right answers are made: a random text would never reach the interesting rules.
PIECES = [
    *[
        "{",
        "}",
        "[",
        "]",
        '"final_stock"',
        '"final\\u005fstock"',
        '"final\\u005Fstock"',
        ":",
        ",",
        "27",
        "29",
    ],
    *["-0", "0", "1", "027", "27.0", "2.7e1", "true", "null", "NaN", "Infinity", '"27"', '"x"', "\\", '"'],
    *[
        " ",
        "\n",
        "\t",
        "\r",
        "\v",
        "\f",
        "\0",
        "\u00a0",
        "\u2028",
        "\ufeff",
        "２７",
        "٢٧",
        "\ud800",
        "```json",
    ],
    *[
        '{"final_stock":',
        RIGHT,
        '{"final_stock":29}',
        "Answer: ",
        "<|im_end|>",
        "[" * 60,
        " " * 120,
        "9" * 120,
    ],
]
soups = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
edited = st.builds(
    lambda text, at, piece, cut: text[: at % len(text)] + piece + text[at % len(text) + cut :],
    st.sampled_from([RIGHT, '{ "final_stock" : 27 }', '{"final\\u005fstock":27}\n']),
    st.integers(0, 100),
    st.sampled_from(["", *PIECES]),
    st.integers(0, 2),
)
bytes_as_text = st.builds(
    lambda data, codec: data.decode(*codec),
    st.binary(max_size=300),
    st.sampled_from([("latin-1",), ("utf-8", "surrogateescape"), ("utf-8", "replace")]),
)


@given(st.one_of(soups, edited, bytes_as_text, st.text()), st.sampled_from(["eos", "length"]), st.booleans())
def test_agrees_with_an_independent_oracle(text, finish_reason, ids_known):
    for problem in (WORKED_PROBLEM, Problem(0, (0, 0), (0, 0)), Problem(1, (0, 0), (0, 0))):
        verdict = verify(text, finish_reason, problem, ids_known)
        assert verdict.reward == oracle_pays(text, finish_reason, problem, ids_known)


SPACES = st.text(" \t\n\r", max_size=3)


@given(problems, st.integers(-5, 305), st.lists(SPACES, min_size=6, max_size=6), st.sets(st.integers(0, 10)))
def test_pays_every_spelling_of_the_right_answer_and_no_other_value(problem, value, spaces, escaped):
    key = "".join(f"\\u{ord(c):04X}" if n in escaped else c for n, c in enumerate("final_stock"))
    text = spaces[0].join(["", "{"]) + f'{spaces[1]}"{key}"{spaces[2]}:{spaces[3]}'
    for number in (value, problem.final_stock):
        verdict = verify(f"{text}{number}{spaces[4]}}}{spaces[5]}", "eos", problem, True)
        assert verdict.reward == (number == problem.final_stock)
        assert verdict.value == number


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(), st.text(), st.lists(st.text()), soups
)


@given(st.one_of(bytes_as_text, anything), anything, st.one_of(st.booleans(), anything))
def test_total_on_anything(text, finish_reason, ids_known):
    verdict = verify(text, finish_reason, WORKED_PROBLEM, ids_known)
    assert verdict.reward in (0, 1) and verdict.reason in set(Reason)
    assert verdict.reward == (verdict.reason == Reason.CORRECT)


class HostileText(str):
    def __len__(self):
        raise RuntimeError("gotcha")

    __eq__ = __ne__ = __hash__ = __len__


@pytest.mark.parametrize(
    "arguments",
    [
        (HostileText(RIGHT), "eos", True),
        (RIGHT, HostileText("eos"), True),
        (RIGHT, np.array(["eos", "eos"]), True),
        (RIGHT, "eos", np.array([True, True])),
    ],
)
def test_hostile_objects_are_verdicts(arguments):
    text, finish_reason, ids_known = arguments
    assert verify(text, finish_reason, WORKED_PROBLEM, ids_known).reward == 0


def test_deep_nesting_near_the_recursion_limit_is_a_verdict():
    depth, frame = 0, sys._getframe()
    while frame:
        depth, frame = depth + 1, frame.f_back
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 60)
    try:
        verdict = verify("[" * 128 + "]" * 128, "eos", WORKED_PROBLEM, True)
    finally:
        sys.setrecursionlimit(limit)
    assert verdict.reward == 0


def test_a_recursion_error_is_a_verdict_and_the_mutant_lets_it_escape(monkeypatch):
    def too_deep(*_, **__):
        raise RecursionError

    monkeypatch.setattr(json, "loads", too_deep)
    assert verify(RIGHT, "eos", WORKED_PROBLEM, True).reason == "not_json"
    mutant = load_mutant("(ValueError, RecursionError)", "ValueError")
    with pytest.raises(RecursionError):
        mutant(RIGHT, "eos", WORKED_PROBLEM, True)


def test_length_is_checked_before_any_parsing(monkeypatch):
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("parsed"))
    assert verify("{" * 257, "eos", WORKED_PROBLEM, True) == Verdict(0, "too_long")
    assert verify(RIGHT, "length", WORKED_PROBLEM, True) == Verdict(0, "not_finished")


def test_order_of_the_checks():
    long_text = " " * 300
    assert verify(long_text, "length", WORKED_PROBLEM, False).reason == "not_finished"
    assert verify(None, "eos", WORKED_PROBLEM, False).reason == "not_text"
    assert verify(long_text, "eos", WORKED_PROBLEM, False).reason == "too_long"
    assert verify("not JSON", "eos", WORKED_PROBLEM, False).reason == "unknown_id"


def test_reasons_are_stable_plain_strings():
    assert json.dumps(verify(RIGHT, "eos", WORKED_PROBLEM, True).reason) == '"correct"'
    assert [str(reason) for reason in Reason] == [
        *["correct", "not_finished", "not_text", "too_long", "unknown_id", "not_json", "not_an_object"],
        *["wrong_fields", "not_an_integer", "out_of_range", "wrong_value"],
    ]


def test_the_verifier_executes_nothing():
    source = inspect.getsource(verifier_module)
    assert not re.search(r"\b(eval|exec|compile|__import__|literal_eval|pickle|yaml)\b", source)


# A mutant a rule: (what it forgets, text of the real source, what the believable bug has instead).
MUTANTS = [
    ("finish reason ignored", 'finish_reason != "eos"', "False"),
    ("a cut answer with right JSON is paid", 'finish_reason != "eos"', 'finish_reason not in ("eos", "length")'),
    ("bytes are text too", "type(text) is not str", "type(text) not in (str, bytes)"),
    ("length ignored", "len(text) > MAX_CHARACTERS", "False"),
    ("length off by one", "len(text) > MAX_CHARACTERS", "len(text) >= MAX_CHARACTERS"),
    ("length of the stripped text", "len(text) > MAX_CHARACTERS", "len(text.strip()) > MAX_CHARACTERS"),
    ("unknown ids ignored", "ids_known is not True", "False"),
    ("every edge stripped", "json.loads(text,", "json.loads(text.strip(),"),
    ("NUL stripped", "json.loads(text,", "json.loads(text.strip(chr(0)),"),
    ("fences removed", "json.loads(text,", "json.loads(text.strip('`').removeprefix('json'),"),
    ("first object wins", "json.loads(text,", "json.loads(text[: text.find('}') + 1],"),
    ("last object wins", "json.loads(text,", "json.loads(text[text.rfind('{') :],"),
    ("text before allowed", "json.loads(text,", "json.loads(text[max(text.find('{'), 0) :],"),
    ("special tokens skipped", "json.loads(text,", "json.loads(text.replace('<|im_end|>', ''),"),
    ("single quotes allowed", "json.loads(text,", "json.loads(text.replace(chr(39), chr(34)),"),
    ("trailing comma allowed", "json.loads(text,", "json.loads(text.replace(',}', '}'),"),
    ("escaped keys refused", "json.loads(text,", "json.loads(text.replace(chr(92), '?'),"),
    ("no ASCII guard, BOM skipped", "not text.isascii()", "not (text := text.lstrip(chr(0xFEFF))).isascii()"),
    ("no-break space skipped", "not text.isascii()", "not (text := text.rstrip()).isascii()"),
    ("digits of all scripts", "not text.isascii()",
     "not (text := ''.join(str(int(c)) if c.isdecimal() else c for c in text)).isascii()"),
    ("NaN is JSON", ", parse_constant=_refuse_constant", ""),
    ("deep nesting escapes", "(ValueError, RecursionError)", "(KeyError,)"),
    ("a list of one object is fine", "if type(answer) is not tuple",
     "if type(answer) is list and len(answer) == 1:\n        answer = answer[0]\n    if type(answer) is not tuple"),
    ("last duplicate wins", "object_pairs_hook=tuple", "object_pairs_hook=lambda p: tuple(dict(p).items())"),
    ("first duplicate wins", "object_pairs_hook=tuple",
     "object_pairs_hook=lambda p: tuple(dict(p[::-1]).items())"),
    ("other fields allowed", "[key for key, _ in answer] != [FIELD]",
     "not (answer := [pair for pair in answer if pair[0] == FIELD])"),
    ("any key", "[key for key, _ in answer] != [FIELD]", "len(answer) != 1"),
    ("key in any case", "[key for key, _ in answer]", "[key.lower() for key, _ in answer]"),
    ("key stripped", "[key for key, _ in answer]", "[key.strip() for key, _ in answer]"),
    ("booleans are integers", "type(value) is not int", "not isinstance(value, int)"),
    ("whole floats are integers", "type(value) is not int",
     "(value := int(value) if type(value) is float and value.is_integer() else value).__class__ is not int"),
    ("digit strings are integers", "type(value) is not int",
     "(value := int(value) if type(value) is str and value.isdigit() else value).__class__ is not int"),
    ("minus zero is refused", "json.loads(text,", "json.loads(text.replace('-', '?'),"),
    ("no lower bound", "0 <= value <= FINAL_STOCK_MAX", "value <= FINAL_STOCK_MAX"),
    ("no upper bound", "0 <= value <= FINAL_STOCK_MAX", "0 <= value"),
    ("form is enough", "value == problem.final_stock", "True"),
    ("near enough", "value == problem.final_stock", "abs(value - problem.final_stock) <= 2"),
    ("the sign is ignored", "if not 0 <= value", "value = abs(value)\n    if not 0 <= value"),
    ("style bonus for valid JSON", "int(reason == Reason.CORRECT)", "1 if value is not None else 0"),
    ("partial credit", "int(reason == Reason.CORRECT)", "0.1 + 0.9 * (reason == Reason.CORRECT)"),
]  # fmt: skip


def load_mutant(old, new):
    source = inspect.getsource(verifier_module)
    assert source.count(old) == 1, f"the mutant's rule is not in the source exactly once: {old}"
    namespace = {"__name__": verifier_module.__name__}  # dataclass looks its module up
    exec(compile(source.replace(old, new), "mutant", "exec"), namespace)
    return namespace["verify"]


def outcome(verify_function, completion):
    verdict = judge(verify_function, completion)
    return verdict.reward, str(verdict.reason)


def test_the_unmutated_source_agrees_everywhere():
    copy = load_mutant("MAX_CHARACTERS = 256", "MAX_CHARACTERS = 256")
    assert all(outcome(copy, completion) == outcome(verify, completion) for completion in GALLERY)


@pytest.mark.parametrize(("old", "new"), [m[1:] for m in MUTANTS], ids=[m[0] for m in MUTANTS])
def test_every_mutant_is_caught_by_the_gallery(old, new):
    mutant = load_mutant(old, new)
    assert any(outcome(mutant, completion) != outcome(verify, completion) for completion in GALLERY)
