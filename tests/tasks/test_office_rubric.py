"""The rubric reads exactly 108 texts; everything else is uncertified, whatever it looks like."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.errors import LabError
from labs_lib.tasks.office_help.rubric import (
    REFUSALS,
    Parsed,
    Reason,
    RubricVerdict,
    count_verdicts,
    is_refusal,
    judge_answer,
    parse_answer,
)
from labs_lib.tasks.office_help.wording import ACTIONS, answer_text

ACTION = "check_cable"
PROPOSALS = (
    "resume the print queue",
    "check the cable",
    "turn the sound on",
    "turn Wi-Fi on",
    "save the document",
    "renew the session",
)
# The same language a second time, as a regular expression written by hand.
_STEP = "(?:" + "|".join(PROPOSALS) + ")"
GRAMMAR = re.compile(
    r"(?:Thanks for asking\. |Happy to help\. )?"
    rf"(?:Try this: {_STEP}\.|First step: {_STEP}\."
    rf"|Perhaps {_STEP}, it may help\.|You could {_STEP}, if that applies\."
    rf"|Just {_STEP}, this will certainly fix it\.|Simply {_STEP}, it always works\.)"
)
FORMS = list(itertools.product(ACTIONS, ("plain", "cautious", "certain"), (0, 1), (None, 0, 1)))
TEXTS = [answer_text(*form) for form in FORMS]
FRAGMENTS = (
    *("Thanks for asking. ", "Happy to help. ", "Try this: ", "First step: ", "Perhaps ", "You could "),
    *("Just ", "Simply ", ".", ", it may help.", ", if that applies.", ", this will certainly fix it."),
    *(", it always works.", *PROPOSALS, " ", "\n", "x"),
)
NEAR_MISSES = {
    "nothing": "",
    "space before": " Try this: check the cable.",
    "space after": "Try this: check the cable. ",
    "line end after": "Try this: check the cable.\n",
    "no full stop": "Try this: check the cable",
    "small letter": "try this: check the cable.",
    "two spaces": "Try this:  check the cable.",
    "no-break space": "Try this:\u00a0check the cable.",
    "soft hyphen": "Try this: check the ca\u00adble.",
    "fullwidth letter": "Try this: check the ｃable.",
    "byte order mark": "\ufeffTry this: check the cable.",
    "NUL": "Try this: check the cable.\0",
    "EOS as text": "Try this: check the cable.<|im_end|>",
    "twice": "Try this: check the cable. Try this: check the cable.",
    "two actions": "Try this: check the cable. First step: save the document.",
    "hedge and certainty": "Perhaps check the cable, this will certainly fix it.",
    "two courtesies": "Thanks for asking. Happy to help. Try this: check the cable.",
    "courtesy at the end": "Try this: check the cable. Happy to help.",
    "courtesy only": "Thanks for asking. ",
    "quoted": '"Try this: check the cable."',
    "negated": "Do not try this: check the cable.",
    "unknown action": "Try this: reboot.",
    "the template": "Try this: {action}.",
    "right in other words": "Make sure that the cable is plugged in.",
}
# Believable shortcuts; each lets one of the near misses above through.
NAIVE_RUBRICS = {
    "looks for the proposal": lambda text: "check the cable" in text,
    "looks for a whole answer": lambda text: any(answer in text for answer in TEXTS),
    "trims": lambda text: text.strip() in TEXTS,
    "ignores case": lambda text: text.lower() in {answer.lower() for answer in TEXTS},
    "ignores white space": lambda text: text.split() in [answer.split() for answer in TEXTS],
    "searches the expression": lambda text: GRAMMAR.search(text),
    "anchors with $": lambda text: re.match(GRAMMAR.pattern + "$", text),
    "drops special tokens": lambda text: text.replace("<|im_end|>", "") in TEXTS,
}


class OddText(str):
    """Equal to everything: what a subclass of str could bring."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash("Try this: check the cable.")


class TestParse:
    def test_every_form_is_read_back(self):
        assert len(set(TEXTS)) == len(FORMS) == 108
        for form, text in zip(FORMS, TEXTS, strict=True):
            assert parse_answer(text) == Parsed(*form)

    def test_two_by_hand(self):
        assert parse_answer("Happy to help. Simply turn Wi-Fi on, it always works.") == Parsed(
            "enable_wifi", "certain", 1, 1
        )
        assert parse_answer("Perhaps renew the session, it may help.") == Parsed("renew_session", "cautious", 0, None)

    @given(st.text())
    def test_arbitrary_text(self, text):
        assert (parse_answer(text) is not None) == (GRAMMAR.fullmatch(text) is not None)

    @given(st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join))
    def test_text_made_of_the_grammars_own_pieces(self, text):
        assert (parse_answer(text) is not None) == (GRAMMAR.fullmatch(text) is not None) == (text in TEXTS)

    @given(st.sampled_from(TEXTS), st.integers(0, 80), st.characters())
    def test_one_more_character_anywhere_is_not_recognised(self, text, position, character):
        assert parse_answer(text[:position] + character + text[position:]) is None

    @given(st.sampled_from(TEXTS), st.integers(0, 80))
    def test_one_character_less_anywhere_is_not_recognised(self, text, position):
        position %= len(text)
        assert parse_answer(text[:position] + text[position + 1 :]) is None

    @pytest.mark.parametrize("text", NEAR_MISSES.values(), ids=NEAR_MISSES.keys())
    def test_near_misses(self, text):
        assert parse_answer(text) is None
        assert judge_answer(text, "eos", ACTION, True) == RubricVerdict("UNCERTIFIED", False, False)

    @pytest.mark.parametrize("rubric", NAIVE_RUBRICS.values(), ids=NAIVE_RUBRICS.keys())
    def test_the_near_misses_find_every_shortcut(self, rubric):
        assert all(rubric(text) for text in TEXTS if "check the cable" in text)
        assert any(rubric(text) for text in NEAR_MISSES.values())

    @pytest.mark.parametrize("value", [None, 7, b"Try this: check the cable.", ["x"], {}, OddText("odd")])
    def test_what_is_no_text(self, value):
        assert parse_answer(value) is None and not is_refusal(value)
        assert judge_answer(value, "eos", ACTION, True).reason == Reason.UNCERTIFIED


