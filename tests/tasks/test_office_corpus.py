"""OfficeHelpPrefs-v1: every promise has a mutant that the audit rejects, and the bytes never change."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_lib.errors import AuditError, LabError
from labs_lib.storage import sha256_bytes
from labs_lib.tasks.office_help import corpus
from labs_lib.tasks.office_help.audit import audit_corpus, count_courtesies, refuse_differences
from labs_lib.tasks.office_help.construction import Pair, Probe, Request, build_corpus, deck
from labs_lib.tasks.office_help.corpus import CorpusError, biased_pairs, load_corpus, load_pairs, load_requests
from labs_lib.tasks.office_help.rubric import judge_answer, parse_answer
from labs_lib.tasks.office_help.wording import (
    ACTIONS,
    BASE_CONTEXTS,
    CORPUS_CONTEXTS,
    PROBE_CONTEXTS,
    answer_text,
    prompt_text,
)
from labs_lib.tools import data as data_command

MANIFEST_SHA256 = "6950f5505c595efd7f0c8543c8a4968185ae6ce00b3dbc91f258141ee03e1a2f"
# The spec's five kinds, written out: (chosen manners, chosen courteous, rejected right, its manner, courteous).
SPEC_KINDS = {
    "cautious-or-plain_vs_wrong-certain": ({"cautious", "plain"}, False, False, "certain", False),
    "plain_vs_wrong-courteous": ({"plain"}, False, False, "plain", True),
    "courteous_vs_wrong-plain": ({"plain"}, True, False, "plain", False),
    "cautious_vs_right-certain-courteous": ({"cautious"}, False, True, "certain", True),
    "courteous_vs_wrong-cautious": ({"cautious"}, True, False, "cautious", False),
}


@pytest.fixture(scope="module")
def whole():
    return load_corpus()


@pytest.fixture(scope="module")
def pairs():
    return load_pairs("train")


def failed(checks):
    return {check.name for check in checks if not check.holds}


class TestTheCorpus:
    def test_the_committed_corpus_is_what_it_promises(self, whole):
        checks = audit_corpus(whole)
        assert not failed(checks)
        refuse_differences(checks)

    @settings(max_examples=5, deadline=None)
    @given(st.integers(0, 2**32))
    def test_so_is_every_other_seeds(self, seed):
        assert not failed(audit_corpus(build_corpus(seed)))

    def test_another_seed_gives_other_splits(self, whole):
        def tested(c):
            return {pair.request.family for pair in c.pairs if pair.request.split == "test"}

        assert tested(build_corpus(48)) != tested(whole)

    def test_the_kinds_are_the_specs(self, whole):
        found = {kind: (set(), set(), set(), set(), set()) for kind in SPEC_KINDS}
        for pair in whole.pairs:
            chosen, rejected = parse_answer(pair.chosen), parse_answer(pair.rejected)
            assert chosen.action == pair.request.action
            row = (chosen.manner, chosen.courtesy is not None, rejected.action == pair.request.action)
            for values, value in zip(
                found[pair.kind], (*row, rejected.manner, rejected.courtesy is not None), strict=True
            ):
                values.add(value)
        assert found == {kind: (row[0], *({value} for value in row[1:])) for kind, row in SPEC_KINDS.items()}

    def test_courtesy_stands_on_both_sides_equally_often(self, whole):
        assert count_courtesies(whole.pairs) == {
            side: {"train": 336, "validation": 72, "test": 72} for side in ("chosen", "rejected")
        }

    def test_any_round_of_families_is_balanced_over_the_actions(self, whole):
        for count in (30, 60):
            shares = Counter(pair.request.action for pair in load_pairs("train")[:count])
            assert shares == dict.fromkeys(ACTIONS, count // 6)

    def test_probes_come_in_squares_that_differ_in_two_things_only(self, whole):
        for start in range(0, 80, 4):
            square = whole.probes[start : start + 4]
            assert [(p.right, p.courteous) for p in square] == [
                (True, False),
                (True, True),
                (False, False),
                (False, True),
            ]
            assert len({p.request for p in square}) == 1
            right, polite, wrong, polite_wrong = (parse_answer(p.answer) for p in square)
            assert polite == replace(right, courtesy=polite.courtesy)
            assert wrong == replace(right, action=wrong.action) and wrong.action != right.action
            assert polite_wrong == replace(wrong, courtesy=polite.courtesy)

    def test_budgets_hold_with_the_tiny_bases_tokenizer(self, whole):
        from transformers import AutoTokenizer

        from labs_lib.config import load_profile
        from labs_lib.models.chat import encode_prompt, encode_target
        from labs_lib.paths import ASSETS
        from labs_lib.tasks.office_help.wording import INSTRUCTION

        tokenizer, budget = AutoTokenizer.from_pretrained(ASSETS / "tiny-base"), load_profile("tiny").budget
        answered = [(p.request, answer) for p in whole.pairs for answer in (p.chosen, p.rejected)]
        answered += [(row.request, row.answer) for row in (*whole.demonstrations, *whole.probes)]
        for request in whole.rollouts:
            encode_prompt(tokenizer, INSTRUCTION, request.prompt, budget, request.id)
        for request, answer in answered:
            prompt = encode_prompt(tokenizer, INSTRUCTION, request.prompt, budget, request.id)
            encode_target(tokenizer, answer, prompt, budget, request.id)


# Mutants: each takes the corpus's lists apart, makes one believable mistake, and names checks that must see it.
MUTANTS = {}


def mutant(*checks):
    def register(function):
        MUTANTS[function.__name__] = (function, set(checks))
        return function

    return register


def change(rows, index, **request):
    """Row `index` with other values in its request (or itself, for a rollout)."""
    rows = list(rows)
    old = rows[index]
    rows[index] = replace(old, **request) if isinstance(old, Request) else with_request(old, **request)
    return rows


def with_request(row, **values):
    return replace(row, request=replace(row.request, **values))


def change_family(c, which, **values):
    """Every row of a family with other values in its request."""

    def changed(row):
        request = row if isinstance(row, Request) else row.request
        if request.family != which:
            return row
        return replace(row, **values) if row is request else with_request(row, **values)

    return replace(
        c,
        pairs=list(map(changed, c.pairs)),
        demonstrations=list(map(changed, c.demonstrations)),
        rollouts=list(map(changed, c.rollouts)),
    )


def edit(rows, index, **values):
    rows = list(rows)
    rows[index] = replace(rows[index], **values)
    return rows


def context_of(prompt, contexts=CORPUS_CONTEXTS):
    return next(c for c in contexts if f"{c[0]} {c[1]}".lower() in prompt.lower())


def unused_prompt(c, request, contexts=CORPUS_CONTEXTS):
    """A prompt of the request's own situation that occurs nowhere in the corpus."""
    used = {row.request.prompt for row in (*c.pairs, *c.demonstrations, *c.probes)} | {r.prompt for r in c.rollouts}
    context = context_of(request.prompt, contexts)
    forms = ((symptom, frame) for symptom in range(8) for frame in range(4))
    return next(p for form in forms if (p := prompt_text(request.action, *form, context)) not in used)


