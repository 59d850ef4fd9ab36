"""Responses to plain HTTP requests: the caption page, readiness, sessions, metrics."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlencode

import msgspec
import segno
from websockets.http11 import Response

from streamd.errors import WireError
from streamd.server.access import Access, Rights
from streamd.server.exchange import in_json, plain, respond
from streamd.server.wire import SESSION, parse_query
from streamd.streams import Streams

SESSIONS_PATH = "/v1/sessions"
HEALTH_PATH = "/healthz"
READY_PATH = "/readyz"
METRICS_PATH = "/metrics"
SHARE_PATH = "/v1/share"
MODELS_PATH = "/v1/models"
LIBRARY_PATH = "/v1/library"
UPLOADS: Mapping[str, Literal["transcribe", "translate"]] = {
    "/v1/audio/transcriptions": "transcribe",
    "/v1/audio/translations": "translate",
}
"""Paths to which recordings are sent with POST, and what is then done with them."""
RECORDED_PATH = "/v1/listen"
"""Where Deepgram's clients send recordings with POST; a websocket there is for live captions."""
PATHS = (READY_PATH, SESSIONS_PATH, METRICS_PATH, MODELS_PATH, SHARE_PATH, *UPLOADS)
"""The paths that `Auth` checks, as it does `DIALECTS`; `HEALTH_PATH` and the pages are open."""
_TRANSCRIPT = re.compile(rf"{SESSIONS_PATH}/([A-Za-z0-9_.-]{{1,64}})/transcript")

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
_ADDRESSES = {"index.html": "/", "overlay.html": "/overlay", "library.html": "/library"}
"""Files that are served under another name than their own."""


def is_of_library(path: str) -> bool:
    """Whether a path is one of the library's, which a `LibraryAnswers` answers."""
    return path.startswith(f"{LIBRARY_PATH}/")


def is_upload_to_library(method: str, target: str) -> bool:
    """Whether a request sends a file to the library."""
    return method == "POST" and target.partition("?")[0] == f"{LIBRARY_PATH}/uploads"


def session_in(path: str) -> str | None:
    """Return whose transcript a path is (`Transcripts`), or None if it is another path."""
    found = _TRANSCRIPT.fullmatch(path)
    return found[1] if found else None


@dataclass(frozen=True, slots=True)
class Invitation:
    """The `link` with which others listen, its token in the fragment; `speak`: and send audio.

    `has_live`: it is for the captions of the server's own source.
    """

    link: str
    speak: bool = False
    has_live: bool = False


class _LinkQuery(msgspec.Struct, frozen=True):
    """The query of `SHARE_PATH`; `at` is the address of the page, as its reader knows it."""

    session: Annotated[str, msgspec.Meta(pattern=SESSION)] = ""
    may: Literal["listen", "speak"] = "listen"
    at: Annotated[str, msgspec.Meta(pattern=r"\Ahttps?://[!-~]{1,200}\Z")] = ""


def share(query: str, access: Access, invitation: Invitation | None) -> Response:
    """Answer with a link to a session, and its QR code as rows of ``0`` and ``1``.

    Its token is for that session only, but where everybody may speak.
    """
    try:
        wanted = parse_query(query, _LinkQuery)
    except WireError as error:
        return plain(HTTPStatus.BAD_REQUEST, str(error))
    page, _, fragment = (invitation.link if invitation else wanted.at).partition("#")
    if not page:
        return plain(
            HTTPStatus.NOT_FOUND,
            "no address: start streamd with --share, or add at=URL of the page",
        )
    may_pass_on = invitation and invitation.speak and access.covers("*")
    if wanted.session and not (may_pass_on and wanted.may == "listen"):
        token = access.signed(wanted.session, Rights[wanted.may.upper()])
        if token is None and (access.secret or invitation is None):
            return plain(HTTPStatus.FORBIDDEN, f"this token may not share {wanted.session!r}")
        fragment = f"token={token}" if token else fragment
    elif not access.covers("*") or invitation is None:
        return plain(HTTPStatus.FORBIDDEN, "name the session to share: ?session=NAME")
    named = f"?{urlencode({'session': wanted.session})}" if wanted.session else ""
    link = f"{page}{named}#{fragment}"
    rows = segno.make_qr(link, error="l").matrix
    return in_json(200, {"link": link, "code": ["".join(map(str, row)) for row in rows]})


Page = tuple[bytes, str]
"""A file of the caption page or the overlay (clients/web), and its content type.

The files hold nothing secret, so they need no token; the data that they fetch does.
"""


def load_pages(folder: Path) -> Mapping[str, Page]:
    """Read the files of the page; the keys are paths such as ``/overlay``."""
    return {
        _ADDRESSES.get(path.name, f"/{path.name}"): (path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(folder.iterdir())
        if path.suffix in _TYPES
    }


def serve_page(page: Page, host: str) -> Response:
    """Return the response; `host` is the name and port of the request's ``Host``.

    The policy allows only scripts of the page and this server's websocket, whatever text a
    transcript contains.
    """
    body, content_type = page
    headers = {
        "Content-Type": content_type,
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
            "manifest-src 'self'; media-src 'self'; "
            # 'self' does not include websockets in every browser.
            f"connect-src 'self' ws://{host} wss://{host}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return respond(HTTPStatus.OK, body, headers)


def routes(
    sessions: Streams,
    *,
    models: Callable[[], Sequence[str]],
    max_lag_ms: int,
    is_full: Callable[[], bool],
    invitation: Callable[[], Invitation | None],
) -> Mapping[str, Callable[[str, Access], Response]]:
    """Return the handlers by path, of a query and of what the client's token allows.

    `is_full`: the server is at its limit of clients. `models`: those that clients may name.
    """

    def listed(_: str, access: Access) -> Response:
        names = [{"name": name} for name in access.listed(sessions.names())]
        within = {} if access.covers("*") else {"within": access.sessions[0]}
        return in_json(200, {"sessions": names, "may": access.rights.name.lower(), **within})

    def ready(*_: object) -> Response:
        reasons = [*sessions.unready()]
        if (lag_ms := sessions.lag_ms) > max_lag_ms:
            reasons.append(f"the engine is {lag_ms} ms behind")
        if is_full():
            reasons.append("no room for another client")
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        return in_json(status, {"ready": not reasons, "reasons": reasons})

    def served(*_: object) -> Response:
        kind = {"object": "model", "created": 0, "owned_by": "streamd"}
        return in_json(200, {"object": "list", "data": [{"id": id_, **kind} for id_ in models()]})

    metrics = sessions.metrics
    return {
        SESSIONS_PATH: listed,
        READY_PATH: ready,
        METRICS_PATH: lambda *_: respond(
            200, metrics.text(), {"Content-Type": metrics.content_type}
        ),
        SHARE_PATH: lambda query, access: share(query, access, invitation()),
        MODELS_PATH: served,
        **dict.fromkeys(
            UPLOADS, lambda *_: plain(405, "send a recording with POST", {"Allow": "POST"})
        ),
    }
