"""An invitation for others (`--share`): address, token, certificate, link and QR code."""

import hashlib
import io
import logging
import os
import secrets
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from socket import AF_INET, AF_INET6, SOCK_DGRAM, gethostname, socket
from tempfile import TemporaryDirectory

import segno

from streamd.errors import ConfigError
from streamd.options import BindOptions
from streamd.server import LIVE, Invitation, Rights, Server, grants, guest_token, is_loopback
from streamd.sinks.terminal import is_terminal

log = logging.getLogger(__name__)

_FAMILIES = {"0.0.0.0": (AF_INET, "192.0.2.1"), "::": (AF_INET6, "2001:db8::1")}
"""All addresses of this machine -> their family, and an address of it that nobody has (RFC 5737,
RFC 3849)."""
_CERTIFICATE = """
[req]
prompt = no
distinguished_name = name
x509_extensions = extensions
[name]
CN = streamd
[extensions]
subjectAltName = {names}
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth
"""
"""In a file, because LibreSSL, which macOS has, does not know ``-addext`` everywhere. Apple's
systems refuse certificates without the last line, and those for more than 825 days."""
_DAYS = 30
_BLACK_ON_WHITE, _RESET = "\x1b[38;5;231;48;5;16m", "\x1b[0m"
"""Inverted for the terminal: segno fills the light modules."""
_BORDER = 2
"""Light modules around a QR code; the standard has 4, but terminals are small."""


def lan_address(host: str) -> str:
    """Return the address at which other machines reach a server that listens on `host`.

    Of all addresses (0.0.0.0, ::) it is the one that this machine has in its network. Raises
    `ConfigError` if it is in none.
    """
    if host not in _FAMILIES:
        return host
    family, elsewhere = _FAMILIES[host]
    with suppress(OSError), socket(family, SOCK_DGRAM) as probe:
        probe.connect((elsewhere, 9))  # sends nothing, but chooses the address to send from
        address: str = probe.getsockname()[0]
        return address
    raise ConfigError(
        "--share: this machine is in no network: connect it to one, or name its address with --host"
    )


@contextmanager
def open_to_others(bind: BindOptions) -> Iterator[BindOptions]:
    """Give the options, with what is missing for sharing, if that is wanted.

    What is made here lasts as long as the context: tokens, and for browsers that are to speak a
    certificate, since they offer the microphone only to pages with one. Raises `ConfigError`.
    """
    if bind.share == "off":
        yield bind
        return
    host = "0.0.0.0" if is_loopback(bind.host) else bind.host
    bind = replace(
        bind,
        host=host,
        token=bind.token or secrets.token_urlsafe(16),
        listen_token=secrets.token_urlsafe(16),
    )
    address = lan_address(host)
    with TemporaryDirectory(prefix="streamd-") as folder:
        if bind.share == "speak" and not bind.tls_cert:
            cert, key = _make_certificate(Path(folder), address)
            bind = replace(bind, tls_cert=str(cert), tls_key=str(key))
        yield bind


def _make_certificate(folder: Path, address: str) -> tuple[Path, Path]:
    """Make a certificate for this machine; return its file and its key's. Raises `ConfigError`."""
    settings, cert, key = (folder / name for name in ("settings", "cert.pem", "key.pem"))
    addresses = [f"IP:{each}" for each in (address, "127.0.0.1", "::1")]
    names = ", ".join([*addresses, "DNS:localhost", f"DNS:{gethostname()}"])
    settings.write_text(_CERTIFICATE.format(names=names), encoding="utf-8")
    # The program rather than a library: what can make a certificate in Python is as large as all
    # of streamd, and few need it.
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-sha256"]
    files = ["-config", str(settings), "-out", str(cert), "-keyout", str(key)]
    try:
        subprocess.run(
            [*command, "-days", str(_DAYS), *files], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.strerror if isinstance(error, OSError) else error.stderr.strip()
        raise ConfigError(
            f"--sharing speak: openssl cannot make a certificate ({said}): install it, or give "
            "--tls-cert"
        ) from None
    der = ssl.PEM_cert_to_DER_cert(cert.read_text(encoding="ascii"))
    digest = hashlib.sha256(der).digest().hex(":").upper()
    log.info("browsers will warn of the certificate made for this run; its SHA-256 is %s", digest)
    return cert, key


def fragment(token: str | None) -> str:
    """Return the end of a link that shows the page its token; browsers do not send it."""
    return f"#token={token}"


def invite(running: Server, *, has_live: bool) -> str:
    """Return the message with the link for others, and its QR code if there is a terminal.

    `has_live`: streamd captions a source of its own, and the link is for that session only. From
    now on the page shows such links, too.
    """
    bind = running.bind
    speak = bind.share == "speak"
    # A certificate is for a name, which only its owner can tell.
    name = next(iter(bind.allowed_hosts), "") or lan_address(bind.host)
    token = guest_token(bind.token) if speak and bind.token else bind.listen_token
    if has_live and not speak:
        token = next(
            filter(None, (each.signed(LIVE, Rights.LISTEN) for each in grants(bind))), token
        )
    link = running.page_at(name) + fragment(token)
    running.invitation = Invitation(link, speak, has_live)
    text = f"others can {'listen and speak' if speak else 'listen'} at {link}"
    shows = is_terminal(sys.stderr, os.environ) and sys.stderr.encoding.lower() == "utf-8"
    return "\n".join([text, *(qr_code(link) if shows else ())])


def qr_code(link: str) -> list[str]:
    """Return the lines of a QR code, which looks the same on dark and on light terminals."""
    drawn = io.StringIO()
    segno.make_qr(link, error="l").terminal(drawn, border=_BORDER, compact=True)
    return [f"{_BLACK_ON_WHITE}{line}{_RESET}" for line in drawn.getvalue().splitlines()]
