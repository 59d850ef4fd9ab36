"""Read sounds as streamd does: with its own engine and search, in one window or as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from clips import Samples

from streamd.config import load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.events import Event, Final
from streamd.types import FRAME, Window, text_of

_BLOCK = 5  # frames fed at a time: 100 ms, as a microphone would


class Streamd:
    """streamd with one model and its default options."""

    def __init__(self, model: Path) -> None:
        self._config = load({"model": str(model)}, {})
        opened = open_model(self._config)
        self._live = build.recognizer(self._config, *opened)
        full = load({"model": str(model), "audio-ctx": "1500"}, {})
        self._whole = build.recognizer(full, *opened)

    def offline(self, sounds: Sequence[Samples]) -> list[str]:
        """Text of each sound, in one window at full encoder context."""
        return [self._window(x) for x in sounds]

    def streaming(self, sounds: Sequence[Samples]) -> list[str]:
        """Text of each sound as a stream of its own, on an engine that is always in time."""
        return [self._stream(x) for x in sounds]

    def _window(self, x: Samples) -> str:
        frames = _frames(x)
        window = Window(0, len(frames), frames.ravel(), last=True)
        return text_of(self._whole.recognize(window).words)

    def _stream(self, x: Samples) -> str:
        session, said = build.session_factory(self._config)(), list[str]()

        def take(events: Iterable[Event]) -> None:
            said.extend(event.text for event in events if isinstance(event, Final))
            while (window := session.next_window()) is not None:
                take(session.accept(window, self._live.recognize(window)))

        frames = _frames(x)
        for at in range(0, len(frames), _BLOCK):
            take(session.feed(frames[at : at + _BLOCK]))
        take(session.flush())
        return " ".join(said)


def _frames(x: Samples) -> np.ndarray:
    return np.pad(x, (0, -len(x) % FRAME)).astype(np.float32).reshape(-1, FRAME)
