"""The caption page and the overlay (clients/web), as the server hands them out.

They hold nothing secret, so they need no token; what they fetch does. The policy allows them their
own scripts and this server's websocket, nothing else, wherever a transcript's text comes from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ADDRESSES = {"index.html": "/", "overlay.html": "/overlay"}
"""Files whose address is not their name."""


@dataclass(frozen=True, slots=True)
class Page:
    """A file of the page, ready to be sent."""

    body: bytes
    content_type: str

    def headers(self, host: str) -> Mapping[str, str]:
        """What the browser is told; `host` is the checked ``Host`` by which it reached us."""
        return {
            "Content-Type": self.content_type,
            "Content-Security-Policy": (
                "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
                # 'self' does not include websockets in every browser.
                f"connect-src 'self' ws://{host} wss://{host}; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            ),
            "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
        }


def load_pages(folder: Path) -> Mapping[str, Page]:
    """Read the page's files; the answer is by path of the address, such as ``/overlay``."""
    return {
        _ADDRESSES.get(path.name, f"/{path.name}"): Page(path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(folder.iterdir())
        if path.suffix in _TYPES
    }
