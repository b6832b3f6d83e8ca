"""PaddedBits: fast verifier, plain rule and Z3 agree on everything that can be sampled, and mutants are noticed."""

from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.errors import LabError
from labs_lib.tasks.padded_bits.environment import (
    B0,
    B1,
    GOES_ON,
    MAX_TOKENS,
    NAMES,
    VOCABULARY,
    P,
    S,
    answer_mask,
    as_tensor,
    is_right,
    key_bits,
    possible_answers,
    rewards,
)
from labs_lib.tasks.padded_bits.z3_rule import Z3Rule

POSSIBLE = list(possible_answers())
EVERYTHING = list(product(range(VOCABULARY), repeat=MAX_TOKENS))  # also with tokens after a stop
BITS = pytest.mark.parametrize("bits", [1, 2, 3])
rule_of = cache(Z3Rule)
buffers = st.lists(st.integers(P, S), min_size=MAX_TOKENS, max_size=MAX_TOKENS).map(tuple)


def paid(answers, key, bits=1):
    """The fast verifier's judgement of many answers, a list of bool."""
    return rewards(as_tensor(answers), torch.full((len(answers),), key), bits).bool().tolist()


@cache
def paid_for_everything(bits):
    """The fast verifier's judgement of every buffer, a list for each key."""
    buffers = torch.tensor(EVERYTHING)
    return [rewards(buffers, torch.full((len(buffers),), key), bits).bool().tolist() for key in range(2**bits)]


def disagreements(rule, bits=1):
    """(answer, key) on which a rule and the fast verifier differ, of every buffer and key."""
    return [
        (answer, key)
        for key, judged in enumerate(paid_for_everything(bits))
        for answer, fast in zip(EVERYTHING, judged, strict=True)
        if rule(answer, key, bits) != fast
    ]


# --- What can be sampled ------------------------------------------------------------------------------------------


def test_every_possible_answer_is_listed_once():
    assert len(POSSIBLE) == len(set(POSSIBLE)) == sum(3**n for n in range(MAX_TOKENS)) + 3**MAX_TOKENS == 9841
    assert all(S not in answer[:-1] and 1 <= len(answer) <= MAX_TOKENS for answer in POSSIBLE)
    assert all(len(answer) == MAX_TOKENS for answer in POSSIBLE if answer[-1] != S)
    # Cutting any buffer after its first stop gives a possible answer, and each is met so.
    cut = {buffer[: buffer.index(S) + 1] if S in buffer else buffer for buffer in EVERYTHING}
    assert cut == set(POSSIBLE)


@BITS
def test_the_number_of_right_answers_is_that_of_the_formula(bits):
    """Before the bits stand 0 to 7 - bits tokens of any of three kinds."""
    for key in range(2**bits):
        assert sum(paid(POSSIBLE, key, bits)) == (3 ** (MAX_TOKENS - bits) - 1) // 2


def test_examples_of_the_specification():
    assert paid([(B0, S), (P, P, B0, S), (B1, S), (S,), (B0, P, S)], key=0) == [True, True, False, False, False]
    assert NAMES == ("P", "B0", "B1", "S") and GOES_ON == (0, 1, 2) and S == 3


def test_the_mask_ends_with_the_first_stop():
    mask = answer_mask(torch.tensor([[P, B0, S, P, S, B1, P, P], [S] * 8, [P] * 8]))
    assert mask.sum(dim=1).tolist() == [3, 1, 8]
    assert mask[0].tolist() == [True] * 3 + [False] * 5


# --- Three rules --------------------------------------------------------------------------------------------------


def test_one_bit_fast_plain_and_z3_agree_on_every_answer_and_both_keys():
    for key in (0, 1):
        plain = [is_right(answer, key) for answer in POSSIBLE]
        assert paid(POSSIBLE, key) == plain
        assert [rule_of(1).is_right(answer, key) for answer in POSSIBLE] == plain


@BITS
def test_fast_and_plain_agree_on_every_buffer_and_key(bits):
    assert disagreements(is_right, bits) == []


@pytest.mark.parametrize("bits", [2, 3])
def test_more_bits_z3_agrees_on_every_right_answer_and_on_every_hundredth(bits):
    for key in range(2**bits):
        right = [answer for answer in POSSIBLE if is_right(answer, key, bits)]
        assert all(rule_of(bits).is_right(answer, key) for answer in right)
        some = POSSIBLE[key :: 97 * bits]
        assert [rule_of(bits).is_right(answer, key) for answer in some] == paid(some, key, bits)


@given(buffers, st.integers(1, MAX_TOKENS - 1), st.data())
def test_any_buffer_and_any_number_of_bits(buffer, bits, data):
    key = data.draw(st.integers(0, 2**bits - 1))
    assert rule_of(bits).is_right(buffer, key) == is_right(buffer, key, bits) == paid([buffer], key, bits)[0]


@given(st.sampled_from([answer for answer in POSSIBLE if answer[-1] == S]), st.data())
def test_what_stands_after_the_first_stop_is_not_read(answer, data):
    missing = MAX_TOKENS - len(answer)
    tail = data.draw(st.lists(st.integers(P, S), min_size=missing, max_size=missing))
    for key in (0, 1):
        assert paid([answer], key) == paid([(*answer, *tail)], key)
        assert rule_of(1).is_right(answer, key) == rule_of(1).is_right((*answer, *tail), key)


def test_leading_dimensions_play_no_part():
    answers, keys = as_tensor(POSSIBLE[:600]), torch.arange(600) % 4
    flat = rewards(answers, keys, 2)
    assert torch.equal(rewards(answers.view(2, 30, 10, -1), keys.view(2, 30, 10), 2).flatten(), flat)
    assert flat.dtype == torch.float64


@pytest.mark.parametrize("key, bits", [(2, 1), (-1, 1), (0, 0), (0, MAX_TOKENS)])
def test_a_key_that_does_not_exist_is_refused(key, bits):
    with pytest.raises(LabError, match=f"no key {key} of {bits} bits"):
        key_bits(key, bits)


def test_bits_are_read_from_the_most_significant():
    assert key_bits(1, 2) == (B0, B1) and key_bits(6, 3) == (B1, B1, B0)


# --- Mutants: each is noticed by the comparison with the fast verifier, and Z3 sides with that ----------------------


def reads_the_last_token(answer, key, bits):
    return S in answer and answer[-bits:] == key_bits(key, bits)


def needs_no_stop(answer, key, bits):
    before = answer[: answer.index(S)] if S in answer else answer
    return before[-bits:] == key_bits(key, bits)


def stops_at_the_last_stop(answer, key, bits):
    last = max((place for place, token in enumerate(answer) if token == S), default=None)
    return last is not None and answer[:last][-bits:] == key_bits(key, bits)


def reads_bits_backwards(answer, key, bits):
    return is_right(answer, int(f"{key:0{bits}b}"[::-1], 2), bits)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize(
    "mutant",
    [reads_the_last_token, needs_no_stop, stops_at_the_last_stop, reads_bits_backwards],
    ids=lambda m: m.__name__,
)
def test_a_mutant_of_the_rule_is_noticed(mutant, bits):
    found = disagreements(mutant, bits)
    if mutant is reads_bits_backwards and bits == 1:
        assert found == []  # one bit has no order, so two are checked too
        return
    assert found
    for answer, key in found[:: max(1, len(found) // 20)]:
        assert rule_of(bits).is_right(answer, key) == is_right(answer, key, bits) != mutant(answer, key, bits)
