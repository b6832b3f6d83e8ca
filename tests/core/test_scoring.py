"""Scoring: one definition, two code paths, and the mistakes that shift, drop or detach something."""

import copy

import pytest
import torch
from small_model import id_lists, small_model, tokenizer
from transformers import DynamicCache

from labs_lib import scoring
from labs_lib.errors import VerificationError
from labs_lib.kernels.kl import exact_kl_reference
from labs_lib.rollout import answer_draws, generate
from labs_lib.scoring import (
    answer_hidden,
    answer_hidden_plain,
    masked_hidden,
    score_against_reference,
    unembedding,
)
from labs_lib.seeding import named_generator

EOS_ID, PAD_ID = tokenizer().eos_token_id, tokenizer().pad_token_id
GROUP = 3
PROMPTS = id_lists(2, 4)


@pytest.fixture
def rollout(policy):
    draws = answer_draws(named_generator(48, "scoring"), len(PROMPTS) * GROUP, 6)
    rollout = generate(policy, PROMPTS, GROUP, 6, EOS_ID, PAD_ID, draws)
    assert not rollout.mask.all()  # answers of several lengths
    return rollout


def logprobs(policy, prompts, ids, hidden=answer_hidden):
    logits = hidden(policy, prompts, ids, PAD_ID) @ unembedding(policy).T
    return logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]


# --- The same answer, scored again -----------------------------------------------------------------------


def test_scoring_twice_gives_a_ratio_of_exactly_one(policy, rollout):
    first, second = (logprobs(policy, PROMPTS, rollout.ids) for _ in range(2))
    assert torch.equal((first - second).exp(), torch.ones_like(first))


def test_dropout_in_the_config_changes_nothing_in_eval_mode(rollout):
    policy = small_model(attention_dropout=0.5)
    first, second = (logprobs(policy, PROMPTS, rollout.ids) for _ in range(2))
    assert torch.equal(first, second)
    policy.train()  # the test would notice dropout: this is what it looks like
    assert (logprobs(policy, PROMPTS, rollout.ids) - first)[rollout.mask].abs().max() > 1e-3


def test_captured_and_recomputed_agree(policy, rollout):
    for hidden in (answer_hidden, answer_hidden_plain):
        rescored = logprobs(policy, PROMPTS, rollout.ids, hidden)
        ratio = (rescored - rollout.logprobs)[rollout.mask].exp()
        assert (ratio - 1).abs().max() < 1e-4


