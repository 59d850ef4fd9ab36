"""How the daemon is doing, for Prometheus. Times are seconds, as is its custom."""

from collections.abc import Callable
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
        self._registry = registry = CollectorRegistry()
        self.listeners = Gauge("streamd_subscribers", "Clients that listen", registry=registry)
        self.streams = Gauge("streamd_streams_active", "Sessions going on", registry=registry)
        self.queued = Gauge(
            "streamd_sub_queue_depth", "Events in the longest line of a client", registry=registry
        )
        self.slow = Counter(
            "streamd_slow_disconnects", "Clients cut off as too slow", registry=registry
        )
        self._lag = Histogram(
            "streamd_lag_seconds",
            "End of a final's audio to its text",
            registry=registry,
            buckets=_LAGS_S,
        )
        self._partial = Histogram(
            "streamd_partial_latency_seconds",
            "Audio that came while a partial was made",
            registry=registry,
            buckets=_LAGS_S,
        )
        self._rtf = Gauge(
            "streamd_rtf", "Computing time of the last window by its length", registry=registry
        )
        self._audio = Counter("streamd_audio_seconds", "Audio heard", registry=registry)
        self._speech = Counter("streamd_speech_seconds", "Speech in it", registry=registry)
        self._lost = Counter(
            "streamd_dropped_audio_seconds", "Audio lost", ("why",), registry=registry
        )
        self._fallbacks = Counter(
            "streamd_decode_fallbacks", "Windows decoded at a temperature", registry=registry
        )
        self._full_contexts = Counter(
            "streamd_full_contexts",
            "Windows that a short context did not do for",
            registry=registry,
        )
        self._floor = Gauge(
            "streamd_context_floor",
            "Encoder positions that the last window had at least; 0: by its length",
            registry=registry,
        )
        self._rewritten = Counter(
            "streamd_partial_rewrite_chars", "Shown text taken back", registry=registry
        )
        info = Info("streamd_build", "What is running", registry=registry)
        info.info({"version": version, "model": model})

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)

    def decoded(self, window: Window, hypothesis: Hypothesis, took_s: float) -> None:
        """A window went through the engine, in so many seconds."""
        window_ms = ms_from_frames(window.end - window.start)
        if window_ms:
            self._rtf.set(took_s * 1000 / window_ms)
        self._floor.set(window.min_ctx)
        if hypothesis.failed_ctx:
            self._full_contexts.inc()
        if hypothesis.temperature > 0:
            self._fallbacks.inc()

    def heard(self, duration_ms: int) -> None:
        """Audio came in."""
        self._audio.inc(duration_ms / 1000)

    def follow(self) -> Callable[[Event, int], None]:
        """What counts the events of one session, given with the time (ms) at which they were."""
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
