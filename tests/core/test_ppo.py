"""PPO: what is captured and stays fixed, which network each loss moves, and where an answer's end is paid."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small_model import PROFILE, tokenizer
from small_office import EOS_ID, PAD_ID, fill_adapters, small_actor, small_critic, small_judge
from small_trainers import ACTOR, JUDGE_SEED, PPO, PROMPTS, ppo_prompts, ppo_settings, ppo_trainer

from labs_lib.errors import VerificationError
from labs_lib.kernels.gae import generalised_advantages
from labs_lib.kernels.kl import exact_kl_reference
from labs_lib.models.roles import backbone_fingerprint, learned_fingerprint, learned_tensors, load_learned
from labs_lib.office_rewards import JudgeReward, RubricReward
from labs_lib.rollout import EOS, LENGTH
from labs_lib.tasks.office_help.wording import answer_text
from labs_lib.training import ppo as ppo_module
from labs_lib.training.optimizer import Schedule, ScheduledAdamW
from labs_lib.training.ppo import PpoPrompt, PpoTrainer

UPDATES = PPO.iterations * PPO.updates_per_iteration


# --- Plain code: one answer, one whole sequence ---------------------------------------------------------------


def states(model, prompt, answer):
    """Final hidden states (len(answer) + 1, H): before each token of the answer, and after the last."""
    hidden = model.model(input_ids=torch.tensor([[*prompt, *answer]])).last_hidden_state[0]
    return hidden[len(prompt) - 1 :]


def plain_logprobs(policy, prompt, answer):
    logits = states(policy, prompt, answer)[:-1] @ policy.get_output_embeddings().weight.T
    return torch.stack([row.log_softmax(-1)[token] for row, token in zip(logits, answer, strict=True)])


def plain_scalars(model, prompt, answer):
    """What a scalar role says before each token and, last, after the end."""
    return states(model.backbone, prompt, answer) @ model.head.weight[0] + model.head.bias[0]


def reading_of(trainer, experience):
    """What the trainer's networks say of these answers as they are now."""
    return trainer.read(experience.prompts, experience.rollout)


def answers_of(experience):
    """(prompt ids, answer ids, number of the row) of every answer."""
    return [(prompt.ids, experience.rollout.answer_ids(row), row) for row, prompt in enumerate(experience.prompts)]


def row_of(tensor, row, answer):
    return tensor[row, : len(answer)]


# --- One iteration's experience -------------------------------------------------------------------------------


def sampled(**changes):
    """A trainer whose actor left its reference before it sampled, and the experience of six answers."""
    trainer = ppo_trainer(prompts_per_iteration=PROMPTS, **changes)
    fill_adapters(trainer.actor, 7)
    prompts, rollout = trainer.sample()
    experience = trainer.evaluate(prompts, rollout, trainer.read(prompts, rollout))
    assert set(experience.rollout.finish_reasons) == {EOS, LENGTH}
    return trainer, experience


@torch.no_grad()
def plain_experience(trainer, experience, kl_sign=-1.0, penalty=1.0, pay="last", bootstrap=0.0, whiten=False):
    """Per answer: rewards, values, advantages and returns as lists, by the formulas of the lab; mistakes on demand."""
    ppo, rows = trainer.settings.ppo, []
    for prompt, answer, row in answers_of(experience):
        old = row_of(experience.rollout.logprobs, row, answer).tolist()
        reference = plain_logprobs(trainer.reference, prompt, answer).tolist()
        *values, after = plain_scalars(trainer.critic, prompt, answer).tolist()
        score = plain_scalars(trainer.reward.judge, prompt, answer)[-1].item()
        score -= penalty if answer[-1] != EOS_ID else 0.0
        rewards = [kl_sign * ppo.kl_weight * (o - r) for o, r in zip(old, reference, strict=True)]
        for t in range(len(answer)) if pay == "every" else [-1]:
            rewards[t] += score
        beyond = bootstrap * after if answer[-1] != EOS_ID else 0.0
        advantages, next_value, next_advantage = [], beyond, 0.0
        for reward, value in zip(reversed(rewards), reversed(values), strict=True):
            next_advantage = reward + ppo.gamma * next_value - value + ppo.gamma * ppo.gae_lambda * next_advantage
            advantages.insert(0, next_advantage)
            next_value = value
        rows.append([rewards, values, advantages, [a + v for a, v in zip(advantages, values, strict=True)]])
    if whiten:
        deviation, mean = torch.std_mean(torch.tensor([a for row in rows for a in row[2]]))
        for row in rows:
            row[2] = [((a - mean) / deviation).item() for a in row[2]]
            row[3] = [a + v for a, v in zip(row[2], row[1], strict=True)]
    return rows


