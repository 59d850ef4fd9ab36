"""When each word was seen, and what each final waited for.

Of a reference word that the final has right, the latency runs from its end in the audio to the
first event that shows it in its place (`first`), to the one from which on it stays (`stable`), to
the one that promises it (`final`), and to the final that it is in (`closed`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from lab.alignment import align
from lab.eventlog import Decoded, Said
from streamd.cli.bench import spoken
from streamd.events import Final, Partial, SessionEvent, TimedWord, Vad


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word that was said, as `spoken` gives it; times are None where nobody knows them."""

    text: str
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """The events that showed an utterance, from its first partial to its last final, and its words.

    `closed_ms`: when each word was in a final.
    """

    said: tuple[Said, ...]
    words: tuple[str, ...]
    closed_ms: tuple[float, ...]

    @property
    def final(self) -> Said:
        """The last event."""
        return self.said[-1]

    @property
    def texts(self) -> list[str]:
        """What was shown, oldest first; the last one is the final's."""
        return [said.event.text for said in self.said if isinstance(said.event, Partial | Final)]


@dataclass(frozen=True, slots=True)
class WordLatency:
    """Of one word, in ms."""

    first: float
    stable: float
    final: float
    closed: float


@dataclass(frozen=True, slots=True)
class FinalDelay:
    """From the end of a segment's last word to its final, in ms.

    `endpoint`: until the silence had lasted long enough; then `queue`: waiting for the engine, and
    `compute`: its work. A final that was prepared during the silence has neither.
    """

    total: float
    endpoint: float
    queue: float
    compute: float


def segments(said: Sequence[Said]) -> list[Segment]:
    """The utterances that became final, in their order."""
    shown: dict[int, list[Said]] = {}
    closed_ms: list[float] = []
    done = []
    for entry, whole in zip(said, joined(said), strict=True):
        if not isinstance(whole.event, Partial | Final):
            continue
        shown.setdefault(whole.event.seg, []).append(whole)
        if isinstance(entry.event, Final):
            closed_ms += [entry.t_ms] * len(_flat(entry.event.words))
            if isinstance(whole.event, Final):
                words = tuple(word for word, _ in _flat(whole.event.words))
                events = tuple(shown.pop(whole.event.seg))
                done.append(Segment(events, words, tuple(closed_ms)))
                closed_ms = []
    return done


def joined(said: Iterable[Said]) -> list[Said]:
    """The events, with all sentences of an utterance as one segment.

    A final that continues is a partial of which everything is stable, with what comes at once.
    """
    sentences: list[Final] = []
    whole: list[Said] = []
    for entry in said:
        event: SessionEvent = entry.event
        if isinstance(event, Partial | Final):
            before, event = sentences, _behind(sentences, event)
            is_end = isinstance(event, Final)
            sentences = [] if is_end else before
            if isinstance(entry.event, Final) and not is_end:
                sentences = [*before, entry.event]
        whole.append(Said(t_ms=entry.t_ms, heard_ms=entry.heard_ms, event=event))
    for i in reversed(range(len(whole) - 1)):
        event, following = whole[i].event, whole[i + 1].event
        if not isinstance(event, Partial) or not isinstance(following, Partial | Final):
            continue
        if whole[i].t_ms == whole[i + 1].t_ms and event.seg == following.seg:
            whole[i] = replace(whole[i], event=_as_partial(following))
    return whole


def _behind(sentences: Sequence[Final], event: Partial | Final) -> Partial | Final:
    """The event, with the sentences before it; one that continues as a partial."""
    first = sentences[0] if sentences else event
    before = "".join(f"{sentence.text} " for sentence in sentences)
    words = tuple(word for each in (*sentences, event) for word in each.words)
    n_stable = len(event.text)
    if isinstance(event, Final) and not event.continues:
        text = before + event.text
        return replace(event, seg=first.seg, start_ms=first.start_ms, text=text, words=words)
    if isinstance(event, Partial):
        n_stable = event.stable
    return Partial(
        seg=first.seg,
        rev=0,
        start_ms=first.start_ms,
        end_ms=event.end_ms,
        text=before + event.text,
        stable=len(before) + n_stable,
        words=words,
    )


