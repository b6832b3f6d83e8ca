"""The tiny base's training text: fresh inventory problems and office help, as short chats.

The base learns arithmetic and the chat format, not the tasks' own formats: StockArithmetic's instruction never
occurs, and its JSON key only now and then among several others. Every draw comes from one `random.Random`, so the whole
stream can be replayed to prove that no evaluation problem was in it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from labs_lib.tasks.office_help import wording
from labs_lib.tasks.stock_arithmetic.problem import Problem
from labs_lib.tasks.stock_arithmetic.statements import PATTERNS, statement

# A curriculum by chance: one problem in four is smaller, and in every second one many operands are zero, so that
# sums of two or three numbers are met before sums of five are understood.
OPERAND_MAXIMA = (20, 50, 50, 50)
ZERO_SHARES = (0.0, 0.6)
OFFICE_SHARE = 0.15
RIGHT_ACTION_SHARE = 0.85
BASE_SYMPTOMS = 5  # of eight per action: the other three are met only in a lab
JSON_KEYS = ("stock", "total", "count", "left", "final_stock")
JSON_KEY_WEIGHTS = (30, 30, 20, 12, 8)
NUMBER_INSTRUCTIONS = ("Reply with a number.", "Only a number.", "Reply with digits.", "Count.", "N")
SENTENCE_INSTRUCTIONS = ("Reply in one sentence.", "Say it in a sentence.", "Answer in words.")
NAMED_KEYS = ("stock", "total", "count", "left", "units", "boxes", "rest", "result", "n", "items", "stock_count")
JSON_INSTRUCTIONS = (
    'Reply with JSON {{"{key}": N}}',
    'Give JSON: {{"{key}": N}}',
    'Reply as {{"{key}": N}}.',
    'JSON, please: {{"{key}": N}}',
    'Only {{"{key}": N}}',
)


@dataclass(frozen=True)
class Chat:
    """One training example; `problem` is set for inventory problems, for the decontamination proof."""

    system: str
    user: str
    answer: str
    problem: Problem | None = None


def draw_problem(rng: random.Random, operand_max: int = 50, zero_share: float = 0.0) -> Problem:
    """A valid problem: operands uniform in 0..operand_max (0 with chance `zero_share`), redrawn while negative."""
    while True:
        i, a, b, c, d = (0 if rng.random() < zero_share else rng.randint(0, operand_max) for _ in range(5))
        if c + d <= i + a + b:
            return Problem(i, (a, b), (c, d))


def _stock_answer(rng: random.Random, final_stock: int) -> tuple[str, str]:
    """(system message, answer) in one of three formats, each with one fixed instruction."""
    form = rng.randrange(3)
    if form == 0:
        return "Reply with a number.", f"{final_stock}"
    if form == 1:
        return "Reply in one sentence.", f"The answer is {final_stock}."
    key = rng.choices(JSON_KEYS, JSON_KEY_WEIGHTS)[0]
    return "Reply with JSON.", f'{{"{key}":{final_stock}}}'


def _varied_stock_answer(rng: random.Random, final_stock: int) -> tuple[str, str]:
    """The same formats under many instructions; most JSON ones name the key that they want."""
    form = rng.randrange(5)
    if form == 0:
        return rng.choice(NUMBER_INSTRUCTIONS), f"{final_stock}"
    if form == 1:
        return rng.choice(SENTENCE_INSTRUCTIONS), f"The answer is {final_stock}."
    if form == 2:
        return "Reply with JSON.", f'{{"{rng.choices(JSON_KEYS, JSON_KEY_WEIGHTS)[0]}":{final_stock}}}'
    key = rng.choice(NAMED_KEYS)
    return rng.choice(JSON_INSTRUCTIONS).format(key=key), f'{{"{key}":{final_stock}}}'


def _stock_chat(rng: random.Random, held_out: frozenset, varied: bool) -> Chat:
    operand_max = rng.choice(OPERAND_MAXIMA)
    zero_share = rng.choice(ZERO_SHARES)
    problem = draw_problem(rng, operand_max, zero_share)
    while problem.key() in held_out:
        problem = draw_problem(rng, operand_max, zero_share)
    system, answer = (_varied_stock_answer if varied else _stock_answer)(rng, problem.final_stock)
    return Chat(system, statement(problem, rng.randrange(len(PATTERNS))), answer, problem)


def _office_chat(rng: random.Random) -> Chat:
    action = rng.choice(tuple(wording.ACTIONS))
    user = wording.prompt_text(
        action,
        rng.randrange(BASE_SYMPTOMS),
        rng.randrange(len(wording.FRAMES)),
        rng.choice(wording.BASE_CONTEXTS),
    )
    if rng.random() > RIGHT_ACTION_SHARE:
        action = rng.choice(tuple(wording.ACTIONS))
    manner = rng.choices(("plain", "cautious", "certain"), (40, 35, 25))[0]
    courtesy = rng.choice((None, 0, 1))
    return Chat("Help.", user, wording.answer_text(action, manner, rng.randrange(2), courtesy))


def chats(seed: int, held_out: frozenset, varied: bool = False) -> Iterator[Chat]:
    """The endless, replayable stream of training chats.

    Args:
        seed: of the stream.
        held_out: normalised keys (`Problem.key`) that are never drawn: all 1,400 corpus problems.
        varied: the second stage's text: many instructions instead of one per format.
    """
    rng = random.Random(f"tiny-base/{seed}/varied" if varied else f"tiny-base/{seed}")
    while True:
        yield _office_chat(rng) if rng.random() < OFFICE_SHARE else _stock_chat(rng, held_out, varied)
