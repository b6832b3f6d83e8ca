"""Evaluation of a policy on held-out problems: one greedy answer and independent samples for each.

Every policy meets the same problems with the same draws. All outputs count, invalid ones included; the best of
several samples is never reported as pass@1.
"""

import time
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from labs_lib.errors import LabError
from labs_lib.models.chat import decode_answer, ids_known, pad_id
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.rollout import LENGTH, Rollout, answer_draws, generate
from labs_lib.seeding import named_generator
from labs_lib.statistics import PairedComparison, bootstrap_mean, compare_paired, wilson
from labs_lib.tasks.stock_arithmetic.corpus import Example
from labs_lib.tasks.stock_arithmetic.verifier import verify

GREEDY, SAMPLED = "greedy", "sampled"
ALL = "ALL"
PROMPTS_AT_ONCE = 50


def evaluate(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    prompts: Sequence[Sequence[int]],
    samples: int,
    answer_tokens: int,
    seed: int,
) -> dict[str, Any]:
    """One greedy and `samples` sampled answers per problem, judged; returns JSON evidence.

    Returns:
        `{"policy_fingerprint", "seconds": {"greedy", "sampled"}, "greedy": rows, "sampled": rows}` with a row
        per answer: problem, population, ids, text, finish_reason, reason, reward.
    """
    draws = answer_draws(named_generator(seed, "evaluation/draws"), len(prompts) * samples, answer_tokens)
    evidence: dict[str, Any] = {"policy_fingerprint": policy_fingerprint(policy), "seconds": {}}
    for kind, group_size, chosen in ((GREEDY, 1, None), (SAMPLED, samples, draws)):
        began = time.perf_counter()
        evidence[kind] = []
        for start in range(0, len(prompts), PROMPTS_AT_ONCE):
            part = slice(start, start + PROMPTS_AT_ONCE)
            used = None if chosen is None else chosen[start * samples : (start + PROMPTS_AT_ONCE) * samples]
            rollout = generate(
                policy,
                prompts[part],
                group_size,
                answer_tokens,
                tokenizer.eos_token_id,
                pad_id(tokenizer),
                used,
            )
            evidence[kind] += judged_rows(tokenizer, rollout, examples[part], group_size)
        evidence["seconds"][kind] = time.perf_counter() - began
    return evidence


def judged_rows(
    tokenizer: PreTrainedTokenizerBase, rollout: Rollout, examples: Sequence[Example], group_size: int
) -> list[dict[str, Any]]:
    """One JSON row per answer of `rollout`, in prompt-major order."""
    rows = []
    for row, reason in enumerate(rollout.finish_reasons):
        example, ids = examples[row // group_size], rollout.answer_ids(row)
        text = decode_answer(tokenizer, ids)
        verdict = verify(text, reason, example.problem, ids_known(tokenizer, ids))
        rows.append(
            {
                "problem": example.id,
                "population": example.population,
                "ids": ids,
                "text": text,
                "finish_reason": reason,
                "reason": verdict.reason,
                "value": verdict.value,
                "reward": verdict.reward,
            }
        )
    return rows


def populations(rows: Sequence[dict]) -> list[str]:
    """The populations that occur, sorted, and "ALL"."""
    return [*sorted({row["population"] for row in rows}), ALL]


def in_population(rows: Sequence[dict], population: str) -> list[dict]:
    """The rows of one population, or all of them for "ALL"."""
    return [row for row in rows if population in (ALL, row["population"])]


def success_by_problem(rows: Sequence[dict]) -> dict[str, float]:
    """Problem -> share of its answers that are right: 0 or 1 when greedy, quarters with four samples."""
    grouped: dict[str, list[int]] = {}
    for row in rows:
        grouped.setdefault(row["problem"], []).append(row["reward"])
    return {problem: sum(rewards) / len(rewards) for problem, rewards in grouped.items()}


def accuracy(rows: Sequence[dict], bootstrap_draws: int, seed: int) -> dict[str, dict[str, float]]:
    """Population -> {"correct", "n", "low", "high"} with a 95 % interval of the rate.

    Wilson's interval when each problem has one answer; a bootstrap over problems when it has several.
    """
    table = {}
    for population in populations(rows):
        chosen = in_population(rows, population)
        shares = success_by_problem(chosen)
        correct = sum(row["reward"] for row in chosen)
        one_each = len(shares) == len(chosen)
        interval = (
            wilson(correct, len(chosen)) if one_each else bootstrap_mean(list(shares.values()), bootstrap_draws, seed)
        )
        table[population] = {
            "correct": correct,
            "n": len(chosen),
            "low": round(interval.low, 6),
            "high": round(interval.high, 6),
        }
    return table


def quality(rows: Sequence[dict]) -> dict[str, float]:
    """Counts over *all* outputs: valid JSON (an integer was read), missing EOS; and the mean answer length."""
    return {
        "valid_json": sum(row["value"] is not None for row in rows),
        "missing_eos": sum(row["finish_reason"] == LENGTH for row in rows),
        "mean_tokens": sum(len(row["ids"]) for row in rows) / len(rows),
        "n": len(rows),
    }


def mixed_groups(rows: Sequence[dict]) -> dict[str, int]:
    """How many problems have both right and wrong answers among their samples: the groups that can teach."""
    shares = success_by_problem(rows).values()
    return {"mixed": sum(0 < share < 1 for share in shares), "n": len(shares)}


def compare_policies(
    first: Sequence[dict], second: Sequence[dict], population: str, draws: int, seed: int
) -> PairedComparison:
    """Paired over the problems of `population`: the second policy's success minus the first's.

    Raises:
        LabError: the two did not answer the same problems; names one.
    """
    shares = [success_by_problem(in_population(rows, population)) for rows in (first, second)]
    if unpaired := sorted(shares[0].keys() ^ shares[1].keys()):
        raise LabError(f"Only one of the two policies answered {unpaired[0]}: evaluate both on the same problems.")
    problems = sorted(shares[0])
    return compare_paired([shares[0][p] for p in problems], [shares[1][p] for p in problems], draws, seed)


def validation_rates(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    prompts: Sequence[Sequence[int]],
    samples: int,
    answer_tokens: int,
    seed: int,
) -> dict[str, float]:
    """Greedy and per-sample success and the mixed share, for choosing a base or a learning rate on validation data."""
    evidence = evaluate(policy, tokenizer, examples, prompts, samples, answer_tokens, seed)
    mixed = mixed_groups(evidence[SAMPLED])
    return {
        "greedy": sum(r["reward"] for r in evidence[GREEDY]) / len(examples),
        "sampled": sum(r["reward"] for r in evidence[SAMPLED]) / len(evidence[SAMPLED]),
        "mixed": mixed["mixed"] / mixed["n"],
        "valid": quality(evidence[GREEDY])["valid_json"] / len(examples),
    }
