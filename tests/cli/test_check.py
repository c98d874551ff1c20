"""`isotherm check` as a person or a pipeline runs it."""

import io
import json
import os
import sys
import threading

import pytest

from isotherm.cli import run
from isotherm.record import SCHEMA
from tests.checkup.folders import bert_folder, change_config

pytest.importorskip("transformers")
QUICK = ["--what-if", "", "--one-implementation", "--tokens", "32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(bert_folder(tmp_path_factory.mktemp("models") / "small-bert"))


def call(capsys, *words):
    code = run(words)
    out, err = capsys.readouterr()
    return code, out, err


def test_a_healthy_model_exits_0_and_says_so(capsys, folder):
    code, out, err = call(capsys, "check", folder)
    assert (code, err) == (0, "")
    assert "small-bert" in out
    assert "Nothing to act on" in out
    assert "as is" in out
    assert "sdpa and eager agree" in out or "eager and sdpa agree" in out


def test_chinese(capsys, folder):
    code, out, _ = call(capsys, "check", folder, "--lang", "zh", *QUICK)
    assert code == 0
    assert "没有需要处理的问题" in out


def test_json_is_one_document_on_standard_output_and_nothing_else(capsys, folder):
    code, out, err = call(capsys, "check", folder, "--json", "--context", "4096")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == SCHEMA
    assert {"schema", "model", "versions", "layers", "findings", "what_if", "cost"} <= document.keys()
    layer = document["layers"][0]
    assert {
        "index",
        "name",
        "kind",
        "heads",
        "kv_heads",
        "head_dim",
        "implementation",
        "scale",
        "head_stats",
    } <= layer.keys()
    assert layer["scale"] | {"note": None, "source": ""} == {
        "passed": pytest.approx(8**-0.5),
        "effective": pytest.approx(8**-0.5, rel=1e-4),
        "declared": pytest.approx(8**-0.5),
        "rule": "1/sqrt(d)",
        "source": "",
        "agrees": True,
        "note": None,
    }
    assert [what["rule"] for what in document["what_if"]] == ["as is", "none", "1/d", "x0.5", "x2"]
    assert document["context"]["length"] == 4096


def test_quiet_prints_findings_only(capsys, folder):
    code, out, _ = call(capsys, "check", folder, "--quiet", *QUICK)
    assert code == 0
    assert "Layers" not in out
    assert "Nothing to act on" in out


@pytest.fixture
def frozen(folder, tmp_path):
    """The same model untrained, with a start so large that its softmax is frozen."""
    import shutil

    path = tmp_path / "frozen"
    shutil.copytree(folder, path)
    change_config(path, initializer_range=5.0)
    return str(path)


def test_a_finding_exits_1_and_names_its_code(capsys, frozen):
    code, out, _ = call(capsys, "check", frozen, "--from-config", *QUICK)
    assert code == 1
    assert "frozen-at-init" in out


@pytest.mark.parametrize(
    ("fail_on", "code"),
    [
        ("scale-mismatch", 0),
        ("frozen-at-init", 1),
        ("scale-mismatch,frozen-at-init", 1),
        ("saturated>0.01", 1),
        ("balanced>0.99", 0),
        ("invalid>0", 0),
        ("saturated > 1e-2", 1),
        ("saturated>0.0,", 1),
    ],
)
def test_fail_on_chooses_what_fails(capsys, frozen, fail_on, code):
    assert call(capsys, "check", frozen, "--from-config", "--fail-on", fail_on, *QUICK)[0] == code


@pytest.mark.parametrize("fail_on", ["scale-mismach", "", "  ", ", ,", "saturated>", "saturated>2", "sink>1e400"])
def test_a_limit_that_nothing_can_exceed_is_refused_before_any_work(capsys, fail_on):
    code, _, err = call(capsys, "check", "no-such-model-at-all", "--fail-on", fail_on)
    assert code == 2
    assert err.startswith("isotherm: --fail-on: expected codes (scale-mismatch, ")


def test_an_unknown_rule_is_refused_with_the_nearest(capsys, folder):
    code, out, err = call(capsys, "check", folder, "--what-if", "none,logn")
    assert (code, out) == (2, "")
    assert "nearest: log-n" in err


def test_page_markdown_and_json_are_written_whole(capsys, folder, tmp_path):
    page, summary = tmp_path / "report.html", tmp_path / "summary.md"
    code, _, err = call(capsys, "check", folder, "--html", str(page), "--markdown", str(summary), *QUICK)
    assert code == 0
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert "small-bert" in summary.read_text(encoding="utf-8")
    assert str(page) in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "summary.md"]


