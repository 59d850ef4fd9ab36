"""What the microphone of a call hears of the loudspeaker is captioned once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamd.events import Final, Vad
from streamd.session.echo import LONGEST_MS, WITHIN_MS, EchoGuard
from streamd.types import FRAME, FRAME_MS
from tests.support.said import partial, spoken

LOUD, QUIET = 0.1, 0.01


def said(channel, text, start_ms, *, seg=1, **fields):
    return replace(spoken(text, start_ms=start_ms, seq=0, **fields), channel=channel, seg=seg)


def shown(final, rev=1):
    names = ("seg", "start_ms", "end_ms", "words", "channel")
    return partial(final.text, rev=rev, **{name: getattr(final, name) for name in names})


def guard_at(end_ms, *, mic=QUIET, system=LOUD):
    """A guard that has heard both at these levels until then."""
    guard, n = EchoGuard(), end_ms // FRAME_MS
    frames = np.ones((n, 2, FRAME), np.float32) * np.array([mic, system])[None, :, None]
    guard.hear(frames.astype(np.float32), end_ms)
    return guard


def texts(events):
    return [(event.channel, event.text) for event in events if isinstance(event, Final)]


THEIRS = "Where did you leave the keys?"


def test_words_that_both_have_are_the_loudspeakers_and_others_stay():
    guard = guard_at(6_000)
    theirs, echo = said(2, THEIRS, 1_000), said(1, THEIRS, 1_200)
    own = said(1, "On the table.", 4_000, seg=2)
    assert texts(guard.take([theirs, echo, own], 6_000)) == [(2, THEIRS), (1, "On the table.")]


def test_no_word_of_the_microphone_is_told_as_final_before_its_caption_is():
    """All of what it heard may still be an echo, and is then taken back."""
    guard = guard_at(6_000)
    partial = replace(shown(said(1, "On the table.", 1_000)), stable=6)
    (told,) = guard.take([partial], 6_000)
    assert (told.text, told.stable) == ("On the table.", 0)
    assert not any(word.final for word in told.words)


def test_an_answer_behind_an_echo_in_the_same_final_stays():
    guard = guard_at(3_000)
    answer = np.full((150, 2, FRAME), [[[LOUD], [QUIET]]], np.float32)
    guard.hear(answer, 6_000)
    mixed = said(1, f"{THEIRS} On the table.", 1_200)
    told = guard.take([said(2, THEIRS, 1_000), mixed], 6_000)
    assert texts(told) == [(2, THEIRS), (1, "On the table.")]
    (_, own) = told
    assert [word.text for word in own.words] == ["On", "the", "table."]


def test_what_was_read_otherwise_at_the_same_time_is_an_echo_too():
    guard = guard_at(6_000)
    told = guard.take(
        [said(2, THEIRS, 1_000), said(1, "Where did he leave the cheese?", 1_150)], 6_000
    )
    assert texts(told) == [(2, THEIRS)]


def test_the_louder_one_and_another_time_and_one_quiet_word_are_not_an_echo():
    for mic, theirs, mine in (
        (LOUD, said(2, "yes yes", 1_000), said(1, "yes yes", 1_100)),  # both say it
        (QUIET, said(2, THEIRS, 1_000), said(1, THEIRS, 1_000 + 2 * WITHIN_MS + 2_000)),
        (LOUD / 1.5, said(2, "Yes.", 1_000), said(1, "Yes.", 1_100)),
    ):
        guard = guard_at(9_000, mic=1.2 * LOUD if mic == LOUD else mic)
        assert len(texts(guard.take([theirs, mine], 9_000))) == 2


def test_a_final_waits_until_the_other_channel_is_read_but_not_for_ever():
    guard = guard_at(2_000)
    echo = said(1, "Where did", 1_000)
    assert guard.take([echo], 1_000) == []
    assert not guard.is_idle
    theirs = shown(said(2, THEIRS, 900))
    assert guard.take([theirs], 0) == [theirs]  # its words decide
    assert guard.is_idle
    guard = guard_at(2_000)
    assert guard.take([echo], 1_000) == []
    guard.hear(np.zeros((LONGEST_MS // FRAME_MS, 2, FRAME), np.float32), 2_000 + LONGEST_MS)
    assert texts(guard.take([], 1_000)) == [(1, "Where did")]


def test_what_was_shown_of_an_echo_is_taken_away():
    guard = guard_at(3_000)
    echo = said(1, THEIRS, 1_000)
    (seen,) = guard.take([shown(echo)], 3_500)  # the other channel had nothing until then
    assert seen.text == THEIRS
    theirs, gone = guard.take([said(2, THEIRS, 900), echo], 3_500)
    assert (theirs.channel, gone.text, gone.seg, gone.rev) == (2, "", echo.seg, 2)


def test_words_that_the_other_channel_was_not_read_behind_are_not_shown_yet():
    guard = guard_at(3_000)
    (seen,) = guard.take([shown(said(1, "one two three", 1_000))], 1_600 + WITHIN_MS)
    assert seen.text == "one two"
    assert seen.stable == 0


words = st.lists(st.sampled_from(["a", "b", "c", "d", "yes", "no"]), min_size=1, max_size=6).map(
    " ".join
)


@given(
    said=st.lists(st.tuples(words, st.integers(0, 5_000), st.integers(1, 2)), max_size=8),
    read=st.lists(st.integers(0, 9_000), min_size=8, max_size=8),
    mic=st.sampled_from([QUIET, LOUD]),
)
def test_nothing_is_invented_doubled_or_kept_back_for_ever(said, read, mic):
    guard, told = guard_at(9_000, mic=mic), []
    finals = []
    for seg, (text, start_ms, channel) in enumerate(said, 1):
        final = replace(spoken(text, start_ms=start_ms, seq=0), channel=channel, seg=seg)
        finals.append(final)
        told += guard.take([Vad(speech=True, t_ms=0), final], sorted(read)[seg - 1])
    told += guard.take([], 9_000, is_over=True)
    assert guard.is_idle
    given_ = {final.seg: final for final in finals}
    out = [event for event in told if isinstance(event, Final)]
    assert len({event.seg for event in out}) == len(out)
    for event in out:
        before = given_[event.seg]
        if event.channel == 2:
            assert event == before
        left = iter(before.words)
        assert all(any(word == each for each in left) for word in event.words)
        assert event.text.split() == [word.text for word in event.words]
    assert [e.seg for e in out if e.channel == 2] == [f.seg for f in finals if f.channel == 2]
    assert sum(isinstance(event, Vad) for event in told) == len(said)


def test_a_word_of_a_caption_without_words_is_left_alone():
    guard = guard_at(3_000)
    plain = replace(said(1, "hm", 1_000), words=())
    assert guard.take([plain], 9_000) == [plain]


def test_levels_before_a_gap_are_known_behind_it():
    guard = guard_at(6_000, mic=LOUD, system=QUIET)  # both say the same, the microphone louder
    mine = said(1, THEIRS, 1_000)
    assert guard.take([mine], 0) == []
    quiet = np.zeros((50, 2, FRAME), np.float32)
    guard.hear(quiet, 17_000)  # 10 s were lost
    assert len(texts(guard.take([said(2, THEIRS, 1_000)], 17_000))) == 2


def test_audio_of_a_final_that_waits_is_still_needed():
    guard = guard_at(3_000)
    assert guard.held_since_ms is None
    assert guard.take([said(1, "one two", 1_000), said(1, "three", 2_000, seg=2)], 0) == []
    assert guard.held_since_ms == 1_000
    guard.take([], 9_000)
    assert guard.held_since_ms is None
