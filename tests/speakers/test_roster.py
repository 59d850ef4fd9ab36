"""Which voice is whose: `streamd.speakers` without its models."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.options import EndpointOptions
from streamd.speakers import REMEMBERED, HearingStep, HearingSteps, Roster, SpokenTurn, changes
from streamd.speakers.boundaries import runs, shifts
from streamd.speakers.roster import MOST, MOST_SPARE, SAMPLE, SHARE
from streamd.speakers.steps import ATTACK, CONTEXT, EVERY, FIRST, QUIET
from streamd.speakers.turns import talking

RNG = np.random.default_rng(0)
VOICES = np.linalg.qr(RNG.standard_normal((256, 40)))[0].T.astype(np.float32)
"""As different as voices can be."""


def hear(roster, activity, voices, *, start=0, new=0, chances=None):
    """Have a roster hear `activity` (n, 3), in which local speaker k has the voice `voices[k]`.

    `voices` may be a function of frames instead. `chances` (n, 3) of local speakers are those of
    the activity unless given. Returns which frames it listened to.
    """
    end = start + len(activity)
    step = HearingStep(start, start + new, end, end)
    chances = activity.astype(np.float32) if chances is None else chances
    heard = []

    def listen(first, end):
        heard.append((first, end))

        def describe(frames):
            assert frames.shape[1] == end - first
            assert frames.any(1).all()
            if callable(voices):
                return np.stack([voices(first + np.flatnonzero(each)) for each in frames])
            n_spoken = frames.astype(int) @ activity[first:end]
            return VOICES[[voices[k] for k in n_spoken.argmax(1)]]

        return describe

    roster.hear(step, activity, chances, np.zeros(len(activity)), listen)
    return sorted(heard)


def talk(n, **who):
    """Activity of n frames; `a=(0, 50)`: the first local speaker talks in frames 0 to 50."""
    activity = np.zeros((n, 3), np.bool_)
    for name, (start, end) in who.items():
        activity[start:end, "abc".index(name)] = True
    return activity


@pytest.mark.parametrize(
    ("length", "halves", "alike", "is_one"),
    [(50, 0.25, 0.15, True), (50, 0.8, 0.15, False), (36, 0.1, 0.06, False)],
)
def test_in_a_room_pieces_that_are_less_alike_are_one_persons(length, halves, alike, is_one):
    # A room makes the halves of a sample less alike, and two samples of one person, too. Those of a
    # short sample tell nothing.
    def sample(frames, number):
        is_half, is_second = len(frames) < length, frames[0] >= length // 2
        n, common = (100 + int(is_second), halves) if is_half else (number, alike)
        found = np.zeros(256, np.float32)
        found[0], found[1 + n] = common**0.5, (1 - common) ** 0.5
        return found

    roster = Roster()
    for i in range(8):
        activity = talk(length, a=(0, length))
        hear(roster, activity, partial(sample, number=i), start=100 * i)
    assert (len({turn.speaker for turn in roster.turns}) == 1) is is_one


def test_speakers_are_numbered_as_they_come_and_known_again():
    roster = Roster()
    for i, voice in enumerate([0, 1, 0, 2, 1]):
        hear(roster, talk(100, a=(10, 90)), [voice], start=500 * i)
    assert [turn.speaker for turn in roster.turns] == [1, 2, 1, 3, 2]


def test_a_change_within_an_utterance_and_talk_at_once_are_turns_of_their_own():
    roster = Roster()
    hear(roster, talk(200, a=(10, 110), b=(100, 190)), [0, 1])
    assert roster.turns == [SpokenTurn(10, 110, 1), SpokenTurn(100, 190, 2)]
    assert changes(roster.turns) == [100]
    who = [talking(roster.turns, *at) for at in ((20, 40), (90, 110), (195, 200))]
    assert who == [{1: 20}, {1: 20, 2: 10}, {2: 0}]


def test_a_voice_goes_on_from_one_step_to_the_next():
    roster, activity = Roster(), talk(200, b=(5, 200))
    hear(roster, activity[:100], [0, 0, 0])
    # the next time, the model may count the same voice as another local speaker
    hear(roster, talk(160, c=(0, 160)), [0, 0, 0], start=40, new=60)
    assert roster.turns == [SpokenTurn(5, 200, 1)]
    assert len(roster.prints) == 1


def leaning(n, at):
    """The first local speaker talks in n frames, less surely from frame `at` on."""
    chances = np.zeros((n, 3), np.float32)
    chances[:at], chances[at:] = (0.9, 0.1, 0), (0.55, 0.45, 0)
    return chances


def test_another_voice_may_begin_where_the_segmentation_only_becomes_less_sure():
    assert shifts(leaning(200, 120)) == [120]
    assert shifts(leaning(200, 190)) == []  # too near to the end to be known
    assert shifts(talk(200, a=(0, 200)).astype(np.float32)) == []
    roster = Roster()
    two = lambda frames: VOICES[int(frames[0] >= 120)]  # noqa: E731 - it is shorter
    first, second = hear(roster, talk(200, a=(0, 200)), two, chances=leaning(200, 120))
    assert first[1] <= 120 <= second[0]
    assert roster.turns == [SpokenTurn(0, 120, 1), SpokenTurn(120, 200, 2)]


def test_another_voice_may_turn_out_to_have_begun_before_the_step():
    roster = Roster()
    hear(roster, talk(100, a=(0, 100)), [0])
    assert roster.turns == [SpokenTurn(0, 100, 1)]
    # Of the next step, frames 40 to 100 are heard again.
    chances = leaning(160, 45)
    hear(roster, talk(160, a=(0, 160)), [1], start=40, new=60, chances=chances)
    assert roster.turns == [SpokenTurn(0, 85, 1), SpokenTurn(85, 200, 2)]
    # The same change is not one of the voice that has begun there.
    hear(roster, talk(160, b=(0, 160)), [1, 1], start=80, new=120, chances=leaning(160, 26))
    assert [turn.start for turn in roster.turns] == [0, 85]


def test_a_voice_after_a_pause_may_be_that_of_another_though_the_segmentation_hears_no_change():
    roster = Roster()
    activity = talk(200, a=(5, 90)) | talk(200, a=(120, 195))
    hear(roster, activity, lambda frames: VOICES[int(frames[0] > 100)])
    assert [turn.speaker for turn in roster.turns] == [1, 2]


def test_what_is_too_short_to_be_embedded_is_of_the_speaker_before():
    roster = Roster()
    hear(roster, talk(100, a=(10, 90)), [0])
    hear(roster, talk(100, a=(10, 90)), [1], start=500)
    hear(roster, talk(60, a=(40, 45)), [5], start=600)
    assert [turn.speaker for turn in roster.turns] == [1, 2, 2]


def test_what_is_said_only_while_another_talks_is_of_who_talks_next_to_it():
    roster = Roster()
    hear(roster, talk(200, a=(10, 90), b=(100, 190), c=(100, 115)), [0, 1])
    assert roster.turns == [SpokenTurn(10, 115, 1), SpokenTurn(100, 190, 2)]
    hear(roster, talk(200, a=(10, 90), b=(85, 90)), [0], start=500)  # a new turn begins,
    hear(roster, talk(150, a=(50, 145)), [1], start=550, new=50)  # as is known later
    assert roster.turns[2:] == [SpokenTurn(510, 590, 1), SpokenTurn(585, 695, 2)]


def test_what_the_segmentation_takes_for_a_long_voice_may_be_of_two():
    roster = Roster()
    hear(roster, talk(100, a=(0, 100)), [0])
    (sample,) = hear(roster, talk(225, a=(0, 225)), [1], start=25, new=75)
    assert sample[0] >= 75
    assert roster.turns == [SpokenTurn(0, 100, 1), SpokenTurn(100, 250, 2)]


def test_little_of_a_voice_makes_no_new_speaker_and_is_corrected_by_more():
    roster = Roster()
    hear(roster, talk(100, a=(10, 90)), [0])
    hear(roster, talk(50, a=(20, 45)), [1], start=500)
    assert [turn.speaker for turn in roster.turns] == [1, 1]
    hear(roster, talk(100, a=(0, 100)), [1], start=500, new=50)
    assert [turn.speaker for turn in roster.turns] == [1, 2]


def test_more_of_a_voice_is_embedded_unless_it_is_clear_whose_it_is():
    def wanted(roster, voice, start):
        """Whether it is embedded at first, and then again."""
        activity = talk(130, a=(0, 130))
        first = hear(roster, activity[:50], [voice], start=start)
        more = hear(roster, activity, [voice], start=start, new=50)
        return [bool(first), bool(more)]

    roster = Roster()
    assert wanted(roster, 0, 0) == [True, True]  # nobody is known yet
    assert wanted(roster, 1, 500) == [True, True]  # a new speaker
    assert wanted(roster, 0, 1000) == [True, False]
    assert wanted(roster, 1, 5000) == [True, False]  # when all of its voices are forgotten, too
    whole = Roster(whole=True)  # in which nothing is known before the end
    assert [wanted(whole, 0, start) for start in (0, 500)] == [[True, True]] * 2
    assert [turn.speaker for turn in roster.turns] == [2]


@pytest.mark.parametrize(("to_another", "is_more_wanted"), [(0.2, True), (0.1, False)])
def test_of_a_voice_that_is_almost_as_like_another_speaker_more_is_embedded(
    to_another, is_more_wanted
):
    voice = 0.35 * VOICES[0] + to_another * VOICES[1] + 0.9 * VOICES[2]
    voice /= np.linalg.norm(voice)
    roster = Roster()
    for i in range(2):
        hear(roster, talk(100, a=(10, 90)), [i], start=500 * i)
    hear(roster, talk(50, a=(0, 50)), lambda _: voice, start=1000)
    more = hear(roster, talk(130, a=(0, 130)), lambda _: voice, start=1000, new=50)
    assert [turn.speaker for turn in roster.turns] == [1, 2, 1]
    assert bool(more) == is_more_wanted


def test_of_a_recording_all_is_embedded_and_a_voice_ends_where_it_changes():
    roster = Roster(whole=True)

    def voices(frames):
        mixed = VOICES[0] * (frames < 150).mean() + VOICES[1] * (frames >= 150).mean()
        return mixed / np.linalg.norm(mixed)

    assert hear(roster, talk(300, b=(10, 290)), voices) == [(0, 300)]
    hear(roster, talk(300, c=(0, 200)), [0, 0, 1], start=225, new=75)
    roster.tell_apart()
    assert roster.turns == [SpokenTurn(10, 150, 1), SpokenTurn(150, 425, 2)]


def test_of_a_recording_in_a_far_room_a_voice_does_not_end_where_its_seconds_are_little_alike():
    # One second of it is as much alike as any other, though less than two people may be.
    roster = Roster(whole=True)

    def voices(frames):
        second = int(frames.mean()) // 25
        return np.sqrt(0.05) * VOICES[0] + np.sqrt(0.95) * VOICES[1 + second]

    hear(roster, talk(400, a=(0, 400)), voices)
    roster.tell_apart()
    assert roster.turns == [SpokenTurn(0, 400, 1)]


@pytest.mark.parametrize(("is_echo", "speakers"), [(True, [1, 2, 1]), (False, [1, 2, 1, 2])])
def test_of_a_recording_an_echo_is_of_who_talks_meanwhile(is_echo, speakers):
    roster = Roster(whole=True)
    hear(roster, talk(100, a=(0, 100)), [0])
    hear(roster, talk(100, a=(0, 100)), [1], start=500)

    def voices(frames):
        return VOICES[0] if is_echo or len(frames) > 40 else VOICES[:2].sum(0) / np.sqrt(2)

    hear(roster, talk(100, a=(0, 100), b=(30, 70)), voices, start=1000)
    roster.tell_apart()
    assert [turn.speaker for turn in roster.turns] == speakers


def test_of_a_recording_a_voice_may_end_in_a_pause_between_two_steps():
    roster = Roster(whole=True)
    hear(roster, talk(100, a=(0, 97)), [0])
    activity = talk(275, a=(0, 72)) | talk(275, a=(77, 275))
    hear(roster, activity, [1], start=25, new=75, chances=leaning(275, 77))
    hear(roster, talk(275, b=(0, 275)), [1, 1], start=225, new=75)
    roster.tell_apart()
    assert roster.turns == [SpokenTurn(0, 97, 1), SpokenTurn(102, 500, 2)]


def test_speakers_that_turn_out_to_be_one_get_the_same_number():
    roster = Roster()
    between = (VOICES[0] + VOICES[1]) / np.sqrt(2)
    for i, voice in enumerate([VOICES[0], VOICES[1], between, between]):
        hear(roster, talk(100, a=(10, 90)), lambda _, voice=voice: voice, start=500 * i)
        if i == 1:
            assert [turn.speaker for turn in roster.turns] == [1, 2]
    assert {turn.speaker for turn in roster.turns} == {1}


@pytest.mark.parametrize(("halves", "found"), [(1, [1, 2]), (0.35, [1, 1])])
def test_two_who_were_taken_for_one_long_ago_are_told_apart_when_more_is_heard(halves, found):
    # but not in a room, where the halves of a sample are less alike
    def voice(frames, who):
        is_half, is_second = len(frames) < 50, frames[0] >= 40
        n, common = (100 + int(is_second), halves) if is_half else (who, 0.3)
        found = np.zeros(256, np.float32)
        found[0], found[1 + n] = common**0.5, (1 - common) ** 0.5
        return found

    roster = Roster()
    for i in range(2):
        hear(roster, talk(100, a=(10, 90)), partial(voice, who=i), start=500 * i)
    assert [turn.speaker for turn in roster.turns] == [1, 1]
    for i in range(8):
        start = 2 * REMEMBERED + 200 * i
        hear(roster, talk(100, a=(10, 90)), partial(voice, who=i % 2), start=start)
    assert [turn.speaker for turn in roster.turns] == 4 * found


def test_a_pause_of_one_speaker_does_not_end_a_turn():
    roster = Roster()
    hear(roster, talk(200, a=(5, 90)) | talk(200, a=(110, 195)), [0])
    assert roster.turns == [SpokenTurn(5, 195, 1)]


def test_a_copy_does_not_change_with_the_original():
    roster = Roster()
    hear(roster, talk(100, a=(10, 90)), [0])
    before = roster.copy()
    hear(roster, talk(100, a=(10, 90)), [1], start=100)
    assert [turn.speaker for turn in before.turns] == [1]
    assert [turn.speaker for turn in roster.turns] == [1, 2]


def test_another_session_knows_the_speakers():
    roster = Roster()
    for i, voice in enumerate([0, 1]):
        hear(roster, talk(100, a=(10, 90)), [voice], start=500 * i)
    resumed = Roster([each for each, _ in roster.prints])
    for i, voice in enumerate([1, 2, 0]):
        hear(resumed, talk(100, a=(10, 90)), [voice], start=500 * i)
    assert [turn.speaker for turn in resumed.turns] == [2, 3, 1]
    assert {len(each) for each, _ in resumed.prints} == {256}


def test_a_long_session_with_many_speakers_has_a_bound():
    roster, embedded, n = Roster(), 0, 200
    for i in range(n):
        activity = talk(100, a=(5, 45), b=(50, 95))
        chosen = hear(roster, activity, [i % 40, (i + 7) % 40], start=100 * i)
        embedded += sum(end - first for first, end in chosen)
    assert len(roster.prints) == MOST
    assert len(roster.turns) <= 2 * REMEMBERED // 100 + 2
    assert embedded <= SHARE * 100 * n + MOST_SPARE
    assert {turn.speaker for turn in roster.turns} <= set(range(1, MOST + 1))


@pytest.mark.parametrize("n_speakers", [0, 2, 3])
def test_of_a_whole_recording_everything_is_remembered(n_speakers):
    roster, n = Roster(whole=True), REMEMBERED // 100 + 10
    for i in range(n):
        hear(roster, talk(100, a=(5, 95)), [i % 3], start=200 * i)
    roster.tell_apart(n_speakers)
    assert len(roster.turns) == n
    assert len({turn.speaker for turn in roster.turns}) == (n_speakers or 3)


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
    roster = Roster()
    roster._spare = spare - SHARE * 250
    chosen = hear(roster, talk(250, a=(0, 100), b=(120, 240), c=(90, 130)), [0, 1, 2])
    assert sum(end - first for first, end in chosen) <= spare
    assert all(end - first <= SAMPLE for first, end in chosen)


# What is heard when


def pushed(gate, *, taken_every=1):
    """The steps of a gate's words about frames, taken at some of these."""
    steps, found = HearingSteps(), []
    for end, (silence, late) in enumerate(gate, 1):
        steps.push(end, silence, late)
        if end % taken_every == 0:
            found += steps.take(end)
    steps.flush()
    return found + steps.take(len(gate))


