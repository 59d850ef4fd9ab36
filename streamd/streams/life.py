"""The lives of what a caption goes through on its way to a client, and what ends them.

- A *stream* is one session in this process. It is WAITING while it has only listeners, since
  another process has begun it, and OPEN once somebody feeds it. It is ENDED when its client has
  ended it or did not come back, when the engine or the process ends, or because of a bug: nothing
  is published any more. It is MOVED when another machine feeds the session.
- Its *hub* is OPEN until the last event of the session, `Eos`, is published: then it is ENDED. The
  hub of a stream that has MOVED stays OPEN, and publishes what the other machine tells; so does
  that of a stream that ends while another machine may go on with it.
- A *subscription* at a hub is OPEN until `Eos` is in its queue: then it is ENDED, and what waits is
  still delivered. It is SLOW when too much waited, and CLOSED when its owner closed it; in both
  cases nothing more is delivered.
- The *connection* of a client has a subscription, whose end ends it. Before, it may be REFUSED,
  because the client sent what is not allowed, was too slow, or has another connection now: then it
  is told why. Or it is MOVED, since the client can go on at another machine, or STUCK, because the
  client neither reads nor answers. All but STUCK are left with the handshake of websockets.

`Stream.finish` makes all audio final before the end, `fail` and `break_off` say why it comes.

One ends the next: the end of a stream that of its hub, that the subscriptions, and these the
connections. A connection that is lost ends no stream at once, if its client can resume it
(`server/ingest.py`).
"""

from collections.abc import Mapping
from enum import Enum, auto


class Phase(Enum):
    """Where one of them is in its life."""

    WAITING = auto()
    OPEN = auto()
    ENDED = auto()
    MOVED = auto()
    SLOW = auto()
    CLOSED = auto()
    REFUSED = auto()
    STUCK = auto()


class Turn(Enum):
    """What takes one of them from one phase to another."""

    BEGIN = auto()
    """Somebody feeds the session here."""
    END = auto()
    """The session is over, or goes on in another process later."""
    MOVE = auto()
    """Another machine feeds the session."""
    OVERFLOW = auto()
    """More events wait than may."""
    CLOSE = auto()
    """Whoever has the subscription needs it no more."""
    REFUSE = auto()
    """The client has to be told of an error."""
    STICK = auto()
    """The client neither reads nor answers."""


Life = Mapping[Phase, Mapping[Turn, Phase]]

STREAM: Life = {
    Phase.WAITING: {Turn.BEGIN: Phase.OPEN, Turn.END: Phase.ENDED, Turn.MOVE: Phase.MOVED},
    Phase.OPEN: {Turn.END: Phase.ENDED, Turn.MOVE: Phase.MOVED},
    Phase.ENDED: {Turn.MOVE: Phase.MOVED},  # its end could not be stored
    Phase.MOVED: {},
}
HUB: Life = {Phase.OPEN: {Turn.END: Phase.ENDED}, Phase.ENDED: {}}
SUBSCRIPTION: Life = {
    Phase.OPEN: {Turn.END: Phase.ENDED, Turn.OVERFLOW: Phase.SLOW, Turn.CLOSE: Phase.CLOSED},
    Phase.ENDED: {Turn.CLOSE: Phase.CLOSED},
    Phase.SLOW: {Turn.CLOSE: Phase.SLOW},  # which its owner has to tell
    Phase.CLOSED: {Turn.CLOSE: Phase.CLOSED},
}
CONNECTION: Life = {
    Phase.OPEN: {Turn.REFUSE: Phase.REFUSED, Turn.MOVE: Phase.MOVED, Turn.STICK: Phase.STUCK},
    Phase.MOVED: {Turn.REFUSE: Phase.REFUSED, Turn.MOVE: Phase.MOVED, Turn.STICK: Phase.STUCK},
    Phase.REFUSED: {
        Turn.REFUSE: Phase.REFUSED,
        Turn.MOVE: Phase.REFUSED,
        Turn.STICK: Phase.STUCK,
    },
    Phase.STUCK: {Turn.REFUSE: Phase.STUCK, Turn.MOVE: Phase.STUCK, Turn.STICK: Phase.STUCK},
}
"""The whole life of each. What is not in these tables is a bug."""
