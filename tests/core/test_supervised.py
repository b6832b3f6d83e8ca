"""Supervised fine-tuning: what is scored, how it is averaged, and which epoch sees what."""

import copy
from dataclasses import replace

import pytest
import torch
from small_model import EPOCH, PROFILE, SFT, examples, in_double, sft_trainer, tokenizer

from labs_lib.errors import LabError, VerificationError
from labs_lib.training.supervised import (
    SupervisedExample,
    SupervisedTrainer,
    accumulate_gradient,
    mean_nll,
    pad_targets,
    target_logprobs,
)

EOS_ID, PAD_ID = tokenizer().eos_token_id, tokenizer().pad_token_id
BATCH = examples(10, 8)


@torch.no_grad()
def nll_by_hand(policy, example):
    """Negative log-likelihood of every target token, from one unpadded sequence."""
    sequence = [*example.prompt, *example.target]
    logp = policy(input_ids=torch.tensor([sequence])).logits[0].double().log_softmax(-1)
    start = len(example.prompt)
    return [-float(logp[start + t - 1, token]) for t, token in enumerate(example.target)]


# --- What is scored ------------------------------------------------------------------------------------------


def test_every_target_token_and_its_eos_is_scored_and_nothing_else(policy):
    logprobs, mask = target_logprobs(policy, BATCH, PAD_ID)
    assert mask.sum(1).tolist() == [len(example.target) for example in BATCH]
    for row, example in enumerate(BATCH):
        expected = [-nll for nll in nll_by_hand(policy, example)]
        assert logprobs[row, mask[row]].tolist() == pytest.approx(expected, abs=1e-4)
    assert (logprobs[~mask] == 0).all()


@pytest.mark.parametrize("pad_id", [PAD_ID, EOS_ID])
def test_masks_are_made_by_position(policy, pad_id):
    """A PAD inside of a target and, where PAD is EOS, the real EOS stay supervised."""
    batch = [
        SupervisedExample("inside", [5, 6], [9, pad_id, 11, EOS_ID]),
        SupervisedExample("short", [5, 6, 7], [9, EOS_ID]),
    ]
    ids, mask = pad_targets([example.target for example in batch], pad_id)
    assert mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert ids[1, 2:].tolist() == [pad_id] * 2
    assert not torch.equal(mask, ids != pad_id)  # the believable bug
    found = mean_nll(policy, batch, pad_id)
    losses = [nll for example in batch for nll in nll_by_hand(policy, example)]
    assert found == pytest.approx(sum(losses) / len(losses), abs=1e-4)


def test_train_mode_is_refused(policy):
    with pytest.raises(VerificationError, match="train"):
        accumulate_gradient(policy.train(), BATCH, 4, PAD_ID)


# --- Means -----------------------------------------------------------------------------------------------------


def gradient(policy, accumulate):
    policy = copy.deepcopy(policy)
    nll = accumulate(policy)
    return nll, torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


def distance(first, second):
    return float((first - second).abs().max() / second.abs().max())


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3, 8])
def test_any_split_gives_the_gradient_of_the_mean_over_all_tokens(policy, micro_batch_size):
    def all_at_once(model):
        logprobs, mask = target_logprobs(model, BATCH, PAD_ID)
        loss = -logprobs[mask].mean()
        loss.backward()
        return loss.item()

    for model, tolerance in ((in_double(policy), 1e-6), (policy, 2e-5)):
        nll, whole = gradient(model, all_at_once)
        split_nll, split = gradient(model, lambda model: accumulate_gradient(model, BATCH, micro_batch_size, PAD_ID))
        assert distance(split, whole) < tolerance
        assert split_nll == pytest.approx(nll, rel=1e-6)


def mean_of_micro_batch_means(model, size=2):
    parts = [BATCH[start : start + size] for start in range(0, len(BATCH), size)]
    for part in parts:
        logprobs, mask = target_logprobs(model, part, PAD_ID)
        (-logprobs[mask].mean() / len(parts)).backward()


def mean_of_answer_means(model):
    mean_of_micro_batch_means(model, size=1)


@pytest.mark.parametrize("mutant", [mean_of_micro_batch_means, mean_of_answer_means])
def test_means_of_means_are_noticed(policy, mutant):
    _, whole = gradient(policy, lambda model: accumulate_gradient(model, BATCH, 8, PAD_ID))
    assert distance(gradient(policy, mutant)[1], whole) > 1e-2


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_validation_nll_is_a_mean_over_tokens(policy, batch_size):
    losses = [nll_by_hand(policy, example) for example in BATCH]
    by_token = sum(map(sum, losses)) / sum(map(len, losses))
    by_answer = sum(sum(row) / len(row) for row in losses) / len(losses)
    found = mean_nll(policy, BATCH, PAD_ID, batch_size)
    assert found == pytest.approx(by_token, abs=1e-4) and found != pytest.approx(by_answer, abs=1e-2)


# --- Epochs ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    trainer = sft_trainer()
    first = copy.deepcopy(trainer.model)
    nlls = []
    for _ in range(SFT.updates):
        trainer.advance()
        nlls.append(mean_nll(trainer.model, trainer.validation_examples, PAD_ID))
    return trainer, first, nlls


def test_an_epoch_sees_every_example_once_in_another_order(trained):
    history = trained[0].history
    epochs = [
        [name for row in history[start : start + EPOCH] for name in row["examples"]]
        for start in range(0, len(history), EPOCH)
    ]
    assert all(sorted(epoch) == sorted(f"example-{n}" for n in range(SFT.examples)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs) == SFT.epochs


def test_validation_follows_each_epoch_and_selects_nothing(trained):
    trainer, _, nlls = trained
    assert trainer.validation == nlls[EPOCH - 1 :: EPOCH]
    assert trainer.step == SFT.updates == len(trainer.seconds)


def test_training_learns_its_examples(trained):
    trainer, first, _ = trained
    assert mean_nll(trainer.model, trainer.examples, PAD_ID) < mean_nll(first, trainer.examples, PAD_ID) - 0.5


def test_history_holds_the_nll_before_each_update(trained):
    trainer, first, _ = trained
    names = trainer.history[0]["examples"]
    batch = [example for example in trainer.examples if example.name in names]
    assert trainer.history[0]["nll"] == pytest.approx(mean_nll(first, batch, PAD_ID), abs=1e-4)


def test_an_incomplete_last_batch_is_an_update_of_its_own():
    settings = replace(SFT, examples=10, epochs=1)
    trainer = sft_trainer(settings=settings)
    for _ in range(settings.updates):
        trainer.advance()
    assert [len(row["examples"]) for row in trainer.history] == [4, 4, 2]
    assert len(trainer.validation) == 1


def test_another_number_of_examples_than_planned_is_refused(policy):
    """The schedule would end too early or too late."""
    with pytest.raises(LabError, match="12 examples and got 5"):
        SupervisedTrainer(policy, examples(1, 5), [], SFT, PROFILE.optimizer, 48, "sft", PAD_ID)
