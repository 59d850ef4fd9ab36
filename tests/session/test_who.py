"""Who says the words of a session's events."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from streamd.events import (
    Final,
    Gap,
    Partial,
    SpeakerName,
    SpeakerTurn,
    SpeakerTurns,
    TimedWord,
    Vad,
)
from streamd.labels import by_speaker, with_speakers
from streamd.options import SessionOptions
from streamd.session.timeline import Timeline
from streamd.session.who import WhoSpeaks
from streamd.speakers import HeardVoices, HearingRequest, HearingStep, Roster, SpokenTurn
from streamd.speakers.people import Person
from streamd.streams.journal.lines import JournalLine, read_line
from streamd.types import FRAME, ResumeState
from tests.support.fakes import (
    LOUD,
    ScriptedRecognizer,
    drain,
    ending,
    scripted_audio,
    scripted_session,
    speech_of,
)

ANA, BEN, CLEO = np.eye(256, dtype=np.float32)[:3]


def final(*words):
    """A final of words: (text, start_ms, end_ms)."""
    timed = tuple(
        TimedWord(text=text, start_ms=start, end_ms=end, prob=1.0, final=True)
        for text, start, end in words
    )
    text = " ".join(word.text for word in timed)
    return Final(seg=1, start_ms=0, end_ms=timed[-1].end_ms, text=text, language="en", words=timed)


SAID = final(("Who", 100, 400), ("is", 400, 600), ("there?", 600, 1000), ("Me.", 1600, 1900))


def heard(who, *talk):
    """Have it hear a step of two seconds, in which (start, end, voice) talk; return the events."""
    for frame in range(100):
        who.push(frame + 1, 0, 0)
    who.flush()
    request = who.request(100, 0, lambda start, end: np.zeros(320 * (end - start), np.float32))
    return who.hear([after(request.roster, *talk)])


def after(roster, *talk):
    """The roster when it has also heard two seconds, in which (start, end, voice) talk."""
    roster, step = roster.copy(), HearingStep(0, 0, 100, 100)
    activity = np.zeros((100, 3), np.bool_)
    for local, (start, end, _) in enumerate(talk):
        activity[start:end, local] = True
    voices = np.stack([voice for _, _, voice in talk])

    def listen(first, end):
        said = activity[first:end, : len(talk)]
        return lambda frames: voices[(frames.astype(int) @ said).argmax(1)]

    roster.hear(step, activity, activity.astype(np.float32), np.zeros(100), listen)
    return roster


def dialogue():
    """Ana talks until 1 s, Ben from 1.5 s on."""
    who = WhoSpeaks()
    return who, heard(who, (2, 50, ANA), (68, 98, BEN))


def test_nothing_changes_unless_it_is_wanted():
    who = WhoSpeaks()
    events = [Vad(speech=True, t_ms=0), SAID]
    assert who.name(events) == events
    assert who.hear([]) == []
    assert who.voiceprints is UNSET
    line = msgspec.json.encode(JournalLine(resume_state=ResumeState()))
    assert b"voice" not in line
    assert b"speaker" not in msgspec.json.encode(SAID)


def test_words_have_the_speaker_who_talks_meanwhile():
    who, told = dialogue()
    assert told == [SpeakerTurns(start_ms=0, end_ms=2000, turns=())]  # nobody has said a word
    turns = (
        SpeakerTurn(start_ms=40, end_ms=1000, speaker=1),
        SpeakerTurn(start_ms=1360, end_ms=1960, speaker=2),
    )
    now, named = who.name([SAID])
    assert now == SpeakerTurns(start_ms=40, end_ms=2000, turns=turns)
    assert [word.speaker for word in named.words] == [1, 1, 1, 2]
    assert named.text == SAID.text
    assert named.speaker == 1
    assert [(part.text, part.speaker) for part in by_speaker(named)] == [
        ("Who is there?", 1),
        ("Me.", 2),
    ]
    assert by_speaker(SAID) == [SAID]


@pytest.mark.parametrize(
    ("text", "turns", "speakers"),
    [
        # A turn begins before the sentence that another one's last words go on with.
        ("to stay. I was lucky", [(0, 66, 1), (50, 160, 2)], [1, 1, 2, 2, 2]),
        ("This is blackmail.", [(0, 32, 1), (0, 100, 2)], [2, 2, 2]),
        (
            "this is mine. Is it not?",
            [(0, 100, 1), (85, 110, 2), (110, 180, 2)],
            [1, 1, 1, 2, 2, 2],
        ),
        ("We are, you know,", [(0, 60, 1), (60, 120, 2)], [1, 1, 2, 2]),  # nobody says all of it
        ("We are sorry.", [(0, 90, 1), (0, 90, 2)], [1, 1, 1]),
        ("We are sorry.", [(0, 90, 1), (0, 95, 2)], [1, 1, 1]),
        ("We are.", [(100, 190, 3)], [3, 3]),
        ("We are.", [], [UNSET, UNSET]),
    ],
)
def test_a_sentence_is_not_cut_where_one_person_may_have_said_all_of_it(text, turns, speakers):
    said = final(*((word, 600 * n, 600 * n + 600) for n, word in enumerate(text.split())))
    named = with_speakers(said, [SpokenTurn(*turn) for turn in turns])
    assert [word.speaker for word in named.words] == speakers


def test_words_before_a_frame_keep_their_speaker():
    words = tuple(msgspec.structs.replace(word, speaker=1) for word in SAID.words)
    named = msgspec.structs.replace(SAID, words=words)
    again = with_speakers(named, [SpokenTurn(0, 100, 2)], since=30)
    assert [word.speaker for word in again.words] == [1, 1, 2, 2]


def test_a_voice_takes_no_number_before_it_has_words():
    who = WhoSpeaks()
    heard(who, (0, 32, CLEO), (33, 65, ANA), (66, 98, BEN))  # Cleo only laughs
    said = final(("Who?", 700, 1300), ("Me.", 1400, 1900))
    told, named = who.name([said])
    assert [word.speaker for word in named.words] == [1, 2]
    assert [turn.speaker for turn in told.turns] == [1, 2]
    assert len(who.voiceprints) == 2
    (named,) = who.name([final(("Ha.", 100, 600))])[1:]
    assert [word.speaker for word in named.words] == [3]


def test_words_that_vanish_again_take_no_number():
    who, _ = dialogue()
    words = tuple(msgspec.structs.replace(word, final=False) for word in SAID.words)
    shown = Partial(seg=1, rev=1, start_ms=0, end_ms=1900, text=SAID.text, stable=0, words=words)
    (partial,) = who.name([shown])
    assert [word.speaker for word in partial.words] == [1, 1, 1, 2]
    _, named = who.name([final(("Me.", 1600, 1900))])
    assert [word.speaker for word in named.words] == [1]


def test_a_speaker_whose_voice_is_known_has_a_name_with_the_first_word():
    who = WhoSpeaks()
    before = after(Roster(), (2, 98, BEN))
    who.meet([Person("Ben", *before.prints[0])])
    heard(who, (2, 36, ANA), (45, 98, BEN))
    _, told, named = who.name([final(("Who?", 100, 500), ("Me.", 1000, 1900))])
    assert told == SpeakerName(speaker=2, name="Ben")
    assert [word.speaker for word in named.words] == [1, 2]
    assert who.voice(2) == (before.prints[0][0], 53)
    assert who.voice(3) is None
    assert who.name([final(("Me.", 1000, 1900))])[:-1] == []  # it is told once
    # More of the voice is heard, and it is somebody else's.
    who.hear([after(Roster(), (2, 36, ANA), (45, 98, CLEO))])
    assert SpeakerName(speaker=2, name="") in who.name([])


def test_who_is_known_gets_a_number_with_words_that_may_still_vanish():
    who = WhoSpeaks()
    before = after(Roster(), (2, 98, BEN))
    who.meet([Person("Ben", *before.prints[0])])
    heard(who, (2, 36, ANA), (45, 98, BEN))
    timed = tuple(
        msgspec.structs.replace(word, final=False)
        for word in final(("Who?", 100, 500), ("Me.", 1000, 1900)).words
    )
    shown = Partial(seg=1, rev=1, start_ms=0, end_ms=1900, text="Who? Me.", stable=0, words=timed)
    _, told, partial = who.name([shown])
    assert told == SpeakerName(speaker=1, name="Ben")  # Ana has no number yet
    assert [word.speaker for word in partial.words] == [2, 1]


def test_what_was_taken_for_one_voice_gets_a_number_when_it_turns_out_to_be_two():
    who = WhoSpeaks()
    heard(who, (2, 98, ANA))
    _, named = who.name([SAID])
    assert {word.speaker for word in named.words} == {1}
    (told,) = who.hear([after(Roster(), (2, 50, ANA), (68, 98, BEN))])
    assert [turn.speaker for turn in told.turns] == [1, 2]


def test_whoever_only_coughs_takes_no_number_by_a_word_before_that_is_in_no_turn():
    who = WhoSpeaks()
    heard(who, (2, 36, ANA))
    who.name([final(("Who", 100, 500), ("hm", 1100, 1200))])
    (told,) = who.hear([after(Roster(), (2, 36, ANA), (68, 98, BEN))])
    assert told.turns == ()
    assert len(who.voiceprints) == 1


def test_the_next_process_knows_the_speakers():
    who, _ = dialogue()
    who.name([SAID])
    state = ResumeState(voiceprints=who.voiceprints)
    kept = read_line(msgspec.json.encode(JournalLine(resume_state=state))).resume_state
    resumed = WhoSpeaks()
    resumed.resume(kept.voiceprints)
    heard(resumed, (5, 95, BEN))
    (named,) = resumed.name([SAID])
    assert {word.speaker for word in named.words} == {2}


def test_turns_are_moved_by_gaps_too():
    timeline = Timeline()
    timeline.jump(1000, 60_000)
    who, _ = dialogue()
    moved, _ = timeline.correct(who.name([SAID]))
    assert (moved.start_ms, moved.end_ms) == (40, 62_000)
    assert [(turn.start_ms, turn.end_ms) for turn in moved.turns] == [
        (40, 61_000),
        (61_360, 61_960),
    ]
    assert timeline.correct([Gap(t_ms=500, duration_ms=1, why="x")])[0].t_ms == 500


class Ear(ScriptedRecognizer):
    """Hears the scripted words, and in each two seconds Ana or Ben in turn."""

    def recognize(self, window):
        hypothesis = super().recognize(window)
        if (request := window.asked(HearingRequest)) is None:
            return hypothesis
        heard = [request.roster]
        for step in request.steps:
            heard.append(heard[-1].copy())
            first, after = (FRAME * (at - request.start) for at in (step.start, step.end))
            frames = request.audio[first:after].reshape(-1, FRAME)
            assert round(float(frames[0, 0]) / 2.0**-20) == step.start
            activity = np.zeros((len(frames), 3), np.bool_)
            activity[:, 0] = frames[:, 1] > LOUD

            def listen(first, end, start=step.start):
                # Each talks for two seconds; a voice is that of its first frame.
                return lambda rows: np.stack(
                    [(ANA, BEN)[(start + first + int(each.argmax())) // 100 % 2] for each in rows]
                )

            chances = activity.astype(np.float32)
            heard[-1].hear(step, activity, chances, np.zeros(len(frames)), listen)
        return hypothesis.answered(HeardVoices(tuple(heard[1:])))


SPEECH = speech_of([(84, 12), (36, 60), (200, 24), (96, 120), (60, 12), (480, 100)])


def who_talks(block, *, every=1, speakers=True):
    """The finals, and who talked when at last, if audio comes in blocks of frames.

    The recognizer is free only after `every` blocks.
    """
    options = SessionOptions(step=25, length=300, speakers=speakers)
    session, ear, events = scripted_session(options), Ear(ending), []
    frames = scripted_audio(SPEECH)
    for i, first in enumerate(range(0, len(frames), block)):
        events += session.feed(frames[first : first + block])
        if i % every == 0:
            events += drain(session, ear, [])
    events += [*session.flush(), *drain(session, ear, [])]
    at_last = np.zeros((len(frames), 17), np.bool_)
    for event in events:
        if isinstance(event, SpeakerTurns):
            at_last[event.start_ms // 20 : event.end_ms // 20] = False
            for turn in event.turns:
                at_last[turn.start_ms // 20 : turn.end_ms // 20, turn.speaker] = True
    return [event for event in events if isinstance(event, Final)], at_last


@given(st.sampled_from([1, 7, 25, 100, 5000]), st.sampled_from([1, 3, 40]))
@settings(max_examples=20)
def test_who_talks_does_not_depend_on_how_fast_audio_or_the_recognizer_is(block, every):
    _, expected = who_talks(1)
    assert 0.8 * sum(SPEECH) < expected.any(1).sum() <= 1.2 * sum(SPEECH)
    assert expected[:, 1:3].any(0).all()
    assert (who_talks(block, every=every)[1] == expected).all()


def test_without_speakers_the_same_words_are_captioned():
    with_them, without = who_talks(25)[0], who_talks(25, speakers=False)[0]
    both = ([word.text.lower() for f in each for word in f.words] for each in (with_them, without))
    assert next(both) == next(both)
    assert len(with_them) > len(without)  # a final ends where another speaker begins
    assert any(word.speaker for final in with_them for word in final.words)
    assert not any(word.speaker for final in without for word in final.words)


def test_a_session_that_goes_on_without_speakers_keeps_their_voices_and_no_finals():
    before, _ = dialogue()
    before.name([SAID])
    session = scripted_session(SessionOptions(step=25, length=300))
    session.resume(ResumeState(voiceprints=before.voiceprints), 0, 1)
    session.feed(scripted_audio(SPEECH))
    events = [*session.flush(), *drain(session, ScriptedRecognizer(ending), [])]
    assert any(isinstance(event, Final) for event in events)
    assert session._who._finals == []
    assert session.resume_state.voiceprints == before.voiceprints
