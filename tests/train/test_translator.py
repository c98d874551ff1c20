"""From a corpus to translations: what was learned by heart is said by heart."""

import json
import os
import re
import signal
import sys
from math import exp
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from isotherm import language
from isotherm.cli import run
from isotherm.cli.train import _show_samples
from isotherm.errors import InputError
from isotherm.language import choose
from isotherm.train import loop
from isotherm.train.loop import train
from isotherm.train.translator import open_run
from isotherm.train.vocabulary import Vocabulary
from tests.train.corpora import SMALL, install, learned, pairs, tiny, write_mo, write_tsv

HOLDS = "holds a run already; --resume continues it, --out names another folder"
RUN = """
[run]
steps = 12
batch_tokens = 160
log_every = 4
evaluate_every = 4
checkpoint_every = 5
samples = 3
device = "cpu"
"""


def call(capsys, *words):
    code = run(list(map(str, words)))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def tsv(tmp_path_factory):
    return write_tsv(tmp_path_factory.mktemp("corpus") / "pairs.tsv")


@pytest.fixture(scope="module")
def by_heart(tsv, tmp_path_factory):
    """A run that learned its corpus until nothing was left to learn."""
    path = tmp_path_factory.mktemp("by-heart") / "run"
    sizes = {"model__width": 32, "model__hidden": 64, "model__dropout": 0.0, "optimizer__schedule": "constant"}
    train(tiny(tsv, run__steps=160, run__batch_tokens=700, run__evaluate_every=0, **sizes), path, quiet=True)
    return path


def test_a_small_corpus_is_learned_by_heart_and_translated_exactly(by_heart):
    lines = [line["loss"] for line in learned(by_heart) if line["kind"] == "train"]
    assert lines[-1] < 0.1
    trained = open_run(by_heart)
    held_out = {sample["source"] for sample in json.loads((by_heart / "result.json").read_text())["samples"]}
    from isotherm.train.parallel_text import Pair, split

    known, unknown = split([Pair(*pair) for pair in pairs()], trained.config.data.held_out)
    assert held_out <= {pair.source for pair in unknown}
    assert trained.translate([pair.source for pair in known]) == [pair.target for pair in known]
    assert trained.translate([pair.source for pair in known], width=1) == [pair.target for pair in known]


def test_translating_from_the_command_line(capsys, by_heart):
    code, out, err = call(capsys, "translate", by_heart, "the red cat", "the warm tea")
    assert (code, out, err) == (0, "红的猫\n暖的茶\n", "")


