"""Plausible wrong answers to the exercises of lab 05, by exercise; the check has to reject each of them."""

import torch

from exercises.mutants import named

# --- token rewards


def rewards_of(log_ratio=1, score=1, penalty=1, last=None):
    """The right function with one thing changed: a sign, or where the score goes."""

    def function(old, reference, scores, truncated, mask, kl_weight, truncation_penalty):
        paid = torch.where(mask, -log_ratio * kl_weight * (old - reference), 0.0).detach()
        place = mask.sum(dim=1) - 1 if last is None else last(mask)
        paid[torch.arange(len(mask)), place] += score * scores - penalty * truncation_penalty * truncated
        return paid

    return function


def score_on_every_token(old, reference, scores, truncated, mask, kl_weight, penalty):
    paid = -kl_weight * (old - reference) + (scores - penalty * truncated)[:, None]
    return torch.where(mask, paid, 0.0)


def product_with_the_mask(old, reference, scores, truncated, mask, kl_weight, penalty):
    paid = -kl_weight * (old - reference) * mask
    paid[torch.arange(len(mask)), mask.sum(dim=1) - 1] += scores - penalty * truncated
    return paid


def keeps_the_graph(old, reference, scores, truncated, mask, kl_weight, penalty):
    paid = torch.where(mask, -kl_weight * (old - reference), 0.0)
    end = torch.nn.functional.one_hot(mask.sum(dim=1) - 1, mask.shape[1])
    return paid + end * (scores - penalty * truncated)[:, None]


def zero_rewards(old, reference, scores, truncated, mask, kl_weight, penalty):
    return torch.zeros(mask.shape)


# --- advantages


def gae_of(padded_too=False, end=0.0, whiten=False, returns_of=None, keep=False, forget_gamma=False, power=1):
    """The right function with one thing changed."""

    def function(rewards, values, mask, gamma, gae_lambda):
        if not keep:
            rewards, values = rewards.detach(), values.detach()
        if not padded_too:
            rewards, values = torch.where(mask, rewards, 0.0), torch.where(mask, values, 0.0)
        columns, next_value, next_advantage = [], torch.full((len(mask),), end), torch.zeros(len(mask))
        discount = 1.0 if forget_gamma else gamma
        for t in reversed(range(mask.shape[1])):
            active = mask[:, t] | padded_too
            delta = rewards[:, t] + discount * next_value - values[:, t]
            advantage = delta + discount * gae_lambda**power * next_advantage
            columns.insert(0, torch.where(mask[:, t], advantage, 0.0))
            next_value = torch.where(active, values[:, t], next_value)
            next_advantage = torch.where(active, advantage, next_advantage)
        advantages = torch.stack(columns, dim=1)
        if whiten:
            flat = advantages[mask]
            advantages = torch.where(mask, (advantages - flat.mean()) / flat.std(), 0.0)
        returns = advantages + values if returns_of is None else returns_of(advantages, values)
        return advantages, torch.where(mask, returns, 0.0)

    return function


def whitened_returns(rewards, values, mask, gamma, gae_lambda):
    advantages, _ = gae_of()(rewards, values, mask, gamma, gae_lambda)
    flat = advantages[mask]
    return advantages, torch.where(mask, (advantages - flat.mean()) / flat.std() + values, 0.0)


def forwards(rewards, values, mask, gamma, gae_lambda):
    flipped = [t.flip(1) for t in (rewards, values, mask)]
    return tuple(t.flip(1) for t in gae_of()(*flipped, gamma, gae_lambda))


# --- the critic's loss


def critic_of(half=0.5, reduce="answers", detach_values=False, detach_returns=True, sign=1.0, absolute=False):
    """The right function with one thing changed."""

    def function(values, returns, mask):
        values = values.detach() if detach_values else values
        returns = returns.detach() if detach_returns else returns
        errors = torch.where(mask, sign * (values - returns), 0.0)
        cost = half * (errors.abs() if absolute else errors**2)
        if reduce == "tokens":
            return cost.sum() / mask.sum()
        if reduce == "places":
            return cost.mean()
        return (cost.sum(dim=1) / mask.sum(dim=1)).mean()

    return function


def masked_after_the_square(values, returns, mask):
    cost = torch.where(mask, 0.5 * (values - returns.detach()) ** 2, 0.0)
    return (cost.sum(dim=1) / mask.sum(dim=1)).mean()


def never_learns(values, returns, mask):
    return values.sum() * 0


# --- DPO


