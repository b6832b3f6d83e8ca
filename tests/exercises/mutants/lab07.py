"""Plausible wrong answers to the exercises of lab 07, by exercise; the check has to reject each of them."""

from math import sqrt

from exercises.mutants import named

# --- settings of several processes


def settings_with(batch=None, accumulation=None, steps=None):
    """The right function with one formula changed; a formula gets all six arguments."""

    def function(prompts, group_size, processes, at_once, iterations, updates):
        given = (prompts, group_size, processes, at_once, iterations, updates)
        return {
            "per_device_train_batch_size": batch(*given) if batch else at_once * group_size,
            "gradient_accumulation_steps": accumulation(*given) if accumulation else prompts // processes // at_once,
            "max_steps": steps(*given) if steps else iterations * updates,
        }

    return function


# --- k3


def estimate_with(base=None, ratio=None, always=None):
    def k3(now, reference):
        return (reference - now).exp() - (reference - now) - 1

    def function(logprobs, reference, old, corrected):
        value = (base or k3)(logprobs, reference)
        if corrected if always is None else always:
            value = value * (ratio or (lambda now, old: (now - old).exp()))(logprobs, old)
        return value

    return function


MUTANTS = {
    "deviation_factor": [
        named("upside_down", lambda group_size: sqrt(group_size / (group_size - 1))),
        named("not_rooted", lambda group_size: (group_size - 1) / group_size),
        named("fixed", lambda group_size: sqrt(3 / 4)),
        named("one_more", lambda group_size: sqrt(group_size / (group_size + 1))),
        named("percent", lambda group_size: 100 * sqrt((group_size - 1) / group_size)),
    ],
    "process_settings": [
        named("counts_prompts", settings_with(batch=lambda p, g, n, m, i, u: m)),
        named("all_answers", settings_with(batch=lambda p, g, n, m, i, u: p * g)),
        named("forgets_the_processes", settings_with(accumulation=lambda p, g, n, m, i, u: p // m)),
        named("never_accumulates", settings_with(accumulation=lambda p, g, n, m, i, u: 1)),
        named("steps_are_iterations", settings_with(steps=lambda p, g, n, m, i, u: i)),
        named("counts_micro_batches", settings_with(steps=lambda p, g, n, m, i, u: i * u * (p // n // m))),
        named("floats", settings_with(accumulation=lambda p, g, n, m, i, u: p / n / m)),
    ],
    "kl_estimate": [
        named("k1", estimate_with(base=lambda now, ref: now - ref)),
        named("k2", estimate_with(base=lambda now, ref: (now - ref) ** 2 / 2)),
        named("turned_round", estimate_with(base=lambda now, ref: (now - ref).exp() - (now - ref) - 1)),
        named("without_the_1", estimate_with(base=lambda now, ref: (ref - now).exp() - (ref - now))),
        named("detached_ratio", estimate_with(ratio=lambda now, old: (now - old).exp().detach())),
        named("ratio_upside_down", estimate_with(ratio=lambda now, old: (old - now).exp())),
        named("never_corrected", estimate_with(always=False)),
        named("always_corrected", estimate_with(always=True)),
        named("detached", lambda *given: estimate_with()(*given).detach()),
        named("zeros", lambda logprobs, *_: logprobs * 0),
    ],
    "training_bytes": [
        named("no_gradients", lambda n, weight, reference: n * (weight + 8 + reference)),
        named("one_moment", lambda n, weight, reference: n * (2 * weight + 4 + reference)),
        named("moments_like_weights", lambda n, weight, reference: n * (4 * weight + reference)),
        named("always_a_reference", lambda n, weight, reference: n * (2 * weight + 8 + weight)),
        named("reference_learns", lambda n, weight, reference: n * 2 * (weight + 4 + reference)),
        named("gigabytes", lambda n, weight, reference: n * (2 * weight + 8 + reference) / 1e9),
    ],
}
