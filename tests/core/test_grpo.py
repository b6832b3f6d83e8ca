"""GRPO: which term the gradient has, which policy is which, and what a second update must show."""

import itertools
from dataclasses import replace

import pytest
import torch
from small_model import GRPO, grpo_trainer, in_double, parity_verdict, rollout_prompts, tokenizer

from labs_lib.errors import VerificationError
from labs_lib.kernels.kl import exact_kl_reference
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.models.unembedding import unembedding
from labs_lib.scoring import answer_hidden_plain, masked_hidden
from labs_lib.training import grpo as grpo_module
from labs_lib.training.grpo import PROBED_ITERATIONS, GrpoTrainer, answers_score

pytestmark = pytest.mark.usefixtures("paid_by_parity")
PAD_ID = tokenizer().pad_token_id


def reference_hidden(trainer, batch):
    return masked_hidden(trainer.reference, batch.prompt_ids, batch.rollout.ids, batch.rollout.mask, trainer.pad)


def accumulated(trainer, batch):
    """(loss, gradient by name) of one accumulation, exactly as the trainer's update makes it, without its step."""
    trainer.policy.zero_grad(set_to_none=True)
    hidden = reference_hidden(trainer, batch)
    losses = [trainer._accumulate(batch, hidden, rows)[0] for rows in trainer._micro_batches(batch)]
    return sum(losses), {name: p.grad.clone() for name, p in trainer.policy.named_parameters()}


def distance(first, second):
    """Largest difference over all parameters, relative to the largest entry of `second`."""
    largest = max(gradient.abs().max() for gradient in second.values())
    return float(max((first[name] - second[name]).abs().max() for name in second) / largest)


def nudge(model, size=0.03):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator)


def sampled(mixed=True, **changes):
    """A trainer whose policy left its reference after sampling, and a batch with mixed (or equal) rewards."""
    trainer = grpo_trainer(prompts_per_iteration=4, **changes)
    batch = trainer.sample()
    assert batch.rewards.std(dim=1).gt(0).any()
    if not mixed:
        batch = replace(batch, rewards=torch.ones_like(batch.rewards), advantages=torch.zeros_like(batch.advantages))
    nudge(trainer.policy)
    return trainer, batch


# --- The objective ---------------------------------------------------------------------------------------------


def dense_loss(trainer, batch, surrogate=True, kl_weight=GRPO.kl_weight):
    """The whole objective from full sequences and dense formulas, each mean written out."""
    rollout = batch.rollout
    logits, reference = (
        answer_hidden_plain(model, batch.prompt_ids, rollout.ids, PAD_ID) @ unembedding(model).T
        for model in (trainer.policy, trainer.reference)
    )
    logp = logits.log_softmax(-1).gather(-1, rollout.ids[..., None])[..., 0]
    ratio = (logp - rollout.logprobs).exp()
    advantages = batch.advantages[:, None]
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    token = -gain * surrogate + kl_weight * exact_kl_reference(logits, reference.detach())
    lengths = rollout.mask.sum(1)
    answers = (token * rollout.mask).sum(1) / lengths
    return answers.view(len(batch.prompts), -1).mean(1).mean()


def dense(trainer, batch, **changes):
    trainer.policy.zero_grad(set_to_none=True)
    loss = dense_loss(trainer, batch, **changes)
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in trainer.policy.named_parameters()}


def test_the_update_follows_the_written_out_objective():
    trainer, batch = sampled()
    loss, gradient = accumulated(trainer, batch)
    dense_value, dense_gradient = dense(trainer, batch)
    assert loss == pytest.approx(dense_value, rel=1e-4)
    assert distance(gradient, dense_gradient) < 1e-4


@pytest.mark.parametrize("changes", [{"surrogate": False}, {"kl_weight": 0.0}, {"kl_weight": -0.02}])
def test_a_missing_or_flipped_term_is_noticed(changes):
    trainer, batch = sampled()
    _, gradient = accumulated(trainer, batch)
    assert distance(dense(trainer, batch, **changes)[1], gradient) > 1e-3


def test_equal_rewards_leave_beta_times_the_gradient_of_the_kl():
    trainer, batch = sampled(mixed=False)
    _, gradient = accumulated(trainer, batch)
    _, kl_gradient = dense(trainer, batch, surrogate=False, kl_weight=1.0)
    beta_times = {name: GRPO.kl_weight * entry for name, entry in kl_gradient.items()}
    assert distance(gradient, beta_times) < 1e-4


