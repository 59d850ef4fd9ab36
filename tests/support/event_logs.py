"""Event logs written by hand."""

from lab.eventlog import Began, Decoded, Ended, Said
from streamd.events import Final, Partial, TimedWord, Vad

BEGAN = Began(name="hand", model="none", clock="real", step_ms=500, audio_ms=4_000)
ENDED = Ended(t_ms=4_100, cpu_ms=400, peak_rss_mb=10.0)


def words(text: str, n_final: int) -> tuple[TimedWord, ...]:
    return tuple(
        TimedWord(text=word, start_ms=0, end_ms=0, prob=1.0, final=i < n_final)
        for i, word in enumerate(text.split())
    )


def partial(t_ms: float, text: str, n_final: int = 0, end_ms: int = 0, seg: int = 1) -> Said:
    stable = len(" ".join(text.split()[:n_final]))
    event = Partial(
        seg=seg, rev=1, start_ms=100, end_ms=end_ms, text=text, stable=stable,
        words=words(text, n_final),
    )  # fmt: skip
    return Said(t_ms=t_ms, heard_ms=int(t_ms), event=event)


def final(
    t_ms: float, text: str, end_ms: int = 1_800, seg: int = 1, *, continues: bool = False
) -> Said:
    event = Final(
        seg=seg, seq=seg, start_ms=100, end_ms=end_ms, text=text, language="en",
        words=words(text, 99), continues=continues,
    )  # fmt: skip
    return Said(t_ms=t_ms, heard_ms=int(t_ms), event=event)


def vad(t_ms: float, speech: bool, at_ms: int) -> Said:
    return Said(t_ms=t_ms, heard_ms=int(t_ms), event=Vad(speech=speech, t_ms=at_ms))


def decoded(begun_ms: float, start_ms: int, end_ms: int, ms: float = 50, last: bool = False):
    return Decoded(
        t_ms=begun_ms + ms, begun_ms=begun_ms, start_ms=start_ms, end_ms=end_ms, last=last,
        compute_ms=ms, cpu_ms=ms, encoded_frames=384, drafted=2, accepted=1,
    )  # fmt: skip
