"""The batched trainer is the plain loop many times over; what its plan turns on does what it says and no more."""

from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_bench import PLAN, plain_states, random_table

from labs_lib.bench.losses import GRPO, VARIANTS, Variant
from labs_lib.bench.plain import PlainTrainer
from labs_lib.bench.policies import initial_mlp, state_features, table_of
from labs_lib.bench.training import BenchTrainer, Draws, Plan, Rollouts, replace_groups, rescale, sample_answers
from labs_lib.errors import LabError
from labs_lib.seeding import named_generator
from labs_lib.tasks.padded_bits.environment import MAX_TOKENS, P, S, answer_mask, rewards

SEEDS = [11, 5, 8]
MIDDLE = 1
UPDATES = PLAN.epochs * PLAN.answers // PLAN.minibatch
EACH = pytest.mark.parametrize("name", VARIANTS)
CLIPS = {name: VARIANTS[name] for name in ("grpo", "clip_higher")}


def trained(variants, seeds, plan):
    """A trainer at its end, and the batches that it sampled."""
    trainer = BenchTrainer(variants, seeds, plan)
    batches, sample = [], trainer.sample

    def kept(table):
        batches.append(sample(table))
        return batches[-1]

    trainer.sample = kept
    trainer.run(lambda table: {})
    return trainer, batches


@pytest.fixture(scope="module")
def study():
    """All variants with three seeds."""
    return trained(VARIANTS, SEEDS, PLAN)


def curves(trainer, name):
    """(U, V, seeds) of an audit."""
    return torch.stack(trainer.record.updates[name]).view(-1, len(trainer.variants), len(trainer.seeds))


# --- The plain loop -----------------------------------------------------------------------------------------------


@EACH
def test_a_seed_in_the_middle_of_a_study_is_that_seed_in_the_plain_loop(study, name):
    trainer, batches = study
    model = list(VARIANTS).index(name) * len(SEEDS) + MIDDLE
    plain = PlainTrainer(VARIANTS[name], SEEDS[MIDDLE], PLAN)
    for batch in batches:
        plain.advance()
        assert torch.equal(batch.rewards[model], plain.paid)
    ours = [p[model].T if p.shape[1] > 1 else p[model, 0] for p in trainer.policies.parameters]
    for batched, single in zip(ours, plain.model.parameters(), strict=True):
        torch.testing.assert_close(batched, single, rtol=0, atol=1e-10)
    table = plain.model(state_features(2)).log_softmax(dim=-1)
    torch.testing.assert_close(table_of(trainer.policies)[model], table, rtol=0, atol=1e-10)
    untrained = initial_mlp(SEEDS[MIDDLE]).double()(state_features(2)).log_softmax(dim=-1)
    assert (table - untrained).abs().max() > 0.01  # there was something to be equal in


def test_the_comparison_can_fail(study):
    """Another seed, and each other variant, are far off."""
    tables = table_of(study[0].policies).view(len(VARIANTS), len(SEEDS), -1)
    plain = PlainTrainer(GRPO, SEEDS[MIDDLE], PLAN).run()(state_features(2)).log_softmax(dim=-1).flatten()
    apart = (tables - plain).abs().amax(dim=-1)
    apart[0, MIDDLE] = torch.inf
    assert apart.min() > 1e-4


