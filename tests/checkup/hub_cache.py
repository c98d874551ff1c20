"""A local cache laid out as the hub's client does, and a small hub on this machine to download from."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit


def commit_of(folder: Path) -> str:
    """A commit for the files of a folder: 40 hexadecimal digits, as git has."""
    digest = hashlib.sha1()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def lay_out(cache: Path, name: str, **branches: Path) -> dict[str, str]:
    """Put each branch's folder into the cache: blobs, a snapshot of links to them, and a ref. The commit of each branch."""
    repository = cache / f"models--{name.replace('/', '--')}"
    commits = {}
    for branch, folder in branches.items():
        commit = commits[branch] = commit_of(folder)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                blob = repository / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
                blob.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, blob)
                link = repository / "snapshots" / commit / path.relative_to(folder)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(Path(*[".."] * (len(path.relative_to(folder).parts) + 1)) / "blobs" / blob.name)
        ref = repository / "refs" / branch
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)
    return commits


@contextmanager
def hub(models: dict[str, Path], errors: dict[str, tuple[int, str]] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serve folders as models of a hub, each with a main branch, or answer with an error. Its address, and what was asked."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def answer(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            asked.append(path)
            name = "/".join(path.removeprefix("/api/models").strip("/").split("/")[:2])
            if name in (errors or {}):
                status, code = errors[name]
                return self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code}, body=body)
            folder = models.get(name)
            if folder is None:
                return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body=body)
            if path.startswith("/api/models/"):
                return self.send(200, json.dumps(self.info(name, folder)).encode(), {}, body=body)
            data = (folder / path.split("/resolve/")[1].split("/", 1)[1]).read_bytes()
            etag = hashlib.sha256(data).hexdigest()
            return self.send(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": commit_of(folder)}, body=body)

        def info(self, name: str, folder: Path) -> dict[str, object]:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            siblings = [{"rfilename": str(p.relative_to(folder)), "size": p.stat().st_size} for p in files]
            return {"id": name, "sha": commit_of(folder), "siblings": siblings}

        def send(self, status: int, data: bytes, headers: dict[str, str], *, body: bool) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