def test_reports_go_through_links_and_into_pipes(capsys, folder, tmp_path):
    page, link, pipe = tmp_path / "page.html", tmp_path / "link.html", tmp_path / "pipe"
    page.write_text("old", encoding="utf-8")
    link.symlink_to(page)
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    code, _, _ = call(capsys, "check", folder, "--html", str(link), "--markdown", str(pipe), *QUICK)
    reader.join(20)
    assert code == 0
    assert (link.is_symlink(), pipe.is_fifo()) == (True, True)
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert "small-bert" in got[0]


def test_a_folder_that_cannot_be_written_to(capsys, folder, tmp_path):
    code, _, err = call(capsys, "check", folder, "--html", str(tmp_path / "none" / "report.html"), *QUICK)
    assert code == 2
    assert "report.html" in err
    assert "Traceback" not in err


def test_a_disk_that_fills_while_writing_leaves_nothing(capsys, folder, tmp_path, monkeypatch):
    import errno
    import os

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("isotherm.report.files.os.fsync", full)
    code, _, err = call(capsys, "check", folder, "--html", str(tmp_path / "report.html"), *QUICK)
    assert code == 2
    assert "report.html" in err
    assert list(tmp_path.iterdir()) == []


def test_text_from_a_file_and_from_standard_input(capsys, folder, tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("the temperature of attention " * 4, encoding="utf-8")
    code, out, _ = call(capsys, "check", folder, "--text", str(text), "--json", *QUICK)
    assert code == 0
    from_file = json.loads(out)["model"]["tokens"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    code, out, _ = call(capsys, "check", folder, "--text", "-", "--json", *QUICK)
    assert (code, json.loads(out)["model"]["tokens"]) == (0, from_file)


def test_two_reports_are_compared(capsys, folder, tmp_path):
    paths = []
    for tokens in ("16", "32"):
        _, out, _ = call(capsys, "check", folder, "--json", "--what-if", "", "--one-implementation", "--tokens", tokens)
        paths.append(tmp_path / f"{tokens}.json")
        paths[-1].write_text(out, encoding="utf-8")
    code, out, _ = call(capsys, "check", str(paths[0]), "--compare", str(paths[1]))
    assert code == 0
    assert "small-bert → small-bert" in out
    code, out, _ = call(capsys, "check", str(paths[0]), "--compare", str(paths[1]), "--json")
    assert json.loads(out)["schema"] == "isotherm.compare/1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a report of schema"),
        ('{"schema": "isotherm.check/1"}', "r.json: created: expected a value"),
        ("[" * 99999, "r.json: nested too deeply"),
        ("\0", "r.json: not JSON"),
    ],
)
def test_a_report_that_is_none(capsys, tmp_path, content, message):
    (tmp_path / "r.json").write_text(content)
    code, _, err = call(capsys, "check", str(tmp_path / "r.json"))
    assert code == 2
    assert message in err