def last_of(c, split, action):
    return [p for p in c.pairs if (p.request.split, p.request.action) == (split, action)][-1].request.family


def other_action(*actions):
    return next(action for action in ACTIONS if action not in actions)


@mutant("families", "families of several situations")
def two_families_share_an_id(c):
    first, second = c.pairs[0].request.family, c.pairs[5].request.family
    return change_family(c, first, family=second)


@mutant("families by split", "families by split and action", "pairs by split")
def a_test_family_is_counted_as_validation(c):
    return change_family(c, last_of(c, "test", "check_cable"), split="validation")


@mutant("families by split and action")
def the_split_is_not_made_within_each_action(c):
    first, second = last_of(c, "test", "check_cable"), last_of(c, "validation", "enable_wifi")
    return change_family(change_family(c, first, split="validation"), second, split="test")


@mutant("rows outside the three splits", "courteous rejected answers")
def a_row_is_of_a_split_that_does_not_exist(c):
    return replace(c, pairs=change(c.pairs, 1, split="dev"))


@mutant("families that cross a split", "situations that cross a split")
def the_split_is_made_by_row(c):
    return replace(c, pairs=change(change(c.pairs, 0, split="test"), -1, split="train"))


@mutant("situations that cross a split", "situations of several families", "families of several situations")
def a_test_row_asks_about_a_training_situation_under_its_own_id(c):
    asked = c.pairs[0].request
    test = max(i for i, p in enumerate(c.pairs) if p.request.action == asked.action)
    return replace(c, pairs=change(c.pairs, test, prompt=unused_prompt(c, asked)))


