"""Interleave the decoding of several clips on one thread while a second thread encodes ahead.

A reading is a generator that yields requests for the model. One thread batches the decoder passes
of all readings; the other, if the engine has one, encodes the next windows.

The last bits of a pass depend on which windows take part in it, and the text of a recording must
not depend on how busy the machine is. So the order is that of a clock that counts passes: an
encoding takes as many as it takes on most machines. Where it takes longer, its reading waits, and
a window that is needed later may be encoded meanwhile (`Together.begin`).
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from streamd.types import Mel
from streamd.whisper.engine import (
    Answer,
    BatchEngine,
    Engine,
    FeaturesT,
    Pass,
    ResultT,
    Reuse,
    Together,
)
from streamd.whisper.longform.segments import Stretch, TimedSegment

_COLUMNS_PER_PASS = 400
"""Columns that are encoded while the decoder runs a pass of many windows (tiny.en and base)."""
_AHEAD = 12
"""Passes before the other thread is free when it is given the next window. So two or three
follow the one that it encodes: it need not wait, and leaves one to this thread while it is late."""


@dataclass(frozen=True, slots=True)
class TranscribedWindow:
    """The segments of one window, and up to where the recording is transcribed.

    In the columns `unheard`, which end there, is speech that has no words. Where several clips are
    decoded at once, windows without segments come in between, for the caller to do something else.
    """

    segments: tuple[TimedSegment, ...]
    reached_ms: int
    unheard: Stretch | None = None


class EncoderPass(Generic[FeaturesT]):
    """A window that a reading asks to have encoded; it goes on when it can `take` the features."""

    def __init__(self, mel: Callable[[], Mel], n_columns: int) -> None:
        """Of the log-mel, `n_columns` are sound."""
        self.mel, self.n_columns = mel, n_columns
        self.ready_at: int | None = None
        """When the features can be taken, in passes; None until somebody encodes the window."""
        self.wait: Callable[[], FeaturesT]

    def take(self) -> FeaturesT:
        """Return the features, when they are there; this keeps no reference to them."""
        wait = self.wait
        del self.wait
        return wait()


Steps = Generator[Pass | EncoderPass[Any], Answer, ResultT]
"""A search that also has windows encoded."""
Reading = Generator[Pass | EncoderPass[Any] | TranscribedWindow, Answer | None, None]
"""Steps that also give windows, for which they want no answer."""


class OneByOne(Generic[FeaturesT]):
    """Runs the passes of one window at a time: a `Together` for every engine."""

    def __init__(self, engine: Engine[FeaturesT]) -> None:
        self._engine = engine
        self._latest: FeaturesT | None = None

    def run(self, passes: Sequence[Pass]) -> list[Answer]:
        """Run passes one after the other."""
        return [each.decoder.run(each) for each in passes]

    def encode_alone(self, mel: Mel) -> FeaturesT:
        """Encode a window, as `Together.encode_alone` does."""
        engine = self._engine
        if not isinstance(engine, BatchEngine):
            return engine.encode(mel)
        # Nothing of the window before is known, but its memory is taken.
        features = engine.encode(mel, None if self._latest is None else Reuse(self._latest))
        self._latest = features
        return features

    def begin(self, mel: Callable[[], Mel]) -> Callable[[], FeaturesT]:
        """Encode a window when it is waited for."""
        return lambda: self.encode_alone(mel())


def read_in_order(
    readings: Iterable[Reading], together: Together[Any], n_most: int
) -> Iterator[TranscribedWindow]:
    """Run up to `n_most` readings at once; give their windows in the order of the readings."""
    waiting, begun = iter(readings), deque[_Begun]()
    schedule, reached_ms = _Schedule(together, n_most), 0
    while True:
        n_free = n_most - sum(not each.is_done for each in begun)
        # `range` first: a reading that is taken begins
        begun += (_Begun(each) for _, each in zip(range(n_free), waiting, strict=False))
        if not begun:
            return
        schedule.turn([each for each in begun if not each.is_done])
        while begun:
            for window in begun[0].take():
                reached_ms = window.reached_ms
                yield window
            if not begun[0].is_done:
                break
            begun.popleft()
        if n_most > 1:
            yield TranscribedWindow((), reached_ms)


class _Schedule:
    """Decides what is computed next."""

    def __init__(self, together: Together[Any], n_most: int) -> None:
        """With half of the `n_most` windows, a pass takes little more time for each of them."""
        self._together = together
        self._n_enough = -(-n_most // 2)
        self._now = self._free_at = 0  # the other thread is free then

    def turn(self, readings: Sequence["_Begun"]) -> None:
        """Compute the next step of some readings, which go on to what they ask for then.

        That is a pass, or one more window, if so few are ready that a pass would be poor.
        """
        for each in readings:
            if each.asked is None:
                each.go_on()
        passes = {each: each.asked for each in readings if isinstance(each.asked, Pass)}
        asked = [each.asked for each in readings if isinstance(each.asked, EncoderPass)]
        waiting = deque(each for each in asked if each.ready_at is None)
        answers: dict[_Begun, Answer] = {}
        has_more = len(waiting) + len(passes) > 1
        if waiting and has_more and self._free_at <= self._now + _AHEAD:
            self._begin(waiting.popleft())
        if waiting and len(passes) < self._n_enough:
            self._encode(waiting.popleft())
        elif passes:
            answers = dict(zip(passes, self._together.run(list(passes.values())), strict=True))
            self._now += 1
        else:
            ready = [each.ready_at for each in asked if each.ready_at is not None]
            self._now = max(self._now, min(ready, default=0))
        for each in readings:
            if each in answers or (
                isinstance(each.asked, EncoderPass) and self._is_ready(each.asked)
            ):
                each.go_on(answers.get(each))

    def _is_ready(self, encoding: EncoderPass[Any]) -> bool:
        return encoding.ready_at is not None and encoding.ready_at <= self._now

    def _begin(self, encoding: EncoderPass[Any]) -> None:
        """Have the other thread encode a window."""
        encoding.wait = self._together.begin(encoding.mel)
        encoding.ready_at = self._free_at = max(self._free_at, self._now) + _n_passes(encoding)

    def _encode(self, encoding: EncoderPass[Any]) -> None:
        """Encode a window in this thread."""
        features = [self._together.encode_alone(encoding.mel())]
        encoding.wait = features.pop
        self._now += _n_passes(encoding)
        encoding.ready_at = self._now


def _n_passes(encoding: EncoderPass[Any]) -> int:
    """Return how many passes take as long as an encoding."""
    return -(-encoding.n_columns // _COLUMNS_PER_PASS)


class _Begun:
    """A reading: what it `asked` for, unless it gave a window or is done."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._windows: list[TranscribedWindow] = []
        self.asked: Pass | EncoderPass[Any] | None = None
        self.is_done = False

    def go_on(self, answer: Answer | None = None) -> None:
        """Give it the answer to its pass; it goes on until it asks for something or is done."""
        self.asked = None
        try:
            while isinstance(said := self._reading.send(answer), TranscribedWindow):
                self._windows.append(said)
                answer = None
        except StopIteration:
            self.is_done = True
            return
        self.asked = said

    def take(self) -> list[TranscribedWindow]:
        """Take the windows that it has given."""
        windows, self._windows = self._windows, []
        return windows
