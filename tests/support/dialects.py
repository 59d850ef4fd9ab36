"""Conversations with dialects, without a server."""

import json
from collections.abc import Iterable

from msgspec.structs import replace

from streamd.errors import WireError
from streamd.events import Final, Partial, SessionEvent, TimedWord, encode
from streamd.server.dialects import Close, Dialect, Tell
from streamd.server.wire import Correct, Flush, Hello, Limits, Start, Stop, Update, close_code
from tests.support import said

HELLO = Hello(
    proto="streamd.v1",
    session="talk",
    epoch="e1.secret",
    seq=0,
    model="tiny.en",
    language="en",
    rate=16000,
    limits=Limits(max_message_bytes=1 << 20),
)


def words(text: str, start_ms: int, n_final: int = 99) -> tuple[TimedWord, ...]:
    """A word every 500 ms, each a little less certain."""
    spoken = enumerate(said.timed(text.split(), start_ms, 500))
    return tuple(replace(word, prob=1 - i / 10, final=i < n_final) for i, word in spoken)


def partial(text: str, start_ms: int = 0, *, seg: int = 0, n_final: int = 0) -> Partial:
    stable = len(" ".join(text.split()[:n_final]))
    spoken = words(text, start_ms, n_final)
    end_ms = start_ms + 500 * len(spoken)
    return Partial(
        seg=seg, rev=1, start_ms=start_ms, end_ms=end_ms, text=text, stable=stable, words=spoken
    )


def final(text: str, start_ms: int = 0, *, seg: int = 0, continues: bool = False) -> Final:
    spoken = words(text, start_ms)
    times = {"start_ms": start_ms, "end_ms": start_ms + 500 * len(spoken)}
    return said.final(text, words=spoken, seq=seg + 1, seg=seg, continues=continues, **times)


def converse(dialect: Dialect, *steps: str | bytes | SessionEvent) -> list[object]:
    """What the dialect does at each step: a message of the client, or an event."""
    dialect.request()
    acts = [*dialect.opened(HELLO)]
    for step in steps:
        acts += dialect.hear(step) if isinstance(step, str | bytes) else dialect.say(step)
    return [json.loads(encode(act.message)) if isinstance(act, Tell) else act for act in acts]


def refused(dialect: Dialect, error: WireError) -> tuple[list[object], Close]:
    told = [*dialect.fault(error)]
    close = Close(close_code(error.code), error.code)
    if told and isinstance(told[-1], Close):
        close = told.pop()
    return [json.loads(encode(tell.message)) for tell in told], close


def check(dialect: Dialect, steps: Iterable[str | bytes | SessionEvent]) -> None:
    """The client sees JSON, the session whole samples after their format, and nobody a bug."""
    start = Start()
    n_starts, has_audio = 0, False
    told: list[Tell] = []
    try:
        dialect.request()
        told += dialect.opened(HELLO)
        for step in steps:
            acts = dialect.hear(step) if isinstance(step, str | bytes) else dialect.say(step)
            for act in acts:
                match act:
                    case Tell():
                        told.append(act)
                    case Start():
                        assert not has_audio
                        n_starts, start = n_starts + 1, act
                    case bytes():
                        has_audio = True
                        assert len(act) % (start.encoding.n_bytes * start.channels) == 0
                    case _:
                        assert isinstance(act, Flush | Stop | Update | Correct)
        assert n_starts <= 1
    except WireError as error:
        fault, close = refused(dialect, error)
        assert all(isinstance(message, dict) for message in fault)
        assert 1000 <= close.code <= 4999
        assert len(close.reason.encode()) <= 123
    assert all(isinstance(json.loads(encode(each.message)), dict) for each in told)
