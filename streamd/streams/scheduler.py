"""Which window is computed next, and on which recognizer.

There is no work queue: a recognizer that is free gets a window that a final waits for, or else one
of the session that has waited longest. So when the machine is overloaded, the steps of all sessions
get longer evenly, and finals are the last to be late. Other work, as recordings are, takes its turn
in steps when no window is due.

Each model has recognizers of its own, and they share the processor. So the order holds over all of
them, and as much is computed at a time as with the model that has most recognizers. What a final
waits for begins beside it, since a larger model may take long; so does all beside what hangs.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

from streamd.errors import EngineError, OneSessionError, StreamdError, is_bug, lacks_memory
from streamd.streams.auto_step import AutoStep
from streamd.streams.inference import STEP_DEADLINES, EngineThread
from streamd.streams.metrics import Metrics
from streamd.streams.stream import Stream
from streamd.types import Window, WindowRecognizer

HOLDS_UP_S = 5.0
"""How long a window or step may hold up those of other models: one that hangs has minutes."""
MEMORY_PAUSE_S = 1.0
"""How long a worker waits after a window for which there was too little memory."""

ResultT = TypeVar("ResultT")


class Urgency(IntEnum):
    """What is computed, the most urgent first."""

    FINAL = 0
    PARTIAL = 1
    STEP = 2


@dataclass(frozen=True, slots=True, eq=False)
class BackgroundStep:
    """Something to compute when no live window is due, since when, and where its result goes."""

    call: Callable[[], Any]
    since_s: float
    answer: asyncio.Future[Any]


class Scheduler:
    """Gives the windows of `streams` to recognizers.

    A recognizer that needs `deadline_s` for a window hangs; 0: no limit. `all_models` returns the
    schedulers of the process, this one too.
    """

    def __init__(
        self,
        streams: Callable[[], Collection[Stream]],
        metrics: Metrics,
        *,
        deadline_s: float,
        all_models: Callable[[], Collection["Scheduler"]],
    ) -> None:
        self._streams, self._metrics, self._deadline_s = streams, metrics, deadline_s
        self._all_models = all_models
        self.busy_s = 0.0
        """How long windows and steps were computed; set it to 0 to count from now on."""
        self.auto_step: AutoStep | None = None
        """Is told how long each window took; set by who makes sessions with it."""
        self._error: StreamdError | None = None
        self._work = asyncio.Event()
        self._steps: deque[BackgroundStep] = deque()
        self._taken: set[BackgroundStep] = set()  # that are being computed
        self._n_workers = 0
        # What each thread computes; None: it holds up nothing else.
        self._computing: dict[EngineThread, Urgency | None] = {}
        self._refusal = ""  # why no step is computed any more

    def wake(self) -> None:
        """Look for work: a window may be due."""
        self._work.set()
        self._work = asyncio.Event()

    def fail(self, error: StreamdError) -> None:
        """Compute nothing more: `run` raises the error."""
        self._error = self._error or error
        self.wake()

    async def run(self, *recognizers: WindowRecognizer) -> None:
        """Compute until cancelled, with all recognizers at a time. Raises `StreamdError`."""
        self._n_workers = len(recognizers)
        threads = [EngineThread() for _ in recognizers]
        served = zip(threads, recognizers, strict=True)
        workers = [asyncio.create_task(self._serve(*each)) for each in served]
        try:
            await asyncio.gather(*workers)
        except StreamdError as error:
            self.refuse(str(error))
            raise
        finally:
            for worker, thread in zip(workers, threads, strict=True):
                worker.cancel()
                thread.close()
            self._n_workers = 0
            self.refuse("the engine was stopped")

    async def between(self, call: Callable[..., ResultT], *args: object) -> ResultT:
        """Call in the thread of a recognizer when no live window is due; return the result.

        All who call this take turns. One recognizer of several is left to live windows. Raises what
        the call raises, and `EngineError` if the engine ends, has ended or hangs.
        """
        if self._refusal:
            raise EngineError(self._refusal)
        loop = asyncio.get_running_loop()
        step = BackgroundStep(partial(call, *args), loop.time(), loop.create_future())
        self._steps.append(step)
        self.wake()
        result: ResultT = await step.answer
        return result

    def refuse(self, why: str) -> None:
        """Answer all steps with an `EngineError`, also those to come; the first reason counts."""
        self._refusal = self._refusal or why
        for step in (*self._steps, *self._taken):
            if not step.answer.done():
                step.answer.set_exception(EngineError(self._refusal))
        self._steps.clear()
        self._taken.clear()

    async def _serve(self, thread: EngineThread, recognizer: WindowRecognizer) -> None:
        loop = asyncio.get_running_loop()
        while True:
            news = self._work
            if self._error is not None:
                raise self._error
            begin_s = loop.time()
            if (turn := self._turn()) is None or not self._may_begin(*turn):
                await news.wait()
                continue
            work, _ = turn
            self._computing[thread] = work
            overdue = loop.call_later(HOLDS_UP_S, self._let_others, thread)
            self._wake_all()  # others may have let this go first
            if work is Urgency.STEP:
                await self._take_step(thread)
            elif (due := self._most_urgent()) is not None:
                await self._take_window(thread, recognizer, *due)
                del due  # a session that has ended is freed at once
            overdue.cancel()
            del self._computing[thread]
            self.busy_s += loop.time() - begin_s
            self._wake_all()  # there may be another window or step, and any worker may take it

    def _let_others(self, thread: EngineThread) -> None:
        self._computing[thread] = None
        self._wake_all()

    def _wake_all(self) -> None:
        for each in self._all_models():
            each.wake()

    def _turn(self) -> tuple[Urgency, float] | None:
        """Return what would be computed next, and since when it waits; None: nothing."""
        while self._steps and self._steps[0].answer.done():  # whoever waited for it has gone
            self._steps.popleft()
        due = (_urgency(stream) for stream in self._streams() if stream.due_since is not None)
        step = (Urgency.STEP, self._steps[0].since_s) if self._steps else None
        return min(due, default=step)

    def _may_begin(self, work: Urgency, since_s: float) -> bool:
        """Whether the machine has room for this, and no other model has anything more urgent."""
        models = self._all_models()
        computing = [other for each in models for other in each._computing.values()]
        most = max(each._n_workers for each in models)
        if work is not Urgency.FINAL and len(computing) - computing.count(None) >= most:
            return False
        n_steps = max(computing.count(Urgency.STEP), len(self._taken))
        if work is Urgency.STEP and n_steps >= max(1, most - 1):
            return False
        free = (each for each in models if len(each._computing) < each._n_workers)
        return all((work, since_s) <= (each._turn() or (work, since_s)) for each in free)

    async def _take_window(
        self, thread: EngineThread, recognizer: WindowRecognizer, stream: Stream, window: Window
    ) -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        call = partial(recognizer.recognize, window)
        done = await thread.run(call, deadline_s=self._deadline_s)
        error = done.exception()  # to raise it here would make a cycle of it and this frame
        try:
            if error is None:
                hypothesis = done.result()
                took_s = loop.time() - begin_s
                self._metrics.decoded(window, hypothesis, took_s)
                if self.auto_step is not None:
                    models = self._all_models()
                    n_speaking = sum(not s.session.idle for each in models for s in each._streams())
                    sharing = max(1.0, n_speaking / max(each._n_workers for each in models))
                    self.auto_step.took(took_s, last=window.last, sharing=sharing)
                stream.accept(window, hypothesis)
            elif not (lacks_memory(error) and stream.postpone(window, error)):
                _break_off(stream, error)
        except Exception as bug:
            _break_off(stream, bug)
        if lacks_memory(error):
            self._let_others(thread)
            await asyncio.sleep(MEMORY_PAUSE_S)

    async def _take_step(self, thread: EngineThread) -> None:
        step = self._steps.popleft()
        self._taken.add(step)
        # If this raises, the engine is dead: `run` answers all steps, this one too.
        done = await thread.run(step.call, deadline_s=STEP_DEADLINES * self._deadline_s)
        self._taken.discard(step)
        if step.answer.done():
            return
        if (error := done.exception()) is not None:
            step.answer.set_exception(error)
        else:
            step.answer.set_result(done.result())

    def _most_urgent(self) -> tuple[Stream, Window] | None:
        """Take the window that has been due longest, of those that finals wait for if there are.

        Windows for partials can wait: those of a stream merge.
        """
        waiting = [stream for stream in self._streams() if stream.due_since is not None]
        for stream in sorted(waiting, key=_urgency):
            try:
                if (window := stream.next_window()) is not None:
                    return stream, window
            except Exception as bug:
                _break_off(stream, bug)
        return None


def _urgency(stream: Stream) -> tuple[Urgency, float]:
    """Return what sorts the stream with the most urgent window first."""
    return Urgency.FINAL if stream.is_urgent else Urgency.PARTIAL, stream.due_since or 0.0


def _break_off(stream: Stream, error: BaseException) -> None:
    """End the session whose window raised an error; raise one that concerns all sessions."""
    if not (is_bug(error) or isinstance(error, OneSessionError)):
        raise error
    stream.break_off(error)
    stream.broken(error)