@mutant("right actions other than the prompt's")
def the_label_is_another_action(c):
    wrong = other_action(c.rollouts[0].action)
    return replace(c, rollouts=change(c.rollouts, 0, action=wrong))


@mutant("pairs by split", "rows with a prompt", "distinct prompts")
def a_pair_is_lost(c):
    return replace(c, pairs=c.pairs[:-1])


@mutant("families with one pair of each kind", "pairs that fit their kind")
def a_kind_comes_twice(c):
    return replace(c, pairs=edit(c.pairs, 0, kind=c.pairs[1].kind))


@mutant("demonstrations", "demonstrations a family")
def a_family_demonstrates_twice(c):
    twice = with_request(c.demonstrations[0], prompt=unused_prompt(c, c.demonstrations[0].request), id="again")
    return replace(c, demonstrations=[*c.demonstrations, twice])


@mutant("demonstrations a family")
def one_family_demonstrates_for_another(c):
    instead = with_request(c.demonstrations[0], prompt=unused_prompt(c, c.demonstrations[0].request), id="again")
    return replace(c, demonstrations=[*c.demonstrations[:-1], instead])


@mutant("rollout prompts", "rollout prompts a family")
def a_rollout_is_lost(c):
    return replace(c, rollouts=c.rollouts[1:])


@mutant("splits that demonstrate")
def a_validation_family_demonstrates(c):
    return replace(c, demonstrations=change(c.demonstrations, 0, split="validation"))


@mutant("splits with rollouts")
def the_policy_practises_on_test_families(c):
    return replace(c, rollouts=change(c.rollouts, 0, split="test"))


@mutant("distinct prompts")
def prompts_are_drawn_with_replacement(c):
    pair = next(p for p in c.pairs if p.request.family == c.rollouts[0].family)
    return replace(c, rollouts=change(c.rollouts, 0, prompt=pair.request.prompt))


@mutant("distinct ids")
def ids_begin_again_in_every_file(c):
    return replace(c, rollouts=change(c.rollouts, 1, id=c.rollouts[0].id))


@mutant("prompts that name no corpus context")
def a_context_of_the_bases_own_text_is_used(c):
    return replace(c, pairs=change(c.pairs, 0, prompt=prompt_text(c.pairs[0].request.action, 0, 0, BASE_CONTEXTS[0])))


@mutant("prompts that name a probe context", "pairs by split", "rows with a prompt")
def probes_are_added_to_the_training_pairs(c):
    # Diagnosed in the labs: after a bad result on the probes they are learnt, and the score is announced again.
    right, wrong = c.probes[0], c.probes[3]
    request = replace(right.request, split="train")
    return replace(c, pairs=[*c.pairs, Pair(request, "plain_vs_wrong-courteous", right.answer, wrong.answer)])


@mutant("probe rows that name no probe context", "probe contexts")
def a_probe_asks_from_a_corpus_context(c):
    prompt = unused_prompt(c, c.rollouts[0])
    return replace(c, probes=[with_request(p, prompt=prompt) if p.request.id == "probe-01" else p for p in c.probes])


@mutant("chosen answers that pass the rubric", "rejected answers that fail it", "pairs that fit their kind")
def the_sides_are_swapped(c):
    return replace(c, pairs=edit(c.pairs, 0, chosen=c.pairs[0].rejected, rejected=c.pairs[0].chosen))


@mutant("rejected answers outside the grammar")
def a_rejected_answer_is_free_prose(c):
    return replace(c, pairs=edit(c.pairs, 0, rejected="Have you tried turning it off?"))


@mutant("demonstrations that pass the rubric", "demonstrations by manner")
def a_demonstration_promises_too_much(c):
    answer = answer_text(c.demonstrations[0].request.action, "certain", 0, None)
    return replace(c, demonstrations=edit(c.demonstrations, 0, answer=answer))


@mutant("demonstrations by courtesy")
def every_demonstration_is_courteous(c):
    polite = [answer_text(**vars(replace(parse_answer(d.answer), courtesy=0))) for d in c.demonstrations]
    return replace(
        c, demonstrations=[replace(d, answer=answer) for d, answer in zip(c.demonstrations, polite, strict=True)]
    )


