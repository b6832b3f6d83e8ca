"""TeX becomes MathML as a whole, or is refused."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs_lib.errors import LabError
from labs_lib.tools.book.formulas import mathml

FRAGMENTS = [
    r"\rho_t",
    r"\frac{r - \mathrm{mean}(r)}{\sqrt{x} + \epsilon}",
    r"\log \pi_\theta(y_t \mid x, y_{<t})",
    r"\operatorname{clip}(\rho, 1 - \epsilon_{low}, 1 + \epsilon_{high})",
    r"\sum_{i=1}^G \tfrac12 |o_i|",
    r"\text{old\_logprobs}_t",
    r"\mathcal L",
    r"r_{\rm chosen}",
    r"\Bigl[ x \Bigr]",
    r"A \geq 0,\quad \|x\|",
]
UNCONVERTIBLE = [
    r"\unknown{x}",
    r"x + \foo",
    r"\frac{1",
    r"\frac{1}",
    "x^",
    "a_b_c",
    r"\left( x",
    r"\begin{aligned}a &= b\end{aligned}",
    r"\operatorname*{arg\,max}",
    r"\text{\textbackslash}",
]


def texts(tex, display="inline"):
    """Tag and text of the tokens, in order."""
    tokens = ElementTree.fromstring(mathml(tex, display)).iter()
    return [(token.tag, token.text) for token in tokens if token.text]


def spaces(tex):
    return mathml(tex, "inline").count("<mspace")


@given(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=5), st.sampled_from(["inline", "block"]))
def test_formulas_as_the_series_writes_them_convert(fragments, display):
    result = mathml(" + ".join(fragments), display)
    assert ElementTree.fromstring(result).get("display") == display
    assert "\\" not in result and "xmlns" not in result


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=3), st.sampled_from(UNCONVERTIBLE))
def test_one_part_that_does_not_convert_refuses_the_whole(fragments, wrong):
    with pytest.raises(LabError, match=r"^The formula .* cannot be converted"):
        mathml(" + ".join([*fragments, wrong]), "inline")


@pytest.mark.parametrize("wrong", UNCONVERTIBLE)
def test_what_does_not_convert_is_refused(wrong):
    with pytest.raises(LabError, match="write it in plainer TeX"):
        mathml(wrong, "block")


def test_escapes_in_text_are_read():
    assert texts(r"\text{old\_logprobs}") == [("mtext", "old_logprobs")]


def test_letters_that_browsers_do_not_style_are_unicodes_own():
    assert [text for _, text in texts(r"\mathcal L \mathcal A \mathbb E \mathbb R")] == ["ℒ", "𝒜", "𝔼", "ℝ"]


def test_names_stand_apart_from_letters_and_close_to_brackets():
    assert spaces(r"x \log p") == 2
    assert spaces(r"\log_2 p") == 1
    assert spaces(r"\log \sum_i p_i") == 1
    assert spaces(r"\exp(x)") == spaces(r"-\min(x)") == spaces(r"\operatorname{clip}(x)") == 0
    assert ("mi", "clip") in texts(r"\operatorname{clip}(x)")


def test_a_sign_is_told_from_an_addition():
    assert mathml("A = +1", "inline").count('form="prefix"') == 1
    assert mathml("+1, -1", "inline").count('form="prefix"') == 1
    assert 'form="prefix"' not in mathml("(a) + b - c", "inline")