def test_the_default_plan_and_two_bits_agree_too():
    plan = Plan(iterations=1, bits=2, epochs=2)
    trainer, _ = trained({"dr_grpo": VARIANTS["dr_grpo"]}, [3], plan)
    plain = PlainTrainer(VARIANTS["dr_grpo"], 3, plan).run()
    table = plain(state_features(4)).log_softmax(dim=-1)
    torch.testing.assert_close(table_of(trainer.policies)[0], table, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "variant, changes, named",
    [
        (GRPO, {"policy": "tabular"}, "Plan.policy only as 'mlp'"),
        (GRPO, {"optimizer": "sgd"}, "Plan.optimizer only as 'adam'"),
        (GRPO, {"reward": "random"}, "Plan.reward"),
        (GRPO, {"resample": 1}, "Plan.resample"),
        (GRPO, {"invert_at": 0}, "Plan.invert_at"),
        (GRPO, {"gradient_norm": 1.0}, "Plan.gradient_norm"),
        (GRPO, {"recompute_old": True}, "Plan.recompute_old"),
        (Variant(overlong="masked"), {}, "Variant.overlong"),
        (Variant(entropy_bonus=0.1), {}, "Variant.entropy_bonus"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_the_plain_loop_refuses_what_it_would_ignore(variant, changes, named):
    with pytest.raises(LabError, match=named):
        PlainTrainer(variant, 0, replace(PLAN, **changes))


# --- Pairs and draws ----------------------------------------------------------------------------------------------


def test_variants_of_a_seed_see_the_same_prompts(study):
    _, batches = study
    for batch in batches:
        keys = batch.keys.view(len(VARIANTS), len(SEEDS), -1)
        assert (keys == keys[0]).all() and not (keys[0] == keys[0, 0]).all()
    first = batches[0].answers.view(len(VARIANTS), len(SEEDS), -1)
    assert (first == first[0]).all()  # no variant has learned yet, and the uniforms are shared
    last = batches[-1].answers.view(len(VARIANTS), len(SEEDS), -1)
    assert not (last == last[0]).all()


def test_draws_of_a_seed_are_one_generators_whoever_draws_beside_it():
    together, alone = Draws(SEEDS, PLAN), Draws(SEEDS[MIDDLE:][:1], PLAN)
    generator = named_generator(SEEDS[MIDDLE], "bench/draws")
    for draws, index in ((together, MIDDLE), (alone, 0)):
        (keys, uniforms), coins, order = draws.prompts(), draws.coins(), draws.order()
        generator = named_generator(SEEDS[MIDDLE], "bench/draws")
        assert torch.equal(keys[index], torch.randint(2, (PLAN.prompts,), generator=generator))
        expected = torch.rand(PLAN.answers, MAX_TOKENS, generator=generator, dtype=torch.float64)
        assert torch.equal(uniforms[index], expected)
        assert torch.equal(coins[index], torch.randint(2, coins[index].shape, generator=generator).double())
        assert torch.equal(order[index], torch.randperm(PLAN.answers, generator=generator))


CONTROLS = {
    "rule": {},
    "random": {"reward": "random"},
    "shuffled": {"reward": "shuffled keys"},
    "resample": {"resample": 3},
    "tabular": {"policy": "tabular", "optimizer": "sgd", "learning_rate": 1.0},
}


@pytest.mark.parametrize("control", CONTROLS)
def test_company_changes_nothing_of_a_seed(control):
    """Neither the other seeds of a study nor its other variants do, whatever the plan draws."""
    plan = replace(PLAN, iterations=2, **CONTROLS[control])
    together, _ = trained({"dr_grpo": VARIANTS["dr_grpo"], "grpo": GRPO}, SEEDS, plan)
    alone, _ = trained({"grpo": GRPO}, SEEDS[MIDDLE:][:1], plan)
    found = table_of(together.policies)[len(SEEDS) + MIDDLE]
    torch.testing.assert_close(found, table_of(alone.policies)[0], rtol=0, atol=1e-10)


# --- Old log-probs ------------------------------------------------------------------------------------------------


def test_old_logprobs_are_those_of_the_sampling_policy():
    trainer = BenchTrainer({"grpo": GRPO}, SEEDS, PLAN)
    table = table_of(trainer.policies)
    batch = trainer.sample(table)
    assert torch.equal(batch.mask, answer_mask(batch.answers)) and (batch.logprobs[~batch.mask] == 0).all()
    assert batch.stopped.tolist() == [[S in answer for answer in answers.tolist()] for answers in batch.answers]
    for model in range(len(SEEDS)):
        for row in range(PLAN.answers):
            tokens = batch.answers[model, row][batch.mask[model, row]].tolist()
            states = plain_states(tokens, int(batch.keys[model, row]))
            expected = table[model, states, tokens]
            assert torch.equal(batch.logprobs[model, row, : len(tokens)], expected)


def test_the_first_minibatch_has_ratio_one_and_no_later_one_has(study):
    trainer, _ = study
    audits = ("largest_ratio", "clip_share", "gradient_norm")
    ratios, clipped, norms = (curves(trainer, name).unflatten(0, (-1, UPDATES)) for name in audits)
    assert len(ratios) == PLAN.iterations
    assert (ratios[:, 0] - 1).abs().max() < 1e-12 and (clipped[:, 0] == 0).all()
    assert ((ratios[:, 1:] > 1 + 1e-6) | (norms[:, 1:] == 0)).all()  # a minibatch of constant groups asks for no ratio
    assert (norms > 0).double().mean() > 0.9
    learned = (norms > 0).any(dim=1)  # else all groups of an iteration were constant
    assert (clipped.sum(dim=1) > 0)[learned].all() and learned.double().mean() > 0.9


def test_the_trap_makes_two_clips_one():
    """With "old" recomputed before each minibatch the ratio is 1, so no clip acts: the rows are the same to the bit."""
    trap, _ = trained(CLIPS, SEEDS, replace(PLAN, recompute_old=True))
    for parameter in trap.policies.parameters:
        grpo, clip_higher = parameter.split(len(SEEDS))
        assert torch.equal(grpo, clip_higher)
    assert (curves(trap, "clip_share") == 0).all() and (curves(trap, "largest_ratio") == 1).all()


def test_with_captured_logprobs_the_two_clips_differ(study):
    trainer, _ = study
    tables = table_of(trainer.policies).view(len(VARIANTS), len(SEEDS), -1)
    both = [tables[list(VARIANTS).index(name)] for name in CLIPS]
    assert ((both[0] - both[1]).abs().amax(dim=1) > 1e-4).all()
    assert (curves(trainer, "clip_share") > 0).any()


# --- Gradients ----------------------------------------------------------------------------------------------------

ONE_STEP = replace(PLAN, iterations=1, epochs=1, minibatch=PLAN.answers, optimizer="sgd", learning_rate=0.5)


def moved(trainer):
    """How far one iteration moves each model, (M,)."""
    before = [p.detach().clone() for p in trainer.policies.parameters]
    trainer.advance(table_of(trainer.policies))
    steps = [(new - old).flatten(1) for old, new in zip(before, trainer.policies.parameters, strict=True)]
    return torch.cat(steps, dim=1).norm(dim=1).detach()


@pytest.mark.parametrize("policy", ["mlp", "tabular"])
def test_matched_norm_gives_every_model_a_step_of_one_length(policy):
    plan = replace(ONE_STEP, policy=policy)
    variants = {name: VARIANTS[name] for name in ("grpo", "dr_grpo")}
    free, matched = (BenchTrainer(variants, SEEDS, p) for p in (plan, replace(plan, gradient_norm=0.1)))
    steps = moved(free)
    torch.testing.assert_close(steps, 0.5 * free.record.updates["gradient_norm"][0])
    assert steps.max() > 1.1 * steps.min() > 0
    torch.testing.assert_close(moved(matched), torch.full((6,), 0.05, dtype=torch.float64), rtol=1e-9, atol=0)
    assert torch.equal(*(t.record.updates["gradient_norm"][0] for t in (free, matched)))  # recorded before scaling


def test_a_gradient_of_zero_stays_zero_at_any_matched_norm():
    plan = replace(ONE_STEP, gradient_norm=0.1)
    trainer = BenchTrainer({"grpo": GRPO}, SEEDS, plan)
    sample = trainer.sample
    trainer.sample = lambda table: replace(sample(table), rewards=torch.ones(3, PLAN.prompts, PLAN.group_size).double())
    assert (moved(trainer) == 0).all()


def test_rescale_multiplies_each_model_by_its_factor():
    parameters = [torch.ones(2, 3, 4).requires_grad_(), torch.ones(2, 1, 4).requires_grad_()]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    rescale(parameters, torch.tensor([2.0, 0.5]))
    assert all((p.grad[0] == 2).all() and (p.grad[1] == 0.5).all() for p in parameters)


def test_an_entropy_bonus_raises_entropy_and_weighs_as_stated():
    plan = replace(ONE_STEP, policy="tabular", reward="random", iterations=1)
    variants = {"without": GRPO, "with": Variant(entropy_bonus=0.3), "twice": Variant(entropy_bonus=0.6)}
    trainer, _ = trained(variants, SEEDS, plan)
    tables = trainer.policies.parameters[0].detach().view(3, len(SEEDS), 44, 4)
    once, twice = tables[1] - tables[0], tables[2] - tables[0]
    assert once.abs().max() > 1e-4
    torch.testing.assert_close(twice, 2 * once, rtol=1e-9, atol=1e-15)
    # Every visited state starts with the same row, and the bonus is a mean over them: it moves them all alike.
    assert (once[..., P] <= 0).all() and len(once[0].flatten(0, 0).round(decimals=12).unique(dim=0)) == 2


# --- Controls -----------------------------------------------------------------------------------------------------


def batch_of(**changes):
    """The first batch of two variants, and the rewards of its answers by the rule."""
    plan = replace(PLAN, prompts=16, group_size=8, **changes)
    trainer = BenchTrainer(CLIPS, SEEDS, plan)
    batch = trainer.sample(table_of(trainer.policies))
    return batch, rewards(batch.answers, batch.keys).view_as(batch.rewards)


def test_rewards_follow_the_rule():
    batch, rule = batch_of()
    assert torch.equal(batch.rewards, rule) and 0 < rule.mean() < 1


def test_random_rewards_are_coins_that_variants_share():
    batch, rule = batch_of(reward="random")
    paid = batch.rewards.view(2, len(SEEDS), -1)
    assert set(paid.unique().tolist()) == {0.0, 1.0} and torch.equal(paid[0], paid[1])
    assert not torch.equal(paid[0, 0], paid[0, 1]) and abs(paid[0].mean() - 0.5) < 0.1
    together = torch.stack([paid[0].flatten(), rule.view(2, -1)[0]])
    assert abs(together.corrcoef()[0, 1]) < 0.15


def test_with_shuffled_keys_an_answer_is_judged_by_another_prompts_key():
    batch, rule = batch_of(reward="shuffled keys")
    for model, seed in enumerate(SEEDS * 2):
        generator = named_generator(seed, "bench/draws")
        keys = torch.randint(2, (16,), generator=generator)
        torch.rand(16 * 8, MAX_TOKENS, generator=generator, dtype=torch.float64)
        asked = keys[torch.randperm(16, generator=generator)]
        assert torch.equal(batch.keys[model], keys.repeat_interleave(8)) and not torch.equal(asked, keys)
        expected = rewards(batch.answers[model], asked.repeat_interleave(8)).view(16, 8)
        assert torch.equal(batch.rewards[model], expected) and not torch.equal(expected, rule[model])


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("iteration, inverted", [(0, False), (1, False), (2, True), (3, True)])
def test_from_the_inversion_on_the_key_with_every_bit_turned_is_right(iteration, inverted, bits):
    trainer = BenchTrainer({"grpo": GRPO}, SEEDS, replace(PLAN, prompts=16, invert_at=2, bits=bits))
    trainer.iteration = iteration
    batch = trainer.sample(table_of(trainer.policies))
    judged = [rewards(batch.answers, keys, bits) for keys in (batch.keys, 2**bits - 1 - batch.keys)]
    assert torch.equal(batch.rewards.flatten(1), judged[inverted])
    assert not torch.equal(*judged) and judged[inverted].sum() > 0


# --- Dynamic sampling ---------------------------------------------------------------------------------------------


def numbered(paid, start):
    """Rollouts (M, P, G) whose every tensor says which group it came from."""
    models, prompts, group = paid.shape
    keys = start + torch.arange(models * prompts * group).view(models, prompts * group)
    answers = keys.unsqueeze(-1).expand(-1, -1, MAX_TOKENS)
    return Rollouts(keys, answers, -answers.double(), answers % 2 == 0, paid)


GROUPS = st.lists(st.sampled_from([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]), min_size=5, max_size=5)


def is_mixed(group):
    return len(set(group)) > 1


@given(st.lists(st.tuples(GROUPS, GROUPS), min_size=1, max_size=3))
def test_constant_groups_are_replaced_in_order_and_no_others(models):
    now, fresh = (torch.tensor([m[side] for m in models]).double() for side in (0, 1))
    batch, new = numbered(now, 0), numbered(fresh, 1000)
    before = replace(batch)
    replace_groups(batch, new, torch.tensor([[not is_mixed(group) for group in m[0]] for m in models]))
    for model, (old_groups, new_groups) in enumerate(models):
        supply = [at for at, group in enumerate(new_groups) if is_mixed(group)]
        for at, group in enumerate(old_groups):
            replaced = not is_mixed(group) and bool(supply)
            source, origin = (new, supply.pop(0)) if replaced else (before, at)
            for name in asdict(before):
                found, given_ = (getattr(r, name)[model].reshape(5, -1) for r in (batch, source))
                assert torch.equal(found[at], given_[origin]), name


def test_resampling_leaves_fewer_constant_groups_and_counts_what_it_took():
    """Each round is a whole fresh batch for a model that lacks something, and nothing for one that does not."""
    shares, taken = [], []
    for rounds in range(12):
        trainer = BenchTrainer({"grpo": GRPO}, SEEDS, replace(PLAN, resample=rounds))
        batch = trainer.sample(table_of(trainer.policies))
        shares.append(trainer.record.iterations["constant_groups"][0])
        taken.append(trainer.record.iterations["sampled"][0] / trainer.plan.answers)
        assert torch.equal(shares[-1], (batch.rewards.std(dim=-1) == 0).double().mean(dim=-1))
    assert (taken[0] == 1).all() and (shares[0] > 0).all() and (shares[-1] == 0).all()
    for before, after, counts in zip(shares, shares[1:], pairwise(taken), strict=False):
        assert (after <= before).all() and torch.equal(counts[1] - counts[0], (before > 0).double())


# --- Sampling -----------------------------------------------------------------------------------------------------


def test_uniforms_on_a_grid_give_every_token_its_share():
    """One model for each key's first state: of N equally spaced uniforms a token gets N p, give or take one."""
    table, n = random_table(3), 1000
    for key in (0, 1):
        grid = (torch.arange(n).double() + 0.5) / n
        uniforms = torch.full((3, n, 1), 0.0).double() + grid.view(1, n, 1)
        answers, logprobs = sample_answers(table, torch.full((3, n), key), uniforms)
        for model in range(3):
            chances = table[model, 22 * key].exp()
            counts = answers[model, :, 0].bincount(minlength=4)
            assert ((counts - n * chances).abs() <= 1).all()
            assert torch.equal(logprobs[model, :, 0], table[model, 22 * key, answers[model, :, 0]])


def test_later_tokens_follow_their_own_state():
    table, keys = random_table(2), torch.arange(2 * 500).view(2, 500) % 2
    uniforms = torch.rand(2, 500, MAX_TOKENS, generator=named_generator(0, "test/uniforms"), dtype=torch.float64)
    answers, logprobs = sample_answers(table, keys, uniforms)
    mask = answer_mask(answers)
    for model, row in ((0, 0), (0, 7), (1, 3), (1, 499)):
        tokens = answers[model, row][mask[model, row]].tolist()
        for n, state in enumerate(plain_states(tokens, int(keys[model, row]))):
            edges = table[model, state].exp().cumsum(dim=0)
            assert tokens[n] == int((uniforms[model, row, n] >= edges[:3]).sum())
            assert logprobs[model, row, n] == table[model, state, tokens[n]]


@pytest.mark.parametrize("allowed", [[0], [3], [1, 2], [0, 3], [0, 1, 2]])
def test_a_token_of_probability_zero_is_never_sampled(allowed):
    """Not even by the smallest and the largest uniform that torch draws, nor where rounding leaves a sum below 1."""
    logits = random_table(4, name="zero")
    forbidden = [token for token in range(4) if token not in allowed]
    logits[..., forbidden] = -torch.inf
    for slack in (0.0, -1e-15):
        table = logits.log_softmax(dim=-1) + slack
        extremes = torch.tensor([0.0, 2**-53, 0.5, 1 - 2**-53], dtype=torch.float64)
        uniforms = extremes.view(1, 4, 1).expand(4, 4, MAX_TOKENS)
        answers, logprobs = sample_answers(table, torch.zeros(4, 4, dtype=torch.int64), uniforms)
        sampled = set(answers[answer_mask(answers)].tolist())
        assert sampled <= set(allowed) and logprobs[answer_mask(answers)].isfinite().all()
