"""Labs 00 and 01: each invariant of the notebooks holds for the right code and is broken by the bug it is for."""

import pytest
from lab_cells import lab_namespace

from labs_lib.config import load_profile
from labs_lib.errors import LearningScopeError
from labs_lib.paths import NOTEBOOKS
from labs_lib.tasks.learning_scope import stock_arithmetic_scope
from labs_lib.tasks.stock_arithmetic import z3_twin
from labs_lib.tasks.stock_arithmetic.gallery import VERIFIERS, WORKED_ANSWERS, WORKED_PROBLEM
from labs_lib.tasks.stock_arithmetic.naive_verifiers import NAIVE_VERIFIERS
from labs_lib.tasks.stock_arithmetic.problem import Problem
from labs_lib.tasks.stock_arithmetic.verifier import Verdict, verify

START, LAB = NOTEBOOKS / "00_start_here.ipynb", NOTEBOOKS / "01_verifier.ipynb"
CHECKS = ("assert_whole_text", "assert_json_integer", "assert_finished", "assert_known_ids")


@pytest.fixture(scope="module")
def lab():
    names = ["RIGHT", "AROUND", "INSIDE", "reward", *CHECKS, "leaked", "guarded_read", "judge_299"]
    names += ["refuse_constant", "plain_final_stock", "PROSE", "no_winner", "rewards_with_bonus", "assert_zero_or_one"]
    return lab_namespace(LAB, names)


@pytest.mark.diagnoses("00-start-here-009", "assert_between", "assert_equal_numbers")
def test_start_here_sharpens_its_invariant():
    names = ["mean", "mean_of_four", "assert_between", "assert_equal_numbers"]
    start = lab_namespace(START, names)
    start["assert_between"](start["mean"])
    start["assert_equal_numbers"](start["mean"])
    start["assert_between"](start["mean_of_four"])  # the lesson: this one is too weak
    with pytest.raises(AssertionError):
        start["assert_equal_numbers"](start["mean_of_four"])


@pytest.mark.parametrize("check", CHECKS)
def test_verify_holds_every_invariant(lab, check):
    lab[check](verify)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", NAIVE_VERIFIERS)
def test_every_naive_verifier_breaks_every_invariant(lab, check, name):
    with pytest.raises(AssertionError, match="paid"):
        lab[check](VERIFIERS[name])


@pytest.mark.diagnoses("01-verifier-039", "assert_whole_text")
@pytest.mark.diagnoses("01-verifier-044", "assert_json_integer")
@pytest.mark.diagnoses("01-verifier-049", "assert_finished")
@pytest.mark.diagnoses("01-verifier-054", "assert_known_ids")
@pytest.mark.parametrize(
    ("name", "broken", "symptom"),
    [
        ("first object", "assert_whole_text", "{.*}{.*}"),
        ("isinstance", "assert_json_integer", ":true}"),
        ("isinstance", "assert_finished", "finish reason 'length'"),
        ("isinstance", "assert_known_ids", "an id that no token has"),
    ],
)
def test_each_naive_verifier_breaks_the_invariant_of_its_section(lab, name, broken, symptom):
    lab[broken](verify)
    with pytest.raises(AssertionError, match=symptom):
        lab[broken](VERIFIERS[name])


@pytest.mark.parametrize("check", CHECKS)
def test_paying_nothing_is_no_way_out(lab, check):
    with pytest.raises(AssertionError, match="a right answer is not paid"):
        lab[check](lambda *arguments: Verdict(0, "never"))


# One rule dropped at a time: the named invariant, and no luck with another one, catches it.
def without_finish(text, finish_reason, problem, ids_known):
    return verify(text, "eos", problem, ids_known)


def finish_by_exclusion(text, finish_reason, problem, ids_known):
    return verify(text, "length" if finish_reason == "length" else "eos", problem, ids_known)


def without_ids(text, finish_reason, problem, ids_known):
    return verify(text, finish_reason, problem, True)


def stripped(text, finish_reason, problem, ids_known):
    return verify(text.strip(), finish_reason, problem, ids_known)


def booleans_pass(text, finish_reason, problem, ids_known):
    return verify(text.replace("true", "1"), finish_reason, problem, ids_known)


