"""`isotherm set` from the command line."""

import pytest
import torch

from isotherm.cli import run
from tests.checkup.folders import bert_folder
from tests.setting.architectures import build

pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path):
    return bert_folder(tmp_path / "in")


def test_it_says_what_it_wrote(folder, tmp_path, capsys):
    assert run(["set", str(folder), "--rule", "x0.5", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert said.out == (
        "folded into 4 weights: encoder.layer.0.attention.self.query.weight, encoder.layer.0.attention.self.query.bias …\n"
        "loaded afresh, its output is at most 0 away from that of isotherm.apply\n"
        "a check-up finds nothing in it\n"
    )
    assert said.err == f"wrote {tmp_path / 'out'}\n"
    assert run(["set", str(folder), "--rule", "x0.5", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"isotherm: {tmp_path / 'out'} exists; --force (force=True) replaces it\n"
    again = ["set", str(folder), "--rule", "x0.7", "--layer", "1", "--heads", "0,3", "--out", str(tmp_path / "out")]
    assert run([*again, "--force", "--lang", "zh"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("已折入 2 个权重：encoder.layer.1.attention.self.query.weight, ")
    assert said.endswith("检查无发现\n")


def test_what_goes_into_the_configuration_is_shown(tmp_path, capsys):
    build("Granite").save_pretrained(tmp_path / "in")
    run(["set", str(tmp_path / "in"), "--rule", "0.25", "--out", str(tmp_path / "out")])
    assert capsys.readouterr().out.startswith("in config.json: attention_multiplier = 0.25\n")


def test_a_repair_and_what_is_left_to_find(tmp_path, capsys):
    model = build("Llama")
    with torch.no_grad():
        model.layers[1].self_attn.q_proj.weight *= 300
    model.save_pretrained(tmp_path / "in")
    code = run(["set", str(tmp_path / "in"), "--fix", "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert said.startswith("folded into 1 weight: layers.1.self_attn.q_proj.weight\n")
    assert "logits-large" not in said
    assert code == int("a check-up finds: " in said)
    assert run(["set", str(tmp_path / "out"), "--fix", "--out", str(tmp_path / "again")]) == 0
    assert capsys.readouterr().err.endswith(
        "the folder has no tokenizer, so tokens drawn at random stood for text\n"
        "nothing to repair: no wrong scale and no logits above 100\n"
    )
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --rule or --fix, one of the two"),
        (["--rule", "x0.5", "--fix"], "give --rule or --fix, one of the two"),
        (["--rule", "warm"], "--rule: expected a rule of the atlas"),
        (["--rule", "x0.5", "--layer", "9"], "--layer: expected a name, pattern or index of a layer"),
        (["--rule", "x0.5", "--heads", "one"], "--heads: expected numbers separated by commas, got 'one'"),
        (["--rule", "x0.5", "--heads", "7"], "--heads: expected heads from 0 to 3"),
        (["--rule", "log-n"], "encoder.layer.0.attention.self: log-n has a number for each query"),
    ],
)
def test_bad_input_is_one_line(words, message, folder, tmp_path, capsys):
    assert run(["set", str(folder), "--out", str(tmp_path / "out"), *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"isotherm: {message}")
    assert said.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_scale_in_force_needs_no_folder(folder, tmp_path, capsys):
    assert run(["set", str(folder), "--rule", "1/sqrt(d)", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err == "nothing to write: the scale in force is this one already\n"
