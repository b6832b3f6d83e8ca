"""The exercises of lab 01: a key without order, checks before parsing, a strict reader, attacks, a formula."""

from collections.abc import Callable
from itertools import product
from typing import Any

import z3

from labs_lib.exercises.check import Exercise, Property
from labs_lib.tasks.stock_arithmetic import z3_twin
from labs_lib.tasks.stock_arithmetic.gallery import (
    GALLERY,
    ONE_PROBLEM,
    VERIFIERS,
    WORKED_PROBLEM,
    ZERO_PROBLEM,
    Completion,
    judge,
)
from labs_lib.tasks.stock_arithmetic.problem import Problem
from labs_lib.tasks.stock_arithmetic.verifier import MAX_CHARACTERS

# --- 1. normalised_key -------------------------------------------------------------------------------


def _same_key(f: Callable, first: tuple, second: tuple) -> bool:
    return bool(f(*first) == f(*second))


def _as_fine_as_the_movements(f: Callable) -> bool:
    # All problems with operands 0..2: equal keys exactly for equal problems up to order, so one to one.
    pairs = set()
    for i, a, b, c, d in product(range(3), repeat=5):
        pairs.add((f(i, (a, b), (c, d)), Problem(i, (a, b), (c, d)).key()))
    return len({key for key, _ in pairs}) == len({key for _, key in pairs}) == len(pairs)


NORMALISED_KEY = Exercise(
    "normalised_key",
    (
        Property("a key can be put into a set", lambda f: len({f(12, (30, 5), (9, 11))}) == 1),
        Property(
            "the order of the two deliveries does not change the key",
            lambda f: _same_key(f, (12, (30, 5), (9, 11)), (12, (5, 30), (9, 11))),
        ),
        Property(
            "the order of the two withdrawals does not change the key",
            lambda f: _same_key(f, (12, (30, 5), (9, 11)), (12, (30, 5), (11, 9))),
        ),
        Property(
            "another initial stock gives another key",
            lambda f: not _same_key(f, (12, (30, 5), (9, 11)), (13, (30, 5), (9, 11))),
        ),
        Property(
            "other movements with the same sum give another key",
            lambda f: not _same_key(f, (12, (30, 5), (9, 11)), (12, (31, 4), (9, 11))),
        ),
        Property(
            "an initial stock, a delivery and a withdrawal of the same size are different things",
            lambda f: (
                not _same_key(f, (12, (30, 5), (9, 11)), (30, (12, 5), (9, 11)))
                and not _same_key(f, (12, (9, 5), (9, 5)), (12, (9, 9), (5, 5)))
            ),
        ),
        Property("two problems share a key exactly if only the order differs", _as_fine_as_the_movements),
    ),
)

# --- 2. refusal --------------------------------------------------------------------------------------

_TEXT = '{"final_stock":27}'


def _all(f: Callable, expected: str | None, *cases: tuple) -> bool:
    results = [f(*case) for case in cases]
    return all(result is None if expected is None else result == expected for result in results)


REFUSAL = Exercise(
    "refusal",
    (
        Property(
            "a finished, short text of known ids goes on to parsing", lambda f: _all(f, None, (_TEXT, "eos", True))
        ),
        Property(
            "an answer that did not end with EOS is not_finished, whatever else ended it",
            lambda f: _all(f, "not_finished", (_TEXT, "length", True), (_TEXT, "stop_word", True), (_TEXT, None, True)),
        ),
        Property(
            "bytes, numbers and None are not_text",
            lambda f: _all(f, "not_text", (b"27", "eos", True), (27, "eos", True), (None, "eos", True)),
        ),
        Property(
            "257 characters are too_long, white space included",
            lambda f: _all(f, "too_long", (" " * 257, "eos", True), (_TEXT + " " * 300, "eos", True)),
        ),
        Property(
            "256 characters are not too long; what counts are characters and not bytes",
            lambda f: _all(f, None, ("x" * 256, "eos", True), ("é" * 256, "eos", True)),
        ),
        Property(
            "only a True ids_known counts; False and None are unknown_id",
            lambda f: _all(f, "unknown_id", (_TEXT, "eos", False), (_TEXT, "eos", None)),
        ),
        Property(
            "of several faults, an unfinished answer is named before all others",
            lambda f: _all(f, "not_finished", (None, "length", False), (" " * 300, "length", True)),
        ),
        Property(
            "what is not text is named before an unknown id",
            lambda f: _all(f, "not_text", (None, "eos", False)),
        ),
        Property("a long text is named before an unknown id", lambda f: _all(f, "too_long", (" " * 300, "eos", False))),
    ),
)

