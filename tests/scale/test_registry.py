"""The atlas is complete and in both languages; a typed rule is read or refused with a reason."""

import re
from contextlib import suppress
from math import log, sqrt

import pytest
import torch

import isotherm.scale
from isotherm.errors import ArgumentError
from isotherm.scale import (
    ATLAS,
    ByLayer,
    Entry,
    Fixed,
    Fold,
    InverseSqrt,
    LogN,
    LongRoPE,
    MuP,
    NoScale,
    PerHead,
    Product,
    QKNorm,
    Relative,
    Rule,
    Site,
    SoftCap,
    SoftmaxPlusOne,
    YaRN,
    find,
    parse,
    value,
)
from isotherm.scale.tables import atlas, explain

ENTRIES = [pytest.param(entry, id=name) for name, entry in ATLAS.items()]
CJK = re.compile(r"[\u4e00-\u9fff]")


def subclasses(of: type) -> set[type]:
    return {below for direct in of.__subclasses__() for below in {direct} | subclasses(direct)}


def test_every_rule_is_in_the_atlas() -> None:
    ours = {rule for rule in subclasses(Rule) if rule.__module__.startswith("isotherm.scale.")}
    assert len(ours) > 20
    assert ours - {type(entry.example) for entry in ATLAS.values()} == {Product, Relative}


def test_functions_are_in_the_atlas() -> None:
    assert {name for name, entry in ATLAS.items() if entry.example is None} == {"qk-clip", "sigma-reparam", "z-loss"}


@pytest.mark.parametrize("entry", ENTRIES)
def test_entry_is_whole(entry: Entry) -> None:
    assert entry.formula
    assert re.search(r"arXiv:\d{4}\.\d{5}|\b20\d\d\b", entry.citation), entry.citation
    assert entry.sentence.en.endswith(".")
    assert not CJK.search(entry.sentence.en)
    assert entry.sentence.zh.endswith("。")
    assert CJK.search(entry.sentence.zh)
    assert isinstance(entry.fold, Fold)


@pytest.mark.parametrize("entry", ENTRIES)
def test_example_is_an_example_of_its_entry(entry: Entry) -> None:
    assert find(entry.name) is entry
    if entry.example is None:
        assert entry.fold in (Fold.W, Fold.L)
        return
    assert entry.example.name == entry.name
    numbers = [value(entry.example, d, n) for d in (7, 64) for n in (3, 100_003)]
    if entry.fold is Fold.Q:
        assert all(number is not None and number > 0 for number in numbers), numbers
    if entry.fold in (Fold.L, Fold.K):
        assert numbers == [None] * 4


def test_every_fold_is_used() -> None:
    assert {entry.fold for entry in ATLAS.values()} == set(Fold)


@pytest.mark.parametrize("fold", Fold, ids=lambda fold: fold.name)
def test_folds_speak_both_languages(fold: Fold) -> None:
    assert not CJK.search(fold.value.en)
    assert CJK.search(fold.value.zh)


@pytest.mark.parametrize(("typo", "meant"), [("logn", "log-n"), ("1/sqrt(D )", "1/sqrt(d)"), ("soft-cap", "softcap")])
def test_an_unknown_name_lists_the_nearest(typo: str, meant: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        find(typo)
    assert caught.value.argument == "scale"
    assert meant in caught.value.text.en
    assert meant in caught.value.text.zh


@pytest.mark.parametrize(("name", "near"), [("softqqqqq", True), ("softqqqqqq", False)], ids=["8 of 16", "8 of 17"])
def test_a_name_is_near_if_half_of_the_letters_of_both_are_shared(name: str, near: bool) -> None:
    with pytest.raises(ArgumentError) as caught:
        find(name)
    assert ("nearest: softcap" in caught.value.text.en) == near


def test_a_hopeless_name_lists_all() -> None:
    with pytest.raises(ArgumentError) as caught:
        find("ζζζζζζ")
    assert all(name in caught.value.text.en for name in ATLAS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("none", NoScale(), id="none"),
        pytest.param("1/sqrt(d)", InverseSqrt(), id="1/sqrt(d)"),
        pytest.param("1/√d", InverseSqrt(), id="1/√d"),
        pytest.param("1/d", MuP(), id="1/d"),
        pytest.param("muP", MuP(), id="muP"),
        pytest.param("1/d:64,0.75", MuP(64, 0.75), id="two-arguments"),
        pytest.param("1/d:none,0.75", MuP(None, 0.75), id="none-argument"),
        pytest.param("log-n", LogN(512), id="log-n"),
        pytest.param("log-n:2048", LogN(2048), id="log-n-with-length"),
        pytest.param("0.125", Fixed(0.125), id="number"),
        pytest.param("1/8", Fixed(0.125), id="fraction"),
        pytest.param("1", Fixed(1.0), id="whole-number"),
        pytest.param("1e-3", Fixed(0.001), id="exponent"),
        pytest.param("fixed:0.125", Fixed(0.125), id="fixed-by-name"),
        pytest.param("x0.5", Relative(0.5), id="x0.5"),
        pytest.param("×2", Relative(2.0), id="×2"),
        pytest.param("by-layer:3", ByLayer(3), id="whole-argument"),
        pytest.param("longrope:32,4096", LongRoPE(32, 4096), id="longrope"),
        pytest.param("softmax-1", SoftmaxPlusOne(), id="softmax-1"),
        pytest.param("softcap:50*1/sqrt(d)", Product((SoftCap(50), InverseSqrt())), id="product"),
        pytest.param(" log-n : 512 * x2 * 1/d ", Product((LogN(512), Relative(2.0), MuP())), id="spaces"),
    ],
)
def test_parse(text: str, expected: Rule) -> None:
    assert parse(text) == expected


