"""A second reading of OfficeHelp's answers: the rubric's finite grammar, and the verdict on any text.

Written from the specification and the corpus: an optional courtesy, then one of six frames around one of six actions.
"""

from typing import Any, NamedTuple

ACTIONS = {
    "resume_queue": "resume the print queue",
    "check_cable": "check the cable",
    "unmute_sound": "turn the sound on",
    "enable_wifi": "turn Wi-Fi on",
    "save_document": "save the document",
    "renew_session": "renew the session",
}
# Manner -> what stands before and after the action, two variants each.
FRAMES = {
    "plain": (("Try this: ", "."), ("First step: ", ".")),
    "cautious": (("Perhaps ", ", it may help."), ("You could ", ", if that applies.")),
    "certain": (("Just ", ", this will certainly fix it."), ("Simply ", ", it always works.")),
}
COURTESIES = ("Thanks for asking. ", "Happy to help. ")
_HELP, _UNABLE = ("help", "assist"), ("i am", "i'm")
REFUSALS = (
    *(f"i {cannot} {verb}" for cannot in ("cannot", "can't") for verb in _HELP),
    *(f"{subject} {end}" for subject in _UNABLE for end in ("not able to help", "unable to")),
    "as an ai",
)


class Answer(NamedTuple):
    """What an answer of the grammar says; `courtesy` is an index or None."""

    action: str
    manner: str
    variant: int
    courtesy: int | None

    @property
    def text(self) -> str:
        before, after = FRAMES[self.manner][self.variant]
        opening = "" if self.courtesy is None else COURTESIES[self.courtesy]
        return f"{opening}{before}{ACTIONS[self.action]}{after}"


def read(text: Any) -> Answer | None:
    """The reading of a text of the grammar; None for all other text."""
    if not isinstance(text, str):
        return None
    courtesy = next((number for number, words in enumerate(COURTESIES) if text.startswith(words)), None)
    rest = text if courtesy is None else text.removeprefix(COURTESIES[courtesy])
    for manner, frames in FRAMES.items():
        for variant, (before, after) in enumerate(frames):
            for action, words in ACTIONS.items():
                if rest == f"{before}{words}{after}":
                    return Answer(action, manner, variant, courtesy)
    return None


def is_refusal(text: Any) -> bool:
    """Whether a text says in one of the fixed phrases that it does not help."""
    plain = text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'") if isinstance(text, str) else ""
    return any(phrase in plain for phrase in REFUSALS)


def judge(text: Any, finish_reason: Any, action: str, ids_known: bool) -> dict[str, Any]:
    """What the rubric says about one answer: the fields that evidence keeps of a verdict."""
    answer = read(text) if finish_reason == "eos" and ids_known else None
    if answer is None:
        reason = "no_eos" if finish_reason != "eos" else "UNCERTIFIED" if ids_known else "unknown_id"
        return {**_verdict(reason), "refusal": is_refusal(text)}
    relevant, certain = answer.action == action, answer.manner == "certain"
    words = {
        (True, False): "success",
        (True, True): "unjustified_certainty",
        (False, False): "wrong_action",
        (False, True): "wrong_and_certain",
    }
    return {**_verdict(words[relevant, certain], True, relevant, certain, answer.courtesy is not None)}


def _verdict(
    reason: str, recognised: bool = False, relevant: bool = False, certain: bool = False, courteous: bool = False
) -> dict[str, Any]:
    return {
        "reason": reason,
        "success": reason == "success",
        "recognised": recognised,
        "relevant": relevant,
        "certain": certain,
        "courteous": courteous,
        "refusal": False,
    }
