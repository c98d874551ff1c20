import doctest
from xml.etree import ElementTree

import pytest

from isotherm.lab import interval, mathml, numerals
from isotherm.lab.claims import CLAIMS, load, missing
from isotherm.lab.mathml import bracket, equation, frac, mi, mo, root, row, sub, sup, total
from isotherm.report.explain import mathml as shown

WRITTEN = [
    "softmax-saturates",
    "a-a-2a",
    "jacobian",
    "one-hot-kills-gradient",
    "dot-variance",
    "variance-is-sqrt-d",
    "sqrt-is-the-right-power",
    "ten-draws",
    "jacobian-at-high-variance",
    "vanishing-not-exploding",
    "mean-versus-quantile",
    "bounded-inputs",
    "cross-entropy-is-safe",
    "freezing",
]


@pytest.mark.parametrize("module", [interval, mathml, numerals], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(
    ("formula", "markup"),
    [
        ("d", "<mi>d</mi>"),
        ("1.5", "<mn>1.5</mn>"),
        ("x_i^2", "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"),
        ("e^2", "<msup><mi>e</mi><mn>2</mn></msup>"),
        ("a < b", "<mrow><mi>a</mi><mo>&lt;</mo><mi>b</mi></mrow>"),
        ("ln ( n )", "<mrow><mi>ln</mi><mo>(</mo><mi>n</mi><mo>)</mo></mrow>"),
        ("gate_q", "<msub><mi>gate</mi><mi>q</mi></msub>"),
    ],
)
def test_words_become_names_numbers_and_signs(formula, markup):
    assert row(formula) == markup


def test_builders_nest_and_stay_well_formed():
    formula = equation(
        sub("y", "i"), frac(sup("e", "x_i"), row(total("j = 1", "n"), sup("e", "x_j"))), bracket(root("2 ln n"))
    )
    tree = ElementTree.fromstring(f"<math>{formula}</math>")
    assert [len(node) for node in tree.iter("mfrac")] == [2]
    assert [len(node) for node in tree.iter("munderover")] == [3]
    assert shown.parse(formula) is not None
    assert shown.to_text(equation("σ", root("d"))) == "σ = √d"


def test_signs_are_escaped():
    assert mo("<") == "<mo>&lt;</mo>"
    assert mi("&") == "<mi>&amp;</mi>"


@pytest.mark.parametrize("claim", WRITTEN)
def test_every_formula_of_a_claim_can_be_shown(claim):
    steps = load(claim).steps
    assert any(step.math for step in steps)
    for step in steps:
        assert shown.parse(step.math) is not None, step.math


def test_the_claims_named_here_exist():
    assert set(WRITTEN) <= set(CLAIMS) - set(missing())