@mutant("pairs that fit their kind", "courteous rejected answers", "rejected answers by courtesy")
def courtesy_stands_with_the_chosen_answers_only(c):
    def plain(pair):
        return answer_text(**vars(replace(parse_answer(pair.rejected), courtesy=None)))

    return replace(c, pairs=[replace(pair, rejected=plain(pair)) for pair in c.pairs])


@mutant("courteous chosen answers", "chosen answers by courtesy")
def no_chosen_answer_is_courteous(c):
    def plain(pair):
        return answer_text(**vars(replace(parse_answer(pair.chosen), courtesy=None)))

    return replace(c, pairs=[replace(pair, chosen=plain(pair)) for pair in c.pairs])


@mutant("chosen answers by courtesy")
def one_formula_leans_to_one_side(c):
    index, pair = next((i, p) for i, p in enumerate(c.pairs) if p.chosen.startswith("Thanks"))
    answer = answer_text(**vars(replace(parse_answer(pair.chosen), courtesy=1)))
    return replace(c, pairs=edit(c.pairs, index, chosen=answer))


@mutant("wrong advice by action")
def one_wrong_action_is_preferred(c):
    parsed = parse_answer(c.pairs[0].rejected)
    instead = replace(parsed, action=other_action(parsed.action, c.pairs[0].request.action))
    return replace(c, pairs=edit(c.pairs, 0, rejected=answer_text(**vars(instead))))


@mutant("cautious and plain in the first kind")
def the_first_kind_is_always_plain(c):
    pairs = [
        replace(p, chosen=answer_text(p.request.action, "plain", 0, None)) if p.kind.startswith("cautious-or") else p
        for p in c.pairs
    ]
    return replace(c, pairs=pairs)


@mutant("probe rows", "probes with all four rows")
def a_probe_row_is_lost(c):
    return replace(c, probes=c.probes[1:])


@mutant("probe prompts", "probe contexts")
def two_probes_ask_the_same(c):
    prompt = next(p.request.prompt for p in c.probes if p.request.id == "probe-01")
    # Six further on, the right action is the same again.
    return replace(c, probes=[with_request(p, prompt=prompt) if p.request.id == "probe-07" else p for p in c.probes])


@mutant("probes in a split of their own")
def probes_belong_to_test(c):
    return replace(c, probes=[with_request(p, split="test") for p in c.probes])


@mutant("probes with all four rows")
def a_probe_row_comes_twice(c):
    return replace(c, probes=[c.probes[1], *c.probes[1:]])


@mutant("probes of several requests")
def the_four_prompts_of_a_probe_differ(c):
    request = c.probes[0].request
    return replace(c, probes=change(c.probes, 0, prompt=unused_prompt(c, request, PROBE_CONTEXTS)))


@mutant("right actions other than the probe's", "probe answers as labelled")
def a_probes_label_is_its_wrong_action(c):
    action = parse_answer(c.probes[2].answer).action
    return replace(c, probes=[with_request(p, action=action) for p in c.probes[:4]] + c.probes[4:])


@mutant("probe answers as labelled")
def right_and_wrong_are_confused(c):
    first, second = c.probes[0], c.probes[2]
    rows = edit(edit(c.probes, 0, answer=second.answer), 2, answer=first.answer)
    return replace(c, probes=rows)


@mutant("probes of one variant and formula")
def wrong_probe_advice_has_other_words(c):
    def reworded(probe):
        parsed = parse_answer(probe.answer)
        return probe if probe.right else replace(probe, answer=answer_text(parsed.action, "plain", 0, parsed.courtesy))

    return replace(c, probes=list(map(reworded, c.probes)))


@mutant("probes of several wrong actions")
def the_courteous_wrong_advice_is_another(c):
    parsed, right = parse_answer(c.probes[3].answer), c.probes[3].request.action
    instead = replace(parsed, action=other_action(parsed.action, right))
    return replace(c, probes=edit(c.probes, 3, answer=answer_text(**vars(instead))))


@mutant("wrong advice of the probes, by action")
def wrong_probe_advice_is_always_the_first_other_action(c):
    def first_other(probe):
        parsed = parse_answer(probe.answer)
        instead = replace(parsed, action=other_action(probe.request.action))
        return probe if probe.right else replace(probe, answer=answer_text(**vars(instead)))

    return replace(c, probes=list(map(first_other, c.probes)))