def test_parse_words() -> None:
    rule = parse("qk-norm:l2,width")
    assert isinstance(rule, QKNorm)
    assert (rule.kind, rule.over) == ("l2", "width")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", "on each side", id="empty"),
        pytest.param("1/d *", "on each side", id="nothing-after-the-star"),
        pytest.param("1/sqrt", "nearest: 1/sqrt", id="unknown"),
        pytest.param("1/0", "atlas", id="division-by-zero"),
        pytest.param("x", "atlas", id="x-alone"),
        pytest.param("yarn", "yarn, with these values after a colon: factor,attention_factor", id="too-few"),
        pytest.param("none:3", "none, with these values after a colon: -", id="too-many"),
        pytest.param("softcap:0", "«off»", id="softcap-0"),
        pytest.param("softcap:", "softcap: expected a finite number above 0", id="nothing-after-the-colon"),
        pytest.param("log-n:long", "train_length", id="word-for-a-number"),
        pytest.param("nan", "scale: expected a finite number above 0", id="nan"),
        pytest.param("-0.5", "scale: expected a finite number above 0", id="negative"),
        pytest.param("x-2", "factor: expected a finite number above 0", id="negative-factor"),
        pytest.param("per-head:0.125", "scale: expected a floating-point tensor", id="learned-from-a-number"),
        pytest.param("8" * 400, "scale: expected a finite number above 0, got inf", id="400-digits"),
        pytest.param("1e39", "scale: expected a number within ±3.4e+38, got 1e+39", id="scale-beyond-float32"),
        pytest.param("sinks:1e308", "alpha: expected a number within ±3.4e+38, got 1e+308", id="beyond-float32"),
        pytest.param("cosine:-1e39", "logit_scale: expected a number within ±3.4e+38", id="below-float32"),
        pytest.param("1/d:none,17", "power: expected a number above 0, at most 16, got 17", id="huge-power"),
        pytest.param("qk-clip", "qk-clip acts outside it", id="not-for-attention"),
    ],
)
def test_parse_says_why_not(text: str, why: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(why)):
        parse(text)


LARGE = ("100000000000000000000", "1e38", "100000000000000000000000000000000000000", "1e-320")


@pytest.mark.parametrize("name", ATLAS)
@pytest.mark.parametrize("large", LARGE)
def test_a_rule_with_large_numbers_is_refused_or_has_a_value(name: str, large: str) -> None:
    """Whole numbers beyond 2^63 must not reach PyTorch, nor squares overflow."""
    for count in range(1, 6):
        for place in range(count):
            values = ["2"] * count
            values[place] = large
            with suppress(ArgumentError):
                value(parse(f"{name}:{','.join(values)}"), 64, 1024)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (InverseSqrt(), "1/sqrt(d)"),
        (Fixed(0.125), "0.125"),
        (Relative(0.5), "x0.5"),
        (LogN(512), "log-n"),
        (LogN(2048), "log-n:2048"),
        (MuP(power=0.75), "1/d:none,0.75"),
        (YaRN(4.0, rotary_dims=64), "yarn:4.0,none,none,none,64"),
        (SoftCap(50) * LogN() * InverseSqrt(), "softcap:50*log-n*1/sqrt(d)"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_rule_prints_as_it_is_typed(rule: Rule, text: str) -> None:
    assert str(rule) == text
    assert parse(text) == rule


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_example_is_read_back(entry: Entry) -> None:
    if entry.example is not None:
        again = parse(str(entry.example))
        assert (type(again), vars(again)) == (type(entry.example), vars(entry.example))


def test_facade_names_every_rule_once() -> None:
    names = isotherm.scale.__all__
    assert len(names) == len(set(names))
    assert all(hasattr(isotherm.scale, name) for name in names)
    assert {rule.__name__ for rule in subclasses(Rule) if rule.__module__.startswith("isotherm.scale.")} <= set(names)


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if isinstance(entry.values[0].example, Rule)])
def test_per_query_says_whether_the_number_differs_between_queries(entry: Entry) -> None:
    positions = torch.tensor([0, 1 << 20])
    multiplier = entry.example.resolve(Site(64, 1, positions, (positions + 1).view(1, 1, 2))).multiplier
    differs = (
        isinstance(multiplier, torch.Tensor) and multiplier.numel() > 1 and len(set(multiplier.flatten().tolist())) > 1
    )
    assert entry.example.per_query == differs


