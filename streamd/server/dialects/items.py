"""The items of a transcription in OpenAI's Realtime API: what has become of the text."""

from collections.abc import Iterator
from math import ceil

from streamd.server.dialects.dialect import GrowingText, Tell, tell

_TRANSCRIPTION = "conversation.item.input_audio_transcription"


class Items:
    """Numbers events and items of the session `name`; the deltas of an item join to its text."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._n_events = self._n_items = 0
        self._is_open = False  # the next item has begun
        self._text = GrowingText()

    def tell(self, kind: str, **fields: object) -> Tell:
        """Return the next event."""
        self._n_events += 1
        return tell(kind, event_id=f"event_{self._n_events}", **fields)

    def error(
        self, code: str, message: str, cause: str | None = None, *, of_server: bool = False
    ) -> Tell:
        """Return an error; `cause` is the client's event that is wrong."""
        kind = "server_error" if of_server else "invalid_request_error"
        error = {"type": kind, "code": code, "message": message, "param": None, "event_id": cause}
        return self.tell("error", error=error)

    def begin(self, start_ms: int) -> Iterator[Tell]:
        """Somebody speaks."""
        if not self._is_open:
            self._is_open = True
            started = {"audio_start_ms": start_ms, "item_id": self._id(0)}
            yield self.tell("input_audio_buffer.speech_started", **started)

    def grow(self, text: str) -> Iterator[Tell]:
        """`text` is what will not change any more."""
        if added := self._text.more(text):
            item = {"item_id": self._id(0), "content_index": 0}
            yield self.tell(f"{_TRANSCRIPTION}.delta", **item, delta=added)

    def stop(self, end_ms: int) -> Iterator[Tell]:
        """Nobody speaks any more."""
        stopped = {"audio_end_ms": end_ms, "item_id": self._id(0)}
        yield self.tell("input_audio_buffer.speech_stopped", **stopped)

    def complete(self, text: str, duration_ms: int) -> Iterator[Tell]:
        """The item has this text."""
        previous = self._id(-1) if self._n_items else None
        committed = {"item_id": self._id(0), "previous_item_id": previous}
        yield self.tell("input_audio_buffer.committed", **committed)
        yield from self.grow(text)
        item = {"item_id": self._id(0), "content_index": 0}
        usage = {"type": "duration", "seconds": ceil(duration_ms / 1000)}
        yield self.tell(f"{_TRANSCRIPTION}.completed", **item, transcript=text, usage=usage)
        self._n_items, self._is_open, self._text = self._n_items + 1, False, GrowingText()

    def _id(self, later: int) -> str:
        return f"item_{self._name}_{self._n_items + later + 1}"
