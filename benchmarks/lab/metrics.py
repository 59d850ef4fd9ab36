"""What an event log and the words that were really said tell about a stream.

Erasure: what was shown and then changed or vanished, over the finals' length (Arivazhagan et al.
2020). Times come from the log's clock; on one that counts no computing time they are what the
literature calls computation-unaware.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from lab.eventlog import Began, Decoded, Ended, Log, Said
from lab.latency import Segment, SpokenWord, final_delays, joined, segments, word_latencies
from streamd.cli.bench import n_edits, spoken
from streamd.events import Final, Gap, Partial, Vad
from streamd.session.commit import normalised


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The middle and the bad end of some durations, in ms, and how many there are."""

    n: int
    median: float | None = None
    p95: float | None = None


def spread(values: Sequence[float]) -> Spread:
    """Of no values at all there is neither middle nor end."""
    if not values:
        return Spread(n=0)
    median, p95 = (round(float(np.percentile(values, q)), 1) for q in (50, 95))
    return Spread(n=len(values), median=median, p95=p95)


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one log; durations in ms, shares 0..1.

    `after_endpoint` is `final_delay` without `endpoint`: `queue` and `compute`. `slow_windows`: the
    share of partials whose window took longer than a step; `merged_steps`: steps that were due but
    had no window of their own; `lag_ms`: the oldest audio that a partial was about. `rtf`: time of
    the recognizer, `cpu_share`: CPU time of the process, over that of the audio. `dropped_ms`:
    audio that was lost, or was let through by the gate but is in no window. `encoded_frames`: of a
    window, in the mean.
    """

    words: int
    wer: float | None
    first: Spread
    stable: Spread
    final: Spread
    first_partial_ms: float | None
    final_delay: Spread
    endpoint: Spread
    after_endpoint: Spread
    queue: Spread
    compute: Spread
    erasure_words: float
    erasure_characters: float
    commit_violations: int
    windows: int
    window: Spread
    slow_windows: float
    merged_steps: int
    lag_ms: float
    rtf: float
    cpu_share: float
    peak_rss_mb: float
    dropped_ms: int
    drafted: int
    accepted: int
    encoded_frames: float


def measure(log: Log, reference: Sequence[SpokenWord], text: str = "") -> Metrics:
    """Score the whole log of one stream.

    The word error rate is taken against `text` as a whole, since a number may span several words;
    without it against the words one by one.
    """
    (began,) = (entry for entry in log if isinstance(entry, Began))
    (ended,) = (entry for entry in log if isinstance(entry, Ended))
    said = [entry for entry in log if isinstance(entry, Said)]
    windows = [entry for entry in log if isinstance(entry, Decoded)]
    partials = [window for window in windows if not window.last]
    finished = segments(said)
    words = word_latencies(finished, reference)
    finals = final_delays(finished, reference, said=said, windows=windows)
    said_words = spoken(text) if text else [word.text for word in reference]
    n_slow = sum(window.compute_ms > began.step_ms for window in partials)
    return Metrics(
        words=len(said_words),
        wer=_wer(finished, said_words),
        first=spread([row.first for row in words]),
        stable=spread([row.stable for row in words]),
        final=spread([row.final for row in words]),
        first_partial_ms=_first_partial(said, reference),
        final_delay=spread([row.total for row in finals]),
        endpoint=spread([row.endpoint for row in finals]),
        after_endpoint=spread([row.queue + row.compute for row in finals]),
        queue=spread([row.queue for row in finals]),
        compute=spread([row.compute for row in finals]),
        erasure_words=_erasure([[t.split() for t in s.texts] for s in finished]),
        erasure_characters=_erasure([s.texts for s in finished]),
        commit_violations=commit_violations(said),
        windows=len(windows),
        window=spread([window.compute_ms for window in windows]),
        slow_windows=round(n_slow / max(1, len(partials)), 4),
        merged_steps=merged_steps(windows, began.step_ms),
        lag_ms=round(max(map(_lag_ms, said), default=0.0), 1),
        rtf=round(sum(window.compute_ms for window in windows) / began.audio_ms, 4),
        cpu_share=round(ended.cpu_ms / began.audio_ms, 4),
        peak_rss_mb=ended.peak_rss_mb,
        dropped_ms=dropped_ms(said, windows),
        drafted=sum(window.drafted for window in windows),
        accepted=sum(window.accepted for window in windows),
        encoded_frames=round(sum(w.encoded_frames for w in windows) / max(1, len(windows)), 1),
    )


def commit_violations(said: Iterable[Said]) -> int:
    """How many events contradict what was committed before, or say a final twice."""
    committed: dict[int, str] = {}  # marks and capitals may change
    done: set[int] = set()
    n = 0
    for entry in joined(said):
        event = entry.event
        if not isinstance(event, Partial | Final):
            continue
        before = committed.get(event.seg, "")
        text = event.text if isinstance(event, Final) else event.text[: event.stable]
        now = "".join(normalised(word) for word in text.split())
        n += event.seg in done or not now.startswith(before)
        committed[event.seg] = max(before, now, key=len)
        if isinstance(event, Final):
            done.add(event.seg)
    return n


def merged_steps(windows: Sequence[Decoded], step_ms: int) -> int:
    """Steps that passed while the engine was busy.

    Between two partials of one utterance there should be one step; a pause has a window of its own.
    """
    n = 0
    for before, window in pairwise(windows):
        same = before.start_ms <= window.start_ms < before.end_ms < window.end_ms
        if same and not before.last and not window.last:
            n += (window.end_ms - before.end_ms) // step_ms - 1
    return n


def dropped_ms(said: Iterable[Said], windows: Sequence[Decoded]) -> int:
    """Audio that was lost before it came, or that belongs to an utterance but to no window.

    An utterance reaches from where the gate says that it starts to the end of its last window; one
    without any window is dropped as a whole.
    """
    events = [entry.event for entry in said]
    lost_ms = sum(event.duration_ms for event in events if isinstance(event, Gap))
    vad = [event for event in events if isinstance(event, Vad)]
    starts = [event.t_ms for event in vad if event.speech]
    stops = [event.t_ms for event in vad if not event.speech]
    for n, (start_ms, stop_ms) in enumerate(zip(starts, stops, strict=False)):
        end_ms = min([stop_ms, *starts[n + 1 : n + 2]])  # the next one may reach back into it
        inside = [w for w in windows if start_ms <= w.start_ms < end_ms]
        lost_ms += _unheard_ms(inside, start_ms) if inside else end_ms - start_ms
    return lost_ms


def _unheard_ms(windows: Sequence[Decoded], start_ms: int) -> int:
    n_ms, reached = 0, start_ms
    for window in sorted(windows, key=lambda window: window.start_ms):
        n_ms += max(0, window.start_ms - reached)
        reached = max(reached, window.end_ms)
    return n_ms


def _wer(finished: Sequence[Segment], words: Sequence[str]) -> float | None:
    heard = spoken(" ".join(segment.texts[-1] for segment in finished))
    return round(n_edits(words, heard) / len(words), 4) if words else None


def _erasure(shown: Sequence[Sequence[str] | Sequence[list[str]]]) -> float:
    n_final = sum(len(texts[-1]) for texts in shown)
    return round(sum(map(erased, shown)) / max(1, n_final), 4)


def _first_partial(said: Iterable[Said], reference: Sequence[SpokenWord]) -> float | None:
    """From the start of the first word to the first text."""
    shown = (s.t_ms for s in said if isinstance(s.event, Partial | Final) and s.event.text)
    t_ms = next(shown, None)
    start_ms = reference[0].start_ms if reference else None
    return None if t_ms is None or start_ms is None else round(t_ms - start_ms, 1)


def _lag_ms(entry: Said) -> float:
    return entry.t_ms - entry.event.end_ms if isinstance(entry.event, Partial) else 0.0


def erased(texts: Sequence[str | Sequence[str]]) -> int:
    """How much of each text, in characters or words, is gone or changed in the next one."""
    return sum(len(old) - _common(old, new) for old, new in pairwise(texts))


def _common(old: str | Sequence[str], new: str | Sequence[str]) -> int:
    n = 0
    for a, b in zip(old, new, strict=False):
        if a != b:
            break
        n += 1
    return n