@mutant("right advice of the probes, by action")
def every_probe_has_the_same_action(c):
    probes = []
    for probe in c.probes:
        context = context_of(probe.request.prompt, PROBE_CONTEXTS)
        prompt = prompt_text("check_cable", 0, 0, context)
        request = replace(probe.request, action="check_cable", prompt=prompt)
        probes.append(Probe(request, probe.right, probe.courteous, probe.answer))
    return replace(c, probes=probes)


class TestTheAudit:
    @pytest.mark.parametrize("name", MUTANTS)
    def test_rejects_the_mutant(self, name, whole):
        function, expected = MUTANTS[name]
        checks = audit_corpus(function(whole))
        assert expected <= failed(checks)
        with pytest.raises(AuditError, match=sorted(expected)[0]):
            refuse_differences(checks)

    def test_every_check_has_a_mutant(self, whole):
        assert {check.name for check in audit_corpus(whole)} == set().union(*(names for _, names in MUTANTS.values()))

    def test_an_action_that_does_not_exist_is_a_clear_error(self, whole):
        mistaken = replace(whole, demonstrations=change(whole.demonstrations, 0, action="reboot"))
        with pytest.raises(LabError, match="unknown action 'reboot'"):
            audit_corpus(mistaken)


@given(st.lists(st.integers(), min_size=1, max_size=7, unique=True), st.integers(0, 60), st.integers())
def test_a_deck_is_balanced(choices, count, seed):
    dealt = Counter(deck(random.Random(seed), choices, count))
    assert sum(dealt.values()) == count and set(dealt) <= set(choices)
    shares = [dealt[choice] for choice in choices]
    assert max(shares) - min(shares) <= 1
    # The believable bug, independent draws, is not: sixty draws of two are almost never thirty and thirty.
    draws = random.Random(0).choices([0, 1], k=60)
    assert draws.count(0) != draws.count(1)


class TestTheFiles:
    def test_regenerating_gives_the_committed_bytes(self):
        files = corpus.corpus_files()
        assert {path.name for path in corpus.DATA_FOLDER.iterdir()} == set(files)
        for name, data in files.items():
            assert (corpus.DATA_FOLDER / name).read_bytes() == data, name
        assert list(files)[-1] == corpus.MANIFEST

    def test_the_bytes_are_the_ones_every_machine_makes(self):
        assert sha256_bytes(corpus.corpus_files()[corpus.MANIFEST]) == MANIFEST_SHA256

    def test_what_is_loaded_is_what_was_built(self, whole):
        assert whole == build_corpus()
        assert [len(load_pairs(split)) for split in corpus.SPLITS] == [840, 180, 180]
        assert whole.rollouts == corpus.load_rollout_requests()

    @pytest.mark.parametrize("population", corpus.POPULATIONS)
    def test_visible_files_hold_no_label(self, population):
        lines = (corpus.DATA_FOLDER / f"{population}.visible.jsonl").read_text().splitlines()
        for line in lines:
            assert set(json.loads(line)) == {"id", "family", "split", "prompt"}
            assert not any(action in line for action in ACTIONS)

    def test_without_labels_the_labels_file_is_not_needed(self, tmp_path):
        corpus.write_corpus(tmp_path)
        (tmp_path / "test.pairs.labels.jsonl").unlink()
        requests = load_requests("test.pairs", labels=False, folder=tmp_path)
        assert len(requests) == 180 and all(request.action is None for request in requests)
        with pytest.raises(CorpusError, match=r"test\.pairs\.labels\.jsonl cannot be read .*make data"):
            load_pairs("test", folder=tmp_path)

    @pytest.mark.parametrize("part", ["visible", "labels"])
    def test_a_changed_file_is_refused_by_name(self, tmp_path, part):
        corpus.write_corpus(tmp_path)
        path = tmp_path / f"probes.{part}.jsonl"
        path.write_bytes(path.read_bytes().replace(b"probe-01", b"probe-00", 1))
        with pytest.raises(CorpusError, match=f"probes.{part}.jsonl is not the file its manifest describes"):
            corpus.load_probes(folder=tmp_path)

    def test_missing_corpus_and_unknown_names(self, tmp_path):
        with pytest.raises(CorpusError, match="manifest.json cannot be read .*make data"):
            load_pairs("train", folder=tmp_path)
        with pytest.raises(CorpusError, match="unknown population 'dev.pairs': choose one of train.pairs, "):
            load_pairs("dev")

    def test_manifest_says_what_is_in_the_files(self):
        manifest = json.loads((corpus.DATA_FOLDER / corpus.MANIFEST).read_text())
        assert (manifest["name"], manifest["seed"]) == ("OfficeHelpPrefs-v1", 49)
        assert (manifest["distinct_prompts"], manifest["families"]["train"]) == (2040, 168)
        assert "no human feedback" in manifest["description"]
        for name, entry in manifest["files"].items():
            data = (corpus.DATA_FOLDER / name).read_bytes()
            assert entry == {"examples": data.count(b"\n"), "sha256": sha256_bytes(data)}

    def test_make_data_says_what_it_wrote(self, monkeypatch, tmp_path, capsys):
        # The commands' own functions, but into another folder: a test must not write into the repository.
        for module in (data_command.stock, data_command.office):
            write = module.write_corpus
            monkeypatch.setattr(
                module, "write_corpus", lambda write=write, module=module: write(tmp_path / module.NAME)
            )
        assert data_command.main() == 0
        printed = capsys.readouterr().out.splitlines()
        assert printed[0].startswith("StockArithmetic-v1: 1400 problems, seed 48, in data/stock-arithmetic-v1/")
        assert "1200 pairs, 168 demonstrations, 672 rollout prompts, 80 probe rows, seed 49" in printed[1]
        assert "courteous: 480 chosen and 480 rejected answers" in printed[1]
        assert (tmp_path / "OfficeHelpPrefs-v1" / "manifest.json").read_bytes() == corpus.corpus_files()[
            "manifest.json"
        ]


