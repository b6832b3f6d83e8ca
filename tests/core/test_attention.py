"""Grouped attention, and prompts with their answers in one row: the plain path's values and gradients."""

import pytest
import torch
from small_model import id_lists, small_model, tokenizer

from labs_lib import scoring
from labs_lib.models.attention import grouped_attention, groups_query_rows, register
from labs_lib.rollout import answer_draws, generate
from labs_lib.scoring import answer_hidden, answer_hidden_plain
from labs_lib.seeding import named_generator

EOS_ID, PAD_ID = tokenizer().eos_token_id, tokenizer().pad_token_id
GROUP, TOKENS = 3, 6
PROMPTS = id_lists(2, 4)  # of several lengths: rows are padded on the left


@pytest.fixture(scope="module")
def policy():
    """Four query heads on two key-value heads, so that a wrong order of heads shows."""
    model = small_model(hidden_size=32, num_attention_heads=4, num_key_value_heads=2)
    model.set_attn_implementation(register())
    return model


@pytest.fixture(scope="module")
def ids():
    return torch.randint(
        3, len(tokenizer()), (len(PROMPTS) * GROUP, TOKENS), generator=torch.Generator().manual_seed(4)
    )


def with_attention(policy, name):
    class Switched:
        def __enter__(self):
            policy.set_attn_implementation(name)

        def __exit__(self, *_):
            policy.set_attn_implementation(register())

    return Switched()


def values_and_gradients(policy, ids, hidden):
    policy.zero_grad(set_to_none=True)
    value = hidden(policy, PROMPTS, ids, PAD_ID)
    weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    (value * weights).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in policy.named_parameters()}
    policy.zero_grad(set_to_none=True)
    return {"value": value.detach(), **gradients}


def differing(found, expected, tolerance=2e-5):
    """Names whose largest difference is above `tolerance` of the largest expected entry."""
    return [
        name
        for name, tensor in expected.items()
        if not (found[name] - tensor).abs().max() <= tolerance * tensor.abs().max()
    ]


def plain_eager(policy, ids):
    with with_attention(policy, "eager"):
        return values_and_gradients(policy, ids, answer_hidden_plain)


@pytest.mark.parametrize("tokens", [1, 2, TOKENS])
def test_rows_of_a_prompt_and_its_answers_are_the_plain_path(policy, ids, tokens):
    assert groups_query_rows(policy)
    ids = ids[:, :tokens]
    assert differing(values_and_gradients(policy, ids, answer_hidden), plain_eager(policy, ids)) == []
    assert differing(values_and_gradients(policy, ids, answer_hidden_plain), plain_eager(policy, ids)) == []


def sees(change):
    """A mutant of what a token may see."""
    visible = scoring._visible

    def mutant(attention, group_size, steps, dtype):
        return change(visible(attention, group_size, steps, dtype), attention)

    return mutant


MUTANTS = {
    "answers see one another": lambda seen, attention: (
        torch.zeros_like(seen)
        .masked_fill(torch.ones_like(seen).triu(1) > 0, seen.min())
        .masked_fill(
            torch.nn.functional.pad(attention == 0, (0, seen.shape[-1] - attention.shape[1]))[:, None, None], seen.min()
        )
    ),
    "padding is seen": lambda seen, attention: torch.where(
        torch.arange(seen.shape[-1]) < attention.shape[1],
        torch.zeros_like(seen).masked_fill(torch.ones_like(seen).triu(1) > 0, seen.min()),
        seen,
    ),
    "answers do not see the prompt": lambda seen, attention: seen.index_fill(
        -1, torch.arange(attention.shape[1] - 1), seen.min()
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_token_that_sees_something_else_is_noticed(policy, ids, monkeypatch, name):
    monkeypatch.setattr(scoring, "_visible", sees(MUTANTS[name]))
    assert "value" in differing(values_and_gradients(policy, ids, answer_hidden), plain_eager(policy, ids))


def test_positions_that_run_on_from_answer_to_answer_are_noticed(policy, ids, monkeypatch):
    forward = policy.model.forward

    def counting_on(input_ids, position_ids, **rest):
        on = position_ids[:, :1] + torch.arange(position_ids.shape[1])
        return forward(input_ids=input_ids, position_ids=on, **rest)

    expected = plain_eager(policy, ids)
    monkeypatch.setattr(policy.model, "forward", counting_on)
    assert "value" in differing(values_and_gradients(policy, ids, answer_hidden), expected)


def test_sampled_and_scored_agree(policy):
    draws = answer_draws(named_generator(48, "grouped"), len(PROMPTS) * GROUP, TOKENS)
    rollout = generate(policy, PROMPTS, GROUP, TOKENS, EOS_ID, PAD_ID, draws)
    rescored = scoring.answer_logprobs(policy, PROMPTS, rollout.ids, rollout.mask, PAD_ID)
    assert (rescored - rollout.logprobs).abs().max() < 1e-4
    with with_attention(policy, "eager"):
        assert torch.equal(generate(policy, PROMPTS, GROUP, TOKENS, EOS_ID, PAD_ID, draws).ids, rollout.ids)


def test_heads_in_another_order_are_noticed(policy, ids, monkeypatch):
    def interleaved(module, query, *rest, **named):
        shared = module.num_key_value_groups
        order = torch.arange(query.shape[1]).view(-1, shared).T.flatten()
        return grouped_attention(module, query[:, order], *rest, **named)

    expected = plain_eager(policy, ids)
    register()
    from transformers import AttentionInterface

    from labs_lib.models.attention import GROUPED

    AttentionInterface.register(GROUPED, interleaved)
    try:
        assert "value" in differing(values_and_gradients(policy, ids, answer_hidden), expected)
    finally:
        register()
