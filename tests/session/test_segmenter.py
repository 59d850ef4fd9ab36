"""Utterances: where they begin and end, and that it does not matter when the text comes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.events import Vad
from streamd.options import EndpointOptions
from streamd.session.gate import GatedFrame
from streamd.session.segmenter import Segmenter, ending_pause
from streamd.session.utterance import State
from streamd.types import Word

LOUD, QUIET = -20.0, -90.0
TAIL = EndpointOptions().trailing_silence


def words(text: str, prob: float = 0.9) -> list[Word]:
    return [Word(" " + word, 0, 1, prob) for word in text.split()]


def track(*stretches: tuple[bool, int]):
    """What the gate says per frame, for stretches of (speech, frames)."""
    since = 0
    for speech, n in stretches:
        for _ in range(n):
            since = 0 if speech else since + 1
            yield since, LOUD if speech else QUIET


def pushed(*stretches, segmenter=None):
    """A segmenter that has these stretches of (speech, frames)."""
    segmenter = segmenter or Segmenter()
    for silence, level in track(*stretches):
        segmenter.push(GatedFrame(silence, level))
    return segmenter


def spans(segmenter):
    return [(each.start, each.end) for each in segmenter.utterances]


def asked(segmenter):
    """The utterance whose text is needed, if one is."""
    waiting = (each for each in segmenter.utterances if each.state is State.ASKED)
    return next(waiting, None)


def ends(frames, text="and so", delay=0, options=None):
    """Utterances as (start, end), the answers coming `delay` frames after each question."""
    segmenter, asked_at, found = Segmenter(options), None, []
    for i, (silence, level) in enumerate(frames):
        segmenter.push(GatedFrame(silence, level))
        asked_at = None if asked(segmenter) is None else asked_at if asked_at is not None else i
        if asked_at is not None and i - asked_at >= delay:
            segmenter.answer(asked(segmenter), words(text))
            asked_at = None
    segmenter.flush()
    while (utterance := asked(segmenter)) is not None:
        segmenter.answer(utterance, words(text))
    found += spans(segmenter)
    return found


@pytest.mark.parametrize(
    ("text", "prob", "frames"),
    [
        ("it was the best", 0.9, 30), ("it was the best.", 0.9, 20), ("really?", 0.9, 20),
        ("wait...", 0.9, 30), ("well,", 0.9, 50), ("bread and", 0.9, 50), ("it was THE", 0.9, 50),
        ("", 0.9, 50), ("turn on the light", 0.3, 50),
        ("seven", 0.3, 30),  # a word alone is doubtful by nature
    ],
)  # fmt: skip
def test_patience_follows_the_text_and_how_sure_its_last_word_is(text, prob, frames):
    assert ending_pause(words(text, prob), EndpointOptions()) == frames


@pytest.mark.parametrize(
    ("text", "prob", "frames"),
    [("it was the best.", 0.5, 20), ("it was the best.", 0.49, 75), ("bread and", 0.9, 50)],
)
def test_patience_follows_the_sound_of_the_voice(text, prob, frames):
    assert ending_pause(words(text), EndpointOptions(rule="smart"), prob) == frames


@pytest.mark.parametrize(
    ("n_voiced", "prob", "is_clear"),
    [
        (1, 0.75, True),
        (50, 0.75, True),
        (51, 1.0, False),
        (20, 0.74, False),
        (20, 0.0, False),
        (0, 1.0, False),
    ],
)
def test_a_short_utterance_is_clear_if_the_second_detector_is_sure(n_voiced, prob, is_clear):
    """Without one, as with ``--vad webrtc``, the probability is 0."""
    segmenter = Segmenter()
    voiced = [GatedFrame(0, LOUD, prob=prob)] * n_voiced
    segmenter.push(*voiced, *(GatedFrame(n, QUIET, unvoiced=n) for n in range(1, 20)))
    assert segmenter.is_clear(0, segmenter.end) is is_clear


@pytest.mark.parametrize(
    ("probs", "is_certain"),
    [
        ([1.0] * 11, False),
        ([1.0] * 12, True),
        ([0.76] * 15, True),
        ([0.74] * 500, False),
        ([1.0, 0.45] * 50, False),
        ([0.0] * 100, True),  # no second detector
        ([], True),
    ],
)
def test_somebody_certainly_speaks_where_voice_is_clear_for_long_enough(probs, is_certain):
    segmenter = Segmenter()
    segmenter.push(*(GatedFrame(0, LOUD, prob=prob) for prob in probs))
    assert segmenter.is_certain(0, len(probs)) is is_certain


def test_what_comes_before_a_doubtful_voice_is_not_certain():
    segmenter = Segmenter()
    segmenter.push(*(GatedFrame(1, QUIET, unvoiced=1) for _ in range(40)))
    segmenter.push(*(GatedFrame(0, LOUD, prob=0.4) for _ in range(20)))
    assert not segmenter.is_certain(20, 40)


@pytest.mark.parametrize(("pause", "is_certain"), [(80, True), (99, False)])
def test_a_certain_voice_counts_for_what_follows_it_soon(pause, is_certain):
    segmenter = Segmenter()
    segmenter.push(*(GatedFrame(0, LOUD, prob=1.0) for _ in range(15)))
    segmenter.push(*(GatedFrame(n, QUIET, unvoiced=n) for n in range(1, pause + 1)))
    segmenter.push(*(GatedFrame(0, LOUD, prob=0.4) for _ in range(6)))
    assert segmenter.is_certain(15 + pause, 15 + pause + 6) is is_certain


@pytest.mark.parametrize(
    ("pause", "text", "n_utterances"),
    [
        (19, "done.", 1),
        (21, "done.", 2),
        (29, "one", 1),
        (31, "one", 2),
        (49, "and", 1),
        (51, "and", 2),
    ],
)
def test_a_pause_ends_the_utterance_when_it_is_longer_than_patience(pause, text, n_utterances):
    frames = track((False, 50), (True, 40), (False, pause), (True, 40), (False, 200))
    assert len(ends(frames, text)) == n_utterances


stretches = st.lists(st.tuples(st.integers(1, 80), st.integers(1, 140)), min_size=1, max_size=6)


@given(stretches, st.integers(0, 500), st.sampled_from(["done.", "one", "and", ""]))
def test_when_the_text_comes_does_not_matter(stretches, delay, text):
    frames = list(track(*[p for loud, quiet in stretches for p in ((True, loud), (False, quiet))]))
    assert ends(frames, text, delay) == ends(frames, text, 0)


@given(stretches)
def test_utterances_hold_all_speech_and_do_not_overlap(stretches):
    frames = list(track(*[p for loud, quiet in stretches for p in ((True, loud), (False, quiet))]))
    found = ends(frames)
    inside = {frame for start, end in found for frame in range(start, end)}
    assert {i for i, (silence, _) in enumerate(frames) if silence == 0} <= inside
    assert sum(end - start for start, end in found) == len(inside)


@pytest.mark.parametrize("pre_roll", [0, 25])
def test_pre_roll_and_tail(pre_roll):
    options = EndpointOptions(pre_roll=pre_roll)
    found = ends(track((False, 100), (True, 50), (False, 100)), options=options)
    assert found == [(100 - pre_roll, 150 + TAIL)]


def test_pre_roll_does_not_reach_into_the_utterance_before():
    frames = track((False, 50), (True, 40), (False, 32), (True, 40), (False, 100))
    (_, first_end), (second_start, _) = ends(frames, "one")
    assert second_start == max(first_end, 50 + 40 + 32 - 25)


def test_a_long_utterance_ends_in_the_next_short_pause():
    frames = track((True, 900), (False, 12), (True, 300), (False, 200))
    assert [end for _, end in ends(frames)] == [900 + TAIL, 1212 + TAIL]


def test_an_endless_utterance_is_cut_where_it_is_quietest():
    segmenter = Segmenter()
    for i in range(3000):
        segmenter.push(GatedFrame(0, QUIET if i in (1392, 1393) else LOUD))
    first, second, *_ = segmenter.utterances
    assert first.end == second.start
    assert 1391 <= first.end <= 1395


def test_flush_ends_the_utterance_now_and_speech_may_go_on():
    segmenter = pushed((True, 30))
    segmenter.flush()
    assert spans(segmenter) == [(0, 30)]
    pushed((True, 30), segmenter=segmenter).flush()
    assert spans(segmenter) == [(0, 30), (30, 60)]


def test_after_a_flush_the_end_of_a_word_begins_no_utterance():
    """The gate lingers behind a word that was flushed; without a voiced frame nobody goes on."""
    segmenter, told = Segmenter(), []
    for _ in range(40):
        told += segmenter.push(GatedFrame(0, LOUD, voice=True))
    told += segmenter.flush(doubtful=True)
    for unvoiced in range(1, 4):
        told += segmenter.push(GatedFrame(0, QUIET, voice=True, unvoiced=unvoiced))
    for unvoiced in range(4, 8):
        told += segmenter.push(GatedFrame(unvoiced, QUIET, voice=True, unvoiced=unvoiced))
    told += segmenter.flush(doubtful=True)
    assert spans(segmenter) == [(0, 40)]
    assert [event.speech for event in told] == [True, False]
    for _ in range(3):
        segmenter.push(GatedFrame(9, LOUD, voice=True, unvoiced=0))
    segmenter.flush(doubtful=True)
    assert spans(segmenter) == [(0, 40), (40, 50)]


def test_a_second_flush_ends_nothing_more():
    segmenter = Segmenter(EndpointOptions(pre_final=15))
    for silence in [0] * 40 + [1, 2, 3, 4, 5]:  # with voiced frames in the pause
        segmenter.push(GatedFrame(silence, LOUD, unvoiced=silence % 2))
    told = [segmenter.flush(doubtful=True), segmenter.flush(doubtful=True)]
    assert spans(segmenter) == [(0, 45)]
    assert [event.speech for event in told[0]] == [False]
    assert told[1] == []


def test_flush_keeps_its_place_while_a_question_is_open():
    segmenter = pushed((True, 40), (False, 30))
    segmenter.flush()  # the text of the pause is not known yet
    pushed((True, 40), segmenter=segmenter)
    segmenter.answer(asked(segmenter), words("and"))
    assert spans(segmenter) == [(0, 40 + TAIL), (max(70 - 25, 40 + TAIL), None)]


def test_an_answer_that_comes_too_late_changes_nothing():
    segmenter = pushed((True, 40), (False, 15))
    utterance = asked(segmenter)
    pushed((True, 10), segmenter=segmenter)
    assert asked(segmenter) is None
    assert segmenter.answer(utterance, words("done.")) == []
    assert utterance.end is None


@pytest.mark.parametrize("tail", [0, 1, 19, 20])
def test_the_question_is_put_before_the_answer_is_needed(tail):
    frames = list(track((True, 40), (False, 300), (True, 40), (False, 300)))
    found = ends(frames, "done.", options=EndpointOptions(pre_final=tail, pre_roll=0))
    assert found == [(0, 40 + tail), (340, 380 + tail)]


def test_the_question_is_put_before_the_shortest_pause_is_over():
    assert EndpointOptions(pre_final=21, sentence=20).trailing_silence == 20


@pytest.mark.parametrize("n_equal", [0, 1, 30])
def test_when_all_pauses_are_equal_nothing_is_asked(n_equal):
    pauses = dict.fromkeys(("plain", "sentence", "unfinished"), n_equal)
    segmenter = Segmenter(EndpointOptions(pre_final=0, pre_roll=0, **pauses))
    pushed((True, 40), (False, 50), (True, 40), segmenter=segmenter)
    assert spans(segmenter) == [(0, 40), (90, None)]


def test_no_patience_at_all_ends_the_utterance_at_once():
    options = EndpointOptions(pre_final=0, sentence=0, pre_roll=0)
    frames = track((True, 40), (False, 5), (True, 40), (False, 200))
    assert ends(frames, "done.", options=options) == [(0, 40), (45, 85)]


def test_the_quietest_place_is_looked_for_in_the_second_half_of_an_utterance():
    pauses = {"pre_final": 200, "plain": 200, "sentence": 200, "unfinished": 200}
    segmenter = Segmenter(EndpointOptions(longest=50, **pauses))
    for i in range(120):
        segmenter.push(GatedFrame(0, QUIET if i < 3 else LOUD))
    assert spans(segmenter) == [(0, 50), (50, 100), (100, None)]


def test_the_start_of_a_word_before_a_flush_is_kept_while_a_question_is_open():
    segmenter = pushed((True, 40), (False, 60))
    segmenter.flush(doubtful=True)
    segmenter.answer(asked(segmenter), words("and"))
    assert spans(segmenter) == [(0, 40 + TAIL), (74, 100)]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), min_size=1, max_size=8))
def test_an_utterance_begins_where_the_sound_began_that_was_judged_late(stretches):
    """And never before what was said to be the oldest frame that is needed."""
    segmenter, since, late = Segmenter(), 0, 0
    for speech, n in stretches:
        for i in range(n):
            late = min(late + 1, 30) if speech else 0
            # the first detector hears it at once, the second 10 frames later
            since = 0 if speech and i >= 10 else since + 1
            oldest, n_before = segmenter.oldest, len(segmenter.utterances)
            segmenter.push(GatedFrame(since, LOUD, late))
            for begun in list(segmenter.utterances)[n_before:]:
                assert begun.start >= oldest
                assert begun.start == max(0, segmenter.cursor - 25 - late) or n_before


def test_an_utterance_that_is_judged_at_once_begins_with_its_pre_roll():
    segmenter = Segmenter()
    for silence, late in [(1, 0)] * 100 + [(0, 1)]:
        segmenter.push(GatedFrame(silence, LOUD, late))
    assert segmenter.utterances[0].start == 100 - 25


def test_a_voice_is_told_before_the_utterance_begins_and_only_once():
    segmenter, events = Segmenter(), []
    for i in range(100):
        told = segmenter.push(GatedFrame(0 if i >= 62 else i + 1, LOUD, voice=i >= 60))
        events += [(i, *msgspec.structs.astuple(event)) for event in told]
    assert [(i, speech, t_ms) for i, speech, t_ms, _ in events] == [(60, True, 700)]
    assert [utterance.start for utterance in segmenter.utterances] == [37]


def test_a_voice_that_was_none_is_taken_back():
    segmenter, events = Segmenter(), []
    for i in range(100):
        events += segmenter.push(GatedFrame(i + 1, LOUD, voice=60 <= i < 67))
    assert events == [Vad(speech=True, t_ms=700), Vad(speech=False, t_ms=1360)]
    assert not segmenter.utterances
