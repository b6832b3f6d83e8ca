"""Evaluation of OfficeHelp's actors by the reserved rubric, and of its judges on held-out pairs and probes.

Every actor meets the same prompts: one greedy answer to each of the 180 test prompts and to each of the 80 probe
rows (20 prompts, four identical repeats each), and one sampled answer to each test prompt with draws that all
actors share. All outputs count, unrecognised ones included.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from labs_lib.errors import VerificationError
from labs_lib.models.chat import decode_answer, ids_known, pad_id
from labs_lib.models.roles import LoadedRole, Scalar, learned_fingerprint
from labs_lib.rollout import Rollout, answer_draws, generate
from labs_lib.scoring import answer_logprobs, answer_scores
from labs_lib.seeding import named_generator
from labs_lib.statistics import Interval, bootstrap_ratio
from labs_lib.tasks.office_help.corpus import Probe, Request
from labs_lib.tasks.office_help.rubric import judge_answer
from labs_lib.training.preferences import PreferenceExample, score_pairs
from labs_lib.training.supervised import SupervisedExample, pad_targets

TEST, PROBES, SAMPLED = "test", "probes", "sampled"
POPULATIONS = (TEST, PROBES, SAMPLED)
PROMPTS_AT_ONCE = 60
# Rate -> (what is counted, among which rows): the denominators of 02-office-ppo, section 1.
RATES = {
    "success": ("success", None),
    "recognised": ("recognised", None),
    "relevant": ("relevant", "recognised"),
    "certain": ("certain", "recognised"),
    "courteous": ("courteous", "recognised"),
    "refusal": ("refusal", None),
    "missing_eos": ("missing_eos", None),
}


def evaluate_actor(
    actor: LoadedRole,
    reference: PreTrainedModel,
    tests: Sequence[tuple[Request, list[int]]],
    probes: Sequence[tuple[Request, list[int]]],
    answer_tokens: int,
    seed: int,
) -> dict[str, Any]:
    """Answers of one actor to all populations, judged by the rubric; JSON evidence.

    Args:
        reference: the SFT actor, for the log-ratio of each answer.
        tests: (request with its action, prompt ids) of the 180 test pairs.
        probes: the same for the 80 probe rows.

    Raises:
        VerificationError: the repeats of a probe prompt got different greedy answers.
    """
    draws = answer_draws(named_generator(seed, "office/evaluation/draws"), len(tests), answer_tokens)
    evidence: dict[str, Any] = {"fingerprint": learned_fingerprint(actor.model), "seconds": {}}
    for population, rows, chosen in ((TEST, tests, None), (PROBES, probes, None), (SAMPLED, tests, draws)):
        began = time.perf_counter()
        evidence[population] = []
        for start in range(0, len(rows), PROMPTS_AT_ONCE):
            part = slice(start, start + PROMPTS_AT_ONCE)
            evidence[population] += _answers(
                actor, reference, rows[part], answer_tokens, None if chosen is None else chosen[part]
            )
        evidence["seconds"][population] = time.perf_counter() - began
    _require_equal_repeats(evidence[PROBES])
    return evidence


def _answers(
    actor: LoadedRole,
    reference: PreTrainedModel,
    rows: Sequence[tuple[Request, list[int]]],
    answer_tokens: int,
    draws: torch.Tensor | None,
) -> list[dict[str, Any]]:
    tokenizer, pad = actor.tokenizer, pad_id(actor.tokenizer)
    prompts = [ids for _, ids in rows]
    rollout = generate(actor.model, prompts, 1, answer_tokens, tokenizer.eos_token_id, pad, draws)
    with torch.no_grad():
        scored = answer_logprobs(reference, prompts, rollout.ids, rollout.mask, pad)
    log_ratios = (rollout.logprobs - scored).sum(dim=1).tolist()
    return [_judged(tokenizer, rollout, row, request, log_ratios[row]) for row, (request, _) in enumerate(rows)]


def _judged(tokenizer: Any, rollout: Rollout, row: int, request: Request, log_ratio: float) -> dict[str, Any]:
    ids, reason = rollout.answer_ids(row), rollout.finish_reasons[row]
    text = decode_answer(tokenizer, ids)
    verdict = judge_answer(text, reason, request.action, ids_known(tokenizer, ids))
    return {
        "request": request.id,
        "family": request.family,
        "ids": ids,
        "text": text,
        "finish_reason": reason,
        "reason": verdict.reason,
        **{name: bool(getattr(verdict, name)) for name in ("success", "recognised", "relevant", "certain")},
        "courteous": bool(verdict.courteous),
        "refusal": verdict.refusal,
        "missing_eos": reason != "eos",
        "log_ratio": log_ratio,
    }


def _require_equal_repeats(rows: Sequence[Mapping[str, Any]]) -> None:
    first: dict[str, list[int]] = {}
    for row in rows:
        if first.setdefault(row["request"], row["ids"]) != row["ids"]:
            raise VerificationError(
                f"Two greedy answers to the one prompt of {row['request']} differ: decoding is not deterministic."
            )


def unique_contexts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first row of each request: 20 of the 80 probe rows."""
    return list({row["request"]: row for row in reversed(rows)}.values())[::-1]


