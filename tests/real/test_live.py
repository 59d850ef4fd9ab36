"""The multilingual base live: the language that is spoken, and translation while it is spoken."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
import soundfile

from streamd.config import load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.events import Final
from streamd.types import FRAME, SAMPLE_RATE, Window
from tests.real.cases import GOLDEN, LANGUAGES, ROOT
from tests.real.test_base import BASE, pytestmark

__all__ = ["pytestmark"]
TRANSLATED = {
    case["sound"]: case["text"]
    for case in json.loads(GOLDEN.read_text())["cases"]
    if case["options"].get("task") == "translate"
}


@dataclass
class Heard:
    finals: list[Final] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    n_decoded_again: int = 0


def live(code: str, **options: str) -> Heard:
    """What a session makes of a recording, with two seconds of silence after it."""
    path = ROOT / LANGUAGES[code]
    if not path.exists():
        pytest.skip(f"needs {LANGUAGES[code]}")
    config = load({"model": str(BASE), "threads": "1", **options}, {})
    recognizer = build.recognizer(config, *open_model(config))
    session, heard = build.new_session(config), Heard()
    sound, _ = soundfile.read(path, dtype="float32")
    sound = np.pad(sound, (0, 2 * SAMPLE_RATE + -len(sound) % FRAME))

    def drain(events: list) -> None:
        while (window := session.next_window()) is not None:
            heard.windows.append(window)
            events = events + session.accept(window, recognizer.recognize(window))
        heard.finals += [event for event in events if isinstance(event, Final)]

    for block in np.split(sound.reshape(-1, FRAME), range(25, len(sound) // FRAME, 25)):
        drain(session.feed(block))
    drain(session.flush())
    heard.n_decoded_again = recognizer.counters.fallbacks
    return heard


@pytest.mark.parametrize("code", LANGUAGES)
def test_the_language_is_heard_unless_it_is_named(code):
    heard = live(code)
    assert heard.finals[0].language == code


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_translation_is_english_and_decoded_once(code):
    heard = live(code, task="translate")
    assert heard.finals
    # Once if the text repeats itself, as base's from Chinese; all of them if their order counted.
    assert heard.n_decoded_again <= 1
    for final in heard.finals:
        assert final.text.isascii(), final.text
        times = [(word.start_ms, word.end_ms) for word in final.words]
        assert times == sorted(times)
        assert final.start_ms <= times[0][0]
        assert times[-1][1] <= final.end_ms


@pytest.mark.parametrize("code", ["de", "fr"])
def test_a_live_translation_says_about_what_openai_whisper_says(code):
    heard = live(code, task="translate", language=code)
    ours = {word for final in heard.finals for word in final.text.casefold().split()}
    theirs = set(TRANSLATED[LANGUAGES[code]].casefold().split())
    assert len(ours & theirs) >= len(theirs) / 2
