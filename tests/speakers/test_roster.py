"""Which voice is whose: `streamd.speakers` without its models."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.speakers import (
    CHECKED,
    EVERY,
    FIRST,
    MOST,
    MOST_SPARE,
    REMEMBERED,
    SAMPLE,
    SHARE,
    HeardVoices,
    Roster,
    SpokenTurn,
    VoiceStretch,
    runs,
    samples,
    stretches,
)

RNG = np.random.default_rng(0)
VOICES = np.linalg.qr(RNG.standard_normal((256, 40)))[0].T.astype(np.float32)
"""As different as voices can be."""


def hear(roster, activity, voices, *, start=0, last=True):
    """Have a roster hear `activity` (n, 3), in which local speaker k has the voice `voices[k]`."""
    end = start + len(activity)
    request = roster.request(start, end, since=start, last=last)
    part = activity[request.start - start :]
    found = stretches(part, request)
    chosen = samples(part, np.zeros(len(part)), request, found)
    for i, place in enumerate(chosen):
        if place is not None:
            voice, n = VOICES[voices[found[i].local]], place[1] - place[0]
            found[i] = VoiceStretch(
                found[i].places, found[i].local, found[i].voice, found[i].same, voice, n
            )
    roster.hear(HeardVoices(request, tuple(found)))
    return request


def talk(n, **who):
    """Activity of n frames; `a=(0, 50)`: the first local speaker talks in frames 0 to 50."""
    activity = np.zeros((n, 3), np.bool_)
    for name, (start, end) in who.items():
        activity[start:end, "abc".index(name)] = True
    return activity


def test_speakers_are_numbered_as_they_come_and_known_again():
    roster = Roster()
    for i, voice in enumerate([0, 1, 0, 2, 1]):
        hear(roster, talk(100, a=(10, 90)), [voice], start=500 * i)
    assert [turn.speaker for turn in roster.turns] == [1, 2, 1, 3, 2]


def test_a_change_within_an_utterance_and_talk_at_once_are_turns_of_their_own():
    roster = Roster()
    hear(roster, talk(200, a=(10, 110), b=(100, 190)), [0, 1])
    assert roster.turns == [SpokenTurn(10, 110, 1), SpokenTurn(100, 190, 2)]
    assert roster.changes(0, 200) == [100]
    assert [roster.speaker(20, 40), roster.speaker(150, 160), roster.speaker(195, 200)] == [1, 2, 2]


def test_a_voice_goes_on_from_one_request_to_the_next():
    roster, activity = Roster(), talk(200, b=(5, 200))
    hear(roster, activity[:100], [0, 0, 0], last=False)
    # the next time, the model may count the same voice as another local speaker
    request = hear(roster, talk(200, c=(5, 200)), [0, 0, 0])
    assert request.start < request.new == 100
    assert {turn.speaker for turn in roster.turns} == {1}
    assert len(roster.voiceprints) == 1


@pytest.mark.parametrize(("n", "speakers"), [(CHECKED - 1, {1}), (CHECKED, {1, 2})])
def test_what_the_segmentation_takes_for_one_voice_is_checked_if_it_is_long(n, speakers):
    roster, activity = Roster(), talk(100 + n, a=(5, 100 + n))
    hear(roster, activity[:100], [0], last=False)
    hear(roster, activity, [1])
    assert {turn.speaker for turn in roster.turns} == speakers


def test_a_known_speaker_is_named_where_no_voice_could_be_embedded():
    roster = Roster()
    hear(roster, talk(100, a=(10, 90)), [0])
    hear(roster, talk(100, a=(10, 90)), [1], start=500)
    hear(roster, talk(100, a=(10, 90)), [0], start=1000)
    hear(roster, talk(60, a=(40, 45)), [5], start=1500)
    # too short to tell; after 1 it is somebody else
    assert roster.turns[-1].speaker == 2


def test_nothing_is_heard_before_there_is_enough():
    roster = Roster()
    assert roster.request(0, FIRST - 1, since=0, last=False) is None
    assert roster.request(0, FIRST - 1, since=0, last=True) is not None
    hear(roster, talk(FIRST, a=(5, FIRST)), [0], last=False)
    assert roster.request(0, FIRST + EVERY - 1, since=0, last=False) is None
    assert roster.request(0, FIRST + EVERY, since=0, last=False) is not None
    assert roster.request(0, FIRST, since=0, last=True) is None


def test_another_session_knows_the_speakers():
    roster = Roster()
    for i, voice in enumerate([0, 1]):
        hear(roster, talk(100, a=(10, 90)), [voice], start=500 * i)
    resumed = Roster(roster.voiceprints)
    for i, voice in enumerate([1, 2, 0]):
        hear(resumed, talk(100, a=(10, 90)), [voice], start=500 * i)
    assert [turn.speaker for turn in resumed.turns] == [2, 3, 1]
    assert {len(print_) for print_ in resumed.voiceprints} == {256}


def test_an_hour_with_many_speakers_has_a_bound():
    roster, embedded, n = Roster(), 0, 1800
    for i in range(n):
        before = roster._spare
        hear(roster, talk(100, a=(5, 45), b=(50, 95)), [i % 40, (i + 7) % 40], start=100 * i)
        embedded += max(0, before + SHARE * 100 - roster._spare)
    assert len(roster.voiceprints) == MOST
    assert len(roster.turns) <= 2 * REMEMBERED // 100 + 2
    assert embedded <= SHARE * 100 * n + MOST_SPARE


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 9))
def test_runs_are_the_places_that_are_true_in_groups(active, gap):
    groups = runs(np.array(active, np.bool_), gap)
    places = [place for group in groups for place in group]
    assert [i for a, b in places for i in range(a, b)] == [i for i, on in enumerate(active) if on]
    for group in groups:
        assert all(b[0] - a[1] < gap for a, b in pairwise(group))
    assert all(b[0][0] - a[-1][1] >= gap for a, b in pairwise(groups))


@pytest.mark.parametrize("spare", [0, 14, 40, 300])
def test_no_more_is_embedded_than_may_be(spare):
    activity = talk(250, a=(0, 100), b=(120, 240), c=(90, 130))
    roster = Roster()
    roster._spare = spare
    request = roster.request(0, 250, since=0, last=True)
    chosen = [
        p for p in samples(activity, np.zeros(250), request, stretches(activity, request)) if p
    ]
    assert sum(b - a for a, b in chosen) <= spare
    assert all(b - a <= SAMPLE for a, b in chosen)
