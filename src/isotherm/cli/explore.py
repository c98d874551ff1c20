"""`isotherm explore`: the lesson and its evidence in a browser, served to this machine only."""

import errno
import socketserver
import webbrowser
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from threading import Thread

import click

from isotherm.cli.command import command, debug, option
from isotherm.cli.explain import ExplainOptions, bind, exit_code, measure, tell_problems
from isotherm.cli.output import WROTE, say
from isotherm.errors import IsothermError
from isotherm.lab import claims as registry
from isotherm.language import Text, current
from isotherm.report.explain import page
from isotherm.report.files import write_atomically

ABOUT = Text(
    "Why does attention divide by √d? Open the lesson in a browser: seven steps whose pictures move, free play, your own"
    " model, and the evidence.\n\n"
    "The claims are measured first, or taken from what `isotherm explain` kept. The page is served to this machine only, until"
    " Ctrl-C.",
    "注意力为什么要除以 √d？在浏览器中打开教程：七步讲解，图随手动，可自由尝试，可放入自己的模型，并附证据。\n\n"
    "论断先行测量，或取自 `isotherm explain` 已保留的结果。网页只对本机提供，按 Ctrl-C 结束。",
)
HOST = "127.0.0.1"
PATIENCE = 10
"""Seconds that a slow reader may take."""
BUSY = Text(
    "port {port} is in use or not allowed; give another with --port, or none",
    "端口 {port} 已被占用或不允许使用；请用 --port 另选，或不指定",
)
NO_BROWSER = Text("no browser could be opened; open {address} yourself", "无法打开浏览器；请自行打开 {address}")
UNTIL = Text("serving to this machine only; Ctrl-C ends it", "只对本机提供；按 Ctrl-C 结束")
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PageServer(socketserver.ThreadingTCPServer):
    """Serves one page from memory. A page of another site that reaches it under a name of its own gets nothing."""

    allow_reuse_address = True
    daemon_threads = True
    content = b""

    def __init__(self, port: int) -> None:
        try:
            super().__init__((HOST, port), Answer)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise IsothermError(BUSY.format(port=port)) from error
            raise

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader who has gone is no error of ours."""


class Answer(BaseHTTPRequestHandler):
    """Answers GET / of this machine; anything else is refused."""

    server: PageServer
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Send the page."""
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self.send_response(HTTPStatus.OK)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(self.server.content)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(self.server.content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(server: PageServer, *, browser: bool) -> None:
    """Serve until Ctrl-C."""
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    click.echo(server.address)
    say(UNTIL)
    if browser and not opened(server.address):
        say(f"isotherm: {NO_BROWSER.format(address=server.address)}")
    while thread.is_alive():
        thread.join(1.0)  # a wait without end would not hear Ctrl-C on every system


def opened(address: str) -> bool:
    """Whether a browser took the address."""
    with suppress(webbrowser.Error, OSError):
        return webbrowser.open(address)
    return False


@command("explore", ABOUT)
@option(
    "--port",
    Text("Port to serve on (default: any that is free).", "提供网页的端口（默认任选一个空闲的）。"),
    type=click.IntRange(0, 65535),
    default=None,
    metavar="N",
)
@option("--no-browser", Text("Only print the address.", "只输出网址。"), "quiet", is_flag=True)
@option(
    "--save", Text("Write the page to a file instead of serving it.", "把网页写入文件，不提供服务。"), metavar="FILE"
)
@debug
def explore(port: int | None, quiet: bool, save: str | None, debug: bool) -> int:
    """Measure the claims, then show the page."""
    server = PageServer(port or 0) if save is None else None
    options = ExplainOptions(
        claims=(),
        listing=False,
        records=(),
        out=None,
        as_json=False,
        size="quick",
        device="cpu",
        jobs=None,
        fresh=False,
        debug=debug,
    )
    outcomes = measure(options, registry.CLAIMS)
    book = bind(options, outcomes)
    tell_problems(options, book, outcomes)
    text = page.to_html(book, current())
    if save is not None:
        write_atomically(save, text)
        say(WROTE.format(path=save))
    if server is not None:
        server.content = text.encode()
        with server:
            serve(server, browser=not quiet)
    return exit_code(options, book)
