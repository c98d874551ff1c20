"""The story: both languages have the same parts, fields, formulas and links; numbers are measured, links lead somewhere."""

import re
from pathlib import Path
from string import Formatter

import pytest

from isotherm.errors import InputError
from isotherm.lab import story as lab_story
from isotherm.lab.claims import CLAIMS
from isotherm.lab.story import Number, measured, merged, numbers, story
from isotherm.lab.story.reader import Told, read_page
from isotherm.record import to_plain
from isotherm.record.files import checked
from isotherm.record.story import LINK, MEASURED_SCHEMA, TERM, StoryMeasured, plain
from isotherm.report.explain import mathml

STEPS = ["dots", "weights", "jacobian", "gradients", "powers", "lengths", "model"]
FOLDER = Path(lab_story.__file__).parent


def page(language):
    return read_page((FOLDER / f"{language}.md").read_text(encoding="utf-8"))


def sentences(part, where=""):
    """Every sentence of a page with its place."""
    if isinstance(part, Told):
        yield where, part
    elif isinstance(part, (dict, list)):
        for name, inner in part.items() if isinstance(part, dict) else enumerate(part):
            yield from sentences(inner, f"{where}.{name}")


EN, ZH = dict(sentences(page("en"))), dict(sentences(page("zh")))


def fields(sentence):
    return sorted(f"{name}:{form}" for _, name, form, _ in Formatter().parse(sentence) if name is not None)


def links(sentence):
    return sorted(target for _, target in LINK.findall(sentence))


def test_both_languages_have_the_same_parts_fields_and_links():
    assert list(EN) == list(ZH)
    for where, sentence in EN.items():
        assert fields(sentence) == fields(ZH[where]), where
        assert links(sentence) == links(ZH[where]), where


def test_formulas_and_names_are_the_same_in_both_languages():
    en = page("en")
    zh = page("zh")
    zh["steps"][2]["derivation"][1]["math"] = "<mi>x</mi>"
    numbers_ = {name: Number(value) for name, value in measured().fields.items()}
    merged(en, page("zh"), numbers_)
    with pytest.raises(ValueError, match=r"differ at \.steps\[2\]\.derivation\[1\]\.math"):
        merged(en, zh, numbers_)


def test_every_field_is_measured():
    named = {field.split(":")[0] for sentence in EN.values() for field in fields(sentence)}
    assert named <= set(measured().fields)
    assert len(named) > 70


@pytest.mark.slow
def test_the_numbers_on_record_are_measured_again():
    again = numbers.measure()
    on_record = measured().fields
    assert set(again) <= set(on_record)
    for name, value in again.items():
        assert value == pytest.approx(on_record[name], rel=1e-6, abs=1e-12), name


def test_every_link_leads_to_a_claim_or_a_word_and_every_claim_is_reached():
    targets = {target for sentence in EN.values() for target in links(sentence)}
    terms = {TERM + term["id"] for term in page("en")["glossary"]}
    assert targets - terms == set(CLAIMS)
    assert {target for target in targets if target.startswith(TERM)} <= terms


def test_each_point_of_a_step_names_its_evidence():
    for step in page("en")["steps"]:
        for point in step["points"]:
            assert [target for target in links(point) if not target.startswith(TERM)], point


def test_the_story_has_its_parts():
    told = story().words
    assert [step.id for step in told.steps] == STEPS
    assert len(told.answer) == 3
    assert [side.id for side in told.sides] == ["additive", "classifier", "paths", "encoder-decoder", "bert"]
    for step in told.steps:
        assert len(step.predict.choices) == 3
        assert len(set(step.predict.choices)) == 3
    assert {step.predict.answer for step in told.steps} != {0}
    assert len(told.row.table.rows) == 6
    assert all(len(row) == len(told.row.table.heads) for row in told.row.table.rows)


def test_sentences_are_whole_and_in_their_own_language():
    empty = {where for where, sentence in EN.items() if not sentence}
    assert empty == {where for where, sentence in ZH.items() if not sentence}
    assert all(where.startswith(".row.table.rows.5.") for where in empty)
    for where, sentence in EN.items():
        assert not re.search("[\u4e00-\u9fff，。：；]", sentence), where
    for where, sentence in ZH.items():
        assert not re.search(r"[\u4e00-\u9fff] [\u4e00-\u9fff]", sentence), where
    words = {where for where, sentence in EN.items() if re.search("[a-z]{5}", plain(sentence))}
    untranslated = {where for where in words if ZH[where] == EN[where] and not where.startswith(".row.table.rows")}
    assert {EN[where] for where in untranslated} == {"logit"}


def test_every_formula_can_be_shown():
    told = story().words
    formulas = [told.formula.math, *(it.math for step in told.steps for it in step.derivation if it.math)]
    assert len(formulas) > 20
    for formula in formulas:
        assert mathml.parse(formula) is not None, formula
        assert "\\" not in mathml.to_text(formula)


def test_numbers_are_written_as_a_person_writes_them():
    written = Number(0.6912)
    assert f"{written} {written:3} {written:%} {written:1%} {written:.1f}" == "0.69 0.691 69 % 69.1 % 0.7"
    assert f"{Number(-1.25):.1f}" == "−1.2"


def test_a_damaged_record_is_refused():
    good = to_plain(measured())
    assert checked(StoryMeasured, "story.json", good) == measured()
    assert good["schema"] == MEASURED_SCHEMA
    good["finding"]["points"][0]["share"] = "most"
    with pytest.raises(InputError, match=r"finding\.points\[0\]\.share"):
        checked(StoryMeasured, "story.json", good)


def test_the_three_answers_say_what_was_measured():
    """The sentences around the fields stay true only while the numbers do."""
    number = measured().fields
    assert number["raw_gate"] < 0.1
    assert 0.6 < number["soft_gate"] < 0.8
    assert number["uneven_64"] > 50 * number["even_64"]
    assert number["p10_64"] < 0.2
    assert number["p50_64"] > 1
    assert number["grown_64"] > 1
    assert number["found_whole"] < number["found_none"] < number["found_as_is"]
    assert number["lost_none_least"] > 0
    assert number["found_none"] > 0.55
    assert (
        number["entropy_none_1024"] < number["entropy_none_16"] < number["entropy_root_16"] < number["entropy_whole_16"]
    )
    assert number["entropy_32768"] - number["entropy_512"] == pytest.approx(4.16, abs=0.1)
    assert number["entropy_log_512"] < number["entropy_log_32768"] < number["entropy_32768"]
    assert number["heads_frozen"] < number["heads"] / 2 < number["heads_frozen_none"]
