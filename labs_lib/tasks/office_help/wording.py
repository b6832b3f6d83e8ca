"""The words of OfficeHelp: six fictitious actions, their symptoms, three manners, courtesy, and who asks.

Every prompt names a context (who, where). The contexts of the corpus, of the probes and of the tiny base's
own training text are three disjoint lists, so no corpus prompt can occur in the base's training text.
"""

INSTRUCTION = "Suggest one short step."

# action -> (what the answer proposes, symptoms that a user reports)
ACTIONS = {
    "resume_queue": (
        "resume the print queue",
        (
            "nothing prints",
            "my pages never come out",
            "the printer says paused",
            "my job waits in the list",
            "the printout does not arrive",
            "all print jobs are on hold",
            "the queue does not move",
            "I sent a page and no paper came",
        ),
    ),
    "check_cable": (
        "check the cable",
        (
            "the screen stays black",
            "the desk phone is dead",
            "the lamp on the box is off",
            "the monitor has no signal",
            "the keyboard does not react",
            "the scanner is not found",
            "the dock has no power",
            "a plug looks loose",
        ),
    ),
    "unmute_sound": (
        "turn the sound on",
        (
            "I hear nothing",
            "the call is silent",
            "the video has no audio",
            "the speaker is quiet",
            "music does not play aloud",
            "the alert makes no noise",
            "the volume shows a cross",
            "nobody's voice reaches me",
        ),
    ),
    "enable_wifi": (
        "turn Wi-Fi on",
        (
            "no page loads",
            "the network icon is grey",
            "mail does not sync",
            "I am offline",
            "the shared drive is away",
            "chat shows no connection",
            "the laptop finds no network",
            "the web is gone",
        ),
    ),
    "save_document": (
        "save the document",
        (
            "my text has a star in the title",
            "I fear to lose my draft",
            "the editor warns of changes",
            "the report is not stored yet",
            "closing asks what to do with edits",
            "my last lines are not on disk",
            "the sheet shows unsaved",
            "the notes may vanish",
        ),
    ),
    "renew_session": (
        "renew the session",
        (
            "the portal logged me out",
            "the page says expired",
            "it wants my password again",
            "the form timed out",
            "access was denied after lunch",
            "my login is too old",
            "the site forgot me",
            "the token is stale",
        ),
    ),
}

MANNERS = {
    "plain": ("Try this: {action}.", "First step: {action}."),
    "cautious": ("Perhaps {action}, it may help.", "You could {action}, if that applies."),
    "certain": ("Just {action}, this will certainly fix it.", "Simply {action}, it always works."),
}
COURTESIES = ("Thanks for asking. ", "Happy to help. ")

FRAMES = (
    "{who} {where}: {symptom}. What now?",
    "{symptom}, says the {who} {where}. Any idea?",
    "Help the {who} {where}, {symptom}.",
    "Question from the {who} {where}: {symptom}, what can I do?",
)

_ROLES = ("clerk", "nurse", "tutor", "planner", "driver", "chemist", "editor", "buyer")
_PLACES = ("in Lund", "in Graz", "on floor two", "at the dock", "in the annex")
_PROBE_ROLES = ("notary", "pilot", "florist", "archivist")
_PROBE_PLACES = ("in Porto", "in Turku", "on floor nine", "at the mill", "in the atrium")
_BASE_ROLES = ("guest", "trainee", "porter", "manager", "writer", "auditor", "baker", "teacher")
_BASE_PLACES = ("in Bonn", "in Lyon", "on floor five", "at the gate", "in the lab", "at home")


def _contexts(roles: tuple[str, ...], places: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((who, where) for who in roles for where in places)


CORPUS_CONTEXTS = _contexts(_ROLES, _PLACES)  # 40: one situation family per action and context
PROBE_CONTEXTS = _contexts(_PROBE_ROLES, _PROBE_PLACES)  # 20
BASE_CONTEXTS = _contexts(_BASE_ROLES, _BASE_PLACES)  # 48


def prompt_text(action: str, symptom: int, frame: int, context: tuple[str, str]) -> str:
    """The user's message: `ACTIONS[action]`'s symptom number `symptom` in `FRAMES[frame]`, first letter large."""
    who, where = context
    text = FRAMES[frame].format(who=who, where=where, symptom=ACTIONS[action][1][symptom])
    return text[0].upper() + text[1:]


def answer_text(action: str, manner: str, variant: int, courtesy: int | None) -> str:
    """Action + manner + optional courtesy, the only forms that the rubric recognises."""
    opening = "" if courtesy is None else COURTESIES[courtesy]
    return opening + MANNERS[manner][variant].format(action=ACTIONS[action][0])


def is_corpus_or_probe_prompt(text: str) -> bool:
    """Whether a user message names a context that is reserved for the corpus or the probes."""
    lowered = text.lower()
    return any(f"{who} {where}".lower() in lowered for who, where in CORPUS_CONTEXTS + PROBE_CONTEXTS)