def follows(trainer, experience, **mistake):
    found = experience.rewards, experience.values, experience.gae.advantages, experience.gae.returns
    plain = plain_experience(trainer, experience, **mistake)
    return all(
        row_of(tensor, row, answer).tolist() == pytest.approx(expected, abs=1e-4)
        for _, answer, row in answers_of(experience)
        for tensor, expected in zip(found, plain[row], strict=True)
    )


MISTAKES = [
    {"kl_sign": 1.0},
    {"kl_sign": 0.0},
    {"penalty": 0.0},
    {"pay": "every"},
    {"bootstrap": 1.0},  # of an answer that was only cut
    {"whiten": True},
]


@pytest.fixture(scope="module")
def sample():
    return sampled()


def test_rewards_values_and_advantages_are_those_of_plain_code(sample):
    trainer, experience = sample
    assert follows(trainer, experience)
    # None of the terms is nothing: log-ratios of both signs, values and scores of some size.
    log_ratio = (experience.rollout.logprobs - experience.reference_logprobs)[experience.rollout.mask]
    assert log_ratio.min() < -0.05 and log_ratio.max() > 0.05
    assert experience.values.abs().max() > 0.1 and experience.scores.std() > 0.05


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_another_reward_or_advantage_is_noticed(sample, mistake):
    assert not follows(*sample, **mistake)


def test_the_experience_is_constant_and_nothing_stands_off_the_mask(sample):
    _, experience = sample
    tensors = [experience.reference_logprobs, experience.values, experience.rewards, *experience.gae]
    for tensor in (*tensors, experience.rollout.logprobs):
        assert not tensor.requires_grad and (tensor[~experience.rollout.mask] == 0).all()
    assert not experience.scores.requires_grad and (~experience.rollout.mask).any()


def test_only_an_answer_that_was_cut_pays_the_penalty_once_and_at_its_last_token(sample):
    _, experience = sample
    free, _ = sampled(truncation_penalty=0.0)
    unpunished = free.evaluate(experience.prompts, experience.rollout, reading_of(free, experience))
    difference = unpunished.rewards - experience.rewards
    for _, answer, row in answers_of(experience):
        cut = experience.rollout.finish_reasons[row] == LENGTH
        assert cut == (answer[-1] != EOS_ID)
        expected = [0.0] * (len(answer) - 1) + [float(cut)]
        assert row_of(difference, row, answer).tolist() == pytest.approx(expected, abs=1e-6)


def test_nothing_is_bootstrapped_past_the_end_of_an_answer(sample):
    """The last token's advantage is its reward less its value, whether EOS or the limit ended the answer."""
    trainer, experience = sample
    for prompt, answer, row in answers_of(experience):
        last = len(answer) - 1
        end = experience.rewards[row, last] - experience.values[row, last]
        assert experience.gae.advantages[row, last].item() == pytest.approx(end.item(), abs=1e-6)
        # There would have been something to add.
        assert plain_scalars(trainer.critic, prompt, answer)[-1].abs() > 1e-2


def test_the_exact_kl_is_recorded_beside_the_sampled_log_ratio(sample):
    trainer, experience = sample
    kl = experience.at_sampling.kl
    for prompt, answer, row in answers_of(experience):
        with torch.no_grad():
            logits = [
                states(model, prompt, answer)[:-1] @ model.get_output_embeddings().weight.T
                for model in (trainer.actor, trainer.reference)
            ]
        torch.testing.assert_close(row_of(kl, row, answer), exact_kl_reference(*logits).float(), rtol=1e-3, atol=1e-4)
    log_ratio = experience.rollout.logprobs - experience.reference_logprobs
    assert kl.min() > -1e-6 and (kl - log_ratio).abs().max() > 1e-2


