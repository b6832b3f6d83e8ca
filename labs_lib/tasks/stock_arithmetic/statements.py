"""How a problem is put into words: five sentence patterns shared by all splits, and the instruction.

The instruction and the patterns are versioned together as `TEMPLATE_VERSION`, which every config names: a
policy trained on one wording is not comparable with one trained on another.
"""

from labs_lib.tasks.stock_arithmetic.problem import Problem

TEMPLATE_VERSION = "stock-v1"

INSTRUCTION = 'Reply only with JSON: {"final_stock": N}'

PATTERNS = (
    "Stock {i}. Deliveries {a}, {b}. Withdrawals {c}, {d}. Final stock?",
    "A shelf holds {i} boxes. {a} and then {b} arrive, {c} and then {d} leave. How many are left?",
    "Start: {i} items. In: {a}, in: {b}. Out: {c}, out: {d}. What remains?",
    "We had {i} units, received {a} and {b}, shipped {c} and {d}. How many units now?",
    "The store opens with {i} bags, gets {a} and {b} more, then sells {c} and {d}. Count at closing?",
)


def statement(problem: Problem, pattern: int) -> str:
    """The problem in the words of `PATTERNS[pattern]`, movements in the listed order."""
    (a, b), (c, d) = problem.deliveries, problem.withdrawals
    return PATTERNS[pattern].format(i=problem.initial, a=a, b=b, c=c, d=d)


def target(final_stock: int) -> str:
    """The supervised answer: one compact JSON object (RFC 8259), without white space."""
    return f'{{"final_stock":{final_stock}}}'