def test_an_invented_winner_is_noticed():
    """FP32 noise divided by epsilon: advantages of about -0.4 where all rewards are 0.1."""
    trainer, batch = sampled(mixed=False)
    _, gradient = accumulated(trainer, batch)
    invented = replace(batch, advantages=torch.full_like(batch.advantages, -0.4))
    assert distance(accumulated(trainer, invented)[1], gradient) > 1e-1


def test_without_kl_weight_equal_rewards_give_no_gradient():
    trainer, batch = sampled(mixed=False, kl_weight=0.0)
    assert all((gradient == 0).all() for gradient in accumulated(trainer, batch)[1].values())


# --- Micro-batches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompts", [1, 2, 3])
def test_any_split_gives_the_same_gradient(prompts):
    trainer, batch = sampled()
    for model, tolerance in ((in_double(trainer.policy), 1e-6), (trainer.policy, 2e-5)):
        trainer.policy = model
        trainer.reference = trainer.reference.to(model.dtype)
        if model.dtype == torch.float64:
            trainer.reference.set_attn_implementation("sdpa")
        gradients = []
        for size in (4, prompts):
            trainer.settings = replace(trainer.settings, grpo=replace(trainer.settings.grpo, micro_batch_prompts=size))
            gradients.append(accumulated(trainer, batch)[1])
        assert distance(gradients[1], gradients[0]) < tolerance


class MeanOfMicroBatchMeans(GrpoTrainer):
    """Divides by the number of micro-batches, as if the last one had as many prompts as the others."""

    def _accumulate(self, batch, reference_hidden, rows):
        prompts = (min(rows.stop, len(batch.verdicts)) - rows.start) // self.settings.grpo.group_size
        own_share = prompts / len(batch.prompts)
        before = [None if p.grad is None else p.grad.clone() for p in self.policy.parameters()]
        result = super()._accumulate(batch, reference_hidden, rows)
        for parameter, old in zip(self.policy.parameters(), before, strict=True):
            new = parameter.grad - (0 if old is None else old)
            parameter.grad = (0 if old is None else old) + new / own_share / len(self._micro_batches(batch))
        return result


def test_a_mean_of_micro_batch_means_is_noticed():
    trainer, batch = sampled(micro_batch_prompts=3)  # parts of three prompts and of one
    _, right = accumulated(trainer, batch)
    trainer.__class__ = MeanOfMicroBatchMeans
    assert distance(accumulated(trainer, batch)[1], right) > 1e-2


# --- Current, old and reference ------------------------------------------------------------------------------------


def trained(trainer_class=GrpoTrainer, iterations=3, **changes):
    trainer = grpo_trainer(trainer_class, **changes)
    for _ in range(iterations):
        trainer.advance()
    return trainer


@pytest.fixture(scope="module")
def run_of_three():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo_module, "verify", parity_verdict)
        return trained()


def old_was_captured(history):
    """Update 1 of an iteration has ratios of 1 up to rounding and no clip; update 2 has others."""
    return all(
        first["max_ratio_deviation"] < 2e-4 and first["active_clip_share"] == 0 and second["max_ratio_deviation"] > 1e-3
        for first, second in (row["updates"] for row in history)
    )


class RecomputesOld(GrpoTrainer):
    """The current log-probs, detached, serve as the old ones in every update."""

    def update(self, batch, reference_hidden):
        now = answers_score(self.policy, batch, self.pad)
        return super().update(replace(batch, rollout=replace(batch.rollout, logprobs=now)), reference_hidden)


def test_the_second_update_has_moved_away_from_the_old_policy(run_of_three):
    assert old_was_captured(run_of_three.history)


def test_old_logprobs_that_are_recomputed_are_noticed():
    history = trained(RecomputesOld).history
    assert not old_was_captured(history)
    assert all(update["max_ratio_deviation"] < 2e-4 for row in history for update in row["updates"])


def starts_at_its_reference(history):
    first, second = history[0]["updates"]
    return first["kl_mean"] < 1e-6 and max(itertools.chain(*first["kl"])) < 1e-5 and second["kl_mean"] > 1e-4


