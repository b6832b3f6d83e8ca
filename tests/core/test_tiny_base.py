"""How the tiny base is built: a stream that can be replayed, and labels on answers only."""

from itertools import islice

import pytest
import torch
from small_model import tokenizer

from labs_lib.models.tiny_base.text import Chat, chats
from labs_lib.models.tiny_base.tokenizer import tokenizer_sample, train_tokenizer
from labs_lib.models.tiny_base.train import IGNORED, Recipe, answer_logits, build_model, encode
from labs_lib.tasks.office_help.wording import is_corpus_or_probe_prompt
from labs_lib.tasks.stock_arithmetic.corpus import normalised_keys
from labs_lib.tasks.stock_arithmetic.statements import INSTRUCTION

HELD_OUT = normalised_keys()


def stream(seed=7, held_out=HELD_OUT, size=3000):
    return list(islice(chats(seed, held_out), size))


def is_decontaminated(drawn, held_out):
    return not any(chat.problem is not None and chat.problem.key() in held_out for chat in drawn)


def test_the_stream_replays_and_depends_on_its_seed():
    assert stream(size=200) == stream(size=200) != stream(seed=8, size=200)


def test_no_corpus_problem_is_ever_drawn():
    drawn = stream()
    assert is_decontaminated(drawn, HELD_OUT)
    # The check notices: hold out what an open stream is known to draw, and draw it.
    seen = frozenset(chat.problem.key() for chat in drawn[:100] if chat.problem is not None)
    assert not is_decontaminated(stream(held_out=frozenset(), size=3000), seen | HELD_OUT)
    assert is_decontaminated(stream(held_out=seen | HELD_OUT), seen | HELD_OUT)


def test_the_tasks_own_prompts_are_never_in_the_text():
    for chat in stream():
        assert INSTRUCTION not in (chat.system, chat.user)
        assert not is_corpus_or_probe_prompt(chat.user)


def test_inventory_answers_are_right():
    for chat in (chat for chat in stream(size=500) if chat.problem is not None):
        digits = "".join(c if c.isdigit() else " " for c in chat.answer).split()
        assert digits == [str(chat.problem.final_stock)]


def test_labels_are_on_answer_tokens_and_eos_only():
    batch = [Chat("S.", "How many?", "12"), Chat("S.", "A longer question, how many?", "The answer is 7.")]
    ids, labels = encode(tokenizer(), batch)
    for row, chat in enumerate(batch):
        scored = labels[row][labels[row] != IGNORED].tolist()
        assert scored == [*tokenizer()(chat.answer)["input_ids"], tokenizer().eos_token_id]
        assert torch.equal(ids[row][labels[row] != IGNORED], torch.tensor(scored))


def test_logits_are_those_of_the_position_before(policy):
    batch = [Chat("S.", "How many?", "12"), Chat("S.", "And how many of them?", "7")]
    ids, labels = encode(tokenizer(), batch)
    logits, targets = answer_logits(policy, ids, labels)
    row, position = (labels != IGNORED).nonzero()[0].tolist()
    expected = policy(input_ids=ids[row : row + 1, :position]).logits[0, -1]
    torch.testing.assert_close(logits[0], expected, rtol=1e-4, atol=1e-4)
    assert targets.tolist() == labels[labels != IGNORED].tolist()


@pytest.mark.parametrize("anneal", [0, 20])
def test_the_learning_rate_rises_stays_and_falls(anneal):
    recipe = Recipe(steps=100, warmup=10, anneal=anneal, final_fraction=0.1, learning_rate=1.0)
    rates = [recipe.learning_rate_at(step) for step in range(100)]
    assert rates[:10] == pytest.approx([(k + 1) / 10 for k in range(10)])
    assert rates[10 : 100 - anneal] == [1.0] * (90 - anneal)
    assert rates[100 - anneal :] == pytest.approx([max(0.1, 1 - k / 20) for k in range(anneal)])


def test_the_model_is_tied_and_seeded():
    recipe = Recipe(hidden=32, layers=1, heads=2, kv_heads=1, intermediate=48)
    first, second = build_model(recipe, tokenizer()), build_model(recipe, tokenizer())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert first.get_output_embeddings().weight is first.get_input_embeddings().weight


def test_a_trained_tokenizer_splits_digits_and_spells_any_text():
    made = train_tokenizer(tokenizer_sample(chats(7, HELD_OUT), 300), 400)
    assert len(made) <= 400
    ids = made('{"final_stock":187}', add_special_tokens=False)["input_ids"]
    assert [made.decode([i]) for i in ids][-4:] == ["1", "8", "7", "}"]
    for text in ("Zażółć gęślą", "日本 \n\t x", "it's 3.5"):
        assert made.decode(made(text)["input_ids"]) == text
