"""Serves readers: a session is translated into a language once, as long as somebody reads that."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakKeyDictionary

from streamd.errors import ModelError, WireError, for_clients, is_bug
from streamd.events import Fault, Final, Missed, SessionEvent, Translation
from streamd.server import LanguageReader
from streamd.streams.hub import Hub
from streamd.streams.subscription import Subscription
from streamd.translation.sentences import Sentences, SentenceSoFar
from streamd.translation.translator import Translator

_MOST_EARLIER = 2_000
"""Sentences from before somebody reads a language that are translated for them, the newest first:
three hours of talk, 30 s of computing."""
_MOST_WAITING = 1_000
"""Sentences that wait to be translated; of more, which a file that is read fast may have, the
oldest are left out."""
_MOST_KEPT = 10_000
"""Translations of a session that new readers get, as many as corrections."""
_AT_ONCE = 100
"""Events that are read before others have their turn."""
_REST_S = 2.0
"""How long readers of a session that ends wait for the translation of its end; it took 20 ms."""
_PATIENCE_S = 120.0
"""The same for who comes after its end, to whom all of it is new: 2,000 sentences took 30 s."""

log = logging.getLogger(__name__)


class Translations:
    """All readings of a process; `languages` are those that its owner offers.

    `names` returns what is kept as it is spelled in a session.
    """

    def __init__(
        self,
        translator: Translator,
        languages: Sequence[str],
        names: Callable[[Hub], Sequence[str]] = lambda hub: (),
    ) -> None:
        self.languages = tuple(languages)
        self._translator, self._names = translator, names
        self._readings: WeakKeyDictionary[Hub, dict[str, _Reading]] = WeakKeyDictionary()

    def read(
        self, hub: Hub, into: str, subscription: Subscription, *, after: int | None
    ) -> LanguageReader:
        """Give a subscriber the translations of a session from now on, until it leaves.

        With `after`, those of the finals after this number come, too. Raises `WireError` with
        `bad_option` if the language is not offered.
        """
        if into not in self.languages:
            offered = ", ".join(self.languages)
            raise WireError("bad_option", f"translate: this server offers {offered}, not {into!r}")
        readings = self._readings.setdefault(hub, {})
        if into not in readings:
            readings[into] = _Reading(self._translator, into, self._names)
        return readings[into].join(hub, subscription, after)

    def close(self) -> None:
        """Translate nothing more."""
        for readings in self._readings.values():
            for reading in readings.values():
                reading.stop()


class _Reading:
    """A session in one language: the sentences that are translated, and who reads them.

    Sentences come in their order, except those that were said before anybody read the language:
    these wait until no newer one does, and the newest of them is first.
    """

    def __init__(
        self, translator: Translator, into: str, names: Callable[[Hub], Sequence[str]]
    ) -> None:
        self._translator, self._into, self._names = translator, into, names
        self._known: dict[int, Translation] = {}  # complete ones, by their first finals
        self._live: dict[tuple[int, int], SentenceSoFar] = {}  # by channel and first segment
        self._earlier: deque[SentenceSoFar] = deque(maxlen=_MOST_EARLIER)
        self._open: dict[int, Translation] = {}  # the newest that is not complete, by channel
        self._seats: set[_Seat] = set()
        self._are_ways: dict[str, bool] = {}  # whether there is a way from each spoken language
        self._changed, self._done = asyncio.Event(), asyncio.Event()
        self._is_reading = False  # what was said before, of which there is more
        self._task: asyncio.Task[None] | None = None

    def join(self, hub: Hub, subscription: Subscription, after: int | None) -> "_Seat":
        rest_s = _PATIENCE_S if hub.closed else _REST_S
        seat = _Seat(self, subscription, hub.seq if after is None else after, rest_s)
        self._seats.add(seat)
        known = (self._known[first] for first in sorted(self._known))
        subscription.behind(seat.wanted([*known, *self._open.values()]))
        if self._task is None or self._task.done():
            self._are_ways.clear()
            self._done.clear()
            self._task = asyncio.create_task(self._run(hub, hub.seq))
        return seat

    def leave(self, seat: "_Seat") -> None:
        self._seats.discard(seat)
        if not self._seats:
            self.stop()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._live.clear()
        self._earlier.clear()
        self._open.clear()

    async def settled(self) -> None:
        """Return when all that was said is translated, and the session is over."""
        await self._done.wait()

    async def _run(self, hub: Hub, upto: int) -> None:
        """Translate what the session has said up to final `upto`, and what follows."""
        following = asyncio.create_task(self._follow(hub, upto))
        following.add_done_callback(lambda _: self._changed.set())
        try:
            while True:
                if (sentence := self._next()) is not None:
                    await self._translate(hub, sentence)
                elif following.done():
                    following.result()
                    break
                else:
                    self._changed.clear()
                    await self._changed.wait()
        except Exception as error:
            self._fail(hub, error)
        finally:
            following.cancel()
            self._done.set()

    async def _follow(self, hub: Hub, upto: int) -> None:
        language, *others = hub.choices.language.split(",")
        known = "" if language == "auto" or others else language
        # Whisper's translations are English, whatever was spoken.
        written = "en" if hub.choices.task == "translate" else ""
        sentences = Sentences(known, written=written)
        seq = n_read = 0
        self._is_reading = upto > 0
        while True:
            with hub.subscribe(after=seq, listens=False) as events:
                async for event in events:
                    seq = event.seq if isinstance(event, Final) else seq
                    for sentence in sentences.take(event):
                        self._wait(sentence, is_earlier=0 < sentence.last <= upto)
                    n_read += 1
                    read = event.to_seq if isinstance(event, Missed) else seq
                    if self._is_reading and read >= upto:
                        self._is_reading = False
                        self._changed.set()
                    if n_read % _AT_ONCE == 0:
                        # What is stored is read without waiting, and captions would wait for all.
                        await asyncio.sleep(0)
                if not events.slow:
                    self._is_reading = False
                    return
                # The queue overflowed: subscribe again, which loses partials but no finals.

    def _wait(self, sentence: SentenceSoFar, *, is_earlier: bool) -> None:
        """Note that a sentence is to be translated; one that it replaces need not be any more."""
        if sentence.said.seq in self._known:
            return
        key = (sentence.said.channel or 0, sentence.said.seg)
        if is_earlier and sentence.is_complete:
            self._earlier.append(sentence)
            self._live.pop(key, None)
        else:
            self._live[key] = sentence
            while len(self._live) > _MOST_WAITING:
                del self._live[next(iter(self._live))]
        self._changed.set()

    def _next(self) -> SentenceSoFar | None:
        if self._live:
            return self._live.pop(next(iter(self._live)))
        # The newest of them is the last that is read.
        return self._earlier.pop() if self._earlier and not self._is_reading else None

    async def _translate(self, hub: Hub, sentence: SentenceSoFar) -> None:
        said, channel = sentence.said, sentence.said.channel or 0
        if not self._is_way(hub, said.language):
            return
        text = await asyncio.wrap_future(
            self._translator.translate(
                said.text, source=said.language, target=self._into, names=self._names(hub)
            )
        )
        before = self._open.get(channel)
        rev = before.rev + 1 if before is not None and before.seg == said.seg else 0
        done = Translation(
            into=self._into,
            language=said.language,
            seg=said.seg,
            rev=rev,
            first=said.seq,
            last=sentence.last,
            start_ms=said.start_ms,
            end_ms=said.end_ms,
            text=text,
            complete=sentence.is_complete,
            channel=said.channel,
        )
        if done.complete:
            self._known[done.first] = done
            if len(self._known) > _MOST_KEPT:
                del self._known[min(self._known)]
            if before is not None and before.seg == done.seg:
                del self._open[channel]
        else:
            self._open[channel] = done
        for seat in list(self._seats):
            seat.give(done)

    def _is_way(self, hub: Hub, source: str) -> bool:
        """Whether a language can be translated; of each that cannot, readers are told once.

        Somebody may say a sentence in another language, or one may be taken for it.
        """
        if source not in self._are_ways:
            try:
                self._translator.route(source, self._into)
            except ModelError as error:
                self._are_ways[source] = False
                self._fail(hub, error, of=f"from {source} ")
            else:
                self._are_ways[source] = True
        return self._are_ways[source]

    def _fail(self, hub: Hub, error: Exception, *, of: str = "") -> None:
        """Tell those who read the language what is not translated, and why; once in the log."""
        bug = error if is_bug(error) else None
        what = "session %s is not translated into %s: %s"
        log.warning(what, hub.session, self._into, error, exc_info=bug)
        told = for_clients(f"no translation {of}into {self._into}", error)
        for seat in self._seats:
            seat.give(Fault(code="translation", message=told))


class _Seat(LanguageReader):
    """A reader, who may leave, of what follows final number `after`.

    At the end of the session, the rest may take `rest_s`.
    """

    def __init__(
        self, reading: _Reading, subscription: Subscription, after: int, rest_s: float
    ) -> None:
        self._reading, self._subscription, self._after = reading, subscription, after
        self._rest_s = rest_s
        self._late: list[SessionEvent] = []

    def wanted(self, known: Sequence[Translation]) -> Iterator[Translation]:
        return (each for each in known if not (each.complete and each.last <= self._after))

    def give(self, event: Translation | Fault) -> None:
        is_whole = isinstance(event, Translation) and event.complete and event.rev == 0
        # Who comes while a sentence is open gets its end, too.
        if isinstance(event, Translation) and is_whole and event.last <= self._after:
            return
        if self._subscription.closed:
            self._late.append(event)
        else:
            self._subscription.offer(event)

    async def rest(self) -> Sequence[SessionEvent]:
        try:
            async with asyncio.timeout(self._rest_s):
                await self._reading.settled()
        except TimeoutError:
            log.info("the end of a session was not translated in time")
        return self._late

    def leave(self) -> None:
        self._reading.leave(self)