def test_kl_is_zero_before_the_first_update_only(run_of_three):
    assert starts_at_its_reference(run_of_three.history)
    assert min(value for row in run_of_three.history for u in row["updates"] for kl in u["kl"] for value in kl) > -1e-6


def test_a_reference_that_starts_elsewhere_is_noticed():
    trainer = grpo_trainer()
    nudge(trainer.reference)
    trainer.advance()
    assert not starts_at_its_reference(trainer.history)


def test_the_reference_is_frozen(run_of_three):
    start = grpo_trainer()
    assert policy_fingerprint(run_of_three.reference) == policy_fingerprint(start.reference)
    assert policy_fingerprint(run_of_three.policy) != policy_fingerprint(start.policy)
    assert not any(parameter.requires_grad for parameter in run_of_three.reference.parameters())


def test_the_fingerprint_is_that_of_the_policy_that_sampled(run_of_three):
    assert run_of_three.history[0]["policy_fingerprint"] == policy_fingerprint(grpo_trainer().policy)
    assert len({row["policy_fingerprint"] for row in run_of_three.history}) == 3


def test_the_score_check_is_recorded(run_of_three):
    assert all(0 <= row["score_check"] < 1e-4 for row in run_of_three.history)


def test_a_policy_swapped_after_sampling_is_refused():
    trainer, batch = sampled()
    with pytest.raises(VerificationError, match=r"differ from the captured ones by .*another policy"):
        trainer.check_captured(batch)


def test_ids_that_were_decoded_and_encoded_again_are_refused():
    trainer = grpo_trainer()
    batch = trainer.sample()
    other = torch.where(batch.rollout.mask, (batch.rollout.ids + 1) % 600, batch.rollout.ids)
    with pytest.raises(VerificationError):
        trainer.check_captured(replace(batch, rollout=replace(batch.rollout, ids=other)))


def test_a_nan_score_does_not_pass_for_agreement():
    trainer = grpo_trainer()
    batch = trainer.sample()
    logprobs = batch.rollout.logprobs.clone()
    logprobs[0, 0] = torch.nan
    with pytest.raises(VerificationError):
        trainer.check_captured(replace(batch, rollout=replace(batch.rollout, logprobs=logprobs)))


def test_dropout_left_on_is_refused():
    trainer = grpo_trainer()
    batch = trainer.sample()
    for layer in trainer.policy.model.layers:
        layer.self_attn.attention_dropout = 0.5
    trainer.policy.train()
    with pytest.raises(VerificationError, match="dropout"):
        trainer.check_captured(batch)
    with pytest.raises(VerificationError, match="train"):
        trainer.sample()


# --- Prompts, rewards, evidence --------------------------------------------------------------------------------------


def no_prompt_repeats_in_a_permutation(presented, per_permutation):
    passes = [presented[start : start + per_permutation] for start in range(0, len(presented), per_permutation)]
    return all(len(set(names)) == len(names) for names in passes)


