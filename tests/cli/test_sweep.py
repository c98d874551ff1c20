"""What `isotherm sweep` says while it trains, and when it is stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isotherm.cli import run
from tests.train.sweep.small import SPEC


@pytest.fixture
def call(tmp_path):
    """A small sweep as a command line, in three groups of four trials."""
    (tmp_path / "spec.toml").write_text(SPEC, encoding="utf-8")
    return ["sweep", str(tmp_path / "spec.toml"), "--store", str(tmp_path / "out"), "--together", "4"]


def test_off_a_terminal_there_is_a_line_for_each_group_that_is_finished(call, capsys):
    assert run([*call, "--workers", "1"]) == 0
    said = [line.split(", ") for line in capsys.readouterr().err.splitlines() if "trials" in line]
    assert [count for count, _ in said] == ["4 of 12 trials", "8 of 12 trials", "12 of 12 trials"]
    assert all(seconds.endswith(" s") for _, seconds in said)


@pytest.mark.parametrize(
    ("tongue", "expected"),
    [
        ("en", "stopped: 4 of 12 trials are kept in {out}; the same command continues from there"),
        ("zh", "已停止：12 次训练中的 4 次已存入 {out}；再运行同一命令即从那里继续"),
    ],
)
def test_stopped_it_says_what_is_kept_and_how_to_go_on(call, tmp_path, monkeypatch, capsys, tongue, expected):
    def stopped(_spec, _folder, _how, watch):
        watch(0, 4)
        raise KeyboardInterrupt

    monkeypatch.setattr("isotherm.train.sweep.run.run_sweep", stopped)
    assert run([*call, "--lang", tongue]) == 130
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[1:] == [expected.format(out=tmp_path / "out")]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found through /proc")
def test_ctrl_c_reaches_processes_that_have_only_begun_and_none_of_them_complains(call):
    command = [sys.executable, "-m", "isotherm", *call, "--workers", "2"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, **options)
    try:
        deadline = time.monotonic() + 60
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(children.read_text().split()) < 3 and time.monotonic() < deadline:  # two workers and their tracker
            time.sleep(0.02)
        time.sleep(0.5)  # into their imports, which take longer
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, "")
    assert err.startswith("stopped: 0 of 12 trials")
    assert err.count("\n") == 1
