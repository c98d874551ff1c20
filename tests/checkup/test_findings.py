"""Each kind of bug is reported with its code at its layer, and what is legitimate is not."""

import json
from math import log

import pytest
import torch
from torch import nn

import isotherm
from isotherm.checkup.declare import declared
from isotherm.checkup.findings import CODES, listed
from isotherm.checkup.layers import LayerPlace
from isotherm.record import SCHEMA, CheckRecord, from_plain, to_plain
from isotherm.scale import InverseSqrt, LogN
from tests.checkup.models import DIM, HEADS, Attention, Model, batch, trained

QUICK = {"what_if": (), "compare": False}
D = DIM // HEADS


def check(*layers, data=None):
    torch.manual_seed(0)
    return isotherm.check(trained(Model(*layers)), batch() if data is None else data, **QUICK)


def codes(report):
    return [(finding.code, finding.layer, finding.head) for finding in report.findings]


LEGITIMATE = {
    "PyTorch's kernel": {},
    "by hand": {"fused": False},
    "scale written out": {"scale": D**-0.5},
    "q and k each scaled by d^-1/4": {"scale": 1.0, "early": D**-0.25},
    "the same, by hand": {"scale": 1.0, "early": D**-0.25, "fused": False},
    "QK-norm": {"norm": True},
    "QK-norm with another scale": {"norm": True, "scale": 0.5},
}


@pytest.mark.parametrize("how", LEGITIMATE.values(), ids=LEGITIMATE.keys())
def test_what_is_legitimate_is_not_reported(how):
    torch.manual_seed(0)
    assert codes(check(Attention(), Attention(**how))) == []


PLANTED = {
    "missing": ({"scale": 1.0}, "scale missing"),
    "missing, by hand": ({"scale": 1.0, "fused": False}, "scale missing"),
    "doubled": ({"early": D**-0.25}, "scale applied twice"),
    "1/d, by hand": ({"scale": 1 / D, "fused": False}, "1/d for 1/sqrt(d)"),
    "inverted": ({"scale": D**0.5}, "inverted scale"),
    "off by the wrong scalar": ({"scale": (D * 256 / 224) ** -0.5}, "none of the usual mistakes"),
}


@pytest.mark.parametrize(("how", "likely"), PLANTED.values(), ids=PLANTED.keys())
@pytest.mark.parametrize("at", [0, 1])
def test_a_wrong_scale_is_reported_at_its_layer(how, likely, at):
    torch.manual_seed(0)
    layers = [Attention(), Attention()]
    layers[at] = Attention(**how)
    found = [finding for finding in check(*layers).findings if finding.code == "scale-mismatch"]
    assert [finding.layer for finding in found] == [at]
    assert found[0].evidence["likely"] == likely
    assert found[0].severity == "warning"  # no configuration declares it; convention does


def test_nan_in_one_head_is_reported_at_that_head():
    torch.manual_seed(0)
    bad = Attention()
    with torch.no_grad():
        bad.q_proj.weight[2 * D] = torch.nan
    assert codes(check(Attention(), bad))[0] == ("invalid-values", 1, 2)


def test_one_head_run_hot_is_reported_at_that_head():
    torch.manual_seed(0)
    hot = Attention()
    with torch.no_grad():
        hot.q_proj.weight[D : 2 * D] *= 300
    found = check(Attention(), hot)
    assert codes(found) == [("logits-large", 1, 1)]
    assert found.layers[1].head_stats[1].state == "saturated"


def test_diverging_logits_are_an_error_and_leave_no_room_for_half_precision():
    torch.manual_seed(0)
    hot = Attention()
    with torch.no_grad():
        hot.q_proj.weight[D : 2 * D] *= 1e5
    report = check(hot)
    assert [(f.code, f.severity) for f in report.findings] == [
        ("logits-diverging", "error"),
        ("half-precision-headroom", "note"),
    ]


def test_an_untrained_model_whose_softmax_is_frozen_is_an_error():
    torch.manual_seed(0)
    model = Model(Attention(scale=40.0))
    report = isotherm.check(model, batch(), **QUICK)
    assert "frozen-at-init" in {finding.code for finding in report.findings}
    assert report.layers[0].advice is not None
    assert report.layers[0].advice.factor < 0.2
    assert "frozen-at-init" not in {
        finding.code for finding in isotherm.check(trained(model), batch(), **QUICK).findings
    }