@pytest.mark.parametrize("wanted, count, per_permutation", [(2, 6, 6), (4, 6, 4), (4, 7, 4)])
def test_prompts_do_not_repeat_within_a_permutation(wanted, count, per_permutation):
    trainer = grpo_trainer(prompts_per_iteration=wanted)
    trainer.stream.prompts = rollout_prompts(count)
    batches = [[prompt.name for prompt in trainer.sample().prompts] for _ in range(30)]
    presented = [name for batch in batches for name in batch]
    assert {len(batch) for batch in batches} == {wanted}
    assert no_prompt_repeats_in_a_permutation(presented, per_permutation)
    assert set(presented) == {prompt.name for prompt in trainer.stream.prompts}
    assert presented[:per_permutation] != presented[per_permutation : 2 * per_permutation]
    with_replacement = torch.randint(0, count, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    assert not no_prompt_repeats_in_a_permutation(with_replacement, per_permutation)


def test_runs_of_other_group_sizes_see_the_same_prompts():
    orders = []
    for group_size in (2, 4, 8):
        trainer = grpo_trainer(group_size=group_size)
        orders.append([prompt.name for _ in range(7) for prompt in trainer.sample().prompts])
    assert orders[0] == orders[1] == orders[2]


def rewards_and_pay(trainer, iterations=4):
    batches = []
    for _ in range(iterations):
        batch = trainer.sample()
        batches.append(([float(verdict.reward) for verdict in batch.verdicts], batch.rewards.flatten().tolist()))
    return batches


def is_shuffled_within_each_batch(batches):
    return all(sorted(true) == sorted(paid) for true, paid in batches) and any(true != paid for true, paid in batches)


def test_shuffled_rewards_are_a_permutation_within_the_batch():
    plain, shuffled = rewards_and_pay(grpo_trainer()), rewards_and_pay(grpo_trainer(shuffle_rewards=True))
    assert all(true == paid for true, paid in plain)
    assert is_shuffled_within_each_batch(shuffled)
    assert [true for true, _ in shuffled] == [true for true, _ in plain]  # the control changes the pay alone
    drawn_anew = [(true, [1.0 - value for value in paid]) for true, paid in shuffled]
    assert not is_shuffled_within_each_batch(drawn_anew)


def test_advantages_follow_what_was_paid():
    trainer = grpo_trainer(shuffle_rewards=True)
    trainer.advance()
    answers = trainer.history[0]["answers"]
    paid = torch.tensor([answer["paid"] for answer in answers]).view(-1, GRPO.group_size)
    expected = (paid - paid.mean(1, keepdim=True)) / (paid.std(1, correction=0, keepdim=True) + 1e-8)
    assert [answer["advantage"] for answer in answers] == pytest.approx(expected.flatten().tolist(), abs=1e-6)
    assert [answer["reward"] for answer in answers] != [answer["paid"] for answer in answers]


def test_no_rollout_is_consumed_twice(run_of_three):
    rows = [answer for row in run_of_three.history for answer in row["answers"]]
    assert len({answer["rollout_id"] for answer in rows}) == len(rows) == 3 * 2 * GRPO.group_size


def test_evidence_holds_what_an_audit_needs(run_of_three):
    for row in run_of_three.history:
        for number, answer in enumerate(row["answers"]):
            assert len(answer["ids"]) == len(answer["logprobs"])
            assert answer["reward"] == int(len(answer["text"]) % 2 == 0)
            for update in row["updates"]:
                assert len(update["kl"][number]) == len(update["logprobs"][number]) == len(answer["ids"])
    by_update = [update["learning_rate"] for row in run_of_three.history for update in row["updates"]]
    assert by_update == [run_of_three.optimizer.schedule.learning_rate(k) for k in range(6)]


def test_probes_are_whole_distributions_of_three_policies():
    trainer = grpo_trainer(iterations=PROBED_ITERATIONS + 2)
    for _ in range(trainer.total_steps):
        trainer.advance()
    assert ["probe" in row for row in trainer.history] == [True] * PROBED_ITERATIONS + [False, True]
    probe = {name: torch.tensor(values) for name, values in trainer.history[0]["probe"].items()}
    for logp in probe.values():
        assert len(logp) == len(tokenizer()) and logp.exp().sum().item() == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(probe["sampled"], probe["reference"], rtol=0, atol=1e-4)
    assert (probe["now"] - probe["sampled"]).abs().max() > 1e-3
    first = trainer.history[0]["answers"][0]
    assert probe["sampled"][first["ids"][0]].item() == pytest.approx(first["logprobs"][0], abs=1e-4)


def test_the_true_verifier_is_what_pays(monkeypatch):
    """Outside of these tests' stand-in: a policy that writes the right JSON earns 1, any other 0."""
    monkeypatch.undo()
    trainer = grpo_trainer()
    right = [*tokenizer()('{"final_stock":0}')["input_ids"], tokenizer().eos_token_id]
    generate = grpo_module.generate

    def scripted(*arguments):
        rollout = generate(*arguments)
        width = len(right)
        ids = torch.zeros(len(rollout.ids), width, dtype=torch.int64)
        mask = torch.ones_like(ids, dtype=torch.bool)
        ids[:] = torch.tensor(right)
        reasons = tuple("length" if row == 3 else "eos" for row in range(len(ids)))
        return replace(rollout, ids=ids, mask=mask, logprobs=torch.zeros(ids.shape), finish_reasons=reasons)

    monkeypatch.setattr(grpo_module, "generate", scripted)
    batch = trainer.sample()
    expected = [float(prompt.problem.final_stock == 0) for prompt in batch.prompts for _ in range(4)]
    expected[3] = 0.0  # cut at the limit
    assert batch.rewards.flatten().tolist() == expected