def dpo_of(sign=1.0, beta_power=1, references=True, mean=True, detach=False, naive=False, outside=False):
    """The right function with one thing changed."""

    def function(chosen, rejected, reference_chosen, reference_rejected, beta):
        if detach:
            chosen = chosen.detach()
        margin = chosen - rejected
        if references:
            margin = margin - (reference_chosen - reference_rejected)
        margin = sign * beta**beta_power * margin
        loss = -torch.sigmoid(margin).log() if naive else -torch.nn.functional.logsigmoid(margin)
        loss = beta * loss if outside else loss
        return loss.mean() if mean else loss.sum()

    return function


# --- the detector


def windows_of(curve, width, whole=True):
    last = len(curve) // width if whole else -(-len(curve) // width)
    parts = [curve[start * width : (start + 1) * width] for start in range(last)]
    return [sum(part) / len(part) for part in parts]


def detector(whole=True, previous=False, either=False, sign=1, last=False, iterations=False):
    """The right function with one thing changed."""

    def function(paid, rubric, width, paid_margin, rubric_margin):
        width = 1 if iterations else width
        a, b = windows_of(paid, width, whole), windows_of(rubric, width, whole)
        found = []
        for window in range(1, len(a)):
            before = window - 1 if previous else 0
            up, down = a[window] - a[before] > paid_margin, sign * (b[before] - b[window]) > rubric_margin
            if (up or down) if either else (up and down):
                found.append(window)
        return found[-1 if last else 0] if found else None

    return function


def one_based(paid, rubric, width, paid_margin, rubric_margin):
    found = detector()(paid, rubric, width, paid_margin, rubric_margin)
    return None if found is None else found + 1


def an_iteration(paid, rubric, width, paid_margin, rubric_margin):
    found = detector()(paid, rubric, width, paid_margin, rubric_margin)
    return None if found is None else found * width


def never(paid, rubric, width, paid_margin, rubric_margin):
    return None


MUTANTS = {
    "batch_token_rewards": [
        named("log_ratio_flipped", rewards_of(log_ratio=-1)),
        named("without_price", rewards_of(log_ratio=0)),
        named("without_score", rewards_of(score=0)),
        named("penalty_added", rewards_of(penalty=-1)),
        named("no_penalty", rewards_of(penalty=0)),
        named("score_on_the_last_index", rewards_of(last=lambda mask: mask.shape[1] - 1)),
        named("score_on_the_first_token", rewards_of(last=lambda mask: 0)),
        named("score_before_the_last_token", rewards_of(last=lambda mask: (mask.sum(dim=1) - 2).clamp(min=0))),
        score_on_every_token,
        product_with_the_mask,
        keeps_the_graph,
        zero_rewards,
    ],
    "batch_gae": [
        named("padding_enters", gae_of(padded_too=True)),
        named("past_the_end", gae_of(end=0.7)),
        named("whitened", gae_of(whiten=True)),
        named("returns_without_values", gae_of(returns_of=lambda advantages, values: advantages)),
        named("values_subtracted", gae_of(returns_of=lambda advantages, values: advantages - values)),
        named("keeps_the_graph", gae_of(keep=True)),
        named("gamma_forgotten", gae_of(forget_gamma=True)),
        named("lambda_forgotten", gae_of(power=0)),
        named("lambda_squared", gae_of(power=2)),
        whitened_returns,
        forwards,
    ],
    "batch_critic_loss": [
        named("no_half", critic_of(half=1.0)),
        named("second_half", critic_of(half=0.25)),
        named("token_mean", critic_of(reduce="tokens")),
        named("padding_in_the_denominator", critic_of(reduce="places")),
        named("detached", critic_of(detach_values=True)),
        named("moves_its_target", critic_of(detach_returns=False)),
        named("absolute_error", critic_of(absolute=True)),
        masked_after_the_square,
        never_learns,
    ],
    "batch_dpo_loss": [
        named("sides_swapped", dpo_of(sign=-1.0)),
        named("without_beta", dpo_of(beta_power=0)),
        named("beta_squared", dpo_of(beta_power=2)),
        named("beta_outside", dpo_of(outside=True)),
        named("without_references", dpo_of(references=False)),
        named("summed", dpo_of(mean=False)),
        named("chosen_detached", dpo_of(detach=True)),
        named("overflows", dpo_of(naive=True)),
    ],
    "parted_at": [
        named("against_the_window_before", detector(previous=True)),
        named("either_is_enough", detector(either=True)),
        named("rubric_up", detector(sign=-1)),
        named("last_one", detector(last=True)),
        named("single_iterations", detector(iterations=True)),
        named("part_of_a_window", detector(whole=False)),
        one_based,
        an_iteration,
        never,
    ],
}
