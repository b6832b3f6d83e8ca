"""How OfficeHelpPrefs-v1 is drawn from one seed: families, prompts, the five pairs of a family, and the probes.

240 situation families = 6 actions x 40 contexts, split within each action 28/6/6. A family's prompts are drawn
without repetition from its 32 (8 symptoms x 4 frames), so the 2,040 prompts of the corpus are distinct.
"""

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from labs_lib.tasks.corpus_files import named_stream
from labs_lib.tasks.office_help.wording import (
    ACTIONS,
    CORPUS_CONTEXTS,
    COURTESIES,
    FRAMES,
    MANNERS,
    PROBE_CONTEXTS,
    answer_text,
    prompt_text,
)

NAME = "OfficeHelpPrefs-v1"
SEED = 49
# Split -> how many of an action's 40 families it gets.
SPLITS = {"train": 28, "validation": 6, "test": 6}
ROLLOUTS_PER_FAMILY = 4
PROBES = "probes"


@dataclass(frozen=True)
class Kind:
    """What the two answers of a pair are; over the families, the chosen manners alternate."""

    name: str
    chosen_manners: tuple[str, ...]
    chosen_courteous: bool
    rejected_right: bool
    rejected_manner: str
    rejected_courteous: bool


# In every family 2 of 5 chosen and 2 of 5 rejected answers are courteous. Where the rejected answer is wrong but
# not certain, both sides have the same manner: then only the action, or a courtesy, tells them apart.
KINDS = (
    Kind("cautious-or-plain_vs_wrong-certain", ("cautious", "plain"), False, False, "certain", False),
    Kind("plain_vs_wrong-courteous", ("plain",), False, False, "plain", True),
    Kind("courteous_vs_wrong-plain", ("plain",), True, False, "plain", False),
    Kind("cautious_vs_right-certain-courteous", ("cautious",), False, True, "certain", True),
    Kind("courteous_vs_wrong-cautious", ("cautious",), True, False, "cautious", False),
)


@dataclass(frozen=True)
class Request:
    """One user message; `action`, the right action's key, is None where the labels were not loaded."""

    id: str
    family: str
    split: str
    prompt: str
    action: str | None = None


@dataclass(frozen=True)
class Demonstration:
    """A request and an answer to imitate."""

    request: Request
    answer: str


@dataclass(frozen=True)
class Pair:
    """A request, the preferred answer and the other one; `kind` is a name of `KINDS`, or biased: name+bias."""

    request: Request
    kind: str
    chosen: str
    rejected: str


@dataclass(frozen=True)
class Probe:
    """One of the four rows of a probe context, which share one request."""

    request: Request
    right: bool
    courteous: bool
    answer: str


@dataclass(frozen=True)
class Corpus:
    """Everything: 1,200 pairs, 168 demonstrations, 672 rollout requests, 80 probe rows."""

    pairs: list[Pair]
    demonstrations: list[Demonstration]
    rollouts: list[Request]
    probes: list[Probe]


@dataclass(frozen=True)
class _Family:
    id: str
    split: str
    action: str
    number: int  # within the action, 0..39 in an order drawn by the seed
    prompts: list[str]  # all 32, in an order drawn by the seed

    def request(self, role: str, prompt: int) -> Request:
        return Request(f"{self.id}-{role}", self.id, self.split, self.prompts[prompt], self.action)


_Item = TypeVar("_Item")


def deck(generator: random.Random, choices: Sequence[_Item], count: int) -> list[_Item]:
    """`count` items in random order in which every choice occurs equally often (to within one)."""
    cards = list(itertools.islice(itertools.cycle(choices), count))
    generator.shuffle(cards)
    return cards


def _answers(
    generator: random.Random, actions: Sequence[str], manners: Sequence[str], courtesies: Sequence[int | None]
) -> list[str]:
    """One answer for each action in turn; manners, variants and courtesies are each dealt equally often."""
    # Variants outside: a deck that ends early still has its manners in balance.
    forms = [(manner, variant) for variant in range(2) for manner in manners]
    dealt = zip(actions, deck(generator, forms, len(actions)), deck(generator, courtesies, len(actions)), strict=True)
    return [answer_text(action, *form, courtesy) for action, form, courtesy in dealt]


def _families(seed: int, split: str, action: str) -> list[_Family]:
    """The families of one action in one split."""
    order = list(range(len(CORPUS_CONTEXTS)))
    named_stream(NAME, seed, f"families/{action}").shuffle(order)
    first = {"train": 0, "validation": SPLITS["train"], "test": SPLITS["train"] + SPLITS["validation"]}[split]
    families = []
    for number in range(first, first + SPLITS[split]):
        name = f"family-{list(ACTIONS).index(action) * len(CORPUS_CONTEXTS) + order[number] + 1:03}"
        forms = list(itertools.product(range(len(ACTIONS[action][1])), range(len(FRAMES))))
        named_stream(NAME, seed, f"prompts/{name}").shuffle(forms)
        prompts = [prompt_text(action, *form, CORPUS_CONTEXTS[order[number]]) for form in forms]
        families.append(_Family(name, split, action, number, prompts))
    return families


