"""Each invariant of lab 02 holds for the right code and is tripped by the error that the lab describes.

The functions are those of the notebook's own cells; the policy is a small random one.
"""

from types import SimpleNamespace

import pytest
import torch
from notebook_definitions import notebook_definitions
from transformers import Qwen2Config, Qwen2ForCausalLM

from labs_lib.config import load_profile
from labs_lib.kernels.advantages import group_advantages
from labs_lib.paths import NOTEBOOKS
from labs_lib.rollout import Rollout, answer_draws, generate
from labs_lib.seeding import named_generator
from labs_lib.training.supervised import pad_targets

EOS, PAD = 2, 0
PROMPT = [5, 9, 3, 17, 8]
ANSWERS = [[4, 6, 7, EOS], [4, 6, 8, EOS], [4, 6, 9, 7, EOS], [11, PAD, EOS]]  # the last one generated a PAD


def random_policy(seed):
    config = Qwen2Config(
        vocab_size=24,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,  # far from uniform, so that an error shows
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(config).eval()


@pytest.fixture
def lab():
    """The notebook's functions with the names that they read."""
    names = notebook_definitions(NOTEBOOKS / "02_group_advantages.ipynb")
    profile = load_profile("tiny")
    ids, mask = pad_targets(ANSWERS, PAD)
    policy, reference = random_policy(1), random_policy(2)
    names |= {"eos": EOS, "pad": PAD, "prompt": PROMPT, "answers": ANSWERS, "ids": ids, "mask": mask}
    names |= {"policy": policy, "reference": reference, "profile": profile, "longest": 8}
    names |= {"clip_low": profile.grpo.clip_low, "clip_high": profile.grpo.clip_high, "beta": profile.grpo.kl_weight}
    names["tokenizer"] = SimpleNamespace(pad_token_id=PAD, eos_token_id=EOS)
    names["tokenizer"].decode = lambda ids, **_: " ".join(map(str, ids))
    names["old"] = [logprobs(names, policy, answer) for answer in ANSWERS]
    captured = torch.zeros(mask.shape).masked_scatter(mask, torch.cat(names["old"]))
    names["worked"] = Rollout(ids, mask, captured, ("eos",) * 4, torch.zeros(1, 24))
    return SimpleNamespace(**names), names


def logprobs(names, policy, answer):
    with torch.no_grad():
        return names["token_logprobs"](names["answer_logits"](policy, PROMPT, answer), answer)


def trips(invariant, *wrong):
    with pytest.raises(AssertionError):
        invariant(*wrong)


def test_diagnose_reports_and_is_not_silent_about_what_gets_through(lab, capsys):
    def refuses(_):
        raise AssertionError("seen")

    lab[0].diagnose(refuses, 1)
    assert capsys.readouterr().out == "caught, AssertionError: seen\n"
    with pytest.raises(AssertionError, match="let the error through"):
        lab[0].diagnose(lambda _: None, 1)


@pytest.mark.diagnoses("02-group-advantages-016", "require_prompt_predicts_first_token")
def test_prompt_predicts_first_token(lab):
    lab, _ = lab
    for answer in ANSWERS:
        right = logprobs(vars(lab), lab.policy, answer)
        lab.require_prompt_predicts_first_token(right, lab.policy, PROMPT, answer)
        with torch.no_grad():
            shifted = lab.token_logprobs(lab.answer_logits_shifted(lab.policy, PROMPT, answer), answer)
        trips(lab.require_prompt_predicts_first_token, shifted, lab.policy, PROMPT, answer)


@pytest.mark.diagnoses("02-group-advantages-022", "require_whole_answers")
def test_whole_answers(lab):
    lab, _ = lab
    lab.require_whole_answers(lab.mask, ANSWERS)
    padded_with_eos = lab.ids.masked_fill(~lab.mask, EOS)
    for wrong in (
        padded_with_eos != EOS,  # pad == EOS: the real EOS is masked
        lab.ids != PAD,  # a PAD that was generated is masked
        lab.mask & lab.mask.roll(-1, dims=1),  # off by one at EOS
        torch.ones_like(lab.mask),
    ):
        trips(lab.require_whole_answers, wrong, ANSWERS)


def test_shared_prefix_equals_plain_scoring(lab):
    lab, _ = lab
    plain = torch.cat([lab.token_logprobs(lab.answer_logits(lab.policy, PROMPT, a), a) for a in ANSWERS])
    shared = lab.shared_prefix_logprobs(lab.policy, PROMPT, lab.ids)[lab.mask]
    assert torch.allclose(plain, shared, atol=1e-5)
    slopes = [lab.gradient(lab.policy, value.sum()) for value in (shared, plain)]
    assert lab.relative_gap(*slopes) < 1e-5
    assert lab.relative_gap(2 * slopes[0], slopes[1]) > 0.9


@pytest.mark.diagnoses("02-group-advantages-033", "require_padding_unseen")
def test_padding_unseen(lab):
    lab, _ = lab
    right = logprobs(vars(lab), lab.policy, ANSWERS[0])
    lab.require_padding_unseen(lab.left_padded_logprobs(lab.policy, PROMPT, ANSWERS[0], 7), right)
    forgotten = lab.left_padded_logprobs(lab.policy, PROMPT, ANSWERS[0], 7, hidden=False)
    trips(lab.require_padding_unseen, forgotten, right)


def test_pick(lab):
    lab, _ = lab
    assert [lab.pick([0.5, 0.3, 0.2], draw) for draw in (0.0, 0.5, 0.8, 0.999)] == [0, 1, 2, 2]
    assert lab.pick([0.0, 1.0, 0.0], 0.0) == 1
    assert lab.pick([0.0, 0.9999999999999, 0.0], 0.99999999999999) == 1  # a sum that rounding left below 1


def test_plain_loop_samples_what_the_library_samples(lab):
    lab, _ = lab
    draws = answer_draws(named_generator(3, "test/lab02"), 6, 8)
    rollout = generate(lab.policy, [PROMPT], 6, 8, EOS, PAD, draws)
    for row in range(6):
        answer, captured = lab.sample_answer(lab.policy, PROMPT, draws[row], EOS)
        assert answer == rollout.answer_ids(row)
        assert torch.allclose(torch.tensor(captured), rollout.logprobs[row, rollout.mask[row]], atol=1e-5)


@pytest.mark.diagnoses("02-group-advantages-046", "require_recovered")
def test_recovered(lab):
    lab, _ = lab
    draws = answer_draws(named_generator(3, "test/lab02"), 4, 8)
    rollout = generate(lab.policy, [PROMPT], 4, 8, EOS, PAD, draws)

    def scored(policy):
        with torch.no_grad():
            return lab.shared_prefix_logprobs(policy, PROMPT, rollout.ids)

    lab.require_recovered(scored(lab.policy), rollout.logprobs, rollout.mask)
    trips(lab.require_recovered, scored(lab.reference), rollout.logprobs, rollout.mask)
    with lab.dropout_on(lab.policy, 0.1):
        trips(lab.require_recovered, scored(lab.policy), rollout.logprobs, rollout.mask)
    assert not lab.policy.training
    lab.require_recovered(scored(lab.policy), rollout.logprobs, rollout.mask)


@pytest.mark.diagnoses("02-group-advantages-055", "require_no_invented_winner")
def test_no_invented_winner(lab):
    lab, _ = lab
    rewards = torch.tensor([[0.1] * 8, [1.0] * 8, [1.0, 0.0] * 4])
    lab.require_no_invented_winner(group_advantages(rewards), rewards)
    trips(lab.require_no_invented_winner, lab.naive_advantages(rewards), rewards)
    noisy = rewards + 1e-6 * torch.arange(8)
    trips(lab.require_no_invented_winner, group_advantages(noisy), rewards)


def test_hand_advantages_agree_with_the_library(lab):
    lab, _ = lab
    for group in ([1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.2, 0.9, 0.4]):
        rewards = torch.tensor([group], dtype=torch.float64)
        assert torch.allclose(torch.tensor(lab.advantages_by_hand(group)).double(), group_advantages(rewards)[0])
    assert lab.advantages_by_hand([1, 0, 0, 0], lost=1)[0] == pytest.approx(1.5)


def test_mixed_share(lab):
    lab, _ = lab
    for size in (2, 4, 8):
        assert lab.mixed_share(0.25, size) == pytest.approx(1 - 0.25**size - 0.75**size)
        assert lab.mixed_subsets(0, 16, size) == lab.mixed_subsets(16, 16, size) == 0
    pairs = [(a, b) for a in range(16) for b in range(a)]
    assert lab.mixed_subsets(5, 16, 2) == pytest.approx(sum((a < 5) != (b < 5) for a, b in pairs) / len(pairs))


@pytest.mark.diagnoses("02-group-advantages-079", "require_history")
def test_history(lab):
    lab, _ = lab
    used, _ = lab.walk(6)
    lab.require_history(used)
    trips(lab.require_history, lab.walk(6, captured=False)[0])
    trips(lab.require_history, [1.3, 1.4])  # the answers are another policy's


@pytest.mark.diagnoses("02-group-advantages-094", "require_block_free")
def test_block_free(lab):
    lab, _ = lab
    generator = named_generator(5, "test/lab02")
    z, y = (torch.randn(3, 10, generator=generator, dtype=torch.float64) for _ in range(2))
    lab.require_block_free(lab.kl_in_blocks, z, y)
    trips(lab.require_block_free, lab.kl_block_by_block, z, y)


@pytest.mark.diagnoses("02-group-advantages-122", "require_split_free")
def test_split_free(lab):
    lab, _ = lab
    answers = [torch.full((n,), float(n)) for n in (1, 1, 4)]
    lab.require_split_free(lab.accumulated, answers)
    trips(lab.require_split_free, lab.mean_of_means, answers)


def test_plain_loss_has_the_librarys_value_and_gradient(lab):
    lab, _ = lab
    moved = random_policy(1)
    with torch.no_grad():  # a policy near the one that "answered", so that some ratios are clipped and some are not
        for parameter in moved.parameters():
            parameter.mul_(1.05)
    batch = lab.batch_of(lab.worked, [1, 0, 1, 0])
    report, flat = lab.library_gradient(moved, batch)
    assert 0 < report["active_clip_share"] < 1 and report["kl_mean"] > 0.1
    loss = lab.grpo_loss(moved, lab.reference, PROMPT, ANSWERS, lab.old, batch.advantages)
    assert report["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert lab.relative_gap(flat, lab.gradient(moved, loss)) < 1e-4
    flipped = lab.grpo_loss(moved, lab.reference, PROMPT, ANSWERS, lab.old, -batch.advantages)
    assert lab.relative_gap(lab.gradient(moved, flipped), flat) > 0.1


@pytest.mark.diagnoses("02-group-advantages-152", "require_kl_only")
def test_kl_only(lab):
    lab, _ = lab
    expected = lab.kl_gradient(lab.policy)
    equal = lab.batch_of(lab.worked, [1, 1, 1, 1])
    lab.require_kl_only(lab.library_gradient(lab.policy, equal)[1], expected)
    trips(lab.require_kl_only, lab.skipping_gradient(lab.policy, equal), expected)
    mixed = lab.batch_of(lab.worked, [1, 0, 1, 0])
    trips(lab.require_kl_only, lab.library_gradient(lab.policy, mixed)[1], expected)
    assert torch.equal(lab.skipping_gradient(lab.policy, mixed), lab.library_gradient(lab.policy, mixed)[1])