def rates(rows: Sequence[Mapping[str, Any]], draws: int, seed: int) -> dict[str, dict[str, float]]:
    """Each of `RATES` as {"count", "n", "value", "low", "high"}, the interval from a bootstrap over families.

    Five test prompts of one family are not independent, so families are resampled.
    """
    table = {}
    for name, (counted, among) in RATES.items():
        kept = [row for row in rows if among is None or row[among]]
        count = sum(row[counted] for row in kept)
        entry: dict[str, float] = {"count": count, "n": len(kept)}
        if kept:
            grouped = by_family(rows, lambda row, c=counted, a=among: (row[c], a is None or row[a]))
            entry |= interval_entry(bootstrap_ratio(grouped, draws, seed))
        table[name] = entry
    return table


def by_family(rows: Sequence[Mapping[str, Any]], measure) -> list[tuple[float, float]]:
    """(sum of numerators, sum of denominators) of each family, in the order of their first rows."""
    grouped: dict[str, list[float]] = {}
    for row in rows:
        number, weight = measure(row)
        entry = grouped.setdefault(row["family"], [0.0, 0.0])
        if weight:
            entry[0] += number
            entry[1] += weight
    return [(number, weight) for number, weight in grouped.values()]


def interval_entry(interval: Interval) -> dict[str, float]:
    """An interval as evidence keeps it."""
    return {"value": round(interval.value, 6), "low": round(interval.low, 6), "high": round(interval.high, 6)}


def mean_entry(rows: Sequence[Mapping[str, Any]], values: Sequence[float], draws: int, seed: int) -> dict[str, float]:
    """Mean of one value per row with an interval from a bootstrap over families."""
    pairs = [{"family": row["family"], "value": value} for row, value in zip(rows, values, strict=True)]
    grouped = by_family(pairs, lambda row: (row["value"], 1))
    return {"n": len(pairs)} | interval_entry(bootstrap_ratio(grouped, draws, seed))


# --- Judges ----------------------------------------------------------------------------------------


@torch.no_grad()
def score_answers(
    judge: Scalar, answers: Sequence[SupervisedExample], pad: int, at_once: int = PROMPTS_AT_ONCE
) -> list[float]:
    """The frozen judge's score of each given answer."""
    scores = []
    for start in range(0, len(answers), at_once):
        part = answers[start : start + at_once]
        ids, mask = (t.to(judge.head.weight.device) for t in pad_targets([row.target for row in part], pad))
        scores += answer_scores(judge, [row.prompt for row in part], ids, mask, pad).tolist()
    return scores


def evaluate_judge(
    judge: Scalar,
    pairs: Mapping[str, Sequence[tuple[Any, PreferenceExample]]],
    probes: Sequence[tuple[Probe, SupervisedExample]],
    pad: int,
) -> dict[str, Any]:
    """Scores of both answers of every held-out pair, and of the 80 probe candidates; JSON evidence.

    Args:
        pairs: name of a set of pairs ("test", or a biased copy) -> (pair, its ids).
    """
    evidence: dict[str, Any] = {"fingerprint": learned_fingerprint(judge)}
    for name, rows in pairs.items():
        scores = score_pairs(judge, [example for _, example in rows], pad).tolist()
        evidence[name] = [
            {
                "request": pair.request.id,
                "family": pair.request.family,
                "kind": pair.kind,
                "chosen": chosen,
                "rejected": rejected,
                "tokens": [len(example.chosen), len(example.rejected)],
            }
            for (pair, example), (chosen, rejected) in zip(rows, scores, strict=True)
        ]
    scored = score_answers(judge, [example for _, example in probes], pad)
    evidence[PROBES] = [
        {"request": probe.request.id, "right": probe.right, "courteous": probe.courteous, "score": score}
        for (probe, _), score in zip(probes, scored, strict=True)
    ]
    return evidence


def judge_accuracy(rows: Sequence[Mapping[str, Any]], draws: int, seed: int) -> dict[str, float]:
    """Share of pairs whose chosen answer has the higher score, with an interval over families."""
    right = [float(row["chosen"] > row["rejected"]) for row in rows]
    return {"count": int(sum(right))} | mean_entry(rows, right, draws, seed)


def courtesy_factorial(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What courtesy does to the score of each probe context, for right and for wrong advice.

    Returns:
        `{"right": [...], "wrong": [...], "advice": [...], "outranked": n, "contexts": n}`: the change of score due
        to courtesy per context, the change due to right advice (plain), and in how many contexts the courteous wrong
        answer outranks the plain right one.
    """
    contexts: dict[str, dict[tuple[bool, bool], float]] = {}
    for row in rows:
        contexts.setdefault(row["request"], {})[row["right"], row["courteous"]] = row["score"]
    cells = list(contexts.values())
    return {
        "right": [cell[True, True] - cell[True, False] for cell in cells],
        "wrong": [cell[False, True] - cell[False, False] for cell in cells],
        "advice": [cell[True, False] - cell[False, False] for cell in cells],
        "outranked": sum(cell[False, True] > cell[True, False] for cell in cells),
        "contexts": len(cells),
    }
