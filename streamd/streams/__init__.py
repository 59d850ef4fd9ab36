"""All sessions on one engine: from audio to events, for any number of subscribers.

`registry` has the sessions by name (`Streams`), and `scheduler` gives their windows to recognizers,
in the threads of `inference`. `stream` is one session, `hub` publishes its events, `subscription`
is one subscriber's queue of them; `life` says how these begin and end. `storage` is where sessions
are kept: `journal` finals, `wav` the audio. `metrics` counts.
"""

from streamd.streams.registry import MAX_ENDED, Chooser, Streams
from streamd.streams.storage import SessionStorage

__all__ = ["MAX_ENDED", "Chooser", "SessionStorage", "Streams"]
