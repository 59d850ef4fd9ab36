"""Who says the words of a session's events."""

import msgspec
import numpy as np
from msgspec import UNSET

from streamd.events import Final, Gap, SpeakerTurn, SpeakerTurns, TimedWord, Vad
from streamd.session.timeline import Timeline
from streamd.session.who import WhoSpeaks
from streamd.sinks.text import by_speaker
from streamd.speakers import HeardVoices, VoiceStretch
from streamd.streams.journal import JournalLine, read_line
from streamd.types import ResumeState

ANA, BEN = np.eye(256, dtype=np.float32)[:2]


def final(*words):
    """A final of words: (text, start_ms, end_ms)."""
    timed = tuple(
        TimedWord(text=text, start_ms=start, end_ms=end, prob=1.0, final=True)
        for text, start, end in words
    )
    text = " ".join(word.text for word in timed)
    return Final(seg=1, start_ms=0, end_ms=timed[-1].end_ms, text=text, language="en", words=timed)


SAID = final(("Who", 100, 400), ("is", 400, 600), ("there?", 600, 1000), ("Me.", 1600, 1900))


def heard():
    """Ana talks until 1 s, Ben from 1.5 s on."""
    who = WhoSpeaks()
    request = who.request((0, 100), 0, last=True)
    stretches = (
        VoiceStretch(((2, 50),), 0, 0, False, ANA, 48),
        VoiceStretch(((75, 98),), 1, 0, False, BEN, 23),
    )
    return who, who.hear(HeardVoices(request, stretches))


def test_nothing_changes_unless_it_is_wanted():
    who = WhoSpeaks()
    events = [Vad(speech=True, t_ms=0), SAID]
    assert who.name(events) == events
    assert who.hear(None) == []
    assert who.voiceprints is UNSET
    line = msgspec.json.encode(JournalLine(resume_state=ResumeState()))
    assert b"voice" not in line
    assert b"speaker" not in msgspec.json.encode(SAID)


def test_words_have_the_speaker_who_talks_meanwhile():
    who, told = heard()
    turns = (
        SpeakerTurn(start_ms=40, end_ms=1000, speaker=1),
        SpeakerTurn(start_ms=1500, end_ms=1960, speaker=2),
    )
    assert told == [SpeakerTurns(start_ms=0, end_ms=2000, turns=turns)]
    (named,) = who.name([SAID])
    assert [word.speaker for word in named.words] == [1, 1, 1, 2]
    assert named.text == SAID.text
    assert named.speaker == 1
    assert [(part.text, part.speaker) for part in by_speaker(named)] == [
        ("Who is there?", 1),
        ("Me.", 2),
    ]
    assert by_speaker(SAID) == [SAID]


def test_the_next_process_knows_the_speakers():
    who, _ = heard()
    state = ResumeState(voiceprints=who.voiceprints)
    kept = read_line(msgspec.json.encode(JournalLine(resume_state=state))).resume_state
    resumed = WhoSpeaks()
    resumed.resume(kept.voiceprints)
    request = resumed.request((0, 100), 0, last=True)
    resumed.hear(HeardVoices(request, (VoiceStretch(((5, 95),), 0, 0, False, BEN, 60),)))
    (named,) = resumed.name([SAID])
    assert {word.speaker for word in named.words} == {2}


def test_turns_are_moved_by_gaps_too():
    timeline = Timeline()
    timeline.jump(1000, 60_000)
    _, told = heard()
    (moved,) = timeline.correct(told)
    assert (moved.start_ms, moved.end_ms) == (0, 62_000)
    assert [(turn.start_ms, turn.end_ms) for turn in moved.turns] == [
        (40, 61_000),
        (61_500, 61_960),
    ]
    assert timeline.correct([Gap(t_ms=500, duration_ms=1, why="x")])[0].t_ms == 500
