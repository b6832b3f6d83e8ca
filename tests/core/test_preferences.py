"""Learning from pairs: what is scored, what the gradient is, and which policy DPO compares with."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from small_model import PROFILE, id_lists, in_double, small_model
from small_office import EOS_ID, PAD_ID, preferences, small_actor, small_judge
from small_trainers import DPO, EPOCH, JUDGE, dpo_trainer, judge_trainer
from torch.nn.functional import softplus

from labs_lib.errors import LabError, VerificationError
from labs_lib.models.roles import learned_tensors
from labs_lib.training import preferences as preferences_module
from labs_lib.training.preferences import DpoTrainer, JudgeTrainer, pair_logprobs, pair_scores, score_pairs
from labs_lib.training.supervised import pad_targets

PAIRS = preferences(30, 6)


# --- Plain code: one answer, one whole sequence ---------------------------------------------------------------


def plain_score(judge, prompt, answer):
    """The judge's head on the state that has read the last token of one unpadded sequence."""
    hidden = judge.backbone.model(input_ids=torch.tensor([[*prompt, *answer]])).last_hidden_state
    return hidden[0, -1].float() @ judge.head.weight[0] + judge.head.bias[0]


def plain_logprob(policy, prompt, answer):
    """The sum over the answer's tokens, EOS included, from one unpadded sequence."""
    logp = policy(input_ids=torch.tensor([[*prompt, *answer]])).logits[0].log_softmax(-1)
    return sum(logp[len(prompt) + t - 1, token] for t, token in enumerate(answer))


def plainly(measure, model, pairs):
    """(N, 2) of `measure`, an answer at a time: chosen beside rejected."""
    rows = [[measure(model, pair.prompt, answer) for answer in (pair.chosen, pair.rejected)] for pair in pairs]
    return torch.stack([torch.stack(row) for row in rows])


