"""Evaluation: every output counts, populations add up, and the best of four is nobody's pass@1."""

import pytest
import torch
from small_model import id_lists, tokenizer

from labs_lib import evaluation
from labs_lib.errors import LabError
from labs_lib.evaluation import (
    ALL,
    GREEDY,
    SAMPLED,
    accuracy,
    compare_policies,
    evaluate,
    in_population,
    mixed_groups,
    populations,
    quality,
    success_by_problem,
    validation_rates,
)
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.rollout import Rollout, generate
from labs_lib.statistics import bootstrap_mean, wilson
from labs_lib.tasks.stock_arithmetic.corpus import Example
from labs_lib.tasks.stock_arithmetic.problem import Problem

SAMPLES, TOKENS, SEED = 4, 6, 48
PROBLEMS = 7
EXAMPLES = [
    Example(f"p{n}", "test", "ID50" if n < 4 else "OOD100", "", Problem(n, (0, 0), (0, 0))) for n in range(PROBLEMS)
]
PROMPTS = id_lists(8, PROBLEMS)


def row(problem, reward, population="ID50", value=0, finish_reason="eos", tokens=3):
    return {
        "problem": problem,
        "population": population,
        "ids": [5] * tokens,
        "text": "",
        "finish_reason": finish_reason,
        "reason": "",
        "value": value,
        "reward": reward,
    }


def rows_of(**rewards):
    """`rows_of(a=[1, 0], b=[0, 0])`: a problem's answers by their rewards."""
    return [row(name, reward) for name, given in rewards.items() for reward in given]


# --- Tables ------------------------------------------------------------------------------------------------------

FOUR_EACH = rows_of(a=[1, 0, 0, 0], b=[0, 0, 0, 0], c=[1, 1, 1, 1], d=[0, 1, 0, 0])


def best_of_four(rows):
    grouped = success_by_problem(rows)
    return sum(share > 0 for share in grouped.values()), len(grouped)


def test_accuracy_counts_every_sample_not_the_best_of_four():
    found = accuracy(FOUR_EACH, 200, SEED)[ALL]
    assert (found["correct"], found["n"]) == (6, 16)
    assert best_of_four(FOUR_EACH) == (3, 4)  # the believable bug would publish 75 % for 37.5 %
    assert found["correct"] / found["n"] != 3 / 4


def test_several_answers_a_problem_are_resampled_by_problem():
    expected = bootstrap_mean([0.25, 0.0, 1.0, 0.25], 200, SEED)
    found = accuracy(FOUR_EACH, 200, SEED)[ALL]
    assert (found["low"], found["high"]) == (round(expected.low, 6), round(expected.high, 6))
    narrow = wilson(6, 16)
    assert found["low"] != round(narrow.low, 6)


def test_one_answer_a_problem_has_wilsons_interval():
    found = accuracy(rows_of(a=[1], b=[0], c=[0]), 200, SEED)[ALL]
    expected = wilson(1, 3)
    assert found == {"correct": 1, "n": 3, "low": round(expected.low, 6), "high": round(expected.high, 6)}


def test_populations_are_kept_apart_and_add_up():
    rows = [row("a", 1), row("b", 0), row("c", 1, "OOD100"), row("d", 0, "OOD100"), row("e", 0, "OOD100")]
    assert populations(rows) == ["ID50", "OOD100", ALL]
    table = accuracy(rows, 200, SEED)
    for column in ("correct", "n"):
        assert table["ID50"][column] + table["OOD100"][column] == table[ALL][column]
    assert (table["ID50"]["correct"], table["OOD100"]["n"]) == (1, 3)
    assert in_population(rows, ALL) == rows


def test_invalid_outputs_stay_in_the_denominators():
    rows = [
        row("a", 1, tokens=8),
        row("b", 0, value=None, tokens=64, finish_reason="length"),
        row("c", 0, value=None, tokens=2),
        row("d", 0, value=7, tokens=8),
    ]
    assert quality(rows) == {"valid_json": 2, "missing_eos": 1, "mean_tokens": 20.5, "n": 4}
    assert accuracy(rows, 200, SEED)[ALL]["n"] == 4
    valid_only = [r for r in rows if r["value"] is not None]
    assert accuracy(valid_only, 200, SEED)[ALL]["n"] != 4


def test_mixed_groups_have_right_and_wrong_answers():
    assert mixed_groups(FOUR_EACH) == {"mixed": 2, "n": 4}
    assert mixed_groups(rows_of(a=[1, 1], b=[0, 0])) == {"mixed": 0, "n": 2}


# --- Paired comparison ---------------------------------------------------------------------------------------------


def test_policies_are_paired_by_problem_whatever_the_order():
    first, second = rows_of(a=[1], b=[0], c=[0]), rows_of(c=[1], b=[1], a=[0])
    found = compare_policies(first, second, ALL, 200, SEED)
    assert (found.only_first, found.only_second) == (1, 2)
    assert found.difference.value == pytest.approx(1 / 3)


