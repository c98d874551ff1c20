"""`isotherm explore`: the page in a browser, served to this machine only."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import webbrowser
from pathlib import Path

import pytest

from isotherm.cli import explore, run
from isotherm.lab.runner import ClaimOutcome
from tests.report import claims

PAGE = "<!doctype html><p>√d</p>"


@pytest.fixture(autouse=True)
def measured(monkeypatch, tmp_path):
    """Every claim is measured at once, and no browser opens."""
    monkeypatch.setenv("ISOTHERM_CACHE", str(tmp_path / "cache"))

    def fake(orders, **_):
        return tuple(ClaimOutcome(order.claim, claims.timed(order.claim)) for order in orders)

    monkeypatch.setattr("isotherm.cli.explain.run_orders", fake)
    monkeypatch.setattr(webbrowser, "open", lambda _: pytest.fail("a browser was opened"))


@pytest.fixture
def server():
    made = explore.PageServer(0)
    made.content = PAGE.encode()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def ask(server, method="GET", path="/", host=None):
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={"Host": host.format(port=port)} if host else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


@pytest.mark.parametrize("host", [None, "localhost:{port}"])
def test_the_page_is_served_from_memory(server, host):
    answer, body = ask(server, host=host)
    assert (answer.status, body) == (200, PAGE)
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("method", "path", "host", "status"),
    [
        ("GET", "/etc/passwd", None, 404),
        ("GET", "/../x", None, 404),
        ("GET", "/?q", None, 404),
        ("POST", "/", None, 501),
        ("HEAD", "/", None, 501),
        ("GET", "/", "evil.example", 421),
        ("GET", "/", "evil.example:{port}", 421),
        ("GET", "/", "127.0.0.1", 421),
    ],
)
def test_anything_else_is_refused(server, method, path, host, status):
    answer, body = ask(server, method, path, host)
    assert answer.status == status
    assert PAGE not in body


def test_a_port_in_use_is_one_sentence_before_anything_is_measured(capsys, monkeypatch):
    monkeypatch.setattr("isotherm.cli.explore.measure", lambda *_: pytest.fail("measured"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["explore", "--no-browser", "--port", str(port)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"port {port} is in use" in err
    assert err.count("\n") == 1


def test_save_writes_the_page_and_serves_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(explore, "PageServer", lambda _: pytest.fail("served"))
    path = tmp_path / "lesson.html"
    assert run(["explore", "--save", str(path), "--lang", "zh"]) == 0
    text = path.read_text(encoding="utf-8")
    assert '<html lang="zh-CN">' in text
    assert 'id="board"' in text
    assert 'id="step-dots"' in text
    assert str(path) in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_one_sentence(capsys, tmp_path):
    assert run(["explore", "--save", str(tmp_path / "none" / "x.html")]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("browser", [True, False])
def test_the_address_is_printed_with_or_without_a_browser(capsys, monkeypatch, browser):
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address) or browser)
    monkeypatch.setattr(explore.PageServer, "serve_forever", lambda self: None)  # which ends at once
    assert run(["explore"]) == 0
    out, err = capsys.readouterr()
    assert asked == [out.strip()]
    assert out.startswith("http://127.0.0.1:")
    assert ("no browser could be opened" in err) != browser


def test_without_a_browser_none_is_asked_for(capsys, monkeypatch):
    monkeypatch.setattr(explore.PageServer, "serve_forever", lambda self: None)
    assert run(["explore", "--no-browser"]) == 0
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


QUICK = """
import sys
from isotherm.cli import explain, explore, main
from isotherm.lab.runner import ClaimOutcome
from tests.report import claims
explain.run_orders = lambda orders, **_: tuple(ClaimOutcome(it.claim, claims.timed(it.claim)) for it in orders)
sys.argv = ["isotherm", "explore", "--no-browser"]
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_ends_it(tmp_path):
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", QUICK], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()