def test_translating_lines_of_standard_input(capsys, by_heart, monkeypatch):
    import io

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the red cat\n\nthe warm tea\n")))
    code, out, _ = call(capsys, "translate", by_heart, "--beam", "1")
    assert (code, out) == (0, "红的猫\n\n暖的茶\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    code, out, err = call(capsys, "translate", by_heart)
    assert (code, out, err) == (2, "", "isotherm: standard input: not UTF-8 text\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert call(capsys, "translate", by_heart)[:2] == (0, "")


def test_json_is_one_document(capsys, by_heart):
    code, out, err = call(capsys, "translate", by_heart, "the red cat", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "run": str(by_heart),
        "step": 160,
        "translations": [{"source": "the red cat", "output": "红的猫"}],
    }


def test_a_sentence_too_long_is_named(capsys, by_heart):
    code, _, err = call(capsys, "translate", by_heart, "the red cat", "cat " * 200)
    assert code == 2
    assert "isotherm: sentence 2: " in err
    assert "this model reads 80 at most" in err


def test_what_cannot_be_opened_is_named(capsys, by_heart, tmp_path):
    assert "there is no such run" in call(capsys, "translate", tmp_path / "none", "x")[2]
    assert "no run is there; `isotherm train" in call(capsys, "translate", tmp_path, "x")[2]
    loop.RunFolder(tmp_path / "begun").write_config(tiny(tmp_path / "x.tsv"))
    assert "no checkpoint yet; `isotherm train" in call(capsys, "translate", tmp_path / "begun", "x")[2]
    loop.RunFolder(tmp_path / "task").write_config(tiny(tmp_path / "x.tsv", data__kind="copy"))
    assert "this run learned copy, not to translate" in call(capsys, "translate", tmp_path / "task", "x")[2]
    assert "isotherm: --device: expected auto" in call(capsys, "translate", by_heart, "x", "--device", "abacus")[2]
    (tmp_path / "task" / "config.json").write_text("{")
    assert "config.json: not JSON" in call(capsys, "translate", tmp_path / "task", "x")[2]


def test_another_vocabulary_is_refused(by_heart):
    tokenizer = by_heart / "tokenizer.json"
    text = tokenizer.read_text()
    try:
        tokenizer.write_text(Vocabulary.learn(["something else"], 300).to_json())
        with pytest.raises(InputError, match="not the vocabulary the checkpoint of step 160"):
            open_run(by_heart)
    finally:
        tokenizer.write_text(text)


@pytest.fixture
def toml(tsv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL.format(path=tsv) + RUN)
    return "small.toml"


@pytest.mark.parametrize("lang", language.LANGUAGES)
def test_training_from_the_command_line(capsys, toml, lang):
    code, out, err = call(capsys, "train", toml, "--lang", lang)
    assert code == 0
    assert ("held-out loss" in out) == (lang == "en")
    assert "BLEU" in out
    assert err.count("held-out loss" if lang == "en" else "留出损失") == 3
    assert re.match(r"\d+ pairs to learn from, .*; [\d,]+ parameters\n" if lang == "en" else "学习 .*个参数\n", err)
    assert call(capsys, "translate", "runs/small", "the red cat")[0] == 0


def test_training_as_json_prints_one_document(capsys, toml):
    code, out, _ = call(capsys, "train", toml, "--json", "--out", "here")
    assert code == 0
    result = json.loads(out)
    assert result["held_out"]["step"] == 12
    assert len(result["samples"]) == result["scores"]["sentences"] == 3
    assert "zh" in result["scores"]["bleu_signature"]


def test_rules_side_by_side(capsys, toml):
    code, out, err = call(capsys, "train", toml, "--rules", "1/sqrt(d),none", "--out", "both")
    assert code == 0
    assert "held-out loss (nats per token)" in out
    assert "● 1/sqrt(d)" in out
    assert "× none" in out
    assert "both/curves.svg" in err.replace("\n", "")
    assert "<svg" in Path("both/curves.svg").read_text(encoding="utf-8")
    first = [learned(Path("both") / name) for name in ("1-sqrt-d", "none")]
    assert first[0][0]["loss"] != first[1][0]["loss"]
    code, out, _ = call(capsys, "train", toml, "--rules", "1/sqrt(d),none", "--out", "both", "--resume", "--json")
    assert [one["rule"] for one in json.loads(out)["runs"]] == ["1/sqrt(d)", "none"]


def test_rules_are_not_begun_where_one_of_them_cannot_be(capsys, toml):
    assert call(capsys, "train", toml, "--out", "both/none")[0] == 0
    code, _, err = call(capsys, "train", toml, "--rules", "1/sqrt(d),none", "--out", "both")
    assert (code, err.strip()) == (2, "isotherm: both/none: " + HOLDS)
    assert not Path("both/1-sqrt-d").exists()


def test_scores_of_a_recurrent_model_side_by_side(capsys, toml):
    Path(toml).write_text(Path(toml).read_text().replace("[model]", '[model]\nkind = "recurrent"'))
    code, out, _ = call(capsys, "train", toml, "--rules", "additive,scaled-dot", "--out", "both", "--json")
    assert code == 0
    assert [one["run"] for one in json.loads(out)["runs"]] == ["both/additive", "both/scaled-dot"]
    code, _, err = call(capsys, "train", toml, "--rules", "additive,dott", "--out", "three")
    assert code == 2
    assert "isotherm: --rules: expected additive | " in err
    assert "(did you mean dot?)" in err


TASK = """
[data]
kind = "copy"
vocabulary = 11
length = 3
[model]
kind = "decoder"
width = 16
heads = 2
layers = 1
[run]
steps = 3
batch_tokens = 40
device = "cpu"
"""


def test_a_task_shows_how_much_is_right(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("task.toml").write_text(TASK)
    code, out, err = call(capsys, "train", "task.toml")
    assert code == 0
    assert "copy: examples made on the fly; " in err
    accuracy = json.loads(Path("runs/task/result.json").read_text())["held_out"]["accuracy"]
    assert 0 < accuracy < 1
    assert f"tokens right  {accuracy:.1%}" in out
    code, out, _ = call(capsys, "train", "task.toml", "--rules", "1/sqrt(d),none", "--out", "both")
    assert "tokens right" in out
    assert "BLEU" not in out


def test_text_shows_its_perplexity(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the warm cat drinks tea in the old house. " * 2000)
    data = '[data]\nkind = "text"\npath = "text.txt"\nvocabulary = 300\nlength = 7\nheld_out = 0.2\n[model]'
    Path("text.toml").write_text(data + TASK.partition("[model]")[2])
    code, out, err = call(capsys, "train", "text.toml", "--lang", "zh")
    assert code == 0
    loss = json.loads(Path("runs/text/result.json").read_text())["held_out"]["loss"]
    assert f"每词元困惑度  {exp(loss):.4g}" in out
    assert "个词元，留出" in err


def test_samples_are_four_and_stand_under_one_another(capsys):
    samples = [{"source": str(n), "target": "好", "output": "很好"} for n in range(10)]
    choose("zh")
    _show_samples(Console(highlight=False, markup=False), [("", {"samples": samples})])
    lines = [line for line in capsys.readouterr().out.splitlines() if "好" in line]
    assert len(lines) == 8
    assert {cell_len(line.partition("好")[0].rstrip("很")) for line in lines} == {17}


def test_a_rule_twice_is_no_comparison(capsys, toml):
    code, _, err = call(capsys, "train", toml, "--rules", "none,none")
    assert code == 2
    assert "--rules: expected two or more different rules" in err


def test_mistakes_of_a_configuration_exit_2(capsys, toml):
    with open(toml, "a", encoding="utf-8") as file:
        file.write("stps = 3\n")
    code, out, err = call(capsys, "train", toml)
    assert (code, out) == (2, "")
    assert err.strip() == ("isotherm: small.toml: run.stps: expected a known key (did you mean steps?), got 'stps'")


def test_control_c_saves_says_how_to_go_on_and_exits_130(capsys, toml, monkeypatch):
    real = loop.Loop._step

    def step(self, number):
        if number == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_step", step)
        code, out, err = call(capsys, "train", toml)
    assert (code, out) == (130, "")
    again = "isotherm train small.toml --out runs/small --resume"
    assert f"stopped and saved after step 6; continue with: {again}" in err
    code, _, err = call(capsys, *again.split()[1:])
    assert code == 0
    assert "resuming after step 6" in err


def test_control_c_before_the_first_step_is_not_mute(capsys, toml, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "load_training_data", interrupted)
    code, out, err = call(capsys, "train", toml)
    assert (code, out) == (130, "")
    assert err == "stopped; what was saved before is kept, and --resume continues from there\n"


def test_a_corpus_from_the_command_line(capsys, tmp_path):
    site = tmp_path / "site"
    mo = write_mo(site / "p/locale/zh_Hans/LC_MESSAGES/d.mo", {"Open": "打开"})
    install(site, "p", [mo], "License: MIT\n")
    words = ["data", "gettext", "--package", "p", "--to", "zh_CN", "--where", site, "--out", tmp_path / "c.tsv"]
    code, out, err = call(capsys, *words)
    assert (code, out) == (0, "")
    assert "p 1.2 (MIT): 1 pairs from 1 messages" in err
    assert (tmp_path / "c.tsv").read_text(encoding="utf-8") == "Open\t打开\n"
    code, out, _ = call(capsys, *words, "--json")
    assert json.loads(out) == json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    code, _, err = call(capsys, *words[:4], "--to", "de", *words[6:])
    assert (code, err) == (2, "isotherm: p: no catalogue for de (it has: zh_Hans)\n")
    assert call(capsys, "data", "gettxt")[2].startswith("isotherm: no such command: gettxt (did you mean gettext?)")
