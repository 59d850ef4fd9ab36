"""What docs/deployment.md prints, as it stands there: proxies, credentials, a copy of a journal."""

import asyncio
import json
import os
import re
import shutil
import sqlite3
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from playwright.async_api import expect
from websockets.asyncio.client import connect

from streamd.cli import main
from streamd.config import read_tokens
from streamd.events import Final
from streamd.server import Recording, Wanted
from streamd.streams.hub import Hub
from streamd.streams.journal.database import Database
from tests.support.browser import browser, final, needs_chromium, visit
from tests.support.nats import free_port
from tests.support.programs import installed
from tests.support.serving import Client, CountingStreams, certificate, serving
from tests.support.uploads import PATH, form

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "deployment.md").read_text()
TOKEN = "0123456789abcdef"


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)
    return found


@asynccontextmanager
async def running(*command: str, port: int) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        for _ in range(1000):
            if process.returncode is not None:
                raise AssertionError((await process.stderr.read()).decode())
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=0.05)
            else:
                writer.close()
                break
        yield
    finally:
        process.terminate()
        await process.communicate()


def nginx(folder: Path, port: int, to: int, text: str) -> list[str]:
    """The command; only the ports and the place of the certificate are those of the test."""
    certificate(folder, "localhost")
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    text = text.replace("http://127.0.0.1:8765", f"http://127.0.0.1:{to}")
    text = re.sub(r"/etc/letsencrypt/\S*/fullchain.pem", str(folder / "cert.pem"), text)
    text = re.sub(r"/etc/letsencrypt/\S*/privkey.pem", str(folder / "key.pem"), text)
    paths = "\n".join(
        f"{kind}_temp_path {folder};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "" if os.geteuid() else "user root;"  # else its workers may not write to the folder
    head = f"{user} pid {folder}/pid; error_log stderr; daemon off;\nevents {{}}\n"
    (folder / "nginx.conf").write_text(f"{head}http {{ access_log off; {paths}\n{text}\n}}")
    return [installed("nginx"), "-c", str(folder / "nginx.conf"), "-e", "stderr"]


def caddy(folder: Path, port: int, to: int, text: str) -> list[str]:
    text = text.replace("captions.example.org", f"http://127.0.0.1:{port}")
    text = text.replace("127.0.0.1:8765", f"127.0.0.1:{to}")
    (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n}}\n{text}")
    return [
        installed("caddy"),
        "run",
        "--config",
        str(folder / "Caddyfile"),
        "--adapter",
        "caddyfile",
    ]


class Weighing:
    """The text of a recording is its size."""

    async def read(self, file: int, name: str, wanted: Wanted) -> Recording:
        async def finals() -> AsyncIterator[Final]:
            yield final(f"{os.fstat(file).st_size} bytes")

        return Recording(1500, finals(), [])

    def written(self, finals: Sequence[Final], form: str) -> str:
        return json.dumps({"segments": [], "text": finals[0].text})

    def models(self) -> Sequence[str]:
        return ("tiny.en",)


