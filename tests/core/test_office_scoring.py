"""What a judge and a critic read of an answer: by the mask, the last active token and the place before each token."""

from dataclasses import replace

import pytest
import torch
from small_model import PROFILE, id_lists
from small_office import EOS_ID, PAD_ID, fill_adapters, preferences, small_actor, small_critic, small_judge

from labs_lib import scoring
from labs_lib.errors import VerificationError
from labs_lib.kernels.gae import last_active
from labs_lib.models.roles import Scalar, load_adapted
from labs_lib.rollout import answer_draws, generate
from labs_lib.scoring import active_rows, answer_hidden, answer_logprobs, answer_scores, answer_values
from labs_lib.seeding import named_generator
from labs_lib.training.preferences import pair_logprobs, pair_scores
from labs_lib.training.supervised import pad_targets

BF16 = torch.bfloat16
PROMPTS = id_lists(60, 3)
# Two answers a prompt: of several lengths, one of EOS alone, one cut without EOS, two with the PAD id inside.
ANSWERS = [
    [40, 41, 42, EOS_ID],
    [EOS_ID],
    [43, PAD_ID, 44, EOS_ID],
    [45, 46, 47, 48, 49, 50],
    [51, 52, PAD_ID],
    [53, 54, EOS_ID],
]
IDS, MASK = pad_targets(ANSWERS, PAD_ID)
MUTANT = 1e-2  # far above rounding; scores here are around 0.1


@pytest.fixture(scope="module")
def judge():
    return small_judge(1, learned=True)


@pytest.fixture(scope="module")
def critic():
    return small_critic(2, learned=True)


def scores(judge, ids=IDS, mask=MASK, prompts=PROMPTS):
    return answer_scores(judge, prompts, ids, mask, PAD_ID)


def values(critic, ids=IDS, mask=MASK, prompts=PROMPTS):
    return answer_values(critic, prompts, ids, mask, PAD_ID)


def along(role, prompt, answer):
    """The role's number after every token of prompt and answer, from one full sequence without any padding."""
    hidden = role.backbone.model(input_ids=torch.tensor([[*prompt, *answer]])).last_hidden_state[0]
    return hidden.double() @ role.head.weight[0].double() + role.head.bias.double()


