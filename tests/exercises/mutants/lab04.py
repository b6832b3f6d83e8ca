"""Plausible wrong answers to the exercises of lab 04, by exercise; the check has to reject each of them."""

import torch

from labs_lib.exercises.lab04 import NAMES

# --- merged weight


def alpha_alone(weight, A, B, alpha):
    return weight.float() + alpha * (B @ A)


def alpha_by_root(weight, A, B, alpha):
    return weight.float() + alpha / len(A) ** 0.5 * (B @ A)


def divided_by_outputs(weight, A, B, alpha):
    return weight.float() + alpha / len(B) * (B @ A)


def transposed(weight, A, B, alpha):
    return weight.float() + alpha / len(A) * (A.T @ B.T)


def branch_only(weight, A, B, alpha):
    return alpha / len(A) * (B @ A)


def in_the_weights_dtype(weight, A, B, alpha):
    return weight + (alpha / len(A) * (B @ A)).to(weight.dtype)


def cast_after_the_sum(weight, A, B, alpha):
    return (weight + (alpha / len(A) * (B @ A)).to(weight.dtype)).float()


def without_gradient(weight, A, B, alpha):
    return (weight.float() + alpha / len(A) * (B @ A)).detach()


# --- last answer states


def rows(hidden):
    return torch.arange(len(hidden))


def last_index(hidden, mask):
    return hidden[:, -1]


def first_pad(hidden, mask):
    return hidden[rows(hidden), mask.sum(dim=1).clamp(max=mask.shape[1] - 1)]


def before_eos(hidden, mask):
    return hidden[rows(hidden), (mask.sum(dim=1) - 2).clamp(min=0)]


def longest_for_all(hidden, mask):
    return hidden[:, int(mask.sum(dim=1).max()) - 1]


def mean_of_active(hidden, mask):
    return torch.where(mask.unsqueeze(-1), hidden, 0.0).sum(dim=1) / mask.sum(dim=1, keepdim=True)


def product_with_the_mask(hidden, mask):
    last = mask & ~mask.roll(-1, dims=1)
    last[:, -1] |= mask[:, -1]
    return (hidden * last.unsqueeze(-1)).sum(dim=1)


def detached_states(hidden, mask):
    return hidden.detach()[rows(hidden), mask.sum(dim=1) - 1]


# --- preference loss


def flipped(chosen, rejected):
    return torch.nn.functional.softplus(chosen - rejected).mean()


def overflows(chosen, rejected):
    return -(1 / (1 + torch.exp(rejected - chosen))).log().mean()


def clamped(chosen, rejected):
    return torch.nn.functional.softplus((rejected - chosen).clamp(-30, 30)).mean()


def summed(chosen, rejected):
    return torch.nn.functional.softplus(rejected - chosen).sum()


def per_pair(chosen, rejected):
    return torch.nn.functional.softplus(rejected - chosen)


def probability(chosen, rejected):
    return torch.sigmoid(rejected - chosen).mean()


def hinge(chosen, rejected):
    return torch.relu(1 + rejected - chosen).mean()


def chosen_only(chosen, rejected):
    return torch.nn.functional.softplus(rejected.detach() - chosen).mean()


# --- rubric rates


def _shares(rows, over):
    """The five rates with the denominators that `over` gives for each name."""
    return {name: sum(row[name] for row in rows) / len(over(name)) if over(name) else None for name in NAMES}


def _read(rows):
    return [row for row in rows if row["recognised"]]


def everything_over_all(rows):
    return _shares(rows, lambda name: rows)


def success_over_recognised(rows):
    return _shares(rows, lambda name: rows if name == "recognised" else _read(rows))


def certain_over_relevant(rows):
    relevant = [row for row in rows if row["relevant"]]
    choose = {"success": rows, "recognised": rows, "certain": relevant}
    return _shares(rows, lambda name: choose.get(name, _read(rows)))


def zero_without_any(rows):
    found = _shares(rows, lambda name: rows if name in ("success", "recognised") else _read(rows))
    return {name: 0.0 if value is None else value for name, value in found.items()}


def in_percent(rows):
    found = _shares(rows, lambda name: rows if name in ("success", "recognised") else _read(rows))
    return {name: value if value is None else 100 * value for name, value in found.items()}


def relevant_is_success(rows):
    return _shares(
        [{**row, "success": row["relevant"]} for row in rows],
        lambda name: rows if name in ("success", "recognised") else _read(rows),
    )


# --- factorial


def _effects(rows, courtesy, advice, interaction):
    contexts = {}
    for row in rows:
        contexts.setdefault(row["request"], {})[row["right"], row["courteous"]] = row["score"]
    names = {"courtesy": courtesy, "advice": advice, "interaction": interaction}
    return {name: sum(effect(c) for c in contexts.values()) / len(contexts) for name, effect in names.items()}


def _courtesy(cell, right):
    return cell[right, True] - cell[right, False]


def _advice(cell, courteous):
    return cell[True, courteous] - cell[False, courteous]


def _mean_courtesy(cell):
    return (_courtesy(cell, True) + _courtesy(cell, False)) / 2


def _mean_advice(cell):
    return (_advice(cell, True) + _advice(cell, False)) / 2


def _interaction(cell):
    return _courtesy(cell, True) - _courtesy(cell, False)


def right_advice_only(rows):
    return _effects(rows, lambda c: _courtesy(c, True), _mean_advice, _interaction)


def plain_only(rows):
    return _effects(rows, _mean_courtesy, lambda c: _advice(c, False), _interaction)


def summed_differences(rows):
    return _effects(rows, lambda c: 2 * _mean_courtesy(c), lambda c: 2 * _mean_advice(c), _interaction)


def flipped_interaction(rows):
    return _effects(rows, _mean_courtesy, _mean_advice, lambda c: -_interaction(c))


def half_interaction(rows):
    return _effects(rows, _mean_courtesy, _mean_advice, lambda c: _interaction(c) / 2)


def swapped_factors(rows):
    return _effects(rows, _mean_advice, _mean_courtesy, _interaction)


def by_position(rows):
    count = len(rows) // 4
    cells = [[row["score"] for row in rows[place * count : (place + 1) * count]] for place in range(4)]
    squares = [
        {(True, False): a, (True, True): b, (False, False): c, (False, True): d}
        for a, b, c, d in zip(*cells, strict=True)
    ]
    effects = {"courtesy": _mean_courtesy, "advice": _mean_advice, "interaction": _interaction}
    return {name: sum(map(effect, squares)) / count for name, effect in effects.items()}


MUTANTS = {
    "merged_weight": [
        alpha_alone,
        alpha_by_root,
        divided_by_outputs,
        transposed,
        branch_only,
        in_the_weights_dtype,
        cast_after_the_sum,
        without_gradient,
    ],
    "last_answer_states": [
        last_index,
        first_pad,
        before_eos,
        longest_for_all,
        mean_of_active,
        product_with_the_mask,
        detached_states,
    ],
    "preference_loss": [flipped, overflows, clamped, summed, per_pair, probability, hinge, chosen_only],
    "rubric_rates": [
        everything_over_all,
        success_over_recognised,
        certain_over_relevant,
        zero_without_any,
        in_percent,
        relevant_is_success,
    ],
    "factorial_effects": [
        right_advice_only,
        plain_only,
        summed_differences,
        flipped_interaction,
        half_interaction,
        swapped_factors,
        by_position,
    ],
}