class Biased(Attention):
    """Adds a bias for the distance between positions, as ALiBi does."""

    slope = 3.0

    def forward(self, x):
        q, k, v = (
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        at = torch.arange(x.shape[1])
        scores = q @ k.mT * (self.scale or 0.25) - self.slope * (at - at[:, None]).abs()
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def frozen(model):
    report = isotherm.check(model, batch(), **QUICK)
    return report, [one for one in report.findings if one.code == "frozen-at-init"]


def test_a_spread_that_a_bias_makes_is_a_note():
    torch.manual_seed(0)
    report, found = frozen(Model(Biased()))
    assert found
    assert {one.severity for one in found} == {"note"}
    assert all("q·k alone spreads by" in one.message.en for one in found)
    assert all(one.evidence["spread_of_products"] < 1 < one.evidence["logit_std"] for one in found)
    assert report.layers[0].advice is None
    assert report.healthy


def test_a_spread_that_a_bias_does_not_make_is_an_error():
    torch.manual_seed(0)
    _, found = frozen(Model(Biased(scale=40.0)))
    assert found
    assert {one.severity for one in found} == {"error"}


def test_a_spread_of_unknown_logits_is_a_warning():
    class Cubed(Attention):
        def forward(self, x):
            q, k, v = (
                part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
            )
            return self.o_proj((((2 * q @ k.mT) ** 3).softmax(-1) @ v).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    _, found = frozen(Model(Cubed()))
    assert found
    assert {one.severity for one in found} == {"warning"}
    assert all(one.advice.en.startswith("Unless a bias makes this, ") for one in found)


def test_many_heads_of_a_layer_are_one_finding():
    torch.manual_seed(0)
    layer = Attention()
    with torch.no_grad():
        layer.q_proj.weight *= 300
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isotherm.checkup.findings.HEADS_NAMED", 2)
        found = check(layer).findings
    assert [finding.code for finding in found] == ["logits-large"]
    assert "4 heads of this layer" in found[0].message.en


def test_states_are_facts():
    torch.manual_seed(0)
    layer = Attention()
    with torch.no_grad():
        layer.q_proj.weight[:D] = 0
        layer.q_proj.bias[:D] = 0  # head 0 sees all keys alike
        layer.q_proj.weight[D : 2 * D] *= 100  # head 1 sees one key
        layer.q_proj.weight[2 * D :] *= 5  # heads 2 and 3 choose
    assert [head.state for head in check(layer).layers[0].head_stats] == [
        "diffuse",
        "saturated",
        "balanced",
        "balanced",
    ]


def test_findings_explain_themselves_in_both_languages():
    torch.manual_seed(0)
    hot = Attention(scale=1.0)
    with torch.no_grad():
        hot.q_proj.weight[D : 2 * D] *= 1e5
        hot.q_proj.weight[:D] = torch.nan
    report = check(hot)
    assert {finding.code for finding in report.findings} <= set(CODES)
    for finding in report.findings:
        for text in (finding.message, finding.advice, finding.threshold):
            assert text.en.translate(dict.fromkeys(map(ord, "√·→–"))).isascii()
            assert any("\u4e00" <= letter <= "\u9fff" for letter in text.zh)
        assert "{" not in finding.message.en + finding.message.zh + finding.advice.en + finding.advice.zh


def test_the_record_survives_json():

    torch.manual_seed(0)
    record = isotherm.check(Model(Attention(), Attention(scale=1.0)), batch(), context=4096).record
    assert record.schema == SCHEMA
    again = from_plain(CheckRecord, json.loads(json.dumps(to_plain(record))))
    assert to_plain(again) == to_plain(record)
    with pytest.raises(isotherm.errors.ArgumentError, match=r"report\.layers\[0\]\.heads"):
        from_plain(CheckRecord, to_plain(record) | {"layers": [to_plain(record.layers[0]) | {"heads": "many"}]})


def test_a_rule_of_the_models_own_declares_what_does_not_depend_on_the_query():
    module = nn.Identity()
    module.declares = InverseSqrt() * LogN(16)
    assert declared(LayerPlace(module, None, 0, 64)).value == 0.125


def test_the_scale_passed_is_the_kernels_default_where_none_was_passed():
    assert [check(Attention(scale=scale)).layers[0].scale.passed for scale in (None, 0.5)] == [D**-0.5, 0.5]


def test_context_says_what_keeps_the_entropy():
    torch.manual_seed(0)
    layer = Attention()
    with torch.no_grad():
        layer.q_proj.weight *= 4
    report = isotherm.check(trained(Model(layer)), batch(101), **QUICK, context=8192)
    context = report.record.context
    assert context.seen == 101
    assert context.factor > 1
    from isotherm.theory import gaussian_row

    sigma = float(context.message.en.split("σ = ")[1].split(")")[0])
    kept = gaussian_row(8192, sigma * context.factor).entropy
    assert kept == pytest.approx(gaussian_row(101, sigma).entropy, rel=0.02)
    fractions = [gaussian_row(n, sigma).entropy / log(n) for n in (101, 8192)]
    assert [context.entropy_fraction_now, context.entropy_fraction_then] == pytest.approx(fractions, rel=0.01)


def test_a_report_is_written_in_the_language_asked_for(tmp_path):
    report = check(Attention())
    assert report.to_html(str(tmp_path / "page.html")) == tmp_path / "page.html"
    assert 'lang="en"' in (tmp_path / "page.html").read_text(encoding="utf-8")
    report.to_html(tmp_path / "page.html", "zh")
    assert 'lang="zh' in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert report.to_markdown() == report.to_markdown("en")
    assert report.to_markdown("zh") != report.to_markdown("en")
    assert json.loads(report.to_json(tmp_path / "report.json")) == report.to_dict()
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == report.to_dict()


def test_a_few_names_are_listed_and_the_others_counted():
    names = [f"layer.{i}" for i in range(9)]
    fits = max(count for count in range(1, 9) if "more" not in listed(names[:count]).en)
    assert fits >= 2
    assert listed(names[:fits]).en == listed(names[:fits]).zh == ", ".join(names[:fits])
    more = listed(names)
    assert more.en == f"{', '.join(names[:fits])} and {9 - fits} more"
    assert more.zh == f"{', '.join(names[:fits])} 等 9 个"
    assert listed(names[: fits + 1]).en.endswith(" and 1 more")


def test_a_long_name_is_cut():
    longest = max(len(listed(["x" * size]).en) for size in range(1, 400))
    assert listed(["x" * 400]).en == "x" * (longest - 1) + "…"
    assert listed(["x" * (longest - 1)]).en == "x" * (longest - 1)