def learning(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def gradient_of(model, loss):
    """One vector: the gradient of `loss`, or what was accumulated already, by all that learns."""
    model.zero_grad(set_to_none=True)
    value = loss(model)
    if isinstance(value, torch.Tensor):
        value.backward()
    return torch.cat([parameter.grad.flatten() for parameter in learning(model)])


def distance(first, second):
    return float((first - second).abs().max() / second.abs().max())


# --- What is scored -------------------------------------------------------------------------------------------


def model_for(measure):
    return small_judge(50, learned=True) if measure is plain_score else small_actor(49, learned=True)


CASES = [(pair_scores, plain_score), (pair_logprobs, plain_logprob)]


def values_and_gradient_agree(batched, plain, model):
    """By weights that differ in every place, so that no two answers can change theirs."""
    weights = torch.linspace(-1.0, 2.0, 2 * len(PAIRS)).view(-1, 2)
    expected, found = plainly(plain, model, PAIRS), batched(model, PAIRS, PAD_ID)
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
        return False
    wanted = gradient_of(model, lambda model: (plainly(plain, model, PAIRS) * weights).sum())
    return distance(gradient_of(model, lambda model: (batched(model, PAIRS, PAD_ID) * weights).sum()), wanted) < 1e-3


@pytest.mark.parametrize("batched, plain", CASES)
def test_a_pair_is_scored_as_its_answers_alone(batched, plain):
    assert values_and_gradient_agree(batched, plain, model_for(plain))


def sides_changed(model, pairs, pad):
    return pair_logprobs(model, pairs, pad).flip(1)


def both_sides_in_a_row(model, pairs, pad):
    """All chosen answers and then all rejected ones, read as if they stood beside each other."""
    return pair_logprobs(model, pairs, pad).T.reshape(-1, 2)


def mean_over_tokens(model, pairs, pad):
    lengths = torch.tensor([[len(pair.chosen), len(pair.rejected)] for pair in pairs])
    return pair_logprobs(model, pairs, pad) / lengths


def without_eos(model, pairs, pad):
    shorter = [replace(pair, chosen=pair.chosen[:-1], rejected=pair.rejected[:-1]) for pair in pairs]
    return pair_logprobs(model, shorter, pad)


@pytest.mark.parametrize("mutant", [sides_changed, both_sides_in_a_row, mean_over_tokens, without_eos])
def test_other_log_probabilities_of_an_answer_are_noticed(mutant):
    assert not values_and_gradient_agree(mutant, plain_logprob, model_for(plain_logprob))


def the_padded_batchs_last_state(judge, pairs, pad):
    answers = [answer for pair in pairs for answer in (pair.chosen, pair.rejected)]
    ids, _ = pad_targets(answers, pad)
    everything = torch.ones_like(ids, dtype=torch.bool)
    return preferences_module.answer_scores(judge, [pair.prompt for pair in pairs], ids, everything, pad).view(-1, 2)


def before_eos(judge, pairs, pad):
    shorter = [replace(pair, chosen=pair.chosen[:-1], rejected=pair.rejected[:-1]) for pair in pairs]
    return pair_scores(judge, shorter, pad)


@pytest.mark.parametrize("mutant", [the_padded_batchs_last_state, before_eos])
def test_a_score_read_elsewhere_is_noticed(mutant):
    assert not values_and_gradient_agree(mutant, plain_score, model_for(plain_score))


def test_many_pairs_are_scored_in_parts_of_the_same_order(monkeypatch):
    judge = model_for(plain_score)
    whole = score_pairs(judge, PAIRS, PAD_ID)
    assert not whole.requires_grad
    monkeypatch.setattr(preferences_module, "PAIRS_AT_ONCE", 3)
    torch.testing.assert_close(score_pairs(judge, PAIRS, PAD_ID), whole, rtol=0, atol=1e-5)


# --- The loss of a batch --------------------------------------------------------------------------------------


def batch_trainer(kind, micro_batch_size, double=False):
    """A trainer of six pairs; DPO's policy has left its reference. In FP64 there are no adapters: those are FP32."""
    if kind == "judge":
        settings = replace(JUDGE, examples=6, micro_batch_size=micro_batch_size)
        return judge_trainer(settings=settings)
    settings = replace(DPO, examples=6, micro_batch_size=micro_batch_size)
    if double:
        roles = {"policy": in_double(small_model()), "reference": in_double(small_model(seed=1))}
    else:
        roles = {"policy": small_actor(1, learned=True), "reference": small_actor(2, learned=True)}
    return dpo_trainer(settings=settings, **roles)


def judge_loss(judge, pairs):
    """The mean of log(1 + e^-(chosen - rejected)), written out."""
    scores = plainly(plain_score, judge, pairs)
    return softplus(scores[:, 1] - scores[:, 0]).mean()


def dpo_loss_by_hand(policy, reference, pairs, beta=DPO.beta, plain=plain_logprob):
    """Equation 7 of Rafailov et al. (2023), term by term."""
    now = plainly(plain, policy, pairs)
    with torch.no_grad():
        before = plainly(plain, reference, pairs)
    chosen, rejected = (now - before).unbind(1)
    return softplus(-(beta * chosen - beta * rejected)).mean()


@pytest.mark.parametrize("kind, double", [("judge", False), ("dpo", True)])
@pytest.mark.parametrize("micro_batch_size", [1, 3, 4])
def test_any_split_gives_the_loss_and_gradient_of_the_mean_over_all_pairs(kind, double, micro_batch_size):
    whole, split = batch_trainer(kind, 6, double), batch_trainer(kind, micro_batch_size, double)
    wanted = gradient_of(whole.model, lambda _: whole.accumulate(PAIRS))
    assert distance(gradient_of(split.model, lambda _: split.accumulate(PAIRS)), wanted) < (1e-6 if double else 2e-5)
    assert split.accumulate(PAIRS)["loss"] == pytest.approx(whole.accumulate(PAIRS)["loss"], rel=1e-5)


@pytest.mark.parametrize("kind", ["judge", "dpo"])
def test_a_mean_of_micro_batch_means_is_noticed(kind):
    """Parts of four pairs and of two."""
    trainer = batch_trainer(kind, 4)
    right = gradient_of(trainer.model, lambda _: trainer.accumulate(PAIRS))
    parts = [PAIRS[:4], PAIRS[4:]]

    def mutant(_):
        losses = [trainer.accumulate(part)["loss"] for part in parts]
        for parameter in learning(trainer.model):
            parameter.grad /= len(parts)
        return sum(losses) / len(parts)

    assert distance(gradient_of(trainer.model, mutant), right) > 1e-2


def test_the_judges_loss_and_gradient_are_those_written_out():
    trainer = batch_trainer("judge", 4)
    wanted = gradient_of(trainer.model, lambda judge: judge_loss(judge, PAIRS))
    assert distance(gradient_of(trainer.model, lambda _: trainer.accumulate(PAIRS)), wanted) < 1e-3
    measured = trainer.accumulate(PAIRS)
    scores = plainly(plain_score, trainer.model, PAIRS)
    assert measured["loss"] == pytest.approx(judge_loss(trainer.model, PAIRS).item(), abs=1e-5)
    assert measured["accuracy"] == (scores[:, 0] > scores[:, 1]).double().mean().item() not in (0, 1)


def test_dpos_loss_and_gradient_are_those_written_out():
    trainer = batch_trainer("dpo", 4)
    reference = small_actor(2, learned=True)
    wanted = gradient_of(trainer.model, lambda policy: dpo_loss_by_hand(policy, reference, PAIRS))
    assert distance(gradient_of(trainer.model, lambda _: trainer.accumulate(PAIRS)), wanted) < 1e-3
    by_hand = dpo_loss_by_hand(trainer.model, reference, PAIRS).item()
    assert trainer.accumulate(PAIRS)["loss"] == pytest.approx(by_hand, abs=1e-5)
    assert abs(by_hand - math.log(2)) > 1e-2


def plain_mean(policy, prompt, answer):
    return plain_logprob(policy, prompt, answer) / len(answer)


@pytest.mark.parametrize(
    "changes",
    [{"plain": plain_mean}, {"beta": 1.0}, {"reference": None}],
    ids=["mean of the tokens", "without beta", "policy as reference"],
)
def test_another_dpo_objective_is_noticed(changes):
    trainer = batch_trainer("dpo", 6)
    right = gradient_of(trainer.model, lambda _: trainer.accumulate(PAIRS))

    def mutant(policy):
        reference = changes.get("reference", small_actor(2, learned=True)) or policy
        kept = {name: value for name, value in changes.items() if name != "reference"}
        return dpo_loss_by_hand(policy, reference, PAIRS, **kept)

    assert distance(gradient_of(trainer.model, mutant), right) > 1e-2


@pytest.mark.parametrize("kind", ["judge", "dpo"])
def test_train_mode_is_refused(kind):
    trainer = batch_trainer(kind, 6)
    trainer.model.train()
    with pytest.raises(VerificationError, match="train"):
        trainer.accumulate(PAIRS)


def test_another_number_of_pairs_than_planned_is_refused():
    rest = PAIRS, [], DPO, PROFILE.optimizer, 48
    with pytest.raises(LabError, match="judge needs 12 examples and got 6"):
        JudgeTrainer(small_judge(50), *rest, "judge", PAD_ID)
    with pytest.raises(LabError, match="dpo needs 12 examples and got 6"):
        DpoTrainer(small_actor(49), small_actor(49), *rest, "dpo", PAD_ID)


# --- DPO's reference ------------------------------------------------------------------------------------------


def reference_of(trainer):
    return torch.stack([trainer.reference_logprobs[pair.name] for pair in trainer.examples])


def test_the_reference_is_scored_once_and_never_changes():
    reference = small_actor(49, learned=True)
    trainer = dpo_trainer(reference=reference)
    first = reference_of(trainer)

    def again(*arguments, **keywords):
        raise AssertionError("the reference was scored again")

    reference.forward = reference.model.forward = again
    for _ in range(DPO.updates):
        trainer.advance()
    assert torch.equal(reference_of(trainer), first) and not first.requires_grad
    start = small_actor(49, learned=True)
    torch.testing.assert_close(first, plainly(plain_logprob, start, trainer.examples).detach(), rtol=0, atol=1e-4)
    assert (plainly(plain_logprob, trainer.model, trainer.examples) - first).abs().max() > 0.1


def compared_with_the_start(trainer, start, history):
    """The first loss is log 2, and each later one is that of the policy then against the start's own log-probs.

    `history` holds the losses of the whole set before each update.
    """
    by_hand = dpo_loss_by_hand(trainer.model, start, trainer.examples).item()
    first_is_even = abs(history[0] - math.log(2)) < 1e-4
    return first_is_even and abs(history[-1] - by_hand) < 1e-4 and abs(by_hand - math.log(2)) > 1e-2


def losses_while_training(trainer_class):
    trainer = dpo_trainer(trainer_class)
    start, losses = copy.deepcopy(trainer.model), []
    for update in range(DPO.updates + 1):
        logprobs = pair_logprobs(trainer.model, trainer.examples, PAD_ID).detach()
        losses.append(trainer.compare(trainer.examples, logprobs).loss.mean().item())
        if update < DPO.updates:
            trainer.advance()
    return trainer, start, losses


class ComparesWithItself(DpoTrainer):
    """The current policy is its own reference: the margin is 0 whatever was learned, and beta bounds nothing."""

    def compare(self, pairs, logprobs):
        self.reference_logprobs |= dict(zip((pair.name for pair in pairs), logprobs.detach().unbind(), strict=True))
        return super().compare(pairs, logprobs)


def test_dpo_compares_with_its_start():
    assert compared_with_the_start(*losses_while_training(DpoTrainer))


def test_a_reference_that_follows_the_policy_is_noticed():
    trainer, start, losses = losses_while_training(ComparesWithItself)
    assert losses == pytest.approx([math.log(2)] * len(losses), abs=1e-6)
    assert not compared_with_the_start(trainer, start, losses)


# --- Learning -------------------------------------------------------------------------------------------------


def toy_pairs(seed, count, name):
    """What holds for every pair: the chosen answer begins with one token, the rejected one with another.

    Prompts differ but for their ends, as under a chat template.
    """
    good, bad, rest = 10, 20, id_lists(seed + 1, count, 1, 3)
    answers = [([good, *ids, EOS_ID], [bad, *ids, EOS_ID]) for ids in rest]
    prompts = [[*ids, 30, 31] for ids in id_lists(seed, count)]
    return [
        preferences_module.PreferenceExample(f"{name}-{n}", prompt, *both)
        for n, (prompt, both) in enumerate(zip(prompts, answers, strict=True))
    ]


def toy_trainer(kind):
    train, validation = toy_pairs(70, 12, "train"), toy_pairs(80, 10, "validation")
    rest = PROFILE.optimizer, 48, kind, PAD_ID
    if kind == "judge":
        return JudgeTrainer(small_judge(50), train, validation, replace(JUDGE, epochs=4), *rest)
    return DpoTrainer(small_actor(49), small_actor(49), train, validation, replace(DPO, epochs=4, beta=0.5), *rest)


@pytest.mark.parametrize("kind", ["judge", "dpo"])
def test_what_holds_for_every_pair_is_learned_and_holds_for_new_prompts(kind):
    trainer = toy_trainer(kind)
    before = trainer.validate()
    while trainer.step < trainer.total_steps:
        trainer.advance()
    after = trainer.validation[-1]
    assert len(trainer.validation) == trainer.settings.epochs
    assert trainer.history[-1]["loss"] < 0.5 * trainer.history[0]["loss"]
    assert after["loss"] < 0.85 * before["loss"] and after["accuracy"] >= 0.8 > before["accuracy"]


@pytest.mark.parametrize("kind", ["judge", "dpo"])
def test_validation_is_the_mean_over_the_validation_pairs(kind, monkeypatch):
    trainer = judge_trainer() if kind == "judge" else dpo_trainer(policy=small_actor(1, learned=True))
    monkeypatch.setattr(preferences_module, "PAIRS_AT_ONCE", 2)  # parts of two, two and one
    pairs, found = trainer.validation_examples, trainer.validate()
    if kind == "judge":
        scores = plainly(plain_score, trainer.model, pairs).detach()
        loss, ahead = judge_loss(trainer.model, pairs), scores[:, 0] > scores[:, 1]
    else:
        start = small_actor(49, learned=True)
        margins = (plainly(plain_logprob, trainer.model, pairs) - plainly(plain_logprob, start, pairs)).detach()
        loss, ahead = dpo_loss_by_hand(trainer.model, start, pairs), margins[:, 0] > margins[:, 1]
    assert found["loss"] == pytest.approx(loss.item(), abs=1e-4)
    assert found["accuracy"] == pytest.approx(ahead.double().mean().item())


@pytest.mark.parametrize("make", [judge_trainer, dpo_trainer])
def test_an_epoch_sees_every_pair_once_and_only_adapters_and_head_learn(make):
    trainer = make()
    learned = set(learned_tensors(trainer.model))
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    for _ in range(EPOCH):
        trainer.advance()
    seen = [name for row in trainer.history for name in row["examples"]]
    assert sorted(seen) == sorted(pair.name for pair in trainer.examples)
    moved = {name for name, tensor in trainer.model.named_parameters() if not torch.equal(tensor, before[name])}
    # The first update moves no A where B is zero, the third has moved all; the head's bias cancels in every pair.
    assert moved == learned - {"head.bias"}