class TestJudge:
    @pytest.mark.parametrize("form", FORMS, ids=TEXTS)
    def test_every_form(self, form):
        action, manner, _, courtesy = form
        verdict = judge_answer(answer_text(*form), "eos", ACTION, True)
        reason = {
            (True, False): "success",
            (False, False): "wrong_action",
            (True, True): "unjustified_certainty",
            (False, True): "wrong_and_certain",
        }[action == ACTION, manner == "certain"]
        relevant, certain = action == ACTION, manner == "certain"
        expected = RubricVerdict(reason, reason == "success", True, relevant, certain, courtesy is not None, False)
        assert verdict == expected

    @given(
        st.text() | st.sampled_from(TEXTS) | st.none(),
        st.text() | st.none() | st.integers(),
        st.sampled_from(list(ACTIONS)),
    )
    def test_total_and_never_certified_without_an_end(self, text, finish_reason, action):
        verdict = judge_answer(text, finish_reason, action, True)
        if finish_reason != "eos":
            assert (verdict.reason, verdict.success, verdict.recognised) == ("no_eos", False, False)
            assert verdict.relevant is verdict.certain is verdict.courteous is None
        assert verdict.success <= verdict.recognised

    @pytest.mark.parametrize("known", [False, None, 0, 1, "yes"])
    def test_an_unknown_id_is_never_certified(self, known):
        verdict = judge_answer("Try this: check the cable.", "eos", ACTION, known)
        assert (verdict.reason, verdict.success, verdict.recognised) == ("unknown_id", False, False)

    def test_courtesy_costs_and_earns_nothing(self):
        for action, manner, variant in itertools.product(ACTIONS, ("plain", "cautious", "certain"), (0, 1)):
            reasons = {
                judge_answer(answer_text(action, manner, variant, c), "eos", ACTION, True).reason for c in (None, 0, 1)
            }
            assert len(reasons) == 1

    def test_an_unknown_action_is_a_clear_error(self):
        with pytest.raises(LabError, match="unknown action 'reboot': choose one of resume_queue, "):
            judge_answer("", "eos", "reboot", True)


class TestRefusals:
    @pytest.mark.parametrize("phrase", REFUSALS)
    def test_each_phrase_is_counted_apart(self, phrase):
        for text in (f"Sorry, {phrase} with that.", phrase.upper(), phrase.replace("'", "’")):
            verdict = judge_answer(text, "eos", ACTION, True)
            assert (verdict.reason, verdict.refusal, verdict.success) == ("UNCERTIFIED", True, False)

    def test_a_refusal_that_was_cut_is_both(self):
        verdict = judge_answer("I cannot help with", "length", ACTION, True)
        assert (verdict.reason, verdict.refusal) == ("no_eos", True)

    def test_no_recognised_answer_and_no_near_miss_is_one(self):
        assert not any(map(is_refusal, [*TEXTS, *NEAR_MISSES.values(), "Happy to help.", "It cannot help."]))


class TestCounts:
    ANSWERS = (
        ("Try this: check the cable.", "eos"),
        ("Happy to help. Try this: check the cable.", "eos"),
        ("Just check the cable, this will certainly fix it.", "eos"),
        ("Simply save the document, it always works.", "eos"),
        ("Thanks for asking. Perhaps save the document, it may help.", "eos"),
        ("Make sure that the plug is in.", "eos"),
        ("I cannot help with that.", "eos"),
        ("Try this: check the cable.", "length"),
    )

    def test_certainty_has_the_recognised_and_success_has_all(self):
        counts = count_verdicts(judge_answer(text, finish, ACTION, True) for text, finish in self.ANSWERS)
        assert (counts.answers, counts.recognised, counts.success) == (8, 5, 2)
        assert (counts.relevant, counts.certain, counts.courteous, counts.refusals, counts.no_eos) == (3, 2, 2, 1, 1)
        assert (counts.success_rate, counts.recognised_rate) == (2 / 8, 5 / 8)
        assert (counts.relevance_rate, counts.certainty_rate, counts.courtesy_rate) == (3 / 5, 2 / 5, 2 / 5)

    def test_no_denominator_no_rate(self):
        nothing = count_verdicts([])
        assert nothing.success_rate is nothing.recognised_rate is nothing.certainty_rate is None
        prose = count_verdicts([judge_answer("Hello.", "eos", ACTION, True)])
        assert (prose.success_rate, prose.recognised_rate) == (0, 0)
        assert prose.certainty_rate is prose.relevance_rate is prose.courtesy_rate is None
