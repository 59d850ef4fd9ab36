"""Channels with captions of their own: each reads as if it were alone, and all share one clock."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from streamd.events import (
    Final,
    Gap,
    GapReason,
    Partial,
    SpeakerName,
    SpeakerTurn,
    SpeakerTurns,
    TurnEvent,
    Vad,
)
from streamd.labels import revise, revised
from streamd.options import EndpointOptions
from streamd.session.channels import SplitSession
from streamd.types import ResumeState
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    drain,
    ending,
    scripted_audio,
    scripted_session,
    speech_of,
)
from tests.support.said import spoken

stretches = st.lists(st.tuples(st.integers(1, 200), st.integers(0, 200)), max_size=4)


def captions(session, frames, cuts=(), windows=None):
    """All events of a session that is fed the frames in pieces, and asked for windows between."""
    recognizer, events = ScriptedRecognizer(ending), []
    seen = [] if windows is None else windows
    for piece in np.split(frames, sorted(min(cut, len(frames)) for cut in cuts)):
        events += [*session.feed(piece), *drain(session, recognizer, seen)]
    return [*events, *session.flush(), *drain(session, recognizer, seen)]


def side_by_side(*channels):
    """The frames of channels, (n, channels, 320); short ones are followed by silence."""
    n = max(map(len, channels))
    return np.stack([scripted_audio([*each, *[False] * (n - len(each))]) for each in channels], 1)


def anonymous(final):
    words = tuple(replace(word, speaker=UNSET) for word in final.words)
    return replace(final, words=words, channel=UNSET, seg=0)


@given(
    said=st.lists(stretches, min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 2000), max_size=20),
)
def test_a_channel_reads_as_it_does_alone_whatever_the_others_say(said, cuts):
    frames = side_by_side(*map(speech_of, said))
    together = captions(SplitSession(scripted_session), frames, cuts)
    for channel in range(frames.shape[1]):
        own = [e for e in together if isinstance(e, Final) and e.channel == channel + 1]
        assert all(word.speaker == channel + 1 for final in own for word in final.words)
        alone = captions(scripted_session(), frames[:, channel], cuts)
        assert [*map(anonymous, own)] == [
            anonymous(event) for event in alone if isinstance(event, Final)
        ]
        speech = [e.speech for e in together if isinstance(e, Vad) and e.channel == channel + 1]
        assert speech == [event.speech for event in alone if isinstance(event, Vad)]
    segs = [event.seg for event in together if isinstance(event, Final)]
    assert len({*segs}) == len(segs)
    of_channel = {}
    for event in together:
        if isinstance(event, Partial | Final):
            assert of_channel.setdefault(event.seg, event.channel) == event.channel


def test_a_silent_channel_costs_no_window():
    speech = speech_of([(150, 60)] * 3)
    alone, together = [], []
    captions(scripted_session(), scripted_audio(speech), windows=alone)
    captions(SplitSession(scripted_session), side_by_side(speech, []), windows=together)
    assert len(together) == len(alone) > 0


def test_channels_take_turns_while_both_have_windows():
    session = SplitSession(scripted_session)
    session.feed(side_by_side(speech_of([(120, 60)]), speech_of([(120, 60)])))
    order = []
    while (window := session.next_window()) is not None:
        events = session.accept(window, ScriptedRecognizer(ending).recognize(window))
        order += {event.channel for event in events if isinstance(event, Partial | Final)}
    assert {*order[:2]} == {1, 2}


def test_the_channel_whose_final_waits_for_its_window_comes_first():
    session = SplitSession(scripted_session)
    session.feed(side_by_side([True] * 100, [True] * 60 + [False] * 40))
    assert session.due_for_final
    window = session.next_window()
    assert window.last
    assert session.due
    assert not session.due_for_final


def test_two_recognizers_have_a_window_of_each_channel():
    session, recognizer = SplitSession(scripted_session), ScriptedRecognizer(ending)
    session.feed(side_by_side(*[speech_of([(120, 60)])] * 2))
    first, second = session.next_window(), session.next_window()
    assert session.next_window() is None
    assert not session.due
    for window in (second, first):
        answer = recognizer.recognize(window)
        assert session.accept(window, answer)
        with pytest.raises(RuntimeError, match="did not come from"):
            session.accept(window, answer)


def test_what_all_channels_lost_is_told_once_and_moves_the_clock_of_all():
    session = SplitSession(scripted_session)
    frames = side_by_side(speech_of([(60, 60)]), speech_of([(60, 60)]))
    captions(session, frames)
    before_ms = session.now_ms
    gaps = [e for e in session.gap(60_000, GapReason.DEVICE) if isinstance(e, Gap)]
    assert gaps == [Gap(t_ms=before_ms, duration_ms=60_000, why=GapReason.DEVICE)]
    later = captions(session, side_by_side([], speech_of([(60, 60)]))[:0])
    assert session.now_ms == before_ms + 60_000
    assert not [event for event in later if isinstance(event, Final)]


def test_a_source_with_more_channels_follows_on_the_same_clock():
    session = SplitSession(scripted_session)
    speech = speech_of([(60, 60)])
    captions(session, side_by_side(speech))
    n = len(speech)
    # The scripted recognizer numbers frames since a session began: that of a new channel is new.
    later = side_by_side(speech, speech)
    later[:, 0] = scripted_audio([False] * n + speech)[n:]
    finals = [event for event in captions(session, later) if isinstance(event, Final)]
    assert sorted(final.channel for final in finals) == [1, 2]
    assert {final.words[0].start_ms for final in finals} == {20 * (n + speech.index(True))}


def test_another_process_goes_on_where_no_channel_needs_more():
    session = SplitSession(scripted_session)
    session.resume(ResumeState(start_ms=5_000), 5_000, 8)
    assert session.now_ms == session.finalised_ms == 5_000
    finals = [
        event
        for event in captions(session, side_by_side([], speech_of([(60, 60)])))
        if isinstance(event, Final)
    ]
    assert [(final.seg, final.words[0].start_ms) for final in finals] == [(8, 5_000 + 20 * WORD)]
    assert session.resume_state.start_ms == session.finalised_ms > 5_000


def test_a_pause_is_told_of_the_segment_whose_speaker_pauses():
    def smart():
        return scripted_session(endpoint=EndpointOptions(rule="smart"))

    session = SplitSession(smart)
    frames = side_by_side(speech_of([(100, 200)]), speech_of([(20, 50), (200, 100)]))
    events = captions(session, frames, range(0, 600, 20))
    finals = {event.seg for event in events if isinstance(event, Final)}
    assert {event.seg for event in events if isinstance(event, TurnEvent)} <= finals


class Told:
    """A session in which each frame tells what it is given."""

    def __init__(self, *events):
        self.events, self.now, self.now_ms, self.idle = events, 0, 0, True

    def resume(self, state, finalised_ms, seg):
        pass

    def feed(self, frames):
        return list(self.events)

    def voice(self, speaker):
        return b"voice", speaker


def test_voices_of_the_other_side_have_the_numbers_behind_that_of_the_microphone():
    said = spoken("yes indeed")
    words = (replace(said.words[0], speaker=1), replace(said.words[1], speaker=2))
    turns = SpeakerTurns(
        start_ms=0, end_ms=600, turns=(SpeakerTurn(start_ms=0, end_ms=300, speaker=1),)
    )
    theirs = Told(turns, SpeakerName(speaker=2, name="Bob"), replace(said, words=words))
    session = SplitSession(lambda: Told(said), lambda: theirs)
    mine, told, named, final = session.feed(side_by_side([True], [True]))
    assert [word.speaker for word in mine.words] == [1, 1]
    assert [word.speaker for word in final.words] == [2, 3]
    assert (final.channel, told.channel, told.turns[0].speaker) == (2, 2, 2)
    assert (named.speaker, named.name) == (3, "Bob")
    assert (session.voice(1), session.voice(3)) == (None, (b"voice", 2))
    finals = [mine, final]
    assert revise(finals, revised([], told), told) == [1]  # who is at the microphone stays
    assert [word.speaker for word in finals[0].words] == [1, 1]