# --- The two losses -------------------------------------------------------------------------------------------


def gradients(trainer, experience):
    """(what `update` returns, gradient by role as one vector) of one update, without its two steps."""
    found = {}

    def keep(role, optimizer):
        found[role] = torch.cat([parameter.grad.flatten() for parameter in optimizer.parameters])
        for parameter in optimizer.parameters:
            parameter.grad = None
        return {}

    with pytest.MonkeyPatch.context() as patch:
        for role, optimizer in trainer.optimizers.items():
            patch.setattr(optimizer, "step", lambda role=role, optimizer=optimizer: keep(role, optimizer))
        return trainer.update(experience, reading_of(trainer, experience)), found


def gradient_by(model, loss):
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, learning)])


def mean_of_answer_means(rows):
    return torch.stack([row.mean() for row in rows]).mean()


def token_mean(rows):
    return torch.cat(rows).mean()


def actor_loss(trainer, experience, reduce=mean_of_answer_means, clip=(0.8, 1.2), advantage="advantages", sign=-1.0):
    """-min(ratio A, clipped ratio A), an answer at a time."""
    rows = []
    for prompt, answer, row in answers_of(experience):
        now, old = plain_logprobs(trainer.actor, prompt, answer), row_of(experience.rollout.logprobs, row, answer)
        ratio, weight = (now - old).exp(), row_of(getattr(experience.gae, advantage), row, answer)
        rows.append(sign * torch.minimum(ratio * weight, ratio.clamp(*clip) * weight))
    return reduce(rows)


def critic_loss(trainer, experience, reduce=mean_of_answer_means, factor=0.5, target="returns", clip=None):
    """Half the squared distance to the return, an answer at a time."""
    rows = []
    for prompt, answer, row in answers_of(experience):
        values = plain_scalars(trainer.critic, prompt, answer)[:-1]
        goal, before = row_of(getattr(experience.gae, target), row, answer), row_of(experience.values, row, answer)
        squares = (values - goal).square()
        if clip is not None:
            near = before + (values - before).clamp(-clip, clip)
            squares = torch.maximum(squares, (near - goal).square())
        rows.append(factor * squares)
    return reduce(rows)


PLAIN = {"actor": actor_loss, "critic": critic_loss}


@pytest.fixture(scope="module")
def moved(sample):
    """A trainer whose two networks have moved since they answered, so that some tokens are clipped and some not."""
    answered, experience = sample
    trainer = ppo_trainer(prompts_per_iteration=PROMPTS)
    load_learned(trainer.actor, learned_tensors(answered.actor))
    for model in (trainer.actor, trainer.critic):
        nudge(model)
    measured, found = gradients(trainer, experience)
    assert 0 < measured["active_clip_share"] < measured["outside_share"] < 1
    return trainer, experience, measured, found


@torch.no_grad()
def nudge(model, size=0.02):
    generator = torch.Generator().manual_seed(3)
    for tensor in learned_tensors(model).values():
        tensor += size * torch.randn(tensor.shape, generator=generator)


def differs_from_plain_code(moved, role, **mistake):
    """Relative distances of value and gradient."""
    trainer, experience, measured, found = moved
    loss = PLAIN[role](trainer, experience, **mistake)
    wanted = gradient_by(getattr(trainer, role), loss)
    by_gradient = (found[role] - wanted).abs().max() / wanted.abs().max()
    return abs(measured[role]["loss"] - loss.item()) / abs(loss.item()), by_gradient.item()


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_loss_and_gradient_are_those_of_plain_code(moved, role):
    assert max(differs_from_plain_code(moved, role)) < 1e-3


def named(value) -> str:
    """A parameter's name that is equal in every process: str of a function holds its address."""
    if isinstance(value, str):
        return value
    return ",".join(f"{key}={getattr(part, '__name__', part)}" for key, part in value.items())


