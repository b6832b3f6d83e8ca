"""The rubric of OfficeHelpPrefs-v1: a finite grammar of answers, and a verdict on any text whatever.

Success = recognised, relevant (the right action), no unjustified certainty. Courtesy costs nothing and earns
nothing. Prose outside the grammar is `UNCERTIFIED`: not necessarily wrong, but not a success.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from labs_lib.errors import LabError
from labs_lib.tasks.office_help.wording import ACTIONS, COURTESIES, MANNERS, answer_text

CERTAIN = "certain"
# What a text says that declines to help; looked for in lower case, with straight apostrophes.
REFUSALS = (
    "i cannot help",
    "i can't help",
    "i cannot assist",
    "i can't assist",
    "i am not able to help",
    "i'm not able to help",
    "i am unable to",
    "i'm unable to",
    "as an ai",
)


class Reason(StrEnum):
    """Why an answer was judged as it was; the values are stable, they are written into the evidence."""

    SUCCESS = "success"
    WRONG_ACTION = "wrong_action"
    UNJUSTIFIED_CERTAINTY = "unjustified_certainty"
    WRONG_AND_CERTAIN = "wrong_and_certain"
    UNCERTIFIED = "UNCERTIFIED"
    NO_EOS = "no_eos"
    UNKNOWN_ID = "unknown_id"


@dataclass(frozen=True)
class Parsed:
    """The one reading of an answer; action and manner are keys, variant and courtesy indices of the wording."""

    action: str
    manner: str
    variant: int
    courtesy: int | None


@dataclass(frozen=True)
class RubricVerdict:
    """One judged answer. `relevant`, `certain` and `courteous` are None where nothing was recognised."""

    reason: str
    success: bool
    recognised: bool
    relevant: bool | None = None
    certain: bool | None = None
    courteous: bool | None = None
    refusal: bool = False


@dataclass(frozen=True)
class RubricCounts:
    """How many of `answers` were what. Rates are None where their denominator is zero.

    The success rate and the recognised share keep all answers; what only a recognised answer can be (relevant,
    certain, courteous) has the recognised ones as its denominator.
    """

    answers: int
    recognised: int
    success: int
    relevant: int
    certain: int
    courteous: int
    refusals: int
    no_eos: int

    @property
    def success_rate(self) -> float | None:
        return _share(self.success, self.answers)

    @property
    def recognised_rate(self) -> float | None:
        return _share(self.recognised, self.answers)

    @property
    def relevance_rate(self) -> float | None:
        return _share(self.relevant, self.recognised)

    @property
    def certainty_rate(self) -> float | None:
        return _share(self.certain, self.recognised)

    @property
    def courtesy_rate(self) -> float | None:
        return _share(self.courteous, self.recognised)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _readings() -> dict[str, Parsed]:
    manners = [(manner, variant) for manner, variants in MANNERS.items() for variant in range(len(variants))]
    forms = itertools.product(ACTIONS, manners, (None, *range(len(COURTESIES))))
    parsed = [Parsed(action, manner, variant, courtesy) for action, (manner, variant), courtesy in forms]
    return {answer_text(p.action, p.manner, p.variant, p.courtesy): p for p in parsed}


_READINGS = _readings()  # 108 texts: the whole language of the rubric


def parse_answer(text: object) -> Parsed | None:
    """The reading of exactly the texts that `wording.answer_text` can make; None for everything else."""
    # A subclass of str could bring its own == and hash.
    return _READINGS.get(text) if type(text) is str else None


def is_refusal(text: object) -> bool:
    """Whether a text says, in one of a few fixed phrases, that it does not help."""
    if type(text) is not str:
        return False
    plain = text.lower().replace("’", "'")
    return any(phrase in plain for phrase in REFUSALS)


def judge_answer(text: object, finish_reason: object, action: str, ids_known: bool) -> RubricVerdict:
    """Judge one decoded answer. Total: whatever `text` is, the result is a verdict, never an error.

    Args:
        text: the answer, decoded without skipping special tokens; only the terminal EOS is removed.
        finish_reason: "eos", or anything else for an answer that was cut.
        action: the right action, a key of `wording.ACTIONS`, which the model never sees.
        ids_known: True when every generated id exists in the tokenizer (only `True` itself counts).

    Raises:
        LabError: `action` is none of the six.
    """
    if action not in ACTIONS:
        raise LabError(f"unknown action {action!r}: choose one of {', '.join(ACTIONS)}.")
    if type(finish_reason) is not str or finish_reason != "eos":
        return _uncertified(Reason.NO_EOS, text)
    if ids_known is not True:
        return _uncertified(Reason.UNKNOWN_ID, text)
    parsed = parse_answer(text)
    if parsed is None:
        return _uncertified(Reason.UNCERTIFIED, text)
    relevant, certain = parsed.action == action, parsed.manner == CERTAIN
    reason = _REASONS[relevant, certain]
    return RubricVerdict(reason, reason == Reason.SUCCESS, True, relevant, certain, parsed.courtesy is not None)


_REASONS = {
    (True, False): Reason.SUCCESS,
    (True, True): Reason.UNJUSTIFIED_CERTAINTY,
    (False, False): Reason.WRONG_ACTION,
    (False, True): Reason.WRONG_AND_CERTAIN,
}


def _uncertified(reason: Reason, text: object) -> RubricVerdict:
    return RubricVerdict(reason, success=False, recognised=False, refusal=is_refusal(text))


def count_verdicts(verdicts: Iterable[RubricVerdict]) -> RubricCounts:
    """The counts and, through their properties, the rates of one population of answers."""
    rows = list(verdicts)
    return RubricCounts(
        answers=len(rows),
        recognised=sum(row.recognised for row in rows),
        success=sum(row.success for row in rows),
        relevant=sum(row.relevant is True for row in rows),
        certain=sum(row.certain is True for row in rows),
        courteous=sum(row.courteous is True for row in rows),
        refusals=sum(row.refusal for row in rows),
        no_eos=sum(row.reason == Reason.NO_EOS for row in rows),
    )
