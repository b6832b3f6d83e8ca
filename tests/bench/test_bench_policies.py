"""Policies of the bias bench: how states are numbered, and that stacked models are the single ones."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_bench import normal, plain_states

from labs_lib.bench.policies import (
    START_BIAS,
    STATES_PER_KEY,
    Mlp,
    Tabular,
    initial_mlp,
    state_features,
    state_of,
    states_of,
    table_of,
    token_logprobs,
    visited,
)
from labs_lib.bench.products import batched_product
from labs_lib.tasks.padded_bits.environment import (
    GOES_ON,
    MAX_TOKENS,
    VOCABULARY,
    P,
    S,
    answer_mask,
    as_tensor,
    possible_answers,
)

SEEDS = [4, 9, 2]
KINDS = pytest.mark.parametrize("kind", ["mlp", "tabular"])


def policies_of(kind, keys=2):
    """Three policies that differ."""
    if kind == "mlp":
        return Mlp(SEEDS, keys)
    policies = Tabular(len(SEEDS), keys)
    with torch.no_grad():
        policies.parameters[0].add_(normal(*policies.parameters[0].shape, name="tabular"))
    return policies


def some_answers(keys=2):
    """Keys (3, 5), states, tokens and mask (3, 5, 8): short ones, long ones, one without stop; models see others."""
    listed = list(possible_answers())  # from the shortest to the longest
    chosen = [listed[at] for at in (0, 2, 3, 7, 11, 20, 39, 90, 200, 500, 1500, 3000, 3500, 7000, 9840)]
    answers = as_tensor(chosen).view(5, 3, MAX_TOKENS).transpose(0, 1)
    asked = torch.arange(15).view(3, 5) % keys
    return asked, states_of(answers, asked), answers, answer_mask(answers)


# --- States -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [2, 4])
def test_states_are_numbered_without_a_gap(keys):
    met = [
        state_of(key, position, last)
        for key in range(keys)
        for position in range(MAX_TOKENS)
        for last in (GOES_ON if position else (P,))
    ]
    assert met == list(range(keys * STATES_PER_KEY)) and STATES_PER_KEY == 22
    features = state_features(keys)
    assert len(features.unique(dim=0)) == len(features) == keys * 22 and (features.sum(dim=1) == 3).all()


def mutant_state_of(key, position, last):
    return key * STATES_PER_KEY + 3 * position + last  # as if the first token, too, had three predecessors


def test_a_numbering_with_collisions_is_rejected():
    met = [mutant_state_of(key, n, last) for key in (0, 1) for n in range(8) for last in (GOES_ON if n else (P,))]
    assert sorted(set(met)) != list(range(44))


@given(st.lists(st.integers(P, S), min_size=MAX_TOKENS, max_size=MAX_TOKENS), st.integers(0, 3))
def test_states_of_a_buffer_are_those_of_a_plain_walk(buffer, key):
    end = buffer.index(S) + 1 if S in buffer else MAX_TOKENS
    states = states_of(torch.tensor(buffer), torch.tensor(key))
    assert states[:end].tolist() == plain_states(buffer[:end], key)
    assert 0 <= states.min() and states.max() < 4 * STATES_PER_KEY  # off the mask too: they index tables


# --- Single models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys, expected", [(2, 5380), (4, 5508)])
def test_number_of_parameters(keys, expected):
    assert sum(p.numel() for p in initial_mlp(0, keys).parameters()) == expected
    assert sum(p.numel() for p in Mlp([0, 1], keys).parameters) == 2 * expected


def test_the_pad_starts_ahead():
    bias = initial_mlp(3)[-1].bias
    assert bias.tolist() == [START_BIAS, 0, 0, 0] and START_BIAS == 1
    table = table_of(Tabular(1))[0].exp()
    torch.testing.assert_close(table, torch.tensor([torch.e, 1, 1, 1]).double().div(torch.e + 3).expand(44, 4))
    # Averaged over initialisations, also the MLP pads more than it does anything else.
    assert table_of(Mlp(range(20))).exp().mean(dim=(0, 1))[P] > 0.4


def test_a_seed_fixes_a_model_and_leaves_torchs_own_generator_alone():
    before = torch.get_rng_state()
    first, again, other = (torch.nn.utils.parameters_to_vector(initial_mlp(seed).parameters()) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again) and not torch.equal(first, other)


# --- Stacked models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [2, 8])
def test_stacked_mlps_are_the_single_ones(keys):
    states = torch.arange(keys * STATES_PER_KEY)
    logits = Mlp(SEEDS, keys).logits(states.expand(len(SEEDS), -1))
    singles = [initial_mlp(seed, keys).double()(state_features(keys)) for seed in SEEDS]
    torch.testing.assert_close(logits, torch.stack(singles), rtol=0, atol=1e-12)


def test_models_do_not_share_memory():
    policies = Mlp([4, 4])
    with torch.no_grad():
        for parameter in policies.parameters:
            parameter[0] += 1.0
    untouched = Mlp([4, 4])
    assert all(torch.equal(a[1], b[1]) for a, b in zip(policies.parameters, untouched.parameters, strict=True))


def test_batched_product_and_its_gradients():
    a, b = normal(2, 3, 4, name="a").requires_grad_(), normal(2, 4, 5, name="b").requires_grad_()
    torch.testing.assert_close(batched_product(a, b), torch.bmm(a, b), rtol=0, atol=1e-14)
    assert torch.autograd.gradcheck(batched_product, (a, b))
    frozen = a.detach()
    batched_product(frozen, b).sum().backward()
    assert frozen.grad is None and b.grad is not None


# --- Asked for each state once ------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=4))
def test_visited_lists_each_state_once_and_finds_it_again(rows):
    """A model may be in many states or in none."""
    pairs = [(model, state) for model, row in enumerate(rows) for state in row]
    models, states = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(dim=1)
    occurring, where = visited(models, states, len(rows), 10)
    assert torch.equal(occurring[models, where], states)
    for row, listed in zip(rows, occurring.tolist(), strict=True):
        own = sorted(set(row))
        assert listed[: len(own)] == own and len(set(listed)) == len(listed)
        assert not set(listed[len(own) :]) & set(row)  # the rest pads this model's list up to the longest
    assert occurring.shape == (len(rows), max(1, *(len(set(row)) for row in rows)))


def by_each_state(policies, states, tokens, mask):
    """`token_logprobs` of models with as many answers each, (M, A, T)."""
    models = torch.arange(len(states)).repeat_interleave(states.shape[1])
    logprobs, entropy = token_logprobs(policies, models, *(t.flatten(0, 1) for t in (states, tokens, mask)))
    return logprobs.view(states.shape), entropy


def by_every_token(policies, states, tokens, mask):
    """Log-probabilities by one row of logits per token, as often as its state occurs, and the mean entropy."""
    rows = policies.logits(states.flatten(1)).log_softmax(dim=-1).view(*states.shape, VOCABULARY)
    logprobs = torch.where(mask, rows.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), 0.0)
    entropies = -(rows.exp() * rows).sum(dim=-1)
    means = []
    for model in range(len(states)):
        first_met = {}
        for at in product(*map(range, states.shape[1:])):
            if mask[model][at]:
                first_met.setdefault(int(states[model][at]), entropies[model][at])
        means.append(sum(first_met.values()) / len(first_met))
    return logprobs, torch.stack(means)


def results(function, policies, states, tokens, mask):
    """Values, and gradients of a sum in which every token weighs otherwise."""
    logprobs, entropy = function(policies, states, tokens, mask)
    upstream = normal(*logprobs.shape, name="upstream"), normal(*entropy.shape, name="spread")
    total = (logprobs * upstream[0]).sum() + (entropy * upstream[1]).sum()
    return [logprobs.detach(), entropy.detach(), *torch.autograd.grad(total, policies.parameters)]


@KINDS
@pytest.mark.parametrize("keys", [2, 4])
def test_token_logprobs_are_those_of_a_row_per_token(kind, keys):
    policies, (_, *case) = policies_of(kind, keys), some_answers(keys)
    found, expected = (results(function, policies, *case) for function in (by_each_state, by_every_token))
    for ours, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


@KINDS
def test_padding_never_contributes(kind):
    """Whatever stands off the mask, in tokens or states, changes no bit of values or gradients."""
    policies, (_, states, tokens, mask) = policies_of(kind), some_answers()
    assert (~mask).any(dim=(1, 2)).all()
    found = results(by_each_state, policies, states, tokens, mask)
    other = results(by_each_state, policies, torch.where(mask, states, 43), torch.where(mask, tokens, S), mask)
    assert all(torch.equal(a, b) for a, b in zip(found, other, strict=True))
    assert (found[0][~mask] == 0).all() and (found[0][mask] < 0).all()
    everywhere = results(by_each_state, policies, states, tokens, torch.ones_like(mask))  # mutant: no mask
    assert all(not torch.allclose(a, b) for a, b in zip(found, everywhere, strict=True))


@KINDS
def test_models_may_be_asked_of_any_number_of_answers(kind):
    """Of some of them, unequally many, in any order, or of none at all."""
    policies, (_, states, tokens, mask) = policies_of(kind), some_answers()
    whole, _ = by_each_state(policies, states, tokens, mask)
    for chosen in ([(0, 1), (2, 0), (2, 4), (2, 1)], [(1, 3), (0, 0), (1, 0)], []):
        models, answers = torch.tensor(chosen, dtype=torch.int64).view(-1, 2).unbind(dim=1)
        part, entropy = token_logprobs(policies, models, *(t[models, answers] for t in (states, tokens, mask)))
        torch.testing.assert_close(part, whole[models, answers], rtol=0, atol=1e-12)
        assert len(entropy) == len({model for model, _ in chosen}) and (entropy > 0).all()


@KINDS
def test_tables_hold_the_log_probabilities_of_every_state(kind):
    policies = policies_of(kind)
    table = table_of(policies)
    assert table.shape == (3, 44, VOCABULARY) and not table.requires_grad
    torch.testing.assert_close(table.exp().sum(dim=-1), torch.ones(3, 44).double())
    _, states, tokens, mask = some_answers()
    read = torch.stack([rows[at, t] for rows, at, t in zip(table, states, tokens, strict=True)])
    torch.testing.assert_close(by_each_state(policies, states, tokens, mask)[0], torch.where(mask, read, 0.0))