def test_alone_and_in_a_batch_agree_to_rounding(policy, rollout):
    together = logprobs(policy, PROMPTS, rollout.ids)
    alone = torch.cat([logprobs(policy, [PROMPTS[r // GROUP]], rollout.ids[r : r + 1]) for r in range(len(together))])
    assert (together - alone)[rollout.mask].abs().max() < 1e-4


# --- Positions ---------------------------------------------------------------------------------------------


def by_hand(policy, prompt, answer, shift=-1):
    """Log-prob of each token from the logits `shift` positions from its own: the one before predicts it."""
    with torch.no_grad():
        logits = policy(input_ids=torch.tensor([[*prompt, *answer]])).logits[0].double()
    return [float(logits[len(prompt) + t + shift].log_softmax(-1)[token]) for t, token in enumerate(answer)]


@pytest.mark.parametrize("hidden", [answer_hidden, answer_hidden_plain])
def test_the_logits_one_position_before_score_a_token(policy, rollout, hidden):
    scored = logprobs(policy, PROMPTS, rollout.ids, hidden)
    for row in range(len(rollout.ids)):
        prompt, answer = PROMPTS[row // GROUP], rollout.answer_ids(row)
        expected = torch.tensor(by_hand(policy, prompt, answer))
        off_by_one = torch.tensor(by_hand(policy, prompt, answer, shift=0))
        found = scored[row, : len(answer)].detach()
        assert (found - expected).abs().max() < 1e-4
        assert (found - off_by_one).abs().max() > 1e-2


def padded_by_seven(policy, ids):
    """Log-probs of one answer alone, and beside a prompt that is seven tokens longer."""
    prompt, longer = PROMPTS[0], [50] * (len(PROMPTS[0]) + 7)
    alone = logprobs(policy, [prompt], ids[:1])
    beside = logprobs(policy, [prompt, longer], ids[:1].repeat(2, 1))[:1]
    return (alone - beside).abs().max()


def test_left_padding_by_seven_changes_nothing(policy, rollout, monkeypatch):
    assert padded_by_seven(policy, rollout.ids) < 1e-5
    left_pad = scoring.left_pad

    def without_mask(prompts, pad, device):
        ids, attention, positions = left_pad(prompts, pad, device)
        return ids, torch.ones_like(attention), positions

    monkeypatch.setattr(scoring, "left_pad", without_mask)
    assert padded_by_seven(policy, rollout.ids) > 1e-2


@pytest.mark.parametrize("hidden", [answer_hidden, answer_hidden_plain])
def test_what_follows_an_answers_end_plays_no_part(policy, rollout, hidden):
    other = torch.where(rollout.mask, rollout.ids, 99)
    first, second = (hidden(policy, PROMPTS, ids, PAD_ID)[rollout.mask] for ids in (rollout.ids, other))
    assert torch.equal(first, second)


def test_answers_of_one_token_need_the_prompt_only(policy, rollout):
    ids = rollout.ids[:, :1]
    torch.testing.assert_close(
        logprobs(policy, PROMPTS, ids), logprobs(policy, PROMPTS, ids, answer_hidden_plain), rtol=0, atol=1e-5
    )


# --- Shared prefix against plain -----------------------------------------------------------------------------


def values_and_gradients(policy, rollout, hidden):
    """Log-probs and the gradient of every parameter."""
    policy = copy.deepcopy(policy)
    scored = logprobs(policy, PROMPTS, rollout.ids, hidden)[rollout.mask]
    weights = torch.linspace(-1, 1, len(scored), dtype=scored.dtype)
    (scored * weights).sum().backward()
    return {"value": scored.detach()} | {name: p.grad for name, p in policy.named_parameters()}


def differing(first, second, tolerance=1e-5):
    """Names whose largest difference is above `tolerance` of the largest entry."""
    return [n for n in first if not (first[n] - second[n]).abs().max() <= tolerance * second[n].abs().max()]


def test_the_shared_prefix_gives_the_plain_paths_values_and_gradients(policy, rollout):
    shared, plain = (values_and_gradients(policy, rollout, path) for path in (answer_hidden, answer_hidden_plain))
    assert differing(shared, plain) == []
    assert all(shared[name].abs().max() > 1e-2 for name in shared)  # something was compared


def test_a_prefix_without_gradient_is_noticed(policy, rollout, monkeypatch):
    def detached(self, repeats):
        for layer in self.layers:
            layer.keys = layer.keys.detach().repeat_interleave(repeats, dim=0)
            layer.values = layer.values.detach().repeat_interleave(repeats, dim=0)

    plain = values_and_gradients(policy, rollout, answer_hidden_plain)
    monkeypatch.setattr(DynamicCache, "batch_repeat_interleave", detached)
    mutant = values_and_gradients(policy, rollout, answer_hidden)
    found = differing(mutant, plain)
    assert "value" not in found and "model.embed_tokens.weight" in found


def test_a_prefix_expanded_in_the_wrong_order_is_noticed(policy, rollout, monkeypatch):
    def tiled(self, repeats):
        for layer in self.layers:
            layer.keys = layer.keys.repeat(repeats, 1, 1, 1)
            layer.values = layer.values.repeat(repeats, 1, 1, 1)

    plain = values_and_gradients(policy, rollout, answer_hidden_plain)
    monkeypatch.setattr(DynamicCache, "batch_repeat_interleave", tiled)
    assert "value" in differing(values_and_gradients(policy, rollout, answer_hidden), plain)


# --- Against a reference ---------------------------------------------------------------------------------------


def nudged(policy, seed=3, size=0.05):
    other = copy.deepcopy(policy)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator)
    return other


def score(policy, reference, rollout, block=128):
    hidden = masked_hidden(reference, PROMPTS, rollout.ids, rollout.mask, PAD_ID)
    return score_against_reference(policy, reference, hidden, PROMPTS, rollout.ids, rollout.mask, PAD_ID, block)


@pytest.mark.parametrize("block", [1, 128, 1000])
def test_scores_are_those_of_the_dense_formula(policy, rollout, block):
    reference = nudged(policy)
    scores = score(policy, reference, rollout, block)
    logits, reference_logits = (
        answer_hidden_plain(model, PROMPTS, rollout.ids, PAD_ID) @ unembedding(model).T for model in (policy, reference)
    )
    logp = logits.log_softmax(-1)
    dense = {
        "logprobs": logp.gather(-1, rollout.ids[..., None])[..., 0],
        "kl": exact_kl_reference(logits, reference_logits),
        "entropy": -(logp.exp() * logp).sum(-1),
    }
    for name, expected in dense.items():
        found = getattr(scores, name)
        assert (found - expected)[rollout.mask].abs().max() < 1e-4
        assert (found[~rollout.mask] == 0).all()
    assert scores.kl[rollout.mask].min() > 1e-3
    found, expected = (
        {"gradient": torch.autograd.grad(kl[rollout.mask].sum(), unembedding(policy))[0]}
        for kl in (scores.kl, dense["kl"])
    )
    assert differing(found, expected) == []


def test_kl_of_identical_models_is_zero_and_does_not_see_the_sampled_token(policy, rollout):
    assert score(policy, copy.deepcopy(policy), rollout).kl.abs().max() < 1e-6
    reference = nudged(policy)
    scores = score(policy, reference, rollout)
    assert scores.kl.min() >= -1e-6
    # The last active token of an answer is read by no later one: another token there, the same KL.
    last = rollout.mask & ~torch.nn.functional.pad(rollout.mask[:, 1:], (0, 1))
    other = copy.copy(rollout)
    object.__setattr__(other, "ids", torch.where(last, 77, rollout.ids))
    changed = score(policy, reference, other)
    assert torch.equal(changed.kl, scores.kl) and not torch.equal(changed.logprobs, scores.logprobs)


def test_a_masked_reference_is_constant(policy, rollout):
    assert not masked_hidden(policy, PROMPTS, rollout.ids, rollout.mask, PAD_ID).requires_grad


def test_unusable_states_are_refused_with_prompt_answer_and_position(policy, rollout, monkeypatch):
    row = GROUP + int(rollout.mask[GROUP:, 1].nonzero()[0])  # not of the first prompt, at least two tokens

    def poisoned(*arguments):
        hidden = answer_hidden(*arguments).clone()
        hidden[row, 1, 3] = torch.nan
        hidden[-1, 0, 0] = torch.inf
        return hidden

    monkeypatch.setattr(scoring, "answer_hidden", poisoned)
    place = f"prompt {row // GROUP}, answer {row % GROUP}, answer position 1"
    with pytest.raises(VerificationError, match=place):
        score(policy, policy, rollout)


def test_states_off_the_mask_may_be_anything(policy, rollout, monkeypatch):
    def poisoned(*arguments):
        return answer_hidden(*arguments).masked_fill(~rollout.mask[..., None], torch.nan)

    monkeypatch.setattr(scoring, "answer_hidden", poisoned)
    assert score(policy, policy, rollout).logprobs.isfinite().all()