def plain_scores(judge, shift=0):
    """The number after the last token of each answer (or `shift` places from it)."""
    rows = enumerate(ANSWERS)
    return torch.stack(
        [
            along(judge, PROMPTS[row // 2], answer)[len(PROMPTS[row // 2]) - 1 + len(answer) + shift]
            for row, answer in rows
        ]
    )


def plain_values(critic, shift=-1):
    """The numbers `shift` places from each answer token: the place before has not read it."""
    expected = torch.zeros(MASK.shape, dtype=torch.float64)
    for row, answer in enumerate(ANSWERS):
        prompt = PROMPTS[row // 2]
        start = len(prompt) + shift
        expected[row, : len(answer)] = along(critic, prompt, answer)[start : start + len(answer)]
    return expected


# --- The judge reads the last active token ------------------------------------------------------------------


def reads_the_last_active_token(found, judge):
    """Whether scores are those of the full sequences, for every answer."""
    return (found - plain_scores(judge)).abs().max().item() < 1e-5


def wrongly_read(place):
    """A judge's scores read where `place(ids, mask)` says, an index into the states after each token."""

    def read(judge):
        longer = torch.nn.functional.pad(IDS, (0, 1), value=PAD_ID)
        hidden = answer_hidden(judge.backbone, PROMPTS, longer, PAD_ID)
        return judge(hidden[torch.arange(len(IDS)), place(IDS, MASK)])

    return read


def last_that_is_not_pad(ids, mask):
    return torch.where(ids != PAD_ID, torch.arange(ids.shape[1]), 0).amax(dim=1) + 1


def first_pad(ids, mask):
    return torch.where(ids == PAD_ID, torch.arange(ids.shape[1]), ids.shape[1]).amin(dim=1)


def test_the_judge_reads_the_last_active_token(judge):
    assert reads_the_last_active_token(scores(judge), judge)
    assert reads_the_last_active_token(wrongly_read(lambda ids, mask: last_active(mask) + 1)(judge), judge)


@pytest.mark.parametrize(
    "place",
    [
        lambda ids, mask: torch.full((len(ids),), ids.shape[1]),  # the last index of the padded batch
        last_that_is_not_pad,
        first_pad,
        lambda ids, mask: last_active(mask),  # the state before the last token, which predicts it
        lambda ids, mask: (last_active(mask) + 2).clamp(max=ids.shape[1]),  # the first pad after it
    ],
    ids=["last-index", "last-not-pad", "before-first-pad", "before-last", "pad-after-it"],
)
def test_a_judge_that_reads_another_place_is_noticed(judge, place):
    found = wrongly_read(place)(judge)
    assert not reads_the_last_active_token(found, judge)
    assert (found - plain_scores(judge)).abs().max() > MUTANT


def test_mutants_are_right_for_some_answers(judge):
    """The longest answer of a batch is right under the last index, one without PAD inside under the last not-PAD."""
    last_index = wrongly_read(lambda ids, mask: torch.full((len(ids),), ids.shape[1]))(judge)
    not_pad = wrongly_read(last_that_is_not_pad)(judge)
    expected = plain_scores(judge)
    assert [row for row in range(6) if (last_index[row] - expected[row]).abs() < 1e-5] == [3]
    assert [row for row in range(6) if (not_pad[row] - expected[row]).abs() > MUTANT] == [4]


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["fp32", "bf16"])
def test_ids_after_the_end_change_no_bit_of_a_score_or_value(dtype):
    judge, critic = small_judge(1, dtype, True), small_critic(2, dtype, True)
    generator = named_generator(48, "test/after-the-end")
    other = torch.where(MASK, IDS, torch.randint(3, 600, IDS.shape, generator=generator))
    assert not torch.equal(other, IDS)
    assert torch.equal(scores(judge), scores(judge, other)) and torch.equal(values(critic), values(critic, other))
    inside = IDS.clone()
    inside[2, 1] = 99  # the PAD id inside an answer is one of its tokens
    changed = (scores(judge) - scores(judge, inside)).abs()
    assert changed[2] > 1e-3 and not changed[[0, 1, 3, 4, 5]].any()
    assert not reads_the_last_active_token(wrongly_read_ids(judge, other), judge)


def wrongly_read_ids(judge, ids):
    """The last index, with something else than PAD after the end."""
    longer = torch.nn.functional.pad(ids, (0, 1), value=PAD_ID)
    return judge(answer_hidden(judge.backbone, PROMPTS, longer, PAD_ID)[:, -1])


def test_more_columns_change_no_score(judge):
    """Another batch may be wider; the numbers stay, to the rounding of another shape."""
    wider = (torch.nn.functional.pad(IDS, (0, 5), value=77), torch.nn.functional.pad(MASK, (0, 5)))
    assert (scores(judge) - scores(judge, *wider)).abs().max() < 1e-6


def test_an_answer_of_eos_alone_is_scored_after_eos(judge):
    ids = torch.tensor([[EOS_ID]])
    found = answer_scores(judge, PROMPTS[:1], ids, torch.ones(1, 1, dtype=torch.bool), PAD_ID)
    assert (found - along(judge, PROMPTS[0], [EOS_ID])[-1]).abs() < 1e-5


# --- The critic reads the place before each token -----------------------------------------------------------


def test_values_are_those_before_each_token(critic):
    found = values(critic)
    assert found.dtype == torch.float32 and found.shape == MASK.shape
    assert (found - plain_values(critic)).abs().max() < 1e-5
    assert not found[~MASK].any()


@pytest.mark.parametrize("shift", [0, -2], ids=["after-the-token", "one-too-early"])
def test_values_of_another_place_are_noticed(critic, shift):
    assert (values(critic) - plain_values(critic, shift)).abs().max() > MUTANT


def test_a_value_has_not_read_its_token(critic):
    """Another token at position 1 moves the values after it, not its own."""
    other = IDS.clone()
    other[:, 1] = 99
    changed = (values(critic) - values(critic, other)).abs()
    assert not changed[:, :2].any()
    assert (changed[MASK[:, 2], 2] > 1e-3).all()


def test_a_fresh_critic_values_everything_at_zero():
    assert not values(small_critic(2)).any()


# --- The same numbers on other paths ------------------------------------------------------------------------


def test_a_batch_of_eight_and_alone_agree_to_rounding_in_fp32(judge, critic):
    """About 1e-5, as the shapes of a batch change the order of sums; bit equality across shapes is not asked for."""
    pairs = preferences(70, 8)
    ids, mask = pad_targets([pair.chosen for pair in pairs], PAD_ID)
    prompts = [pair.prompt for pair in pairs]
    for read in (lambda *a: answer_scores(judge, *a, PAD_ID), lambda *a: answer_values(critic, *a, PAD_ID)):
        together = read(prompts, ids, mask)
        for row in range(8):
            alone = read(prompts[row : row + 1], ids[row : row + 1], mask[row : row + 1])[0]
            assert (together[row] - alone).abs().max() < 1e-5
    assert (scores(judge, prompts=PROMPTS[::-1]) - scores(judge)).abs().max() > MUTANT  # prompts matter


def tiny_judge(dtype):
    profile = replace(PROFILE, office=replace(PROFILE.office, dtype=dtype))
    judge = Scalar(
        load_adapted(profile, named_generator(50, "office/adapters")).model, named_generator(50, "office/head")
    )
    fill_adapters(judge, seed=1, size=0.02)
    return judge


def test_on_the_tiny_base_in_fp32_and_bf16():
    """FP32: the plain path to 1e-5. BF16 keeps 2 to 3 digits of each state: a score moves by 5 % of their spread."""
    judge, half = tiny_judge("float32"), tiny_judge("bfloat16")
    expected = plain_scores(judge)
    assert (scores(judge) - expected).abs().max() < 1e-5
    spread = expected.std()
    assert spread > 0.1 and (scores(half) - expected).abs().max() < 0.05 * spread
    assert (scores(half) - plain_scores(half)).abs().max() < 0.05 * spread


def test_the_shared_prefix_gives_the_plain_gradients(judge):
    """To A, B and head, through the prompt that two answers share."""
    fresh = small_judge(1, learned=True)
    weights = torch.linspace(-1, 2, len(ANSWERS))
    (scores(judge) * weights).sum().backward()
    (plain_scores(fresh) * weights).sum().backward()
    found, expected = (
        {name: p.grad for name, p in role.named_parameters() if p.requires_grad} for role in (judge, fresh)
    )
    assert len(found) == 2 * 2 * 7 + 2
    for name, gradient in found.items():
        assert expected[name].norm() > 1e-4
        assert (gradient - expected[name]).norm() < 1e-4 * expected[name].norm(), name
    judge.zero_grad()


# --- What an actor's answers are under ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (BF16, 0.5)], ids=["fp32", "bf16"])
def test_captured_and_recomputed_logprobs_of_an_adapted_actor(dtype, tolerance):
    """BF16 allows some difference between the cached and the full path, which is recorded; FP32 almost none."""
    actor = small_actor(1, dtype, True)
    draws = answer_draws(named_generator(48, "office"), 3, 6)
    rollout = generate(actor, PROMPTS, 1, 6, EOS_ID, PAD_ID, draws)
    first, second = (answer_logprobs(actor, PROMPTS, rollout.ids, rollout.mask, PAD_ID) for _ in range(2))
    assert torch.equal(first, second)  # the same path twice: a ratio of exactly one
    assert first.dtype == torch.float32 and not first[~rollout.mask].any()
    assert (first - rollout.logprobs).abs().max() < tolerance


def test_pairs_score_as_their_answers_do(judge):
    pairs = preferences(30, 5)
    found = pair_scores(judge, pairs, PAD_ID)
    actor = small_actor(1, learned=True)
    logprobs = pair_logprobs(actor, pairs, PAD_ID)
    assert found.shape == logprobs.shape == (5, 2)
    for row, pair in enumerate(pairs):
        for column, answer in enumerate((pair.chosen, pair.rejected)):
            assert (found[row, column] - along(judge, pair.prompt, answer)[-1]).abs() < 1e-5
            logits = actor(input_ids=torch.tensor([[*pair.prompt, *answer]])).logits[0].double().log_softmax(-1)
            tokens = range(len(pair.prompt), len(pair.prompt) + len(answer))
            expected = sum(logits[place - 1, token] for place, token in zip(tokens, answer, strict=True))
            assert (logprobs[row, column] - expected).abs() < 1e-3


# --- What cannot be scored ----------------------------------------------------------------------------------


def test_unusable_states_are_refused_for_values_with_their_place(critic, monkeypatch):
    def poisoned(*arguments):
        hidden = answer_hidden(*arguments).clone()
        hidden[3, 2, 0] = torch.nan
        return hidden

    monkeypatch.setattr(scoring, "answer_hidden", poisoned)
    with pytest.raises(VerificationError, match="prompt 1, answer 1, answer position 2"):
        values(critic)


def test_evidence_keeps_active_numbers_only(critic):
    kept = active_rows(values(critic), MASK)
    assert [len(row) for row in kept] == [len(answer) for answer in ANSWERS]
    assert kept[3] == values(critic)[3].tolist()