@pytest.mark.parametrize(
    "role, mistake",
    [
        ("actor", {"reduce": token_mean}),
        ("actor", {"clip": (0.0, float("inf"))}),
        ("actor", {"clip": (0.8, 1.28)}),
        ("actor", {"sign": 1.0}),
        ("actor", {"advantage": "returns"}),
        ("actor", {"advantage": "deltas"}),
        ("critic", {"reduce": token_mean}),
        ("critic", {"factor": 0.25}),
        ("critic", {"factor": 1.0}),
        ("critic", {"target": "advantages"}),
        ("critic", {"clip": 0.01}),
    ],
    ids=named,
)
def test_another_loss_is_noticed(moved, role, mistake):
    assert max(differs_from_plain_code(moved, role, **mistake)) > 1e-2


def moved_by(trainer, experience, role):
    """The roles that an update changes in which only the optimiser of `role` makes its step."""
    prints = {name: learned_fingerprint(model) for name, model in trainer.roles.items()}
    (other,) = set(trainer.optimizers) - {role}
    trainer.optimizers[other].step = dict  # leaves the gradient where it is and moves nothing
    trainer.update(experience, reading_of(trainer, experience))
    return {name for name, model in trainer.roles.items() if learned_fingerprint(model) != prints[name]}


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_the_update_of_one_network_does_not_move_the_other(role):
    assert moved_by(*sampled(), role) == {role}


def test_an_optimiser_that_holds_both_networks_is_noticed():
    trainer, experience = sampled()
    both = torch.nn.ModuleList([trainer.actor, trainer.critic])
    trainer.optimizers["critic"] = ScheduledAdamW(both, PROFILE.optimizer, UPDATES, 1e-2)
    assert moved_by(trainer, experience, "critic") == {"actor", "critic"}


# --- Roles ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran():
    return run_of(PpoTrainer)


def run_of(trainer_class, **changes):
    trainer = ppo_trainer(trainer_class, **changes)
    while trainer.step < trainer.total_steps:
        trainer.advance()
    return trainer


def test_actor_and_critic_learn_and_nothing_else_changes(ran):
    start = ppo_trainer()
    assert set(ran.roles) == {"actor", "critic", "reference", "judge"}
    for role, model in ran.roles.items():
        before = start.roles[role]
        assert backbone_fingerprint(model) == backbone_fingerprint(before)
        learns = learned_fingerprint(model) != learned_fingerprint(before)
        assert learns == (role in ("actor", "critic"))
        assert any(parameter.requires_grad for parameter in model.parameters()) == learns
        assert all(parameter.grad is None for parameter in model.parameters())


def test_two_optimisers_each_with_its_own_parameters_rate_and_schedule(ran):
    for role, peak in (("actor", PPO.actor_learning_rate), ("critic", PPO.critic_learning_rate)):
        optimizer = ran.optimizers[role]
        learned = learned_tensors(ran.roles[role])
        assert set(optimizer.names) == set(learned)
        assert {p.data_ptr() for p in optimizer.parameters} == {tensor.data_ptr() for tensor in learned.values()}
        schedule = Schedule(UPDATES, peak, PROFILE.optimizer.warmup_fraction, PROFILE.optimizer.final_fraction)
        used = [update[role]["learning_rate"] for row in ran.history for update in row["updates"]]
        assert used == [schedule.learning_rate(update) for update in range(UPDATES)]
        assert optimizer.max_grad_norm == 1.0 and optimizer._adamw.param_groups[0]["weight_decay"] == 0.01
    assert PPO.actor_learning_rate != PPO.critic_learning_rate


def constructed(**given):
    """A trainer of fresh roles, some of them given."""
    judge = given.pop("judge", None) or small_judge(JUDGE_SEED)
    roles = {"actor": small_actor(ACTOR), "critic": small_critic(ACTOR), "reference": small_actor(ACTOR)} | given
    ordered = [roles[name] for name in ("actor", "critic", "reference")]
    return PpoTrainer(*ordered, JudgeReward(judge, PAD_ID), tokenizer(), ppo_prompts(), ppo_settings())


