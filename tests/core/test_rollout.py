"""Sampling: the tokens that a plain loop would draw, the log-probs that a full forward would give."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_model import id_lists, tokenizer
from transformers import DynamicCache

from labs_lib import rollout as rollout_module
from labs_lib.errors import LabError, VerificationError
from labs_lib.models.unembedding import unembedding
from labs_lib.rollout import EOS, LENGTH, answer_draws, choose_tokens, generate
from labs_lib.scoring import answer_hidden_plain
from labs_lib.seeding import named_generator

EOS_ID, PAD_ID = tokenizer().eos_token_id, tokenizer().pad_token_id
GROUP, TOKENS = 4, 6
PROMPTS = id_lists(1, 5)
DRAWS = answer_draws(named_generator(48, "test"), len(PROMPTS) * GROUP, TOKENS)


def sample(policy, prompts=PROMPTS, draws=DRAWS, group_size=GROUP):
    return generate(policy, prompts, group_size, TOKENS, EOS_ID, PAD_ID, draws)


@torch.no_grad()
def plain_answer(policy, prompt, draws):
    """One answer without cache, batch or padding: the loop of lab 02. `draws` None means greedy."""
    ids = []
    for position in range(TOKENS):
        logits = policy(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, -1].double()
        if draws is None:
            ids.append(int(logits.argmax()))
        else:
            cumulative = logits.softmax(-1).cumsum(-1)
            ids.append(int((cumulative <= draws[position] * cumulative[-1]).sum()))
        if ids[-1] == EOS_ID:
            break
    return ids


def plain_answers(policy):
    return [plain_answer(policy, PROMPTS[row // GROUP], DRAWS[row]) for row in range(len(DRAWS))]


def answers(rollout):
    return [rollout.answer_ids(row) for row in range(len(rollout.ids))]


@torch.no_grad()
def full_sequence_logprobs(policy, rollout, prompts=PROMPTS):
    logits = answer_hidden_plain(policy, prompts, rollout.ids, PAD_ID) @ unembedding(policy).T
    return logits.log_softmax(-1).gather(-1, rollout.ids[..., None])[..., 0]


# --- The same tokens and log-probs as without any of the tricks ----------------------------------------


def test_batched_cached_sampling_draws_the_plain_loops_tokens(policy):
    rollout = sample(policy)
    assert {EOS, LENGTH} == set(rollout.finish_reasons)  # both ends occur, so both are tested
    assert answers(rollout) == plain_answers(policy)


def test_a_cache_that_forgets_which_row_is_whose_is_noticed(policy, monkeypatch):
    select = DynamicCache.batch_select_indices
    monkeypatch.setattr(DynamicCache, "batch_select_indices", lambda self, rows: select(self, rows.flip(0)))
    assert answers(sample(policy)) != plain_answers(policy)


def test_padding_that_is_attended_to_is_noticed(policy, monkeypatch):
    def attend_to_everything(prompts, pad, device):
        ids, attention, positions = left_pad(prompts, pad, device)
        return ids, torch.ones_like(attention), positions

    left_pad = rollout_module.left_pad
    monkeypatch.setattr(rollout_module, "left_pad", attend_to_everything)
    assert answers(sample(policy)) != plain_answers(policy)


def test_captured_logprobs_are_those_of_the_full_sequence(policy):
    rollout = sample(policy)
    difference = (full_sequence_logprobs(policy, rollout) - rollout.logprobs)[rollout.mask].abs().max()
    assert difference < 1e-4  # cached against full; the protocol's own bound is 2e-4


def test_logprobs_captured_one_position_late_are_noticed(policy):
    rollout = sample(policy)
    late = rollout.logprobs.roll(1, dims=1)
    assert (full_sequence_logprobs(policy, rollout) - late)[rollout.mask].abs().max() > 1e-2


def test_greedy_decoding_is_that_of_transformers(policy):
    rollout = sample(policy, draws=None, group_size=1)
    for row, prompt in enumerate(PROMPTS):
        theirs = policy.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=TOKENS, pad_token_id=PAD_ID)
        assert rollout.answer_ids(row) == theirs[0, len(prompt) :].tolist()
        assert rollout.answer_ids(row) == plain_answer(policy, prompt, None)


def test_first_logits_are_each_prompts_own(policy):
    with torch.no_grad():
        expected = torch.stack([policy(input_ids=torch.tensor([p])).logits[0, -1] for p in PROMPTS])
    torch.testing.assert_close(sample(policy).first_logits, expected, rtol=1e-4, atol=1e-4)


# --- Rows that end ---------------------------------------------------------------------------------------


def test_finished_rows_leave_the_batch(policy, monkeypatch):
    forward, widths = policy.model.forward, []

    def counting(input_ids, **rest):
        widths.append(len(input_ids))
        return forward(input_ids=input_ids, **rest)

    monkeypatch.setattr(policy.model, "forward", counting)
    rollout = sample(policy)
    lengths = rollout.mask.sum(1) - torch.tensor([reason == EOS for reason in rollout.finish_reasons]).long()
    going_on = [int((lengths > position).sum()) for position in range(TOKENS - 1)]
    assert widths == [len(PROMPTS), *going_on]
    assert going_on[-1] < len(DRAWS)  # some rows did leave


def test_an_answer_does_not_depend_on_its_neighbours(policy):
    together = sample(policy)
    for number, prompt in enumerate(PROMPTS):
        rows = slice(number * GROUP, (number + 1) * GROUP)
        alone = sample(policy, [prompt], DRAWS[rows])
        assert answers(alone) == answers(together)[rows]
        width = alone.ids.shape[1]
        torch.testing.assert_close(alone.logprobs, together.logprobs[rows, :width], rtol=0, atol=1e-4)


def scripted(monkeypatch, tokens):
    """Make sampling take `tokens` (answers, positions), whatever the logits are."""
    steps = iter(range(len(tokens[0])))
    rows = list(range(len(tokens)))

    def choose(logits, draws):
        nonlocal rows
        position = next(steps)
        chosen = [tokens[row][position] for row in rows]
        rows = [row for row, token in zip(rows, chosen, strict=True) if token != EOS_ID]
        return torch.tensor(chosen)

    monkeypatch.setattr(rollout_module, "choose_tokens", choose)


SCRIPT = [
    [PAD_ID, 40, EOS_ID, -1, -1, -1],
    [EOS_ID, -1, -1, -1, -1, -1],
    [41, PAD_ID, PAD_ID, 42, 43, PAD_ID],
    [44, 45, 46, EOS_ID, -1, -1],
]
LENGTHS = [3, 1, 6, 4]


def is_mask_by_position(mask):
    return mask.sum(1).tolist() == LENGTHS and all(mask[row, :length].all() for row, length in enumerate(LENGTHS))


def test_the_mask_ends_with_eos_and_keeps_a_generated_pad(policy, monkeypatch):
    scripted(monkeypatch, SCRIPT)
    rollout = sample(policy, PROMPTS[:1], DRAWS[:4])
    assert is_mask_by_position(rollout.mask)
    assert answers(rollout) == [row[:length] for row, length in zip(SCRIPT, LENGTHS, strict=True)]
    assert rollout.finish_reasons == (EOS, EOS, LENGTH, EOS)
    assert (rollout.logprobs[rollout.mask] < 0).all() and (rollout.logprobs[~rollout.mask] == 0).all()
    assert (rollout.ids[~rollout.mask] == PAD_ID).all()
    # The believable bugs: masks that compare ids instead of counting positions.
    assert not is_mask_by_position(rollout.ids != PAD_ID)
    assert not is_mask_by_position((rollout.ids != PAD_ID) & (rollout.ids != EOS_ID))


def test_a_rollout_is_as_wide_as_its_longest_answer(policy, monkeypatch):
    scripted(monkeypatch, [SCRIPT[0], SCRIPT[1]])
    rollout = sample(policy, PROMPTS[:1], DRAWS[:2], group_size=2)
    assert rollout.ids.shape == rollout.mask.shape == rollout.logprobs.shape == (2, 3)


# --- Choosing a token --------------------------------------------------------------------------------------

LAST_DRAW = 1 - 2**-53


@given(
    st.lists(st.one_of(st.just(-torch.inf), st.floats(-1e4, 1e4)), min_size=1, max_size=12).filter(
        lambda row: max(row) > -torch.inf
    ),
    st.one_of(st.sampled_from([0.0, LAST_DRAW, 0.5]), st.floats(0, LAST_DRAW)),
)
def test_a_token_of_probability_zero_is_never_chosen(row, draw):
    logits = torch.tensor([row], dtype=torch.float64)
    chosen = int(choose_tokens(logits, torch.tensor([draw], dtype=torch.float64))[0])
    assert logits.softmax(-1)[0, chosen] > 0


@pytest.mark.parametrize("right, draw", [(False, 0.0), (True, 1.0)])
def test_a_careless_inverse_cdf_does_choose_one(right, draw):
    probabilities = torch.tensor([[0.0, 0.5, 0.5, 0.0]], dtype=torch.float64)
    careless = torch.searchsorted(probabilities.cumsum(-1), torch.tensor([[draw]], dtype=torch.float64), right=right)
    assert int(careless.clamp(max=3)) in (0, 3)
    draws = torch.tensor([min(draw, LAST_DRAW)], dtype=torch.float64)
    assert int(choose_tokens(probabilities.log(), draws)[0]) in (1, 2)


def test_choices_have_the_frequencies_of_the_softmax():
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.1], dtype=torch.float64)
    draws = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    chosen = choose_tokens(probabilities.log().expand(1000, 4), draws)
    assert torch.bincount(chosen, minlength=4).tolist() == [500, 250, 150, 100]
    assert torch.equal(chosen, chosen.sort().values)  # a larger draw never gives an earlier token


def test_draws_come_from_the_generator_alone():
    first = answer_draws(named_generator(48, "draws"), 3, 4)
    torch.manual_seed(0)
    assert torch.equal(first, answer_draws(named_generator(48, "draws"), 3, 4))
    assert first.shape == (3, 4) and first.dtype == torch.float64 and first.device.type == "cpu"


# --- Refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_unusable_logits_are_refused_with_prompt_answer_and_position(policy, monkeypatch, value):
    scripted(monkeypatch, SCRIPT[1:3] + SCRIPT[2:4])  # the first answer of the first prompt leaves at once
    unembed, calls = rollout_module.logits_of, []

    def poisoned(policy, hidden):
        calls.append(1)
        logits = unembed(policy, hidden).clone()
        if len(calls) == 3:
            logits[1, 3 if value == torch.inf else slice(None)] = value
        return logits

    monkeypatch.setattr(rollout_module, "logits_of", poisoned)
    with pytest.raises(VerificationError, match="prompt 1, answer 0, answer position 2"):
        sample(policy, PROMPTS[:2], DRAWS[:4], group_size=2)


def test_train_mode_is_refused(policy):
    with pytest.raises(VerificationError, match="train"):
        sample(policy.train())


def test_draws_of_another_shape_and_greedy_groups_are_refused(policy):
    with pytest.raises(LabError, match=r"\(20, 5\).*\(20, 6\)"):
        sample(policy, draws=DRAWS[:, :5])
    with pytest.raises(LabError, match="group_size 1"):
        sample(policy, draws=None)
