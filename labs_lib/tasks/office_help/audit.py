"""The audit of OfficeHelpPrefs-v1: every count that the corpus promises, counted again from its rows.

Families are known twice: by the id that a row carries, and by the situation (action and context) that its prompt
names, read back from the wording. A wrong id therefore cannot hide a family that crosses a split.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labs_lib.errors import AuditError
from labs_lib.tasks.office_help.construction import KINDS, PROBES, Corpus, Pair, Probe, Request
from labs_lib.tasks.office_help.rubric import Parsed, Reason, judge_answer, parse_answer
from labs_lib.tasks.office_help.wording import ACTIONS, CORPUS_CONTEXTS, FRAMES, PROBE_CONTEXTS, prompt_text

Situation = tuple[str, tuple[str, str]]  # an action and a context

FAMILIES = {"train": 168, "validation": 36, "test": 36}
PAIRS = {"train": 840, "validation": 180, "test": 180}
KIND_SHAPES = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Check:
    """One promise of the corpus and what its rows say."""

    name: str
    expected: Any
    found: Any

    @property
    def holds(self) -> bool:
        return self.expected == self.found


def audit_corpus(corpus: Corpus) -> list[Check]:
    """All checks, whether they hold or not; LabError for a row whose right action is none of the six."""
    requests = [item.request for item in (*corpus.pairs, *corpus.demonstrations)] + corpus.rollouts
    return [
        *_family_checks(requests),
        *_share_checks(corpus),
        *_prompt_checks(requests, corpus.probes),
        *_rubric_checks(corpus),
        *_demonstration_checks(corpus),
        *_pair_checks(corpus.pairs),
        *_courtesy_checks(corpus.pairs),
        *_probe_checks(corpus.probes),
    ]


def refuse_differences(checks: Iterable[Check]) -> None:
    """Raise AuditError naming every check that does not hold."""
    failed = [check for check in checks if not check.holds]
    if failed:
        told = "; ".join(f"{check.name}: expected {check.expected}, found {check.found}" for check in failed)
        raise AuditError(f"The corpus is not what it promises: {told}.")


def read_prompts(contexts: Sequence[tuple[str, str]]) -> dict[str, Situation]:
    """Every prompt that the wording can make of these contexts -> its situation."""
    return {
        prompt_text(action, symptom, frame, context): (action, context)
        for action, frame, context in itertools.product(ACTIONS, range(len(FRAMES)), contexts)
        for symptom in range(len(ACTIONS[action][1]))
    }


def _groups(pairs: Iterable[tuple[Hashable, Hashable]]) -> dict[Hashable, set]:
    groups = defaultdict(set)
    for key, value in pairs:
        groups[key].add(value)
    return groups


def _several(pairs: Iterable[tuple[Hashable, Hashable]]) -> int:
    """How many keys stand with more than one value."""
    return sum(len(values) > 1 for values in _groups(pairs).values())


def _family_checks(requests: list[Request]) -> list[Check]:
    situations = read_prompts(CORPUS_CONTEXTS)
    known = [(request, situations[request.prompt]) for request in requests if request.prompt in situations]
    by_split = _groups((r.split, r.family) for r in requests)
    by_action = _groups(((r.split, r.action), r.family) for r in requests)
    return [
        Check("families", sum(FAMILIES.values()), len({r.family for r in requests})),
        Check("families by split", FAMILIES, {split: len(by_split[split]) for split in FAMILIES}),
        Check(
            "families by split and action",
            {split: [count // len(ACTIONS)] * len(ACTIONS) for split, count in FAMILIES.items()},
            {split: [len(by_action[split, action]) for action in ACTIONS] for split in FAMILIES},
        ),
        Check("rows outside the three splits", 0, sum(r.split not in FAMILIES for r in requests)),
        Check("families that cross a split", 0, _several((r.family, r.split) for r in requests)),
        Check("situations that cross a split", 0, _several((s, r.split) for r, s in known)),
        Check("families of several situations", 0, _several((r.family, s) for r, s in known)),
        Check("situations of several families", 0, _several((s, r.family) for r, s in known)),
        Check("right actions other than the prompt's", 0, sum(r.action != action for r, (action, _) in known)),
    ]


def _per_family(requests: Iterable[Request]) -> set[int]:
    return set(Counter(request.family for request in requests).values())


def _share_checks(corpus: Corpus) -> list[Check]:
    demonstrated = [demonstration.request for demonstration in corpus.demonstrations]
    kinds = defaultdict(list)
    for pair in corpus.pairs:
        kinds[pair.request.family].append(pair.kind)
    return [
        Check("pairs by split", PAIRS, dict(Counter(pair.request.split for pair in corpus.pairs))),
        Check(
            "families with one pair of each kind", 240, sum(sorted(k) == sorted(KIND_SHAPES) for k in kinds.values())
        ),
        Check("demonstrations", 168, len(demonstrated)),
        Check("demonstrations a family", {1}, _per_family(demonstrated)),
        Check("rollout prompts", 672, len(corpus.rollouts)),
        Check("rollout prompts a family", {4}, _per_family(corpus.rollouts)),
        Check("splits that demonstrate", {"train"}, {request.split for request in demonstrated}),
        Check("splits with rollouts", {"train"}, {request.split for request in corpus.rollouts}),
    ]


def _prompt_checks(requests: list[Request], probes: list[Probe]) -> list[Check]:
    corpus_prompts, probe_prompts = read_prompts(CORPUS_CONTEXTS), read_prompts(PROBE_CONTEXTS)
    asked = {request.prompt for request in requests}
    return [
        Check("distinct prompts", 2040, len(asked)),
        Check("rows with a prompt", 2040, len(requests)),
        Check("distinct ids", 2040, len({request.id for request in requests})),
        Check("prompts that name no corpus context", 0, sum(prompt not in corpus_prompts for prompt in asked)),
        Check("prompts that name a probe context", 0, sum(map(_names_probe_context, asked))),
        Check("probe rows that name no probe context", 0, sum(p.request.prompt not in probe_prompts for p in probes)),
    ]


def _names_probe_context(prompt: str) -> bool:
    return any(f"{who} {where}".lower() in prompt.lower() for who, where in PROBE_CONTEXTS)


def _passes(answer: str, request: Request) -> bool:
    return judge_answer(answer, "eos", request.action, True).success


def _demonstration_checks(corpus: Corpus) -> list[Check]:
    readings = [parsed for d in corpus.demonstrations if (parsed := parse_answer(d.answer))]
    manners = Counter(parsed.manner for parsed in readings)
    courtesies = Counter(parsed.courtesy for parsed in readings)
    return [
        Check("demonstrations by manner", {"plain": 84, "cautious": 84}, dict(manners)),
        Check("demonstrations by courtesy", {None: 84, 0: 42, 1: 42}, dict(courtesies)),
    ]


def _rubric_checks(corpus: Corpus) -> list[Check]:
    failures = [judge_answer(pair.rejected, "eos", pair.request.action, True) for pair in corpus.pairs]
    demonstrated = [_passes(demonstration.answer, demonstration.request) for demonstration in corpus.demonstrations]
    return [
        Check("chosen answers that pass the rubric", 1200, sum(_passes(p.chosen, p.request) for p in corpus.pairs)),
        Check("rejected answers that fail it", 1200, sum(not verdict.success for verdict in failures)),
        # A rejected answer fails for what it says, not because nobody can read it.
        Check("rejected answers outside the grammar", 0, sum(v.reason == Reason.UNCERTIFIED for v in failures)),
        Check("demonstrations that pass the rubric", 168, sum(demonstrated)),
    ]


def _shape(answer: str, request: Request) -> tuple[bool, str, bool] | None:
    parsed = parse_answer(answer)
    return parsed and (parsed.action == request.action, parsed.manner, parsed.courtesy is not None)


def _fits_its_kind(pair: Pair) -> bool:
    kind = KIND_SHAPES.get(pair.kind)
    return (
        kind is not None
        and _shape(pair.chosen, pair.request) in [(True, m, kind.chosen_courteous) for m in kind.chosen_manners]
        and _shape(pair.rejected, pair.request) == (kind.rejected_right, kind.rejected_manner, kind.rejected_courteous)
    )


def _pair_checks(pairs: list[Pair]) -> list[Check]:
    wrong = Counter()
    for pair in pairs:
        parsed = parse_answer(pair.rejected)
        if parsed and parsed.action != pair.request.action:
            wrong[parsed.action] += 1
    first_manners = Counter()
    for pair in pairs:
        parsed = parse_answer(pair.chosen)
        if parsed and pair.kind == KINDS[0].name:
            first_manners[pair.request.split, parsed.manner] += 1
    halves = {(split, manner): count // 2 for split, count in FAMILIES.items() for manner in ("cautious", "plain")}
    return [
        Check("pairs that fit their kind", 1200, sum(map(_fits_its_kind, pairs))),
        Check("wrong advice by action", dict.fromkeys(ACTIONS, 160), {action: wrong[action] for action in ACTIONS}),
        Check("cautious and plain in the first kind", halves, dict(first_manners)),
    ]


def count_courtesies(pairs: Iterable[Pair]) -> dict[str, dict[str, int]]:
    """side -> split -> how many of its answers are courteous: the count that makes the probes interesting."""
    counts = {side: dict.fromkeys(PAIRS, 0) for side in ("chosen", "rejected")}
    for pair in pairs:
        for side, answer in (("chosen", pair.chosen), ("rejected", pair.rejected)):
            parsed = parse_answer(answer)
            if parsed and parsed.courtesy is not None:
                split = pair.request.split  # one that does not exist is counted too, and so seen
                counts[side][split] = counts[side].get(split, 0) + 1
    return counts


def _courtesy_checks(pairs: list[Pair]) -> list[Check]:
    expected, found = {split: 2 * count for split, count in FAMILIES.items()}, count_courtesies(pairs)
    formulas = {
        side: Counter(parsed.courtesy for parsed in map(parse_answer, answers) if parsed)
        for side, answers in (("chosen", [p.chosen for p in pairs]), ("rejected", [p.rejected for p in pairs]))
    }
    return [
        Check("courteous chosen answers", expected, found["chosen"]),
        Check("courteous rejected answers", expected, found["rejected"]),
        Check("chosen answers by courtesy", {None: 720, 0: 240, 1: 240}, dict(formulas["chosen"])),
        Check("rejected answers by courtesy", {None: 720, 0: 240, 1: 240}, dict(formulas["rejected"])),
    ]


def _probe_checks(probes: list[Probe]) -> list[Check]:
    situations = read_prompts(PROBE_CONTEXTS)
    known = [(probe, *situations[probe.request.prompt]) for probe in probes if probe.request.prompt in situations]
    readings = [(probe, parse_answer(probe.answer)) for probe in probes]
    squares = _groups((probe.request.id, (probe.right, probe.courteous)) for probe in probes)
    rights = Counter(action for _, action in {(p.request.id, p.request.action) for p in probes})
    wrongs = Counter(parsed.action for probe, parsed in readings if parsed and not probe.right and not probe.courteous)
    # Twenty over six: every action three times, two of them once more.
    balance = [3, 3, 3, 3, 4, 4]
    return [
        Check("probe rows", 80, len(probes)),
        Check("probe prompts", 20, len({probe.request.prompt for probe in probes})),
        Check("probe contexts", 20, len({context for _, _, context in known})),
        Check("probes in a split of their own", 80, sum(probe.request.split == PROBES for probe in probes)),
        Check("probes with all four rows", 20, sum(len(square) == 4 for square in squares.values())),
        Check("probes of several requests", 0, _several((p.request.id, p.request) for p in probes)),
        Check("right actions other than the probe's", 0, sum(p.request.action != action for p, action, _ in known)),
        Check(
            "probe answers as labelled",
            80,
            sum(_shape(p.answer, p.request) == (p.right, "plain", p.courteous) for p in probes),
        ),
        Check(
            "probes of one variant and formula",
            20,
            sum(len(square) == 2 for square in _groups((p.request.id, _manner(r)) for p, r in readings).values()),
        ),
        Check(
            "probes of several wrong actions",
            0,
            _several((p.request.id, r and r.action) for p, r in readings if not p.right),
        ),
        Check("right advice of the probes, by action", balance, sorted(rights[action] for action in ACTIONS)),
        Check("wrong advice of the probes, by action", balance, sorted(wrongs[action] for action in ACTIONS)),
    ]


def _manner(parsed: Parsed | None) -> Hashable:
    # Without the action: a context has two of these, with its courtesy formula and without.
    return parsed and (parsed.manner, parsed.variant, parsed.courtesy)
