"""Which windows a worker has, and whose tokens are in their caches."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from weakref import ref

from streamd.engine.coreml.runtime.decoder import CoreMLDecoder
from streamd.engine.coreml.runtime.process import Worker
from streamd.types import Mel

_MOST = 4
"""Windows that a worker keeps at a time; if there are more, they are encoded again in turns."""


class Heard:
    """A window's log-mel, from which what a worker made of it can be made again."""

    def __init__(self, mel: Mel) -> None:
        self.mel, self.n_ctx = mel, mel.shape[1] // 2


@dataclass(slots=True)
class _Seat:
    """Whose window is in it, and whose tokens, as long as anybody wants to know."""

    window: Callable[[], Heard | None]
    decoder: Callable[[], CoreMLDecoder | None]


def _nobody() -> None:
    return None


class Seats:
    """The seats of one worker after the other."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._seats: OrderedDict[int, _Seat] = OrderedDict()  # the last one is the last used

    def take(self, worker: Worker, window: Heard, decoder: CoreMLDecoder | None = None) -> int:
        """The seat in which the worker has this window, encoded now if it has not.

        What is in its cache is the decoder's from now on, which is told to forget if it was not.

        Raises
        ------
        WorkerLostError
            Meanwhile.
        """
        if self._worker is not worker:
            self._worker = worker
            self._seats.clear()
        number = next((n for n, seat in self._seats.items() if seat.window() is window), None)
        if number is None:
            number = self._free()
            self._seats[number] = _Seat(_nobody, _nobody)  # nobody's, should encoding fail
            worker.encode(number, window.mel)
            self._seats[number].window = ref(window)
        seat = self._seats[number]
        self._seats.move_to_end(number)
        if decoder is not None and seat.decoder() is not decoder:
            decoder.forget()
            seat.decoder = ref(decoder)
        return number

    def _free(self) -> int:
        """A seat whose window nobody needs, a new one, or the one that was not used for longest."""
        number = next((n for n, seat in self._seats.items() if seat.window() is None), None)
        if number is None and len(self._seats) < _MOST:
            return len(self._seats)
        return next(iter(self._seats)) if number is None else number
