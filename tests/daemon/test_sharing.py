"""What `--share` opens, to whom, and how they are told."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zxingcpp

from streamd.config import load, read_token
from streamd.daemon.sharing import qr_code
from streamd.errors import ConfigError
from tests.support.emulator import Emulator
from tests.support.network import ADDRESS, isolated, run_isolated

PROGRAM = str(Path(sys.executable).with_name("streamd"))
LINK = "https://[2001:db8::1234:5678]:8765/#token=0123456789abcdefABCDEF"


def scanned(terminal: Emulator) -> str:
    """What a phone reads from a terminal that is black on white; empty if it finds no code."""
    screen, lit = terminal.screen, {"█": (1, 1), "▀": (1, 0), "▄": (0, 1)}
    colours = {"default": (0, 255), "ffffff": (255, 255), "000000": (0, 0)}  # as text, behind it
    cells = [[screen.buffer[y][x] for x in range(screen.columns)] for y in range(screen.lines)]
    rows = [
        [colours[cell.fg][0] if lit.get(cell.data, (0, 0))[half] else colours[cell.bg][1]
         for cell in row]
        for row in cells for half in (0, 1)
    ]  # fmt: skip
    image = np.kron(np.array(rows, np.uint8), np.ones((4, 4), np.uint8))
    found = zxingcpp.read_barcodes(image, formats=zxingcpp.BarcodeFormat.QRCode, try_invert=False)
    return found[0].text if found else ""


def test_a_phone_reads_the_code_on_a_light_terminal_too():
    terminal, bare = Emulator(80, 24), Emulator(80, 24)
    terminal.write("\r\n".join(qr_code(LINK)))
    assert scanned(terminal) == LINK
    bare.write(re.sub(r"\x1b\[[0-9;]*m", "", "\r\n".join(qr_code(LINK))))
    assert scanned(bare) == ""  # it would be inverted


def test_the_terminal_shows_the_link_and_its_code():
    leader, follower = pty.openpty()
    command = isolated(PROGRAM, "serve", "--share", "--port", "0")
    environ = os.environ | {"TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=follower, env=environ)
    os.close(follower)
    terminal, link = Emulator(100, 40), ""
    while not (link := scanned(terminal)):
        terminal.write(os.read(leader, 1 << 16).decode())
    process.terminate()
    process.wait()
    os.close(leader)
    shown = " ".join(terminal.screen.display)
    assert re.fullmatch(rf"http://{re.escape(ADDRESS)}:\d+/#token=[\w-]{{22}}", link)
    assert f"others can listen at {link} " in shown
    assert re.search(r"captions in a browser: http://127.0.0.1:\d+/#token=", shown)
    assert "0.0.0.0" not in shown


VISITORS = """
import asyncio, hashlib, http.client, json, logging, re, ssl, sys
from urllib.parse import urlsplit
from streamd.config import load
from streamd.daemon import serving
from streamd.server import guest_token
from streamd.streams import Streams

def answer(link, path, token):
    connection, trust = http.client.HTTPConnection, {}
    if link.scheme == "https":
        pem = ssl.get_server_certificate((link.hostname, link.port))
        der = ssl.PEM_cert_to_DER_cert(pem)
        print("certificate", hashlib.sha256(der).digest().hex(":").upper())
        connection = http.client.HTTPSConnection
        trust = {"context": ssl.create_default_context(cadata=pem)}  # checks the name, too
    asked = connection(link.hostname, link.port, **trust)
    asked.request("GET", path, headers={"X-API-Key": token})
    response = asked.getresponse()
    if path == "/v1/share" and response.status == 200:
        print("invitation", json.loads(response.read()))
    return response.status

async def main():
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    config = load({"port": "0", "sharing": sys.argv[1]}, {})
    streams = Streams(lambda _: None, max_backlog=1, max_ingest=1)
    async with serving.server(config, streams) as running:
        serving.announce(running)
        for _ in range(2):
            links = {"local": running.page, "lan": running.page_at("192.0.2.7")}
            own = running.bind.token
            tokens = {"own": own, "listen": running.bind.listen_token, "speak": guest_token(own)}
            if running.bind.share == "listen":
                del tokens["speak"]  # which is in no link
            for place, link in links.items():
                for role, token in {**tokens, "": "wrong"}.items():
                    for path in ("/v1/sessions", "/v1/stream?role=both", "/v1/share"):
                        status = await asyncio.to_thread(answer, urlsplit(link), path, token)
                        print(place, role, path[-8:], status)
            serving.reload(config, running)
        for role, token in tokens.items():
            print(f"token to {role}: {token}")