@pytest.mark.parametrize(("proxy", "scheme"), [(nginx, "https"), (caddy, "http")])
async def test_the_proxy_as_printed_carries_captions_transcripts_and_recordings(
    proxy, scheme, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("HOME", str(tmp_path))
    caplog.set_level("INFO", "streamd")
    port = free_port()
    trust = None
    async with serving(CountingStreams(), token=TOKEN, recordings=Weighing()) as server:
        command = proxy(tmp_path, port, server.port, block(proxy.__name__))
        if scheme == "https":
            trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        site = f"{scheme}://127.0.0.1:{port}"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with running(*command, port=port):
            address = f"{site.replace('http', 'ws', 1)}/v1/stream?role=both&session=talk"
            options = {"ssl": trust, "proxy": None, "additional_headers": headers}
            async with connect(address, origin=site, **options) as socket:
                talk = Client(socket)
                await talk.get()
                await talk.say(bytes(32_000))
                await talk.say({"type": "flush"})
                await talk.until("flushed")

            def ask(path: str, body: bytes | None = None) -> tuple[int, str]:
                kind = {"Content-Type": "multipart/form-data; boundary=x"} if body else {}
                request = Request(site + path, data=body, headers={**headers, **kind})
                with urlopen(request, context=trust) as answer:
                    return answer.status, answer.read().decode()

            text = await asyncio.to_thread(ask, "/v1/sessions/talk/transcript?format=txt")
            assert text == (200, "50 frames\n")
            sent = form(("model", "whisper-1"), file=bytes(3_000_000))
            answered = await asyncio.to_thread(ask, PATH, sent)
            assert json.loads(answered[1])["text"] == "3000000 bytes"
            assert "<title>streamd" in (await asyncio.to_thread(ask, "/"))[1]
    assert "session talk begun by 127.0.0.1" in caplog.text


@pytest.mark.page
@needs_chromium
@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        ("Host $http_host", "Host $host", r"403: origin not allowed"),
        ("proxy_set_header Upgrade", "# proxy_set_header Upgrade", r"426: the proxy does not pass"),
    ],
)
async def test_behind_a_wrong_proxy_the_page_says_what_is_refused_and_nothing_pretends(
    right, wrong, why, tmp_path
):
    port = free_port()
    # By a name, since the page of this machine itself is always allowed.
    rules = "--host-resolver-rules=MAP captions.test 127.0.0.1"
    text = block("nginx").replace(right, wrong)
    async with (
        serving(streams := CountingStreams(), token=TOKEN) as server,
        running(*nginx(tmp_path, port, server.port, text), port=port),
        browser(rules, "--ignore-certificate-errors") as chromium,
    ):
        context = await chromium.new_context(ignore_https_errors=True)
        page, _ = await visit(context, f"https://captions.test:{port}/#token={TOKEN}")
        said = re.compile(rf"no captions: the server or a proxy refuses the websocket \({why}")
        await expect(page.locator("#status")).to_have_text(said)
        await page.get_by_role("button", name="Start").click()
        refused = re.compile(rf"refuses the websocket \({why}")
        await expect(page.locator("#toast")).to_have_text(refused)
        await expect(page.get_by_role("button", name="Start")).to_be_visible()
        await expect(page.locator("#level")).to_be_hidden()
        assert not streams.ingests


def test_systemd_hands_over_the_tokens(tmp_path):
    systemd = ROOT / "contrib" / "systemd"
    unit = (systemd / "streamd.service").read_text()
    (tmp_path / "streamd.service").write_text(
        re.sub(r"(?m)^(ExecStart)=\S+", r"\1=/bin/true", unit)
    )
    shutil.copy(systemd / "streamd.socket", tmp_path)
    (tmp_path / "streamd.service.d").mkdir()
    (tmp_path / "streamd.service.d" / "override.conf").write_text(block("ini"))
    command = [
        installed("systemd-analyze"),
        "verify",
        "--man=no",
        str(tmp_path / "streamd.service"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [row for row in done.stderr.splitlines() if "streamd" in row] == []
    (option,) = re.findall(r"^Environment=(\w+)=", block("ini"), re.M)
    assert option == "STREAMD_TOKEN_FILE"


def test_the_tokens_as_printed_are_understood(tmp_path):
    file = tmp_path / "tokens.toml"
    file.write_text(re.sub(r'token = "(\w+)…"', r'token = "\g<1>0123456789abcdef"', block("toml")))
    file.chmod(0o600)
    assert [(each.name, each.may, each.sessions) for each in read_tokens(str(file))] == [
        ("ops", "keep", ("*",)),
        ("alice", "speak", ("alice-*",)),
        ("hall", "listen", ("keynote", "panel-*")),
    ]


@pytest.mark.parametrize("files", [["compose.yaml"], ["compose.yaml", "https.yaml"]])
def test_the_compose_files_are_valid(files):
    named = [word for file in files for word in ("-f", str(ROOT / "contrib" / "docker" / file))]
    assert all(f"contrib/docker/{file}" in PAGE for file in files)
    done = subprocess.run(
        [installed("docker-compose"), *named, "config"],
        env={**os.environ, "STREAMD_TOKEN": TOKEN, "DOMAIN": "captions.example.org"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "127.0.0.1:8765:8765" in done.stdout
    assert ("reverse-proxy --from captions.example.org" in done.stdout) == (len(files) == 2)


def test_a_copy_of_a_journal_in_use_is_restored_as_printed(tmp_path, capsys):
    old, new = tmp_path / "old", tmp_path / "new"
    with Database(old) as journals:
        hub = Hub("talk", journal=journals.open("talk"))
        hub.publish(final("kept"))
        with (
            closing(sqlite3.connect(old / "journal.db")) as db,
            closing(sqlite3.connect(tmp_path / "copy.db")) as copy,
        ):
            db.backup(copy)  # what ".backup" of the shell does
        hub.publish(final("after the copy", 2000, seg=1))
    new.mkdir()
    shutil.copy(tmp_path / "copy.db", new / "journal.db")
    assert main(["export", "--journal", str(new), "talk", "--format", "text"]) == 0
    assert capsys.readouterr().out == "kept\n"
