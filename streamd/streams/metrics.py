"""Prometheus metrics of the daemon. Times are in seconds, as is usual there."""

from collections.abc import Callable
from functools import partial
from itertools import takewhile

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from streamd.events import Event, Final, Gap, Partial, Vad
from streamd.types import Hypothesis, Window, ms_from_frames

_LAGS_S = (0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)


class Metrics:
    """Counts what all sessions of the process do."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, *, version: str, model: str) -> None:
        registry = self._registry = CollectorRegistry()
        gauge = partial(Gauge, namespace="streamd", registry=registry)
        counter = partial(Counter, namespace="streamd", registry=registry)
        latency = partial(Histogram, namespace="streamd", registry=registry, buckets=_LAGS_S)
        self.listeners = gauge("subscribers", "Connected listeners")
        self.streams = gauge("streams_active", "Sessions in progress")
        self.uploads = gauge("uploads_active", "Recordings being received or transcribed")
        self.queued = gauge("sub_queue_depth", "Events in the longest queue of a client")
        self.unstored = gauge("unstored_seconds", "Time that an event has waited for the bus")
        self.replaced = counter("sessions_replaced", "Sessions that another node has taken over")
        self.refused = counter("refused", "Clients and recordings refused, by code", ("code",))
        self.slow = counter("slow_disconnects", "Clients disconnected for reading too slowly")
        self._lag = latency("lag_seconds", "Time from the end of the audio of a final to its text")
        self._partial = latency(
            "partial_latency_seconds", "Audio received while a partial was being decoded"
        )
        self._rtf = gauge("rtf", "Computing time of the last window per second of its audio")
        self._audio = counter("audio_seconds", "Audio received")
        self._speech = counter("speech_seconds", "Speech detected in the audio received")
        self._lost = counter("dropped_audio_seconds", "Audio lost, by reason", ("why",))
        self._fallbacks = counter("decode_fallbacks", "Windows decoded at a temperature above 0")
        self._attempts = counter(
            "decode_attempts", "Ways to decode a window again that were tried", ("attempt", "kept")
        )
        self._rewritten = counter(
            "partial_rewrite_chars", "Characters of partials that were shown and then retracted"
        )
        info = Info("streamd_build", "Version and model", registry=registry)
        info.info({"version": version, "model": model})

    def text(self) -> bytes:
        """Return all metrics in the exposition format."""
        return generate_latest(self._registry)

    def decoded(self, window: Window, hypothesis: Hypothesis, took_s: float) -> None:
        """Count a window that the engine decoded in `took_s` seconds."""
        window_ms = ms_from_frames(window.end - window.start)
        if window_ms:
            self._rtf.set(took_s * 1000 / window_ms)
        if hypothesis.temperature > 0:
            self._fallbacks.inc()
        for attempt, is_kept in hypothesis.work.attempts:
            self._attempts.labels(attempt, str(is_kept).lower()).inc()

    def received(self, duration_ms: int) -> None:
        """Count audio that a session received."""
        self._audio.inc(duration_ms / 1000)

    def observer(self) -> Callable[[Event, int], None]:
        """Return a function that counts each event of one session, given the session time (ms)."""
        shown, began_ms = "", 0

        def observe(event: Event, now_ms: int) -> None:
            nonlocal shown, began_ms
            match event:
                case Partial() | Final():
                    same = takewhile(
                        lambda pair: pair[0] == pair[1], zip(shown, event.text, strict=False)
                    )
                    self._rewritten.inc(len(shown) - sum(1 for _ in same))
                    shown = event.text if isinstance(event, Partial) else ""
                    if isinstance(event, Partial):
                        self._partial.observe(event.lag_ms / 1000)
                    else:
                        self._lag.observe(max(0, now_ms - event.end_ms) / 1000)
                case Gap():
                    self._lost.labels(event.why).inc(event.duration_ms / 1000)
                case Vad(speech=True):
                    began_ms = event.t_ms
                case Vad():
                    self._speech.inc(max(0, event.t_ms - began_ms) / 1000)
                case _:
                    pass

        return observe