def test_a_comparison_is_restricted_to_its_population():
    first = [row("a", 0), row("b", 0, "OOD100")]
    second = [row("a", 0), row("b", 1, "OOD100")]
    assert compare_policies(first, second, "ID50", 200, SEED).difference.value == 0
    assert compare_policies(first, second, "OOD100", 200, SEED).difference.value == 1


@pytest.mark.parametrize("swap", [False, True])
def test_a_problem_that_one_policy_did_not_answer_is_refused_by_name(swap):
    pair = [rows_of(a=[1], b=[0]), rows_of(a=[1])]
    with pytest.raises(LabError, match="answered b"):
        compare_policies(*(reversed(pair) if swap else pair), ALL, 200, SEED)


# --- Answers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def evidence(policy):
    return evaluate(policy, tokenizer(), EXAMPLES, PROMPTS, SAMPLES, TOKENS, SEED)


def test_every_problem_gets_one_greedy_and_four_sampled_answers(policy, evidence):
    assert [r["problem"] for r in evidence[GREEDY]] == [e.id for e in EXAMPLES]
    assert [r["problem"] for r in evidence[SAMPLED]] == [e.id for e in EXAMPLES for _ in range(SAMPLES)]
    assert all(r["population"] == EXAMPLES[int(r["problem"][1])].population for r in evidence[SAMPLED])
    assert evidence["policy_fingerprint"] == policy_fingerprint(policy)
    assert set(evidence["seconds"]) == {GREEDY, SAMPLED}
    greedy = generate(policy, PROMPTS, 1, TOKENS, tokenizer().eos_token_id, tokenizer().pad_token_id, None)
    assert [r["ids"] for r in evidence[GREEDY]] == [greedy.answer_ids(n) for n in range(PROBLEMS)]
    assert len({tuple(r["ids"]) for r in evidence[SAMPLED][:SAMPLES]}) > 1  # independent draws


def test_draws_depend_on_the_seed_alone(policy, evidence):
    again = evaluate(policy, tokenizer(), EXAMPLES, PROMPTS, SAMPLES, TOKENS, SEED)
    other = evaluate(policy, tokenizer(), EXAMPLES, PROMPTS, SAMPLES, TOKENS, SEED + 1)
    assert again[SAMPLED] == evidence[SAMPLED] and again[GREEDY] == evidence[GREEDY] == other[GREEDY]
    assert other[SAMPLED] != evidence[SAMPLED]


def test_working_in_parts_leaves_the_draws_with_their_problems(policy, evidence, monkeypatch):
    monkeypatch.setattr(evaluation, "PROMPTS_AT_ONCE", 3)
    in_parts = evaluate(policy, tokenizer(), EXAMPLES, PROMPTS, SAMPLES, TOKENS, SEED)
    assert [r["ids"] for r in in_parts[SAMPLED]] == [r["ids"] for r in evidence[SAMPLED]]


def scripted_rollout(texts, eos=True):
    """A rollout that holds these texts."""
    eos_id = tokenizer().eos_token_id
    answers = [[*tokenizer()(text)["input_ids"], *([eos_id] if eos else [])] for text in texts]
    width = max(map(len, answers))
    ids = torch.tensor([answer + [0] * (width - len(answer)) for answer in answers])
    mask = torch.tensor([[position < len(answer) for position in range(width)] for answer in answers])
    reasons = ("eos" if eos else "length",) * len(answers)
    return Rollout(ids, mask, torch.zeros(ids.shape), reasons, torch.zeros(1, 1))


def test_rows_are_judged_by_the_exact_verifier():
    texts = ['{"final_stock":0}', '{"final_stock":9}', "no", '{"final_stock":1}']
    rows = evaluation.judged_rows(tokenizer(), scripted_rollout(texts), EXAMPLES[:2], 2)
    assert [r["reward"] for r in rows] == [1, 0, 0, 1]
    assert [r["value"] for r in rows] == [0, 9, None, 1]
    assert [r["text"] for r in rows] == texts
    cut = evaluation.judged_rows(tokenizer(), scripted_rollout(texts[:1], eos=False), EXAMPLES[:1], 1)
    assert (cut[0]["reward"], cut[0]["finish_reason"], cut[0]["value"]) == (0, "length", None)


def test_validation_rates_are_those_of_its_rows(policy, monkeypatch):
    texts = ['{"final_stock":0}', '{"final_stock":1}', "no", "no", '{"final_stock":0}', '{"final_stock":9}']

    def scripted(policy, prompts, group_size, *rest):
        return scripted_rollout(texts if group_size == 3 else texts[:2])

    monkeypatch.setattr(evaluation, "generate", scripted)
    found = validation_rates(policy, tokenizer(), EXAMPLES[:2], PROMPTS[:2], 3, TOKENS, SEED)
    # Greedy: 0 and 1 are right. Sampled: problem 0 has one right of three, problem 1 none (0 and 9 are wrong).
    assert found == {"greedy": 1.0, "sampled": pytest.approx(1 / 6), "mixed": 0.5, "valid": 1.0}