# --- 3. strict_stocks --------------------------------------------------------------------------------

_STOCKS = [12, 42, 47, 38, 27]
_RIGHT = '{"stocks":[12,42,47,38,27]}'


def _none(f: Callable, *texts: str) -> bool:
    return all(f(text) is None for text in texts)


def _reads(f: Callable, expected: list[int], *texts: str) -> bool:
    results = [f(text) for text in texts]
    return all(type(r) is list and r == expected and all(type(n) is int for n in r) for r in results)


def _with(*entries: str) -> list[str]:
    """The right text with its last entry replaced."""
    return [f'{{"stocks":[12,42,47,38,{entry}]}}' for entry in entries]


STRICT_STOCKS = Exercise(
    "strict_stocks",
    (
        Property("it reads the five stocks", lambda f: _reads(f, _STOCKS, _RIGHT)),
        Property(
            "JSON white space is allowed, around and inside",
            lambda f: _reads(f, _STOCKS, f" \t{_RIGHT}\r\n", '{ "stocks" : [12, 42,\n47, 38, 27] }'),
        ),
        Property(
            "a key that is written with a JSON escape is the same key",
            lambda f: _reads(f, _STOCKS, '{"st\\u006fcks":[12,42,47,38,27]}'),
        ),
        Property("0, -0 and 300 are stocks", lambda f: _reads(f, [0, 0, 0, 0, 300], '{"stocks":[0,-0,0,0,300]}')),
        Property("a number outside of 0..300 is refused", lambda f: _none(f, *_with("301", "-1", "9" * 40))),
        Property("there are exactly five stocks", lambda f: _none(f, *_with("27,27"), '{"stocks":[1,2,3,4]}')),
        Property(
            "a number is a JSON integer: no boolean, float, text or null",
            lambda f: _none(f, *_with("true", "false", "27.0", "2.7e1", '"27"', "null", "[27]", "NaN")),
        ),
        Property(
            "the field holds a list, and nothing else that Python can walk through",
            lambda f: _none(f, '{"stocks":"12345"}', '{"stocks":27}', '{"stocks":null}', '{"stocks":{"a":1}}'),
        ),
        Property(
            "the field occurs once, also under another spelling",
            lambda f: _none(f, f'{{"stocks":[1],{_RIGHT[1:]}', f'{_RIGHT[:-1]},"\\u0073tocks":[12,42,47,38,27]}}'),
        ),
        Property(
            "there is no other field, and no field is missing",
            lambda f: _none(f, f'{_RIGHT[:-1]},"sum":1}}', "{}", '{"stock":[12,42,47,38,27]}'),
        ),
        Property(
            "the whole text is one JSON object",
            lambda f: _none(f, _RIGHT * 2, f"Answer: {_RIGHT}", f"{_RIGHT}.", f"[{_RIGHT}]", f"```{_RIGHT}```"),
        ),
        Property(
            "white space that is not JSON's is refused: no-break space, vertical tab, BOM",
            lambda f: _none(f, f"{_RIGHT}\u00a0", f"\v{_RIGHT}", f"\ufeff{_RIGHT}", f"{_RIGHT}\u2028"),
        ),
        Property(
            "no text raises",
            lambda f: _none(f, "", "null", "[" * 256, '{"stocks":', "27", '{"stocks":[12,42,47,38,２７]}', "\ud800"),
        ),
    ),
)

# --- 4. attack ---------------------------------------------------------------------------------------

