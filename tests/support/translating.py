"""A translator without a model, whose translations tell what it was given."""

import functools

from msgspec.structs import replace

from streamd.errors import EngineError
from streamd.events import Final, Partial, TimedWord
from streamd.translation.translator import Translator
from tests.support import said
from tests.support.said import spoken, timed


def shouting(*directions: str) -> tuple[Translator, list[str]]:
    """A translator with models such as "en-pt", and the texts that these have translated.

    They translate by capitals, behind the language; "panic" makes them fail.
    """
    seen: list[str] = []

    def shout(target: str, text: str) -> str:
        seen.append(text)
        if "panic" in text:
            raise EngineError("the model failed")
        return f"{target}:{text.upper()}"

    pairs = [tuple(each.split("-")) for each in directions]
    return Translator(lambda source, target: functools.partial(shout, target), pairs), seen


def words(text: str, start_ms: int, *, n_final: int | None = None) -> tuple[TimedWord, ...]:
    """The words of a text, each 300 ms long."""
    known = timed(text.split(), start_ms, prob=1.0)
    return tuple(
        replace(word, final=n_final is None or i < n_final) for i, word in enumerate(known)
    )


def final(text: str, *, seg: int = 1, start_ms: int = 0, seq: int = 0, **more: object) -> Final:
    return spoken(text, start_ms=start_ms, seq=seq, seg=seg, prob=1.0, **more)


def partial(text: str, n_final: int, *, seg: int = 1, start_ms: int = 0, **more: object) -> Partial:
    known = words(text, start_ms, n_final=n_final)
    stable = len(" ".join(text.split()[:n_final]))
    times = {"start_ms": start_ms, "end_ms": known[-1].end_ms}
    return said.partial(text, seg=seg, rev=0, stable=stable, words=known, **times, **more)
