"""The program as a person runs it."""

import errno
import json
import os
import re
import resource
import subprocess
import sys

import pytest

from isotherm.cli import VERBS, run


def call(capsys, *arguments):
    code = run(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_help_answers_within_a_third_of_a_second():
    """Of computing: what other programs do on this machine does not count."""
    command = [sys.executable, "-m", "isotherm", "--help"]
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.3


def test_help_loads_nothing_heavy():
    heavy = "{'torch', 'numpy', 'rich'} & sys.modules.keys()"
    code = f"import sys; from isotherm.cli import run; run(['--help']); sys.exit(bool({heavy}))"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("verb", [[], *([name] for name in VERBS)], ids=lambda words: words[0] if words else "program")
@pytest.mark.parametrize("place", ["before", "after"])
def test_help_is_in_both_languages(capsys, verb, place):
    language = ["--lang", "zh"]
    words = [*language, *verb, "--help"] if place == "before" else [*verb, "--help", *language]
    code, chinese, _ = call(capsys, *words)
    assert code == 0
    assert chinese.startswith("用法：")
    assert "选项" in chinese
    assert "显示本帮助并退出" in chinese
    code, english, _ = call(capsys, *verb, "--help")
    assert code == 0
    assert english.startswith("Usage: isotherm")
    assert english.isascii() or not any("\u4e00" <= letter <= "\u9fff" for letter in english)


@pytest.mark.parametrize("verb", [[], ["data"]], ids=["program", "data"])
def test_a_group_alone_shows_its_help(capsys, verb):
    code, out, err = call(capsys, *verb)
    assert (code, out) == (2, "")
    assert err.startswith(f"Usage: {' '.join(['isotherm', *verb])} [OPTIONS] COMMAND [ARGS]...\n")


@pytest.mark.parametrize("verb", [[], ["data", "gettext"], ["sweep"]], ids=["program", "gettext", "sweep"])
def test_the_notes_of_a_help_page_are_in_chinese_too(capsys, verb):
    page = call(capsys, *verb, "--help", "--lang", "zh")[1]
    assert not [word for word in ("OPTIONS", "COMMAND", "ARGS", "default", "required") if word in page]
    assert page.count("[默认：") == call(capsys, *verb, "--help", "--lang", "en")[1].count("[default: ")


def test_version(capsys):
    assert call(capsys, "--version")[:2] == (0, "isotherm 0.1.0\n")


MISTAKES = {
    "unknown command": (["rulez"], "isotherm: no such command: rulez (did you mean rules?); see isotherm --help"),
    "unknown option": (["rules", "--jsn"], "isotherm: no such option: --jsn (--json?)"),
    "unknown rule": (
        ["rules", "logn"],
        "isotherm: NAME: expected a rule of the atlas (nearest: log-n, longrope), got 'logn'",
    ),
    "half a product": (["rules", "log-n*"], "isotherm: NAME: expected a rule on each side of *, got 'log-n*'"),
    "bad number": (["demo", "--keys", "many"], "isotherm: --keys: expected a whole number from 2 to 65536"),
    "too few keys": (["demo", "--keys", "1"], "isotherm: --keys: expected a whole number from 2 to 65536"),
    "no command": (["--lang", "en"], "isotherm: a command is missing; see isotherm --help"),
    "unknown command of data": (
        ["data", "gettxt"],
        "isotherm: no such command: gettxt (did you mean gettext?); see isotherm data --help",
    ),
    "two names": (["rules", "none", "1/d"], "isotherm: one word too many: 1/d"),
    "no value": (["demo", "--keys"], "isotherm: --keys: a value is missing"),
    "a value too many": (["demo", "--json=3"], "isotherm: --json takes no value"),
    "no argument": (["export"], "isotherm: missing: RUN"),
    "seed": (["demo", "--seed", "9" * 30], "isotherm: --seed: expected a whole number from 0 to 4294967295"),
    "seconds": (["watch", "x", "--interval", "-1"], "isotherm: --interval: expected a number from 0.1 to 3600"),
    "no number": (["watch", "x", "--interval", "nan"], "isotherm: --interval: expected a number from 0.1 to 3600"),
    "share": (["sweep", "x", "--gpus", "-1"], "isotherm: --gpus: expected a number from 0 on"),
    "language": (["rules", "--lang", "fr"], "isotherm: --lang: expected en | zh"),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_on_standard_error_and_exit_code_2(capsys, words, message):
    code, out, err = call(capsys, *words)
    assert (code, out, err.strip()) == (2, "", message)


@pytest.mark.parametrize("words", [words for words, _ in MISTAKES.values()][:-1], ids=list(MISTAKES)[:-1])
def test_mistakes_are_told_in_chinese_too(capsys, words):
    code, _, err = call(capsys, *words, "--lang", "zh")
    assert code == 2
    assert any("\u4e00" <= letter <= "\u9fff" for letter in err)
    assert not re.search("expected|missing|argument|command|word|value", err)


def test_rules_lists_every_rule_as_json(capsys):
    from isotherm.scale import ATLAS

    code, out, err = call(capsys, "rules", "--json")
    assert (code, err) == (0, "")
    lines = json.loads(out)
    assert [line["name"] for line in lines] == list(ATLAS)
    assert all(line["sentence"]["zh"] and line["citation"] for line in lines)
    by_name = {line["name"]: line for line in lines}
    assert by_name["1/sqrt(d)"]["multiplier_at_d64_n1024"] == 0.125


@pytest.mark.parametrize("width", [80, 140])
def test_rules_fits_the_terminal(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = call(capsys, "rules")
    assert code == 0
    assert "1/sqrt(d)" in out
    assert max(map(len, out.splitlines())) <= width


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_rule_of_the_atlas_can_be_explained(capsys, lang):
    from isotherm.scale import ATLAS

    for name, entry in ATLAS.items():
        code, out, _ = call(capsys, "rules", name, "--lang", lang)
        assert code == 0
        assert entry.formula.split("=")[0].strip()[:8] in out
        assert entry.citation[:20] in out


def test_a_product_is_explained_with_its_numbers(capsys):
    code, out, _ = call(capsys, "rules", "log-n:1024 * 1/sqrt(d)", "--json")
    page = json.loads(out)
    assert code == 0
    assert [line["name"] for line in page["rules"]] == ["log-n", "1/sqrt(d)"]
    row = page["multiplier"][page["dimensions"].index(64)]
    assert row[page["lengths"].index(1024)] == pytest.approx(0.125)
    assert row[page["lengths"].index(65536)] == pytest.approx(0.125 * 16 / 10)


def test_demo_measures_what_theory_predicts(capsys):
    code, out, err = call(capsys, "demo", "--json", "--keys", "256")
    assert (code, err) == (0, "")
    table = json.loads(out)
    assert [row["d"] for row in table["rows"]] == [16, 32, 64, 128, 256, 512, 1024]
    for row in table["rows"]:
        for reading in (row["scaled"], row["unscaled"]):
            assert reading["gate"] == pytest.approx(reading["gate_predicted"], abs=0.03)
            assert reading["entropy"] == pytest.approx(reading["entropy_predicted"], abs=0.03)
        assert row["scaled"]["gate_p10"] > 0.9
    assert table["rows"][-1]["unscaled"]["gate_p10"] < 1e-6


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_demo_reads_on_a_narrow_terminal_in_both_languages(capsys, monkeypatch, lang):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call(capsys, "demo", "--keys", "128", "--lang", lang)
    assert code == 0
    assert "…" not in out
    assert "1024" in out


@pytest.mark.parametrize(("path", "name"), [("a/b", "a/b"), (None, "the system")])
def test_what_the_system_refuses_is_one_line(capsys, monkeypatch, path, name):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr("isotherm.report.atlas.show", full)
    assert call(capsys, "rules") == (2, "", f"isotherm: {name}: No space left on device\n")


def test_the_early_end_of_a_file_is_not_taken_for_ctrl_c(monkeypatch):
    def ends(*_):
        raise EOFError

    monkeypatch.setattr("isotherm.scale.tables.atlas", ends)
    with pytest.raises(EOFError):
        run(["rules"])
