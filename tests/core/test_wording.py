"""OfficeHelp's words: three disjoint lists of contexts, and a grammar with one reading."""

import itertools

from labs_lib.tasks.office_help.wording import (
    ACTIONS,
    BASE_CONTEXTS,
    CORPUS_CONTEXTS,
    COURTESIES,
    FRAMES,
    MANNERS,
    PROBE_CONTEXTS,
    answer_text,
    is_corpus_or_probe_prompt,
    prompt_text,
)

EVERY_FORM = list(itertools.product(ACTIONS, MANNERS, range(2), (None, *range(len(COURTESIES)))))


def all_prompts(contexts):
    for action, frame, context in itertools.product(ACTIONS, range(len(FRAMES)), contexts):
        for symptom in range(len(ACTIONS[action][1])):
            yield prompt_text(action, symptom, frame, context)


def test_contexts_are_disjoint_also_by_role_and_by_place():
    lists = (CORPUS_CONTEXTS, PROBE_CONTEXTS, BASE_CONTEXTS)
    assert [len(set(contexts)) for contexts in lists] == [40, 20, 48]
    for first, second in itertools.combinations(lists, 2):
        for part in (0, 1):
            assert not {context[part] for context in first} & {context[part] for context in second}


def test_reserved_prompts_are_recognised_and_the_bases_are_not():
    assert all(map(is_corpus_or_probe_prompt, all_prompts(CORPUS_CONTEXTS + PROBE_CONTEXTS)))
    assert not any(map(is_corpus_or_probe_prompt, all_prompts(BASE_CONTEXTS)))


def test_prompts_begin_with_a_capital_and_differ():
    texts = list(all_prompts(CORPUS_CONTEXTS))
    assert len(set(texts)) == len(texts) and all(text[0] == text[0].upper() for text in texts)


def test_every_answer_has_one_reading():
    texts = {answer_text(*form) for form in EVERY_FORM}
    assert len(texts) == len(EVERY_FORM) == len(ACTIONS) * 3 * 2 * 3


def test_an_answer_by_hand():
    assert answer_text("check_cable", "cautious", 1, 0) == (
        "Thanks for asking. You could check the cable, if that applies."
    )
    assert answer_text("check_cable", "plain", 0, None) == "Try this: check the cable."
