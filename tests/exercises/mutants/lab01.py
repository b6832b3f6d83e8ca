"""Plausible wrong answers to the exercises of lab 01, by exercise; the check has to reject each of them."""

import json
import re

import z3

from labs_lib.tasks.stock_arithmetic.gallery import WORKED_PROBLEM

# --- normalised_key: order kept, too much forgotten, not hashable


def key_as_written(initial, deliveries, withdrawals):
    return initial, tuple(deliveries), tuple(withdrawals)


def key_of_lists(initial, deliveries, withdrawals):
    return [initial, sorted(deliveries), sorted(withdrawals)]


def key_sorts_everything(initial, deliveries, withdrawals):
    return tuple(sorted((initial, *deliveries, *withdrawals)))


def key_of_sums(initial, deliveries, withdrawals):
    return initial, sum(deliveries), sum(withdrawals)


def key_sorts_deliveries_only(initial, deliveries, withdrawals):
    return initial, tuple(sorted(deliveries)), tuple(withdrawals)


def key_sorts_movements_together(initial, deliveries, withdrawals):
    return initial, tuple(sorted((*deliveries, *withdrawals)))


def key_of_the_movements(initial, deliveries, withdrawals):
    return tuple(sorted(deliveries)), tuple(sorted(withdrawals))


def key_of_final_stock(initial, deliveries, withdrawals):
    return (initial + sum(deliveries) - sum(withdrawals),)


# --- refusal: order, limits, and tests for the wrong instead of the right


def refusal_with(order=("finish", "text", "long", "ids"), limit=256, finish=None, known=None, length=len):
    def refusal(text, finish_reason, ids_known):
        failed = {
            "finish": finish(finish_reason) if finish else finish_reason != "eos",
            "text": not isinstance(text, str),
            "long": isinstance(text, str) and length(text) > limit,
            "ids": known(ids_known) if known else ids_known is not True,
        }
        reasons = {"finish": "not_finished", "text": "not_text", "long": "too_long", "ids": "unknown_id"}
        return next((reasons[check] for check in order if failed[check]), None)

    return refusal


def refusal_of_everything(text, finish_reason, ids_known):
    return "not_finished"


def refusal_without_type(text, finish_reason, ids_known):
    if finish_reason != "eos":
        return "not_finished"
    return "too_long" if len(text) > 256 else None if ids_known is True else "unknown_id"


# --- strict_stocks: one forgotten rule each


def stocks_with(hook=tuple, is_int=lambda n: type(n) is int, count=5, low=0, high=300, before=str, wholly=True):
    def strict_stocks(text):
        try:
            text = before(text)
            if wholly:
                fields = json.loads(text, object_pairs_hook=hook)
            else:
                fields, _ = json.JSONDecoder(object_pairs_hook=hook).raw_decode(text)
        except (ValueError, RecursionError):
            return None
        pairs = tuple(fields.items()) if isinstance(fields, dict) else fields
        if type(pairs) is not tuple or [key for key, _ in pairs] != ["stocks"]:
            return None
        stocks = pairs[0][1]
        if type(stocks) is not list or (count and len(stocks) != count):
            return None
        return stocks if all(is_int(n) and low <= n <= high for n in stocks) else None

    return strict_stocks


def stocks_by_pattern(text):
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    return numbers if len(numbers) == 5 else None


def stocks_of_any_sequence(text):
    try:
        fields = json.loads(text, object_pairs_hook=tuple)
        (key, stocks), *rest = fields
        stocks = [int(stock) for stock in stocks]
    except (ValueError, TypeError):
        return None
    right = key == "stocks" and not rest and len(stocks) == 5 and all(0 <= stock <= 300 for stock in stocks)
    return stocks if right else None


def stocks_of_nothing(text):
    return None


def stocks_raises(text):
    return json.loads(text)["stocks"]


# --- attack: paid by the strict verifier, by the wrong ones, or for one problem only


def attack_with(**texts):
    right = {
        "digits": "I would say {n}",
        "isinstance": '{{"final_stock":{n},"spare":999}}',
        "first object": '{{"final_stock":{n}}}{{"final_stock":999}}',
    }
    patterns = right | {name.replace("_", " "): text for name, text in texts.items()}
    return lambda problem, verifier: patterns[verifier].format(n=problem.final_stock)


def attack_of_one_text(problem, verifier):
    return attack_with()(WORKED_PROBLEM, verifier)


# --- at_most_one: empty, turned round, too strong


def formula_true(pays, v, w):
    return z3.BoolVal(True)


def formula_turned_round(pays, v, w):
    return z3.Implies(v == w, z3.And(pays(v), pays(w)))


def formula_and(pays, v, w):
    return z3.And(pays(v), pays(w), v == w)


def formula_or(pays, v, w):
    return z3.Implies(z3.Or(pays(v), pays(w)), v == w)


def formula_same_verdict(pays, v, w):
    return z3.Implies(v == w, pays(v) == pays(w))


def formula_python_bool(pays, v, w):
    return True


def formula_python_and(pays, v, w):
    return z3.Implies(pays(v) and pays(w), v == w)


MUTANTS = {
    "normalised_key": [
        key_as_written,
        key_of_lists,
        key_sorts_everything,
        key_of_sums,
        key_sorts_deliveries_only,
        key_sorts_movements_together,
        key_of_the_movements,
        key_of_final_stock,
    ],
    "refusal": [
        refusal_with(order=("text", "long", "ids", "finish")),
        refusal_with(order=("finish", "ids", "text", "long")),
        refusal_with(order=("finish", "text", "ids", "long")),
        refusal_with(limit=255),
        refusal_with(limit=257),
        refusal_with(finish=lambda reason: reason == "length"),
        refusal_with(known=lambda known: known is False),
        refusal_with(length=lambda text: len(text.encode())),
        refusal_with(length=lambda text: len(text.strip())),
        refusal_without_type,
        refusal_of_everything,
    ],
    "strict_stocks": [
        stocks_with(hook=dict),
        stocks_with(is_int=lambda n: isinstance(n, int)),
        stocks_with(is_int=lambda n: isinstance(n, int | float)),
        stocks_with(count=None),
        stocks_with(low=1),
        stocks_with(low=-1),
        stocks_with(high=301),
        stocks_with(high=299),
        stocks_with(before=str.strip),
        stocks_with(wholly=False),
        stocks_by_pattern,
        stocks_of_any_sequence,
        stocks_raises,
        stocks_of_nothing,
    ],
    "attack": [
        attack_with(digits='{{"final_stock":{n}}}'),
        attack_with(digits="{n}"),  # in the gallery, for the worked problem
        attack_with(isinstance="I would say {n}"),
        attack_with(first_object='{{"final_stock":{n},"spare":999}}'),
        attack_with(first_object='{{"final_stock":{n}}} and I mean {n}'),
        attack_with(digits="我说{n}"),
        attack_with(digits=""),
        attack_of_one_text,
    ],
    "at_most_one": [
        formula_true,
        formula_turned_round,
        formula_and,
        formula_or,
        formula_same_verdict,
        formula_python_bool,
        formula_python_and,
    ],
}