asyncio.run(main())
"""
"""Starts a server that is shared, asks it for its sessions and to speak, reloads, asks again."""


@pytest.mark.parametrize("role", ["listen", "speak"])
def test_each_link_allows_what_it_says(role):
    done = run_isolated(sys.executable, "-W", "error", "-c", VISITORS, role)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    for place in ("local", "lan"):
        allowed = {"own": "200 426", "speak": "200 426", "listen": "200 403", "": "401 401"}
        if role == "listen":
            del allowed["speak"]
        for holder, statuses in allowed.items():
            listening, speaking = statuses.split()
            assert said.count(f"{place} {holder} sessions {listening}\n") == 2, said
            assert said.count(f"{place} {holder} ole=both {speaking}\n") == 2, said
    tokens = dict(re.findall(r"^token to (\w+): (\S+)$", said, re.MULTILINE))
    assert len(set(tokens.values())) == len(allowed) - 1
    (link,) = re.findall(rf"others can .* at (http\S+{re.escape(ADDRESS)}:\S+)", said)
    assert link.endswith(f"/#token={tokens[role]}")
    # The link of those who may speak is not for listeners.
    held = {"own": 200, role: 200, "": 401}
    held |= {"listen": 403} if role == "speak" else {}
    for holder, shown in held.items():
        assert said.count(f"lan {holder} v1/share {shown}\n") == 2, said
    assert set(re.findall(r"'link': '(.*?)', 'code': \['1111111", said)) == {link}
    certificates = set(re.findall("certificate ([0-9A-F:]+)", said))
    announced = set(re.findall("SHA-256 is ([0-9A-F:]+)", said))
    assert certificates == announced
    assert len(announced) == (role == "speak")


def test_a_machine_in_no_network_has_nobody_to_invite():
    done = run_isolated(PROGRAM, "serve", "--share", joined=False)
    assert done.returncode == 2
    assert re.search(
        r"^streamd: --share: this machine is in no network.*--host$", done.stderr, re.M
    )


def test_without_openssl_a_certificate_is_asked_for(tmp_path):
    done = run_isolated("env", f"PATH={tmp_path}", PROGRAM, "serve", "--sharing", "speak")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "streamd: --sharing speak: openssl cannot make a certificate (No such file or directory): "
        "install it, or give --tls-cert"
    )


def test_sharing_needs_a_server():
    with pytest.raises(ConfigError, match="--sharing needs the server; drop --port off"):
        load({"sharing": "listen", "port": "off"}, {})


@pytest.mark.parametrize("length", [1, 15, 16])
def test_a_short_token_is_refused(length, tmp_path):
    token, file = "x" * length, tmp_path / "token"
    file.write_text(f"{token}\n")
    file.chmod(0o600)
    for path, environ in ((str(file), {}), ("", {"STREAMD_TOKEN": token})):
        if length == 16:
            assert read_token(path, environ) == token
        else:
            with pytest.raises(ConfigError, match=r"(token|TOKEN) is too short: .* at least 16"):
                read_token(path, environ)


@pytest.mark.parametrize(
    ("mode", "is_read"), [(0o600, True), (0o640, True), (0o644, False), (0o602, False)]
)
def test_a_token_that_others_can_read_or_change_is_refused(mode, is_read, tmp_path):
    file = tmp_path / "token"
    file.write_text("a long and random token")
    file.chmod(mode)
    if is_read:
        assert read_token(str(file), {})
        return
    with pytest.raises(ConfigError, match=rf"open to every user .*chmod 600 {file}"):
        read_token(str(file), {})


def test_a_token_may_come_through_a_pipe():
    """Such as ``--token-file <(pass show streamd)``."""
    reading, writing = os.pipe()
    os.write(writing, b"a long and random token")
    os.close(writing)
    assert read_token(f"/dev/fd/{reading}", {}) == "a long and random token"
    os.close(reading)