def test_a_forward_that_fails_is_one_line_and_debug_shows_where(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "bad_model.py").write_text(
        "import torch\n"
        "class Bad(torch.nn.Module):\n"
        "    def forward(self, x): raise RuntimeError('shapes do not match')\n"
        "def make(): return Bad(), torch.zeros(1)\n"
    )
    try:
        code, out, err = call(capsys, "check", "bad_model:make")
        assert (code, out) == (2, "")
        assert err.strip() == (
            "isotherm: bad_model:make: the check-up failed (RuntimeError: shapes do not match); --debug shows where"
        )
        with pytest.raises(RuntimeError, match="shapes do not match"):
            run(["check", "bad_model:make", "--debug"])
    finally:
        sys.modules.pop("bad_model", None)


def test_downloading_and_loading_move_the_bar(capsys, folder, monkeypatch):
    from rich.progress import Progress

    shown = []

    class Bar(Progress):
        def update(self, task, **how):
            shown.append((how["description"], how["completed"]))

    monkeypatch.setattr("isotherm.cli.check.progress_bar", lambda *_: Bar(disable=True))
    assert call(capsys, "check", folder, *QUICK)[0] == 0
    assert shown[0] == ("starting", 0.0)
    assert ("loading weights", 1.0) in shown
    assert shown.index(("loading weights", 1.0)) < shown.index(("one forward under the probe", 0.0))


def test_a_precision_is_chosen(capsys, folder):
    code, out, _ = call(capsys, "check", folder, "--dtype", "bfloat16", "--json", *QUICK)
    assert (code, json.loads(out)["model"]["dtype"]) == (0, "bfloat16")


WRONG = {
    "unknown precision": (["FOLDER", "--dtype", "int8"], "--dtype"),
    "unknown device map": (["FOLDER", "--device-map", "balanced"], "--device-map"),
    "device and device map": (["FOLDER", "--device", "cpu", "--device-map", "auto"], "no --device beside it"),
    "GGUF": (["q4.gguf"], "q4.gguf: GGUF holds weights for llama.cpp; check the model that it was converted from"),
    "ONNX": (["m.onnx"], "m.onnx: ONNX holds a graph"),
    "an address": (
        ["https://huggingface.co/gpt2"],
        "no such folder or file; a model of the hub is given as owner/name",
    ),
    "no such device": (["FOLDER", "--device", "toaster"], "--device: expected a device that PyTorch finds here ("),
    "the text as output": (
        ["FOLDER", "--text", "m.onnx", "--markdown", "m.onnx"],
        "--markdown: expected a file that is neither",
    ),
    "one output twice": (["FOLDER", "--markdown", "page.html"], "--markdown: expected a file that is neither"),
    "weights without a configuration": (["w.safetensors"], "w.safetensors: needs the model's config.json beside it"),
}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_loaded_is_one_line_and_nothing_is_written(
    capsys, folder, tmp_path, monkeypatch, words, message, language
):
    monkeypatch.chdir(tmp_path)
    for name in ("q4.gguf", "m.onnx", "w.safetensors"):
        (tmp_path / name).write_bytes(b"x")
    words = [folder if word == "FOLDER" else word for word in words]
    code, out, err = call(capsys, "check", *words, "--html", "page.html", "--lang", language)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "page.html").exists()
    assert (tmp_path / "m.onnx").read_bytes() == b"x"
    assert language == "zh" or message in err


def test_a_batch_that_forward_does_not_take_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "odd_model.py").write_text(
        "import torch\n"
        "def make(): return torch.nn.MultiheadAttention(8, 2), torch.zeros(5, 1, 8)\n"
        "def ids(): return torch.nn.TransformerEncoderLayer(8, 2), {'wrong': 3}\n"
    )
    try:
        code, _, err = call(capsys, "check", "odd_model:make")
        assert code == 2
        assert err.startswith("isotherm: odd_model:make: expected arguments that forward(query, key, value, ")
        assert err.endswith(", got 1 positional\n")
        assert call(capsys, "check", "odd_model:ids")[2].endswith(", got keywords wrong\n")
    finally:
        sys.modules.pop("odd_model", None)