_TARGETS = (WORKED_PROBLEM, ONE_PROBLEM, ZERO_PROBLEM, Problem(100, (100, 100), (0, 0)), Problem(40, (7, 2), (9, 0)))
_NAIVE = tuple(name for name in VERIFIERS if name != "strict")
_KNOWN_TEXTS = frozenset(completion.text for completion in GALLERY if isinstance(completion.text, str))


def _payers(f: Callable, name: str) -> list[set[str]]:
    """For each target problem: which verifiers pay the attack on `name`."""
    texts = [(problem, f(problem, name)) for problem in _TARGETS]
    return [
        {
            other
            for other, verifier in VERIFIERS.items()
            if judge(verifier, Completion("", text, problem=problem)).reward
        }
        for problem, text in texts
    ]


def _printable(text: Any) -> bool:
    return type(text) is str and 0 < len(text) <= MAX_CHARACTERS and text.isascii() and text.isprintable()


ATTACK = Exercise(
    "attack",
    (
        Property(
            "every completion is a text of 1 to 256 printable ASCII characters",
            lambda f: all(_printable(f(problem, name)) for problem in _TARGETS for name in _NAIVE),
        ),
        Property(
            "the strict verifier refuses every one",
            lambda f: not any("strict" in payers for name in _NAIVE for payers in _payers(f, name)),
        ),
        Property(
            '"digits": that verifier pays, for every problem, and the other two do not',
            lambda f: all(payers == {"digits"} for payers in _payers(f, "digits")),
        ),
        Property(
            '"isinstance": that verifier pays, for every problem, and "digits" does not',
            lambda f: all("isinstance" in payers and "digits" not in payers for payers in _payers(f, "isinstance")),
        ),
        Property(
            '"first object": that verifier pays, for every problem, and the other two do not',
            lambda f: all(payers == {"first object"} for payers in _payers(f, "first object")),
        ),
        Property(
            "none of them is copied from the gallery",
            lambda f: not any(f(problem, name) in _KNOWN_TEXTS for problem in _TARGETS for name in _NAIVE),
        ),
    ),
)

# --- 5. at_most_one ----------------------------------------------------------------------------------

_P = z3_twin.SymbolicProblem()
_V, _W = z3.Ints("v w")


def _holds_for(f: Callable, rule: Callable[[z3.ArithRef], z3.BoolRef]) -> bool:
    formula = f(rule, _V, _W)
    result = z3_twin.prove("the student's formula", _P.valid(), formula, [*_P.operands, _V, _W])
    return result.status == z3_twin.PROVED


def _final() -> z3.ArithRef:
    return z3_twin.final_stock_expression(_P.operands)


def _nearly(value: z3.ArithRef) -> z3.BoolRef:
    return z3.And(_final() - 1 <= value, value <= _final())


def _either(value: z3.ArithRef) -> z3.BoolRef:
    return z3.Or(value == _final(), value == _P.operands[0])


def _everything(value: z3.ArithRef) -> z3.BoolRef:
    return z3.BoolVal(True)


AT_MOST_ONE = Exercise(
    "at_most_one",
    (
        Property(
            "the result is a Z3 formula (z3.BoolRef)",
            lambda f: isinstance(f(lambda value: z3_twin.verifier_rule(value, _P), _V, _W), z3.BoolRef),
        ),
        Property(
            "Z3 proves it for the verifier's rule",
            lambda f: _holds_for(f, lambda value: z3_twin.verifier_rule(value, _P)),
        ),
        Property(
            "it holds for a rule that pays nothing at all: no answer is at most one",
            lambda f: _holds_for(f, lambda value: z3.BoolVal(False)),
        ),
        Property("Z3 refutes it for a rule that pays everything", lambda f: not _holds_for(f, _everything)),
        Property("Z3 refutes it for a rule that forgives an error of one", lambda f: not _holds_for(f, _nearly)),
        Property("Z3 refutes it for a rule that also pays the initial stock", lambda f: not _holds_for(f, _either)),
    ),
)

EXERCISES = (NORMALISED_KEY, REFUSAL, STRICT_STOCKS, ATTACK, AT_MOST_ONE)
