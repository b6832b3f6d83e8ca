"""The rule of PaddedBits as logic, for Z3: the authority that the fast verifier is held to.

It says what a right answer *is*, and names no position to look at: some stop is the first one, and the tokens before
it are the key's.
"""

from collections.abc import Sequence

import z3

from labs_lib.tasks.padded_bits.environment import B0, MAX_TOKENS, VOCABULARY, P, S


class Z3Rule:
    """The rule for keys of `bits` bits, over one symbol per position."""

    def __init__(self, bits: int = 1):
        self.tokens = [z3.BitVec(f"token{position}", 3) for position in range(MAX_TOKENS)]
        self.key = z3.BitVec("key", bits)
        # Made once: making them costs more than evaluating the formula.
        self._token_values = [z3.BitVecVal(value, 3) for value in range(VOCABULARY)]
        self._key_values = [z3.BitVecVal(value, bits) for value in range(2**bits)]
        self.right = z3.Or([self._ends_at(stop, bits) for stop in range(bits, MAX_TOKENS)])

    def _ends_at(self, stop: int, bits: int) -> z3.BoolRef:
        """The first stop is at this position, and the key's bits are just before it."""
        no_earlier = [token != S for token in self.tokens[:stop]]
        answered = [
            self.tokens[stop - bits + place]
            == B0 + z3.ZeroExt(2, z3.Extract(bits - 1 - place, bits - 1 - place, self.key))
            for place in range(bits)
        ]
        return z3.And(self.tokens[stop] == S, *no_earlier, *answered)

    def is_right(self, answer: Sequence[int], key: int) -> bool:
        """Whether one answer is right: the formula's value where the symbols have these values."""
        case = z3.Model()
        for token, value in zip(self.tokens, [*answer, *[P] * (MAX_TOKENS - len(answer))], strict=True):
            case.update_value(token, self._token_values[value])
        case.update_value(self.key, self._key_values[key])
        return z3.is_true(case.eval(self.right))
