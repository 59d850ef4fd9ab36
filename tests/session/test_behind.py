"""An engine that is too slow for good, and gaps longer than any memory."""

import numpy as np

from streamd.events import Final, Gap, Partial, Vad
from streamd.options import SessionOptions
from streamd.types import FRAME, FRAME_MS
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    drain,
    fed,
    played,
    scripted_audio,
    scripted_session,
)

SPEECH = [False] * WORD + [True] * (10 * WORD)
SAID = " ".join(f"w{n}" for n in range(1, 11))


def words_of(events) -> list[str]:
    return " ".join(event.text for event in events if isinstance(event, Final)).split()


def run(speech, backlog: int, delay: int):
    """Each window takes the engine `delay` frames."""
    session = scripted_session(SessionOptions(backlog=backlog))
    return played(session, ScriptedRecognizer(), scripted_audio(speech), [delay])[0]


def test_an_engine_that_needs_longer_than_the_backlog_is_still_heard():
    speech = ([True] * (15 * WORD) + [False] * (5 * WORD)) * 25
    events = run(speech, backlog=500, delay=800)
    said = [int(word[1:]) for word in words_of(events) if word.startswith("w")]
    assert len(said) > 50
    assert said == sorted(set(said))


def test_what_the_engine_missed_is_told_in_few_gaps():
    events = run([True] * (500 * WORD), backlog=500, delay=800)
    gaps = [event for event in events if isinstance(event, Gap)]
    assert 0 < len(gaps) <= 500 * WORD / (500 // 10)
    assert sum(gap.duration_ms for gap in gaps) < 500 * WORD * FRAME_MS


def test_committed_words_of_an_utterance_that_was_overwritten_become_final():
    session, recognizer = scripted_session(SessionOptions(backlog=400)), ScriptedRecognizer()
    events = fed(session, recognizer, scripted_audio([True] * (12 * WORD)))
    committed = [event for event in events if isinstance(event, Partial)][-1]
    assert committed.stable > 0
    events = session.feed(np.zeros((1000, FRAME), np.float32))
    final = next(event for event in events if isinstance(event, Final))
    assert final.text.startswith(committed.text[: committed.stable])
    events += drain(session, recognizer, [])
    assert session.idle


def test_the_text_of_a_window_counts_though_its_audio_was_overwritten_meanwhile():
    session, recognizer = scripted_session(SessionOptions(backlog=400)), ScriptedRecognizer()
    audio = scripted_audio([*SPEECH, *[False] * 1000])
    session.feed(audio[: len(SPEECH) + 15])
    window = session.next_window()
    assert window.last
    session.feed(audio[len(SPEECH) + 15 :])
    events = session.accept(window, recognizer.recognize(window))
    events += drain(session, recognizer, [])
    assert words_of(events) == SAID.split()


def test_a_gap_of_a_day_costs_no_memory_and_none_of_what_was_said_before():
    session, recognizer = scripted_session(SessionOptions(backlog=1000)), ScriptedRecognizer()
    day_ms = 24 * 3600 * 1000
    session.feed(scripted_audio(SPEECH))
    [gap, *_] = session.gap(day_ms, "paused")
    assert gap == Gap(t_ms=len(SPEECH) * FRAME_MS, duration_ms=day_ms, why="paused")
    assert session.now < 1000
    [before] = [e for e in drain(session, recognizer, []) if isinstance(e, Final)]
    assert before.text == SAID
    assert before.end_ms < len(SPEECH) * FRAME_MS + 1000

    back_ms = len(SPEECH) * FRAME_MS + day_ms
    n = session.now
    events = session.feed(scripted_audio([False] * (n + 50) + [True] * (5 * WORD))[n:])
    events += session.flush() + drain(session, recognizer, [])
    [after] = [e for e in events if isinstance(e, Final)]
    assert Vad(speech=True, t_ms=back_ms + 500) in events  # a second of silence, less the pre-roll
    assert after.start_ms == back_ms + 500
    assert (
        back_ms + 1000 - WORD * FRAME_MS
        <= after.words[0].start_ms
        <= back_ms + 1000 + WORD * FRAME_MS
    )
    assert after.end_ms == back_ms + 1000 + 5 * WORD * FRAME_MS


def test_speech_right_behind_a_long_gap_starts_behind_it():
    session = scripted_session()
    session.gap(3_600_000, "torn")
    n = session.now
    [started] = session.feed(scripted_audio([False] * n + [True] * 10)[n:])
    assert started == Vad(speech=True, t_ms=3_600_000 - 500)
