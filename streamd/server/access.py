"""Whom a token belongs to, and what it allows: rights, in sessions of certain names.

Besides the tokens that the server is given there are signed ones, for a single session:
``RIGHTS.SESSION.SIGNATURE``. The holder of another token makes them (`Access.signed`), with no more
rights than that has, and they are valid as long as it is.
"""

import hmac
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self

from streamd.options import BindOptions, TokenOptions

LIVE = "live"
"""The session of the daemon's own source, the default for listeners."""
_SIGNED = re.compile(r"(listen|speak)\.([A-Za-z0-9_.-]{1,64})\.([0-9a-f]{32})")
_LONGEST_NAME = 64


class Rights(IntEnum):
    """What a client may do, each with all before it.

    It may listen; speak, which is to send audio and to correct words; or have the server keep
    corrections for later sessions, as its owner may.
    """

    LISTEN = 0
    SPEAK = 1
    KEEP = 2


@dataclass(frozen=True, slots=True)
class Access:
    """What a client may do in `sessions`: names, or beginnings of names with a ``*`` behind them.

    `secret` is its token, empty on a server without any; `name` is for the log. A `guest` is told
    only the names in `sessions` that are whole: it can read any session, but has to know its name.
    """

    rights: Rights = Rights.KEEP
    name: str = ""
    sessions: tuple[str, ...] = ("*",)
    is_guest: bool = False
    secret: str = field(default="", repr=False)

    @property
    def is_owner(self) -> bool:
        """Whether it allows everything, in sessions of any name."""
        return self.rights is Rights.KEEP and "*" in self.sessions

    @property
    def is_link(self) -> bool:
        """Whether its token is a signed one, which allows nothing outside its session."""
        return _SIGNED.fullmatch(self.secret) is not None

    def covers(self, session: str) -> bool:
        """Whether it allows anything in the session of this name."""
        return any(_matches(pattern, session) for pattern in self.sessions)

    def listed(self, names: Iterable[str]) -> Iterator[str]:
        """Return those of the names that the client may know."""
        known = [each for each in self.sessions if not (self.is_guest and each.endswith("*"))]
        return (name for name in names if any(_matches(pattern, name) for pattern in known))

    def session_for(self, generated: str) -> str:
        """Return the name of a session that the client begins without naming it."""
        first = self.sessions[0]
        if not first.endswith("*"):
            return first
        # What makes it unique is at its end.
        return f"{first[:-1]}{generated[len(first) - 1 - _LONGEST_NAME :]}"

    def signed(self, session: str, rights: Rights) -> str | None:
        """Return a token for one session, None if this one does not allow as much."""
        if not self.secret or rights > min(self.rights, Rights.SPEAK) or not self.covers(session):
            return None
        if self.is_link:  # whoever has a link passes on that one
            return self.secret if rights is self.rights else None
        may = rights.name.lower()
        return f"{may}.{session}.{_signature(self.secret, may, session)}"

    def _unsigned(self, presented: str) -> Self | None:
        """Return what a signed token allows, if it was made with this one."""
        if (found := _SIGNED.fullmatch(presented)) is None:
            return None
        may, session, signature = found.groups()
        rights = Rights[may.upper()]
        wanted = _signature(self.secret, may, session)
        if rights > self.rights or not self.covers(session):
            return None
        if not hmac.compare_digest(wanted, signature):
            return None
        name = f"a link of {self.name}" if self.name else "a link"
        return type(self)(rights, name, (session,), secret=presented)


def grants(bind: BindOptions) -> tuple[Access, ...]:
    """Return what each token of the options allows; none: the server requires no token."""
    found = [_named(each) for each in bind.tokens]
    if bind.token:
        found.append(Access(secret=bind.token.strip()))
        if bind.share == "speak":
            token = guest_token(bind.token)
            found.append(
                Access(Rights.SPEAK, "guest", ("*", LIVE), is_guest=True, secret=token),
            )
    if bind.listen_token:
        found.append(Access(Rights.LISTEN, "listener", secret=bind.listen_token.strip()))
    return tuple(found)


def granted(every: Iterable[Access], presented: Iterable[str]) -> Access | None:
    """Return what the tokens that a client has presented allow, or None."""
    tokens = [token for token in presented if token]
    for access in every:
        wanted = access.secret.encode()
        for token in tokens:
            if hmac.compare_digest(wanted, token.encode(errors="surrogateescape")):
                return access
    links = (access._unsigned(token) for access in every for token in tokens)
    return next((link for link in links if link is not None), None)


def guest_token(token: str) -> str:
    """Return the token in the link for those who may speak, which does not reveal the server's own.

    It is the same as long as that is.
    """
    return hmac.digest(token.strip().encode(), b"streamd: guests", "sha256").hex()[:32]


def _named(options: TokenOptions) -> Access:
    rights = Rights[options.may.upper()]
    return Access(rights, options.name, options.sessions, secret=options.token)


def _signature(secret: str, may: str, session: str) -> str:
    signed = f"streamd: {may} {session}".encode()
    return hmac.digest(secret.encode(), signed, "sha256").hex()[:32]


def _matches(pattern: str, session: str) -> bool:
    if pattern.endswith("*"):
        return session.startswith(pattern[:-1])
    return session == pattern
