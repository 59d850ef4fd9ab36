"""What tests let somebody say."""

from msgspec import UNSET

from streamd.events import Final, Gap, Partial, TimedWord
from streamd.options import CueLayout
from streamd.sinks.formats import FORMATS

GAP = Gap(t_ms=3_723_004, duration_ms=1240, why="paused")


def final(text, *, start_ms=0, end_ms=None, words=(), seq=1, **fields):
    end_ms = start_ms + 300 * len(text.split()) if end_ms is None else end_ms
    return Final(
        seq=seq,
        start_ms=start_ms,
        end_ms=end_ms,
        text=text,
        words=words,
        **{"language": "en", "seg": seq} | fields,
    )


def partial(text, *, start_ms=0, end_ms=None, stable=0, rev=1, seg=1, **fields):
    end_ms = start_ms + 300 * len(text.split()) if end_ms is None else end_ms
    times = {"start_ms": start_ms, "end_ms": end_ms}
    return Partial(seg=seg, rev=rev, text=text, stable=stable, **times, **fields)


def timed(texts, start_ms=0, word_ms=300, *, every_ms=0, prob=0.9, **fields):
    """Words that take `word_ms` each, and follow each other `every_ms`, or at once."""
    every_ms = every_ms or word_ms
    return tuple(
        TimedWord(
            text=text,
            start_ms=start_ms + i * every_ms,
            end_ms=start_ms + i * every_ms + word_ms,
            prob=prob,
            final=True,
            **fields,
        )
        for i, text in enumerate(texts)
    )


def spoken(text, *, start_ms=0, word_ms=300, seq=1, prob=0.9, speaker=UNSET, **fields):
    """A final whose every word takes `word_ms`."""
    words = timed(text.split(), start_ms, word_ms, prob=prob, speaker=speaker)
    end_ms = start_ms + len(words) * word_ms
    return final(text, start_ms=start_ms, end_ms=end_ms, words=words, seq=seq, **fields)


def written(name, *events, layout=None):
    """The file that a format makes of the events."""
    form = FORMATS[name](layout or CueLayout())
    return form.header + "".join(form.append(event) for event in events) + form.end(complete=True)


SPEECH = (
    "And so, my fellow Americans, ask not what your country can do for you, "
    "ask what you can do for your country. My fellow citizens of the world: ask not "
    "what America will do for you, but what together we can do for the freedom of man."
)
