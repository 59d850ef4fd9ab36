"""A stand-in for the hub on loopback: the routes that a download needs, and what can go wrong."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repo:
    """What the hub has of one repository.

    Large files are kept in git's large file storage, as there. `listed` replaces the list of files;
    `served` the content of some; `cuts` says after how many bytes the connections that fetch large
    files break, one after the other; when it is used up they hold. `ranges` are honoured, unless
    it `lies`: then all is sent as if it was the part that was asked for.
    """

    files: dict[str, bytes]
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main",)
    gated: bool = False
    listed: list[dict] | None = None
    served: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    lies: bool = False

    def siblings(self) -> list[dict]:
        return [sibling(name, content) for name, content in self.files.items()]


def is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", ".gguf"))


def sibling(name: str, content: bytes) -> dict:
    lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    known = {"rfilename": name, "blobId": git_sha1(content), "size": len(content)}
    return known | ({"lfs": lfs} if is_large(name) else {})


def repo_of(folder: Path, **about) -> Repo:
    """A repository with the files of a folder."""
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    return Repo(files | {"README.md": b"# A model\n", ".gitattributes": b"*.bin lfs\n"}, **about)


@dataclass
class Seen:
    """A request."""

    method: str
    path: str
    host: str
    headers: dict[str, str]


class Hub:
    """The server; `repos` may be changed at any time, `seen` are all requests so far."""

    def __init__(self, repos: dict[str, Repo]) -> None:
        self.repos = repos
        self.seen: list[Seen] = []
        self.status: int | None = None
        self.busy: list[tuple[str, int, str]] = []  # part of a path, status, Retry-After, in order
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                Answer(hub, self).give()

            do_HEAD = do_GET  # noqa: N815 - http.server's name

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                """The client may have left."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.cdn = f"http://localhost:{self.server.server_port}"

    def paths(self) -> list[str]:
        return [seen.path for seen in self.seen]


class Answer:
    def __init__(self, hub: Hub, handler: BaseHTTPRequestHandler) -> None:
        self.hub = hub
        self.handler = handler

    def give(self) -> None:
        headers = dict(self.handler.headers)
        path = unquote(urlsplit(self.handler.path).path)
        self.hub.seen.append(Seen(self.handler.command, path, headers["Host"], headers))
        if self.hub.busy and self.hub.busy[0][0] in path:
            _, status, after = self.hub.busy.pop(0)
            self.send(status, b"{}", {"Retry-After": after} if after else {})
        elif self.hub.status:
            self.refuse(self.hub.status, "")
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self.info(*found.groups())
        elif found := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            repo = self.hub.repos[found[1]]
            content = repo.served.get(found[2], repo.files[found[2]])
            cut = repo.cuts.pop(0) if repo.cuts else None
            self.content(content, {}, ranges=repo.ranges, cut=cut, lies=repo.lies)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*found.groups())
        else:
            self.refuse(404, "")

    def repo(self, name: str, revision: str) -> Repo | None:
        repo = self.hub.repos.get(name)
        if repo is None:
            self.refuse(401, "RepoNotFound")
        elif revision not in (*repo.revisions, repo.commit):
            self.refuse(404, "RevisionNotFound")
        else:
            return repo
        return None

    def info(self, name: str, revision: str) -> None:
        if repo := self.repo(name, revision):
            listed = repo.siblings() if repo.listed is None else repo.listed
            known = {"id": name, "sha": repo.commit, "private": False, "siblings": listed}
            self.send(200, json.dumps(known).encode(), {"Content-Type": "application/json"})

    def resolve(self, name: str, revision: str, file: str) -> None:
        repo = self.repo(name, revision)
        if repo is None:
            return
        if repo.gated and "hf_secret" not in self.handler.headers.get("Authorization", ""):
            self.refuse(401, "GatedRepo")
            return
        content = repo.served.get(file, repo.files.get(file))
        if content is None:
            self.refuse(404, "EntryNotFound")
            return
        known = {"X-Repo-Commit": repo.commit, "ETag": f'"{git_sha1(content)}"'}
        if is_large(file):
            known["X-Linked-Etag"] = f'"{hashlib.sha256(repo.files[file]).hexdigest()}"'
            known["X-Linked-Size"] = str(len(repo.files[file]))
            known["Location"] = f"{self.hub.cdn}/cdn/{name}/{file}"
            self.send(302, b"", known)
        else:
            self.content(content, known)

    def content(self, content, headers, *, ranges=True, cut=None, lies=False) -> None:
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.handler.headers.get("Range", ""))
        if asked and ranges:
            start = 0 if lies else int(asked[1])
            if start >= len(content):
                self.send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.send(206 if "Content-Range" in headers else 200, content[start:], headers, cut)

    def refuse(self, status: int, code: str) -> None:
        self.send(status, b'{"error": "no"}', {"X-Error-Code": code} if code else {})

    def send(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None):
        self.handler.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.handler.send_header(name, value)
        self.handler.end_headers()
        if self.handler.command != "HEAD":
            self.handler.wfile.write(body[:cut])
        if cut is not None:
            self.handler.wfile.flush()
            self.handler.close_connection = True


@contextmanager
def hub(repos: dict[str, Repo]) -> Iterator[Hub]:
    """Serve these repositories."""
    serving = Hub(repos)
    thread = Thread(target=serving.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield serving
    finally:
        serving.server.shutdown()
        serving.server.server_close()
        thread.join()