@pytest.mark.parametrize(
    ("mutant", "broken"),
    [
        (without_finish, "assert_finished"),
        (finish_by_exclusion, "assert_finished"),
        (without_ids, "assert_known_ids"),
        (stripped, "assert_whole_text"),
        (booleans_pass, "assert_json_integer"),
    ],
)
def test_one_dropped_rule_breaks_its_own_invariant_only(lab, mutant, broken):
    for check in CHECKS:
        if check == broken:
            with pytest.raises(AssertionError):
                lab[check](mutant)
        else:
            lab[check](mutant)


@pytest.fixture(scope="module")
def tokens():
    names = ["RIGHT", "tokenizer", "eos", "right_ids", "unknown_id", "chat_id", "answers"]
    names += ["lenient_decode", "careful_look", "assert_every_token_counts"]
    return lab_namespace(LAB, names, profile=load_profile("tiny"))


def test_careful_look_tells_every_answer_apart(tokens):
    tokens["assert_every_token_counts"](tokens["careful_look"], tokens["answers"])
    assert len({tokens["careful_look"](ids) for ids in tokens["answers"].values()}) == len(tokens["answers"]) == 4


@pytest.mark.diagnoses("01-verifier-054", "assert_every_token_counts")
@pytest.mark.parametrize("hidden", ["unknown id", "special token", "EOS twice"])
def test_lenient_decoding_hides_each_of_them(tokens, hidden):
    answers = {name: tokens["answers"][name] for name in ("right", hidden)}
    with pytest.raises(AssertionError, match=hidden):
        tokens["assert_every_token_counts"](tokens["lenient_decode"], answers)


def test_careful_text_alone_still_hides_an_unknown_id(tokens):
    with pytest.raises(AssertionError, match="unknown id"):
        tokens["assert_every_token_counts"](lambda ids: tokens["careful_look"](ids)[0], tokens["answers"])


@pytest.mark.diagnoses("01-verifier-018", "leaked")
def test_disguised_problems_leak_by_key_only(lab):
    train = [WORKED_PROBLEM]
    disguised = [Problem(12, (5, 30), (9, 11)), Problem(12, (30, 5), (11, 9))]
    assert lab["leaked"](train, disguised, lambda problem: problem) == 0
    assert lab["leaked"](train, disguised, Problem.key) == 2


@pytest.mark.diagnoses("01-verifier-028", "stock_arithmetic_scope")
def test_a_link_passes_the_guard_by_name_and_not_the_scope(lab, tmp_path):
    (tmp_path / "data").mkdir()
    held_out = tmp_path / "data" / "test.labels.jsonl"
    held_out.write_text("gold\n")
    link = tmp_path / "more_training_data.jsonl"
    link.symlink_to(held_out)
    assert lab["guarded_read"](link) == "gold\n"
    with pytest.raises(LearningScopeError):
        lab["guarded_read"](held_out)
    with stock_arithmetic_scope(data=held_out.parent, outputs=tmp_path), pytest.raises(LearningScopeError):
        lab["guarded_read"](link)


@pytest.mark.diagnoses("01-verifier-089", "verifier_equivalence")
def test_z3_refutes_the_mistake_that_samples_do_not_show(lab):
    result = z3_twin.verifier_equivalence(lab["judge_299"])
    assert result.status == z3_twin.COUNTEREXAMPLE and result.counterexample["value"] == 300
    extreme = Problem(100, (100, 100), (0, 0))
    assert lab["judge_299"](300, extreme) != "correct" and verify('{"final_stock":300}', "eos", extreme, True).reward


def test_style_bonus_breaks_zero_or_one(lab):
    answers = WORKED_ANSWERS + lab["no_winner"]
    lab["assert_zero_or_one"](lambda answer: verify(answer, "eos", WORKED_PROBLEM, True).reward, answers)
    for bonus in (0.001, 0.5, 1.0):
        with pytest.raises(AssertionError, match="paid"):
            lab["assert_zero_or_one"](
                lambda answer, bonus=bonus: lab["rewards_with_bonus"]((answer,), bonus)[0], lab["no_winner"]
            )
    with pytest.raises(AssertionError):  # a zero for everything is not the rule either
        lab["assert_zero_or_one"](lambda answer: 0, answers)
