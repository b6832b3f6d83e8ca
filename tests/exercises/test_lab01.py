"""The templates of lab 01's mutants are right answers with one thing changed: what rejects them is that change."""

from exercises.mutants.lab01 import attack_with, refusal_with, stocks_with
from labs_lib.exercises import lab01


def test_unmutated_templates_are_right():
    assert lab01.REFUSAL.evaluate(refusal_with()).status == "right"
    assert lab01.STRICT_STOCKS.evaluate(stocks_with()).status == "right"
    assert lab01.ATTACK.evaluate(attack_with()).status == "right"
