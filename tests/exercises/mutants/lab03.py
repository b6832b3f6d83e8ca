"""Plausible wrong answers to the exercises of lab 03, by exercise; the check has to reject each of them."""

import math

import torch

from labs_lib.exercises.lab03 import needed_names

# --- learning rate


def late_warmup(update, total, peak, warmup=0.1, final=0.1):
    steps = max(1, round(total * warmup))
    if update < steps:
        return peak * update / steps
    return peak * (1 - (1 - final) * (update - steps) / (total - steps))


def no_warmup(update, total, peak, warmup=0.1, final=0.1):
    return peak * (1 - (1 - final) * (update + 1) / total)


def falls_to_zero(update, total, peak, warmup=0.1, final=0.1):
    steps = max(1, round(total * warmup))
    return peak * min((update + 1) / steps, 1 - (update + 1 - steps) / (total - steps))


def cosine(update, total, peak, warmup=0.1, final=0.1):
    steps = max(1, round(total * warmup))
    if update < steps:
        return peak * (update + 1) / steps
    share = (update + 1 - steps) / (total - steps)
    return peak * (final + (1 - final) * (1 + math.cos(math.pi * share)) / 2)


def fixed_fractions(update, total, peak, warmup=0.1, final=0.1):
    steps = max(1, round(total * 0.1))
    if update < steps:
        return peak * (update + 1) / steps
    return peak * (1 - 0.9 * (update + 1 - steps) / (total - steps))


def may_have_no_warmup(update, total, peak, warmup=0.1, final=0.1):
    steps = round(total * warmup)
    if update < steps:
        return peak * (update + 1) / steps
    return peak * (1 - (1 - final) * (update + 1 - steps) / (total - steps))


# --- micro-batch losses


def mean_of_means(logprobs, masks):
    parts = zip(logprobs, masks, strict=True)
    return [-torch.where(mask, part, 0.0).sum() / mask.sum() / len(masks) for part, mask in parts]


def each_its_own_mean(logprobs, masks):
    return [-torch.where(mask, part, 0.0).sum() / mask.sum() for part, mask in zip(logprobs, masks, strict=True)]


def padding_in_the_denominator(logprobs, masks):
    places = sum(mask.numel() for mask in masks)
    return [-torch.where(mask, part, 0.0).sum() / places for part, mask in zip(logprobs, masks, strict=True)]


def flipped_sign(logprobs, masks):
    active = sum(int(mask.sum()) for mask in masks)
    return [torch.where(mask, part, 0.0).sum() / active for part, mask in zip(logprobs, masks, strict=True)]


def product_with_the_mask(logprobs, masks):
    active = sum(int(mask.sum()) for mask in masks)
    return [-(part * mask).sum() / active for part, mask in zip(logprobs, masks, strict=True)]


def detached(logprobs, masks):
    active = sum(int(mask.sum()) for mask in masks)
    return [-torch.where(mask, part, 0.0).detach().sum() / active for part, mask in zip(logprobs, masks, strict=True)]


def mask_shifted(logprobs, masks):
    active = sum(int(mask.sum()) for mask in masks)
    shifted = [mask.roll(1, dims=1) for mask in masks]
    return [-torch.where(mask, part, 0.0).sum() / active for part, mask in zip(logprobs, shifted, strict=True)]


def zeros(logprobs, masks):
    return [part.sum() * 0 for part in logprobs]


# --- missing from a state


def _without(*prefixes):
    def missing(parameters, generators, saved):
        needed = needed_names(parameters, generators)
        return sorted(n for n in needed if n not in saved and not n.startswith(prefixes))

    missing.__name__ = f"forgets_{'_'.join(prefixes)}"
    return missing


def unsorted(parameters, generators, saved):
    return [name for name in needed_names(parameters, generators) if name not in saved]


def returns_the_saved(parameters, generators, saved):
    return sorted(name for name in needed_names(parameters, generators) if name in saved)


def symmetric_difference(parameters, generators, saved):
    return sorted(set(needed_names(parameters, generators)) ^ set(saved))


# --- pass@1


def best_of_four(rows):
    solved = {}
    for row in rows:
        key = row["population"], row["problem"]
        solved[key] = max(solved.get(key, 0), row["reward"])
    table = {p: [v for (q, _), v in solved.items() if q == p] for p, _ in solved}
    table["ALL"] = list(solved.values())
    return {name: sum(values) / len(values) for name, values in table.items()}


def valid_ones_only(rows):
    return _by_population([row for row in rows if row["reason"] in ("correct", "wrong_value")])


def first_sample_only(rows):
    seen, kept = set(), []
    for row in rows:
        if row["problem"] not in seen:
            seen.add(row["problem"])
            kept.append(row)
    return _by_population(kept)


def mean_of_populations(rows):
    table = {name: value for name, value in _by_population(rows).items() if name != "ALL"}
    return table | {"ALL": sum(table.values()) / len(table)}


def in_percent(rows):
    return {name: 100 * value for name, value in _by_population(rows).items()}


def without_total(rows):
    return {name: value for name, value in _by_population(rows).items() if name != "ALL"}


def _by_population(rows):
    names = sorted({row["population"] for row in rows})
    table = {name: [row["reward"] for row in rows if row["population"] == name] for name in names}
    table["ALL"] = [row["reward"] for row in rows]
    return {name: sum(values) / len(values) for name, values in table.items()}


# --- mixed groups


def some_right(p, group_size):
    return 1 - (1 - p) ** group_size


def not_all_right(p, group_size):
    return 1 - p**group_size


def exactly_one_right(p, group_size):
    return group_size * p * (1 - p) ** (group_size - 1)


def pairs_only(p, group_size):
    return 2 * p * (1 - p)


def all_equal(p, group_size):
    return p**group_size + (1 - p) ** group_size


MUTANTS = {
    "learning_rate": [late_warmup, no_warmup, falls_to_zero, cosine, fixed_fractions, may_have_no_warmup],
    "micro_batch_losses": [
        mean_of_means,
        each_its_own_mean,
        padding_in_the_denominator,
        flipped_sign,
        product_with_the_mask,
        detached,
        mask_shifted,
        zeros,
    ],
    "missing_from_state": [
        _without("generator."),
        _without("adamw.step."),
        _without("adamw.exp_avg."),
        _without("adamw.exp_avg_sq."),
        _without("record.cursor"),
        _without("record."),
        unsorted,
        returns_the_saved,
        symmetric_difference,
    ],
    "pass_at_1": [best_of_four, valid_ones_only, first_sample_only, mean_of_populations, in_percent, without_total],
    "mixed_share": [some_right, not_all_right, exactly_one_right, pairs_only, all_equal],
}
