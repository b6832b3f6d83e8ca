"""A reduced budget: fewer of everything that is counted, nothing else, and it is said."""

from collections import Counter
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs_lib import runtime
from labs_lib.branches import protocol_branches
from labs_lib.config import load_profile, profile_names
from labs_lib.errors import ConfigError
from labs_lib.office_evidence import held_out_pairs, held_out_probes
from labs_lib.reduced import budget_note, evenly, held_out, reduced, short_grpo, short_run
from labs_lib.showing import show_table
from labs_lib.tasks.stock_arithmetic.corpus import load_split

COUNTS = {"examples", "iterations", "interrupt_at"}


def leaves(section, path=""):
    for field in fields(section):
        value = getattr(section, field.name)
        yield from leaves(value, f"{path}{field.name}.") if is_dataclass(value) else [(f"{path}{field.name}", value)]


@pytest.mark.parametrize("name", profile_names())
@pytest.mark.parametrize("share", [0.004, 0.05, 0.37])
def test_only_counts_change_and_every_run_can_still_be_interrupted(name, share):
    whole = load_profile(name)
    part = reduced(whole, share)
    old, new = dict(leaves(whole)), dict(leaves(part))
    changed = {key for key in old if old[key] != new[key]}
    assert changed <= {"name", "protocol_share"} | {key for key in old if key.rpartition(".")[2] in COUNTS}
    assert all(new[key] <= old[key] for key in changed if key.rpartition(".")[2] in COUNTS)
    for section in (part.grpo, part.group_size_runs, part.office.ppo):
        assert 1 <= section.interrupt_at < section.iterations
    for section in (part.warmstart, part.sft, part.office.sft, part.office.judge, part.office.dpo):
        assert section.examples >= section.batch_size and section.updates // section.epochs >= 1
    assert part.file == name != part.name and len({whole.fingerprint(), part.fingerprint()}) == 2
    assert set(protocol_branches(part)) == set(protocol_branches(whole))


def test_a_twentieth_is_a_twentieth():
    part = reduced(load_profile("tiny"), 0.05)
    assert part.name == "tiny-budget-0.05"
    assert (part.grpo.iterations, part.grpo.interrupt_at, part.sft.examples, part.office.judge.examples) == (
        5,
        2,
        48,
        48,
    )


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ConfigError, match=r"BUDGET is .*above 0 and at most 1"):
        reduced(load_profile("tiny"), share)


def test_the_whole_budget_is_the_profile_itself_and_a_reduced_one_is_not_reduced_again():
    whole = load_profile("tiny")
    assert reduced(whole, 1) is whole
    with pytest.raises(ConfigError, match="reduced already.*tiny"):
        reduced(reduced(whole, 0.5), 0.5)


@given(st.lists(st.integers(), unique=True, max_size=60), st.integers(1, 80))
def test_evenly_spaced_values_are_in_order_and_nowhere_crowded(values, count):
    chosen = evenly(values, count)
    assert len(chosen) == min(count, len(values))
    places = [values.index(value) for value in chosen]
    assert places == sorted(places)
    gaps = [b - a for a, b in pairwise(places)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_held_out_rows_are_of_every_kind_and_units_stay_whole():
    tiny = load_profile("tiny")
    part = reduced(tiny, 0.1)
    problems = held_out(part, load_split("test", labels=False), lambda example: example.id)
    assert Counter(example.population for example in problems) == {"ID50": 10, "OOD100": 10}
    assert len(held_out_pairs(tiny)) == 180 and len(held_out_probes(tiny)) == 80
    pairs, probes = held_out_pairs(part), held_out_probes(part)
    assert Counter(Counter(pair.request.family for pair in pairs).values()) == {5: 4}
    assert Counter(Counter(probe.request.id for probe in probes).values()) == {4: 2}
    assert len({pair.request.action for pair in pairs}) > 1


def test_a_reduced_run_says_at_the_start_that_the_text_speaks_of_the_whole_one():
    tiny = load_profile("tiny")
    assert "The text was written for all of them" in runtime.describe(reduced(tiny, 0.05))
    assert "The text" not in runtime.describe(tiny)


def test_every_table_of_a_reduced_run_says_so(monkeypatch):
    assert budget_note(1.0) == ""
    monkeypatch.setitem(runtime._session, "note", budget_note(0.05))
    assert show_table(["a"], [["1"]]).data.endswith("\n\n*Reduced budget: 5 % of the protocol's counts.*")
    monkeypatch.setitem(runtime._session, "note", "")
    assert show_table(["a"], [["1"]]).data.endswith("| 1 |")


def test_a_run_that_only_shows_an_error_is_short_and_shorter_with_a_budget():
    profile = load_profile("tiny")
    assert (short_run(profile), short_run(profile, 16)) == (4, 16)
    assert (short_run(reduced(profile, 0.5)), short_run(reduced(profile, 0.5), 16)) == (3, 4)
    assert short_grpo(profile) == replace(profile.grpo, iterations=4)
    fewer = replace(profile.grpo, iterations=3, prompts_per_iteration=2)
    assert short_grpo(replace(profile, protocol_share=0.5)) == fewer