def _as_partial(event: Partial | Final) -> Partial:
    if isinstance(event, Partial):
        return event
    return Partial(
        seg=event.seg,
        rev=0,
        start_ms=event.start_ms,
        end_ms=event.end_ms,
        text=event.text,
        stable=len(event.text),
        words=event.words,
    )


def word_latencies(
    finished: Sequence[Segment], reference: Sequence[SpokenWord]
) -> list[WordLatency]:
    """Of each reference word that is right in a final and whose end is known."""
    times = [row for segment in finished for row in _word_times(segment)]
    out = []
    for i, j in _pairs(finished, reference):
        end_ms = reference[i].end_ms
        if end_ms is not None:
            at = times[j]
            out.append(
                WordLatency(
                    first=at.first - end_ms,
                    stable=at.stable - end_ms,
                    final=at.final - end_ms,
                    closed=at.closed - end_ms,
                )
            )
    return out


def final_delays(
    finished: Sequence[Segment],
    reference: Sequence[SpokenWord],
    *,
    said: Iterable[Said],
    windows: Iterable[Decoded],
) -> list[FinalDelay]:
    """Of each segment whose last word is right, its end known, and that a silence ended."""
    stops = _stops(said)
    computed = {window.end_ms: window for window in windows if window.last}
    ends = {j: reference[i].end_ms for i, j in _pairs(finished, reference)}
    out, n_words = [], 0
    for segment in finished:
        n_words += len(segment.words)
        final = segment.final
        end_ms = ends.get(n_words - 1)
        assert isinstance(final.event, Final)
        stop_ms = stops.get(final.event.start_ms)
        window = computed.get(final.event.end_ms)
        if not segment.words or end_ms is None or stop_ms is None or window is None:
            continue
        compute = max(0.0, min(window.t_ms, final.t_ms) - max(window.begun_ms, stop_ms))
        queue = max(0.0, final.t_ms - stop_ms - compute)
        out.append(FinalDelay(final.t_ms - end_ms, stop_ms - end_ms, queue, compute))
    return out


def _pairs(finished: Sequence[Segment], reference: Sequence[SpokenWord]) -> list[tuple[int, int]]:
    """StorePaths of the words that are right, in the reference and in all finals together."""
    words = [word for segment in finished for word in segment.words]
    return [
        (i, j)
        for i, j in align([word.text for word in reference], words)
        if i is not None and j is not None and reference[i].text == words[j]
    ]


def _flat(words: Iterable[TimedWord]) -> list[tuple[str, bool]]:
    """Each spoken word, and whether it was promised."""
    return [(word, timed.final) for timed in words for word in spoken(timed.text)]


def _word_times(segment: Segment) -> list[WordLatency]:
    """When each word of the final was shown first, for good, and promised."""
    n, last = len(segment.words), segment.final.t_ms
    first, stable, final = [last] * n, [last] * n, [last] * n
    for entry in reversed(segment.said[:-1]):
        assert isinstance(entry.event, Partial)
        shown = _flat(entry.event.words)
        there = {
            i: shown[j][1]
            for i, j in align(segment.words, [word for word, _ in shown])
            if i is not None and j is not None and segment.words[i] == shown[j][0]
        }
        for i in range(n):
            if i in there:
                stayed = stable[i] == _next_shown(segment, entry)
                first[i] = entry.t_ms
                stable[i] = entry.t_ms if stayed else stable[i]
                final[i] = entry.t_ms if there[i] else final[i]
    return [
        WordLatency(*times) for times in zip(first, stable, final, segment.closed_ms, strict=True)
    ]


def _next_shown(segment: Segment, entry: Said) -> float:
    """The time of the event behind this one."""
    return segment.said[segment.said.index(entry) + 1].t_ms


def _stops(said: Iterable[Said]) -> dict[int, float]:
    """When it was known that an utterance is over, by where its audio starts."""
    stops: dict[int, float] = {}
    start_ms = 0
    for entry in said:
        if isinstance(entry.event, Vad):
            if entry.event.speech:
                start_ms = entry.event.t_ms
            else:
                stops[start_ms] = entry.t_ms
    return stops