def on_the_backbone_of(scalar):
    """Another head on the same backbone: a reward that moves while the critic learns."""
    other = small_judge(JUDGE_SEED)
    other.backbone = scalar.backbone
    return other


def test_roles_that_share_a_backbone_are_refused():
    critic, actor = small_critic(ACTOR), small_actor(ACTOR)
    constructed(critic=critic, actor=actor)
    with pytest.raises(VerificationError, match="critic and judge share"):
        constructed(critic=critic, judge=on_the_backbone_of(critic))
    with pytest.raises(VerificationError, match="actor and reference share"):
        constructed(actor=actor, reference=actor)
    shared = small_critic(ACTOR)
    shared.backbone = actor
    with pytest.raises(VerificationError, match="actor and critic share"):
        constructed(actor=actor, critic=shared)


MAKE = {"actor": small_actor, "critic": small_critic, "reference": small_actor, "judge": small_judge}


@pytest.mark.parametrize("role", MAKE)
def test_a_role_in_train_mode_is_refused(role):
    with pytest.raises(VerificationError, match="train"):
        constructed(**{role: MAKE[role](ACTOR).train()})


def test_a_backbone_that_would_learn_or_has_another_dtype_is_refused():
    learning = small_actor(ACTOR)
    learning.model.layers[0].mlp.up_proj.base.weight.requires_grad_()
    with pytest.raises(VerificationError, match=r"up_proj\.base\.weight .* would learn"):
        constructed(actor=learning)
    with pytest.raises(VerificationError, match=r"is torch\.bfloat16, not torch\.float32"):
        constructed(critic=small_critic(ACTOR, torch.bfloat16))


# --- Captured, not recomputed ---------------------------------------------------------------------------------


def old_was_captured(history):
    """Update 1 of an iteration has ratios of 1 up to rounding and no clip; update 2 has others."""
    return all(
        first["max_ratio_deviation"] < 2e-4
        and first["active_clip_share"] == first["outside_share"] == 0
        and second["max_ratio_deviation"] > 1e-3
        for first, second in (row["updates"] for row in history)
    )


def losses_are_of_what_was_captured(history):
    """Both losses of both updates, recomputed from the evidence: targets and old log-probs are the answers' own."""
    for row in history:
        for update in row["updates"]:
            actor, critic = [], []
            for number, answer in enumerate(row["answers"]):
                old, weight, goal = (torch.tensor(answer[key]) for key in ("logprobs", "advantages", "returns"))
                ratio = (torch.tensor(update["logprobs"][number]) - old).exp()
                actor.append(-torch.minimum(ratio * weight, ratio.clamp(0.8, 1.2) * weight).mean())
                critic.append(0.5 * (torch.tensor(update["values"][number]) - goal).square().mean())
            for role, parts in (("actor", actor), ("critic", critic)):
                if update[role]["loss"] != pytest.approx(sum(parts).item() / len(parts), abs=1e-4):
                    return False
    return True


class RecomputesOld(PpoTrainer):
    """The current log-probs, detached, serve as the old ones in every update."""

    def update(self, experience, reading):
        rollout = replace(experience.rollout, logprobs=reading.logprobs.detach())
        return super().update(replace(experience, rollout=rollout), reading)


class RecomputesValues(PpoTrainer):
    """Advantages and returns follow the critic from update to update."""

    def update(self, experience, reading):
        ppo, values = self.settings.ppo, reading.values.detach()
        gae = generalised_advantages(experience.rewards, values, experience.rollout.mask, ppo.gamma, ppo.gae_lambda)
        return super().update(replace(experience, values=values, gae=gae), reading)


def test_what_was_captured_serves_both_updates(ran):
    assert old_was_captured(ran.history) and losses_are_of_what_was_captured(ran.history)
    assert any(row["updates"][1]["active_clip_share"] > 0 for row in ran.history)


def test_old_logprobs_that_are_recomputed_are_noticed():
    history = run_of(RecomputesOld).history
    assert not old_was_captured(history) and not losses_are_of_what_was_captured(history)
    assert all(update["max_ratio_deviation"] == 0 for row in history for update in row["updates"])