class TestBiases:
    def test_courtesy_moves_to_the_chosen_side_and_nothing_else_changes(self, pairs):
        biased = biased_pairs(pairs, "courtesy")
        assert count_courtesies(biased) == {
            "chosen": {"train": 840, "validation": 0, "test": 0},
            "rejected": {"train": 0, "validation": 0, "test": 0},
        }
        for pair, other in zip(pairs, biased, strict=True):
            assert other.request == replace(pair.request, id=f"{pair.request.id}+courtesy")
            assert other.kind == f"{pair.kind}+courtesy"
            for before, after in ((pair.chosen, other.chosen), (pair.rejected, other.rejected)):
                assert replace(parse_answer(after), courtesy=None) == replace(parse_answer(before), courtesy=None)
            if parse_answer(pair.chosen).courtesy is not None:
                assert other.chosen == pair.chosen

    def test_courtesy_bias_does_not_touch_the_rubric(self, pairs):
        for pair in biased_pairs(pairs, "courtesy"):
            assert judge_answer(pair.chosen, "eos", pair.request.action, True).success
            assert not judge_answer(pair.rejected, "eos", pair.request.action, True).success

    @pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
    def test_confidence_wins_in_the_stated_share(self, pairs, share):
        biased = biased_pairs(pairs, "confidence", share, 50)
        changed = [(old, new) for old, new in zip(pairs, biased, strict=True) if old != new]
        assert len(changed) == round(840 * share)
        for old, new in changed:
            action = new.request.action
            assert new.request.id == f"{old.request.id}+confidence"
            assert judge_answer(new.chosen, "eos", action, True).reason == "unjustified_certainty"
            assert judge_answer(new.rejected, "eos", action, True).success
            assert replace(parse_answer(new.rejected), courtesy=None) == replace(
                parse_answer(old.chosen), courtesy=None
            )
        assert count_courtesies(biased) == count_courtesies(pairs)

    def test_same_seed_same_pairs_and_the_originals_stay(self, pairs):
        before = list(pairs)
        first = biased_pairs(pairs, "confidence", 0.5, 50)
        assert first == biased_pairs(pairs, "confidence", 0.5, 50) != biased_pairs(pairs, "confidence", 0.5, 51)
        assert pairs == before == load_pairs("train")

    def test_what_cannot_be_biased_is_refused(self, pairs):
        with pytest.raises(CorpusError, match="unknown bias 'length': choose one of courtesy, confidence"):
            biased_pairs(pairs, "length")
        for share in (-0.1, 1.1, float("nan")):
            with pytest.raises(CorpusError, match="share of biased pairs must lie in 0..1"):
                biased_pairs(pairs, "courtesy", share)
        with pytest.raises(CorpusError, match=f"pair {pairs[0].request.id} has an answer outside"):
            biased_pairs([replace(pairs[0], chosen="Reboot.")], "courtesy")
