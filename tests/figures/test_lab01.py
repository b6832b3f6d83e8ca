"""The figures of labs 00 and 01 show the data that they are given."""

from collections import Counter

import matplotlib
import numpy
import pytest
from matplotlib import pyplot

from labs_lib.figures import lab00, lab01, style
from labs_lib.tasks.stock_arithmetic.gallery import GALLERY, VERIFIERS, verdict_counts, verdict_table


@pytest.fixture(autouse=True)
def series_style():
    with matplotlib.rc_context():
        style.use_style()
        yield
    pyplot.close("all")


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_answer_probabilities_has_a_bar_for_each_token_in_order():
    axes = lab00.answer_probabilities(["{", "2", "2", "$"], [0.5, 1.0, 0.25, 0.75]).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [0.5, 1.0, 0.25, 0.75]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["'{'", "'2'", "'2'", r"'\$'"]
    assert axes.get_xlabel() and axes.get_ylabel() == "probability"


def test_final_stocks_are_shares_of_each_population():
    axes = lab01.final_stocks({"ID50": [0, 5, 9, 10], "OOD100": [35]}).axes[0]
    values = {patch.get_label(): patch.get_data() for patch in axes.patches}
    assert values["ID50"].values.tolist() == [75.0, 25.0, 0.0, 0.0]
    assert values["OOD100"].values.tolist() == [0.0, 0.0, 0.0, 100.0]
    assert values["ID50"].edges.tolist() == [0, 10, 20, 30, 40]
    assert "items" in axes.get_xlabel() and "%" in axes.get_ylabel()


def test_payments_stack_to_what_is_paid():
    counts = verdict_counts()
    axes = lab01.payments(counts).axes[0]
    right, wrong = ([bar.get_width() for bar in container] for container in axes.containers)
    names = list(counts)[::-1]
    assert wrong == [counts[name]["wrongly_paid"] for name in names]
    assert [r + w for r, w in zip(right, wrong, strict=True)] == [counts[name]["paid"] for name in names]
    assert texts(axes) == [f"{counts[name]['wrongly_paid']} undeserved" for name in names]


def test_families_hold_every_completion_once():
    categories = [category for family in lab01.FAMILIES.values() for category in family]
    assert max(Counter(categories).values()) == 1
    undeserving = {completion.category for completion in GALLERY if not completion.deserves}
    assert set(categories) == undeserving
    counts = lab01.family_counts(verdict_table(), list(VERIFIERS))
    assert sum(row["strict"][1] for row in counts.values()) == len(GALLERY)


def test_gallery_map_is_white_exactly_where_nothing_is_paid():
    counts = lab01.family_counts(verdict_table(), list(VERIFIERS))
    axes = lab01.gallery_map(counts).axes[0]
    fields = [counts[family][name] for family in counts for name in VERIFIERS]
    assert texts(axes) == [f"{paid} of {total}" for paid, total in fields]
    assert [patch.get_alpha() == 0 for patch in axes.patches] == [paid == 0 for paid, _ in fields]
    for family in lab01.FAMILIES:
        assert counts[family]["strict"][0] == 0
    assert counts[lab01.DESERVING]["strict"] == (10, 10)


def test_stock_paths_show_both_orders_and_where_zero_is():
    paths = {"deliveries first": [12, 42, 47, 38, 27], "withdrawals first": [12, 3, -8, 22, 27]}
    axes = lab01.stock_paths({"worked": paths, "again": paths}).axes
    assert [panel.get_title() for panel in axes] == ["worked", "again"]
    lines = [line for line in axes[0].lines if len(line.get_ydata()) == 5]
    assert [list(line.get_ydata()) for line in lines] == list(paths.values())
    low, high = axes[0].get_ylim()
    assert low < -8 and high > 47
    assert lines[0].get_linestyle() != lines[1].get_linestyle()


def test_style_bonus_has_a_bar_for_each_rule_and_answer():
    panels = {"group": {"no bonus": [0.0, 0.0], "bonus": [1.0, -1.0]}}
    axes = lab01.style_bonus(panels, ["1", "2"]).axes[0]
    heights = [[bar.get_height() for bar in container] for container in axes.containers]
    assert heights == [[0.0, 0.0], [1.0, -1.0]]
    edges = [(bar.get_x(), bar.get_x() + bar.get_width()) for container in axes.containers for bar in container]
    edges.sort()
    ends = numpy.array(edges)
    assert (ends[1:, 0] >= ends[:-1, 1] - 1e-9).all(), "bars overlap"