def test_values_that_are_recomputed_are_noticed():
    history = run_of(RecomputesValues).history
    assert old_was_captured(history)  # the ratios show nothing
    assert not losses_are_of_what_was_captured(history)


def test_the_first_update_meets_the_values_and_log_probs_that_were_captured(ran):
    for row in ran.history:
        first, second = row["updates"]
        for key in ("logprobs", "values"):
            for number, answer in enumerate(row["answers"]):
                assert first[key][number] == pytest.approx(answer[key], abs=1e-4)
            assert second[key] != first[key]
        assert 0 <= row["score_check"] < 1e-4


def test_actor_and_critic_read_each_answer_once_for_every_update(monkeypatch):
    """What the evaluation needs of them is what the first update has read anyway."""
    trainer, read = ppo_trainer(), []
    monkeypatch.setattr(ppo_module, "active_hidden", _counting(read, ppo_module.active_hidden))
    monkeypatch.setattr(ppo_module, "answer_values", _counting(read, ppo_module.answer_values))
    trainer.advance()
    updates = PPO.updates_per_iteration
    assert [read.count(model) for model in (trainer.actor, trainer.critic)] == [updates, updates]


def _counting(read, function):
    def counted(model, *arguments):
        read.append(model)
        return function(model, *arguments)

    return counted


def test_kl_is_zero_before_the_first_update_only(ran):
    assert abs(ran.history[0]["kl_mean"]) < 1e-6 and ran.history[1]["kl_mean"] > 1e-4
    first = ran.history[0]["answers"]
    assert all(a["logprobs"] == pytest.approx(a["reference_logprobs"], abs=1e-4) for a in first)


# --- Prompts, state, evidence ---------------------------------------------------------------------------------


def presented(trainer):
    return [[answer["prompt"] for answer in row["answers"]] for row in trainer.history]


def test_another_judge_sees_the_same_prompts_and_the_same_draws(ran):
    """Streams are named by what they are for, not by branch: what differs is the pay alone."""
    other = run_of(PpoTrainer, name="ppo-other", reward=JudgeReward(small_judge(JUDGE_SEED + 1, learned=True), PAD_ID))
    assert presented(other) == presented(ran)
    assert torch.equal(other.tensors()["generator.draws"], ran.tensors()["generator.draws"])
    first, others = (trainer.history[0]["answers"] for trainer in (ran, other))
    assert [a["ids"] for a in first] == [a["ids"] for a in others]
    assert [a["score"] for a in first] != [a["score"] for a in others]
    assert learned_fingerprint(other.actor) != learned_fingerprint(ran.actor)
    per_iteration, another_seed = PPO.prompts_per_iteration, ppo_trainer(seed=49)
    assert [prompt.name for prompt in another_seed.stream.next(per_iteration)] != presented(ran)[0]


def test_every_prompt_of_a_permutation_is_met_once(ran):
    met = [name for row in presented(ran) for name in row]
    everyone = sorted(prompt.name for prompt in ppo_prompts())
    assert sorted(met[:PROMPTS]) == sorted(met[PROMPTS:]) == everyone and met[:PROMPTS] != met[PROMPTS:]


def test_evidence_holds_what_an_audit_needs(ran):
    assert [row["iteration"] for row in ran.history] == list(range(1, PPO.iterations + 1))
    prints = [row["actor_fingerprint"] for row in ran.history]
    assert prints[0] == learned_fingerprint(ppo_trainer().actor) and len(set(prints)) == PPO.iterations
    rollouts = [answer["rollout_id"] for row in ran.history for answer in row["answers"]]
    assert len(set(rollouts)) == len(rollouts) == PPO.iterations * PPO.prompts_per_iteration
    per_token = ("logprobs", "reference_logprobs", "kl", "values", "rewards", "advantages", "returns")
    for row in ran.history:
        for answer in row["answers"]:
            assert {len(answer[key]) for key in per_token} == {len(answer["ids"])}
            assert (answer["ids"][-1] == EOS_ID) == (answer["finish_reason"] == EOS)
            sums = [a + v for a, v in zip(answer["advantages"], answer["values"], strict=True)]
            assert answer["returns"] == pytest.approx(sums, abs=1e-6)
            log_ratio = answer["logprobs"][-1] - answer["reference_logprobs"][-1]
            paid = answer["score"] - PPO.truncation_penalty * (answer["finish_reason"] == LENGTH)
            assert answer["rewards"][-1] == pytest.approx(paid - PPO.kl_weight * log_ratio, abs=1e-6)
        for update in row["updates"]:
            assert [len(values) for values in update["values"]] == [len(answer["ids"]) for answer in row["answers"]]


