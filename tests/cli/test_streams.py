"""Standard streams that are closed or full, text that would steer a terminal, and signals at any moment."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from isotherm.cli import VERBS, run
from isotherm.record import to_plain
from tests.report import records

PROGRAM = [sys.executable, "-m", "isotherm"]
FULL = "isotherm: cannot write standard output: no space is left on the disk\n"
COMMANDS = {
    "version": ["--version"],
    "help": ["--help"],
    **{f"help of {verb}": [verb, "--help"] for verb in VERBS},
    "rules": ["rules"],
    "rules as JSON": ["rules", "--json"],
    "list": ["explain", "--list"],
    "report": ["check", "REPORT"],
    "report as JSON": ["check", "REPORT", "--json"],
    "demo": ["demo", "--keys", "2"],
}
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (place > 3)) for place, name in enumerate(COMMANDS)]
FINDS = {"report", "report as JSON"}  # exit with 1, because the record holds findings


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("reports") / "report.json"
    path.write_text(json.dumps(to_plain(records.gpt2())), encoding="utf-8")
    return str(path)


def start(words, **streams):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.Popen([*PROGRAM, *words], text=True, **streams)


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_who_has_gone_changes_no_exit_code(name, report):
    reader, writer = os.pipe()
    os.close(reader)
    words = [report if word == "REPORT" else word for word in COMMANDS[name]]
    with start(words, stdout=writer) as process:
        os.close(writer)
        assert (process.communicate()[1], process.returncode) == ("", int(name in FINDS))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_device_is_one_sentence_and_exit_2(name, report):
    words = [report if word == "REPORT" else word for word in COMMANDS[name]]
    with open("/dev/full", "w") as full, start(words, stdout=full) as process:
        assert (process.communicate()[1], process.returncode) == (FULL, 2)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full 2>/dev/full"])
@pytest.mark.parametrize("name", ["version", "list", "report", "mistake"])
def test_closed_streams_end_quietly(name, closed, report):
    words = ["rulez"] if name == "mistake" else [report if word == "REPORT" else word for word in COMMANDS[name]]
    line = f'exec "$@" {closed}'
    done = subprocess.run(["bash", "-c", line, "-", *PROGRAM, *words], capture_output=True, text=True, check=False)
    full = ">/dev/full" in closed.split()
    assert done.returncode == (2 if name == "mistake" or full else int(name in FINDS))
    assert done.stderr == (
        "isotherm: no such command: rulez (did you mean rules?); see isotherm --help\n"
        if name == "mistake" and "2>" not in closed
        else ""
    )


def test_standard_input_that_is_closed_is_an_empty_text(tmp_path):
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" <&-', "-", *PROGRAM, "check", "--text", "-"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("isotherm: ")
    assert "Traceback" not in done.stderr


STEERING = "\x1b]0;title\x07\x9b31m\u202e"
HOSTILE = {
    "command": lambda _: [STEERING],
    "option": lambda _: ["rules", f"--{STEERING}"],
    "value": lambda _: ["rules", STEERING],
    "choice": lambda _: ["explain", "--size", STEERING],
    "extra argument": lambda _: ["rules", "a", STEERING],
    "claim": lambda _: ["explain", STEERING],
    "path": lambda _: ["check", f"./{STEERING}"],
    "report": lambda _: ["check", f"{STEERING}.json"],
    "configuration": lambda _: ["train", f"{STEERING}.toml"],
    "key": lambda folder: ["train", toml(folder, f'[run]\n"{json.dumps(STEERING)[1:-1]}" = 1\n')],
    "key of a sweep": lambda folder: ["sweep", toml(folder, f'"{json.dumps(STEERING)[1:-1]}" = 1\n'), "--store", "s"],
    "model type": lambda folder: ["check", model(folder)],
    "package": lambda _: ["data", "gettext", "--package", STEERING],
    "lone surrogate": lambda _: ["rules", "\udcff"],
    "lone surrogate in a path": lambda _: ["check", "./\udcff"],
    "two lines": lambda _: ["check", "./a\nb\rc"],
}


def toml(folder, text):
    (folder / "file.toml").write_text(text, encoding="utf-8")
    return str(folder / "file.toml")


def model(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": STEERING}))
    return str(folder)


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_error_message_cannot_steer_a_terminal(kind, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(HOSTILE[kind](tmp_path)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("isotherm: ")
    assert said.err.endswith("\n")
    assert said.err[:-1].isprintable()
    assert "Traceback" not in said.err


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["table", "json"])
def test_a_lone_surrogate_in_a_report_is_refused_in_one_clean_line(words, tmp_path):
    record = records.gpt2()
    record = replace(record, model=replace(record.model, name=f"a\ud800b{STEERING}"))
    (tmp_path / "r.json").write_text(json.dumps(to_plain(record)), encoding="utf-8")
    done = subprocess.run([*PROGRAM, "check", str(tmp_path / "r.json"), *words], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    said = done.stderr.decode("utf-8")
    assert said.endswith("\n")
    assert said[:-1].isprintable()
    assert "model.name" in said


STARTED = [sys.executable, "-c", "from isotherm.__main__ import main; print('up', flush=True); main()"]


@contextmanager
def stopped(number, delay, *words):
    """The program, sent a signal so many seconds after Python has started it. (Before that, Python itself answers.)"""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*STARTED, *words], text=True, **pipes) as process:
        assert process.stdout.readline() == "up\n"
        time.sleep(delay)
        if process.poll() is not None:
            pytest.skip("this machine was done before the signal")
        process.send_signal(number)
        yield process, *process.communicate(timeout=20)


@pytest.mark.parametrize(
    "delay", [0.03, 0.1, 0.3, 0.6, 1.0, *(pytest.param(late, marks=pytest.mark.slow) for late in (1.5, 2.2, 3.0))]
)
def test_ctrl_c_ends_a_check_at_any_moment(delay, tmp_path):
    with stopped(signal.SIGINT, delay, "check", "--html", str(tmp_path / "page.html")) as (process, out, err):
        if "page.html" in out:
            pytest.skip("the check was done before the signal, which met Python on its way out")
        assert (process.returncode, out, err.strip()) == (130, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("delay", [0.03, 0.6, 2.2])
def test_sigterm_ends_a_check_at_any_moment(delay):
    with stopped(signal.SIGTERM, delay, "check") as (process, out, err):
        assert process.returncode in (143, -signal.SIGTERM)  # a shell reports both as 143
        assert (out, err) == ("", "")


@pytest.mark.parametrize("delay", [0.1, 0.2, 0.3])  # the program is done in between: Python's end must ignore it, too
def test_ctrl_c_that_is_ignored_stays_ignored(delay):
    line = "trap '' INT; echo ignoring; exec \"$@\""
    command = ["bash", "-c", line, "-", *PROGRAM, "explain", "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ignoring\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 0


def test_a_defect_of_the_program_does_not_exit_as_a_finding():
    code = "from isotherm import cli; cli.run = lambda _: {}['x']; cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("KeyError: 'x'\n")