def test_speech_is_heard_early_then_in_longer_steps_and_up_to_its_pause():
    gate = [(5, 0)] * 100 + [(0, 0)] * (FIRST + EVERY + 20)
    gate += [(QUIET + i, 0) for i in range(30)]
    begin, end = 101 - ATTACK, 100 + FIRST + EVERY + 21 - QUIET
    first = begin + FIRST
    assert pushed(gate) == [
        HearingStep(begin, begin, first, first),
        HearingStep(max(begin, first - CONTEXT), first, first + EVERY, first + EVERY),
        HearingStep(first + EVERY - CONTEXT, first + EVERY, end, 101 + FIRST + EVERY + 20),
    ]


gates = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 30)), max_size=8).map(
    lambda parts: [
        (0 if i % 2 else k + QUIET, late if i % 2 else 0)
        for i, (n, late) in enumerate(parts)
        for k in range(n)
    ]
)


@given(gates, st.integers(1, 500))
def test_what_is_heard_does_not_depend_on_how_fast_audio_arrives(gate, taken_every):
    assert pushed(gate, taken_every=taken_every) == pushed(gate)


@given(gates)
def test_speech_is_heard_once_and_in_order(gate):
    steps = pushed(gate)
    assert all(a.end <= b.new and a.due <= b.due for a, b in pairwise(steps))
    assert all(0 <= s.start <= s.new < s.end <= s.due <= len(gate) for s in steps)
    heard = {i for s in steps for i in range(s.new, s.end)}
    spoken = {i for i, (silence, _) in enumerate(gate) if silence == 0}
    # the gate says late that it is silent: what it then takes back need not be heard
    assert all(i in heard or any(j not in spoken for j in range(i, i + QUIET + 1)) for i in spoken)


@given(gates, st.integers(1, 500))
def test_audio_is_kept_until_it_was_heard(gate, taken_every):
    steps, oldest = HearingSteps(), 0
    for end, (silence, late) in enumerate(gate, 1):
        steps.push(end, silence, late)
        if end % taken_every == 0:
            assert all(step.start >= oldest for step in steps.take(end))
        assert steps.oldest >= oldest
        oldest = steps.oldest


def test_who_says_the_last_words_is_heard_with_the_last_window_of_an_utterance():
    steps, spoken = HearingSteps(), 40
    for n in range(spoken + EndpointOptions().trailing_silence):
        steps.push(n + 1, max(0, n + 1 - spoken))
    (step,) = steps.take(spoken + EndpointOptions().trailing_silence)
    assert step.end == spoken