def saved(trainer):
    """What `restore` reads of a checkpoint, without the disk."""
    tensors = {name: tensor.clone() for name, tensor in trainer.tensors().items()}
    kept = {"record": trainer.record(), "durations": trainer.durations()}
    return SimpleNamespace(path="state", tensors=tensors, **kept)


def test_restoring_takes_back_what_learned(ran):
    trainer = ppo_trainer()
    trainer.restore(saved(ran))
    assert trainer.step == ran.step
    for role, model in ran.roles.items():
        assert learned_fingerprint(trainer.roles[role]) == learned_fingerprint(model)


@pytest.mark.parametrize("role", ["judge", "reference"])
def test_restoring_refuses_another_frozen_role(ran, role):
    trainer = ppo_trainer()
    fill_adapters(trainer.roles[role], 99)
    with pytest.raises(VerificationError, match=f"The frozen {role} is not that of state"):
        trainer.restore(saved(ran))


@pytest.mark.parametrize("role", ["actor", "critic", "reference", "judge"])
def test_restoring_refuses_another_backbone(ran, role):
    """Adapters alone say nothing about what they are added to."""
    trainer = ppo_trainer()
    backbone = getattr(trainer.roles[role], "backbone", trainer.roles[role])
    with torch.no_grad():
        backbone.get_input_embeddings().weight[5] += 1e-3
    with pytest.raises(VerificationError, match=f"The {role}'s backbone is not that of state"):
        trainer.restore(saved(ran))


def test_restoring_refuses_a_run_with_other_roles(ran):
    """In both directions: a judge that the saved run had, and one that it had not."""
    by_rubric = ppo_trainer(reward=RubricReward({}, tokenizer()))
    for trainer, state in ((by_rubric, saved(ran)), (ppo_trainer(), saved(by_rubric))):
        with pytest.raises(VerificationError, match="state and this run differ in roles: judge"):
            trainer.restore(state)


# --- The rubric as reward -------------------------------------------------------------------------------------


TEXTS = {
    answer_text("check_cable", "plain", 0, None): 1.0,
    answer_text("check_cable", "cautious", 1, 0): 1.0,
    answer_text("check_cable", "certain", 0, None): 0.0,
    answer_text("save_document", "plain", 0, 0): 0.0,
    "Please restart it.": 0.0,
}


def rubric_pays(rollout, texts, reason=EOS, unknown_id=None):
    """What the rubric pays for `texts` as answers to a prompt whose right action is the cable's."""
    ids = [[*tokenizer()(text, add_special_tokens=False)["input_ids"], EOS_ID] for text in texts]
    width = max(map(len, ids))
    rows = torch.tensor([[*row, *[PAD_ID] * (width - len(row))] for row in ids])
    mask = torch.tensor([[position < len(row) for position in range(width)] for row in ids])
    if unknown_id is not None:
        rows[:, 0] = unknown_id
    rollout = replace(rollout, ids=rows, mask=mask, finish_reasons=(reason,) * len(texts))
    reward = RubricReward({"cable": "check_cable"}, tokenizer())
    return reward([PpoPrompt("cable", [5, 6])] * len(texts), rollout, list(texts)).tolist()


def test_the_rubric_pays_certified_answers_only(sample):
    rollout = sample[1].rollout
    assert rubric_pays(rollout, TEXTS) == list(TEXTS.values())
    assert rubric_pays(rollout, TEXTS, reason=LENGTH) == [0.0] * len(TEXTS)
    assert rubric_pays(rollout, TEXTS, unknown_id=len(tokenizer()) + 3) == [0.0] * len(TEXTS)
    assert not RubricReward.roles  # nothing frozen to carry in the state