def _pairs(seed: int, families: Sequence[_Family]) -> list[list[Pair]]:
    """Five pairs for each of one action's families in one split."""
    split, action = families[0].split, families[0].action
    others = [other for other in ACTIONS if other != action]
    named_stream(NAME, seed, f"wrong/{action}").shuffle(others)
    columns = []
    for index, kind in enumerate(KINDS):
        generator = named_stream(NAME, seed, f"pairs/{split}/{action}/{kind.name}")
        # A Latin square: a family's four wrong actions differ, and over 40 families each of the five comes 8 times.
        wrong = [others[(family.number + index) % len(others)] for family in families]
        right = [action] * len(families)
        chosen = _answers(generator, right, kind.chosen_manners, _courtesies(kind.chosen_courteous))
        rejected = _answers(
            generator,
            right if kind.rejected_right else wrong,
            (kind.rejected_manner,),
            _courtesies(kind.rejected_courteous),
        )
        columns.append(
            [
                Pair(family.request(f"pair-{index + 1}", index), kind.name, *answers)
                for family, *answers in zip(families, chosen, rejected, strict=True)
            ]
        )
    return [list(row) for row in zip(*columns, strict=True)]


def _courtesies(courteous: bool) -> Sequence[int | None]:
    return range(len(COURTESIES)) if courteous else (None,)


def _demonstrations(seed: int, families: Sequence[_Family]) -> list[list[Demonstration]]:
    """One a family: right, plain or cautious, half of them courteous."""
    action = families[0].action
    generator = named_stream(NAME, seed, f"demonstrations/{action}")
    answers = _answers(generator, [action] * len(families), ("plain", "cautious"), (None, 0, None, 1))
    return [
        [Demonstration(family.request("demonstration", len(KINDS)), answer)]
        for family, answer in zip(families, answers, strict=True)
    ]


def _rollouts(families: Sequence[_Family]) -> list[list[Request]]:
    first = len(KINDS) + 1  # after the prompts of the pairs and of the demonstration
    return [
        [family.request(f"rollout-{number + 1}", first + number) for number in range(ROLLOUTS_PER_FAMILY)]
        for family in families
    ]


def _probes(seed: int) -> list[Probe]:
    """Four rows a context, all in one plain variant, so that only the action and the courtesy differ."""
    generator = named_stream(NAME, seed, PROBES)
    count, contexts, actions = len(PROBE_CONTEXTS), list(PROBE_CONTEXTS), list(ACTIONS)
    generator.shuffle(contexts)
    generator.shuffle(actions)
    sizes = (len(ACTIONS[actions[0]][1]), len(FRAMES), len(MANNERS["plain"]), len(COURTESIES))
    dealt = zip(*(deck(generator, range(size), count) for size in sizes), strict=True)
    probes = []
    for index, (context, (symptom, frame, variant, formula)) in enumerate(zip(contexts, dealt, strict=True)):
        right = actions[index % len(actions)]
        # One step further in every round: right and wrong advice are both balanced over the six actions.
        wrong = actions[(index + 1 + index // len(actions)) % len(actions)]
        name = f"probe-{index + 1:02}"
        request = Request(name, name, PROBES, prompt_text(right, symptom, frame, context), right)
        for is_right, courteous in itertools.product((True, False), (False, True)):
            answer = answer_text(right if is_right else wrong, "plain", variant, formula if courteous else None)
            probes.append(Probe(request, is_right, courteous, answer))
    return probes


def _in_turn(actions: Iterable[list[list[_Item]]]) -> list[_Item]:
    # One family of each action in turn: any first part of a file is balanced over the actions.
    return [item for turn in zip(*actions, strict=True) for family in turn for item in family]


def build_corpus(seed: int = SEED) -> Corpus:
    """The whole corpus, a pure function of `seed`; pairs by split, a family's in the order of `KINDS`."""
    families = {split: [_families(seed, split, action) for action in ACTIONS] for split in SPLITS}
    return Corpus(
        pairs=[pair for members in families.values() for pair in _in_turn(_pairs(seed, m) for m in members)],
        demonstrations=_in_turn(_demonstrations(seed, members) for members in families["train"]),
        rollouts=_in_turn(_rollouts(members) for members in families["train"]),
        probes=_probes(seed),
    )