def test_a_rules_page_has_its_number_at_four_dimensions_and_four_lengths() -> None:
    page = explain("log-n:1024 * 1/sqrt(d)")
    assert page.dimensions == (32, 64, 128, 256)
    assert page.lengths == (128, 1024, 8192, 65536)
    expected = [[max(1, log(n) / log(1024)) / sqrt(d) for n in page.lengths] for d in page.dimensions]
    assert [list(row) for row in page.multiplier] == [pytest.approx(row, rel=1e-12) for row in expected]


def test_a_value_is_that_of_one_head_unless_told_otherwise() -> None:
    assert value(PerHead(torch.tensor([0.25])), 64, 128) == 0.25
    assert value(PerHead(torch.tensor([0.25, 0.25])), 64, 128, heads=2) == 0.25
    assert value(PerHead(torch.tensor([0.25, 0.5])), 64, 128, heads=2) is None


def test_the_atlas_lists_every_rule_with_its_example_and_number() -> None:
    lines = {line.name: line for line in atlas()}
    assert list(lines) == [entry.name for entry in ATLAS.values()]
    for entry in ATLAS.values():
        line = lines[entry.name]
        assert (line.formula, line.citation, line.where) == (entry.formula, entry.citation, entry.where)
        example = entry.example
        assert line.example == (entry.name if example is None else str(example))
        assert line.multiplier_at_d64_n1024 == (None if example is None else value(example, 64, 1024))


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_page_by_name_is_that_of_the_example(entry: Entry) -> None:
    page = explain(entry.name)
    example = entry.example
    assert page.name == (entry.name if example is None else str(example))
    assert entry.name in [line.name for line in page.rules]
    assert page.multiplier == (() if example is None else explain(str(example)).multiplier)


WHOLE_SCALES = {
    "1/sqrt(d)",
    "1/d",
    "none",
    "fixed",
    "query-pre-attn-scalar",
    "per-head",
    "per-dim",
    "cosine",
}


def test_which_rules_are_a_whole_scale() -> None:
    """A whole scale replaces another; a factor stands beside one."""
    assert {entry.name for entry in ATLAS.values() if isinstance(entry.example, Rule) and entry.example.sets_scale} == (
        WHOLE_SCALES
    )


def test_a_product_is_per_query_if_a_factor_is() -> None:
    assert (InverseSqrt() * LogN(16)).per_query is True
    assert (InverseSqrt() * SoftCap(5.0)).per_query is False


def test_the_example_of_a_cap_is_gemma_2s() -> None:
    assert ATLAS["softcap"].example == SoftCap(50.0)


def test_at_most_three_names_are_called_near() -> None:
    with pytest.raises(ArgumentError) as caught:
        find("1/sqrt")
    assert caught.value.text.en.count(", ") <= 3  # two between three names, and one before what was given


@pytest.mark.parametrize(
    ("text", "why"),
    [("logn", r"nearest: log-n"), ("log-n:x", r"log-n:x|number"), ("log-n*", r"a rule on each side of \*")],
)
def test_a_page_of_something_else_says_why_not(text: str, why: str) -> None:
    with pytest.raises(ArgumentError, match=why) as caught:
        explain(text)
    assert ("nearest" in str(caught.value)) == (text == "logn")


@pytest.mark.parametrize("text", ["0", "-3", "nan", "1e999", "x0"])
def test_a_number_that_is_no_scale_is_not_taken_for_a_name(text: str) -> None:
    with pytest.raises(ArgumentError, match="expected a finite number above 0"):
        explain(text)


@pytest.mark.parametrize(("text", "rules"), [("x0.5", []), ("x0.5 * log-n", ["log-n"])])
def test_a_bare_factor_has_a_page_but_no_line_of_the_atlas(text: str, rules: list[str]) -> None:
    page = explain(text)
    assert [line.name for line in page.rules] == rules
    assert page.multiplier[0][0] == 0.5
