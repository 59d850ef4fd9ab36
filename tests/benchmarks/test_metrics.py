"""The arithmetic of the scores, on logs written by hand."""

import pytest

from lab.eventlog import Said
from lab.latency import SpokenWord, segments
from lab.metrics import commit_violations, dropped_ms, erased, measure, merged_steps, spread
from streamd.events import Gap
from tests.support.event_logs import BEGAN, ENDED, final, partial, vad
from tests.support.event_logs import decoded as window

REFERENCE = [SpokenWord("turn", 200, 400), SpokenWord("it", 400, 600), SpokenWord("on", 600, 1_000)]
LOG = [
    BEGAN,
    vad(300, True, 100),
    partial(650, "turn", end_ms=600),
    partial(1_150, "turn of", n_final=1, end_ms=1_100),
    partial(1_300, "turn it off", n_final=1, end_ms=1_250),
    partial(1_500, "turn it on", n_final=2, end_ms=1_450),
    window(1_900, 100, 1_800, ms=250, last=True),
    vad(2_000, False, 2_000),
    final(2_160, "Turn it on."),
    ENDED,
]


def test_a_word_is_first_shown_then_stays_then_is_promised():
    scores = measure(LOG, REFERENCE)
    # turn: 650, 650, 1150; it: 1300, 1300, 1500; on: 1500, 1500, 2160
    assert scores.first == spread([250, 700, 500])
    assert scores.stable == spread([250, 700, 500])
    assert scores.final == spread([750, 900, 1_160])
    assert scores.wer == 0.0
    assert scores.first_partial_ms == 450


def test_the_sentences_of_an_utterance_are_one_segment():
    """What moves from the partial of a sentence to that of the next one was not taken back."""
    said = [
        partial(650, "turn it", n_final=1, end_ms=600),
        partial(1_150, "turn it on", n_final=3, end_ms=1_100),
        final(1_500, "turn", continues=True),
        partial(1_500, "it on", n_final=2, end_ms=1_450, seg=2),
        final(2_160, "it on", seg=2),
    ]
    assert commit_violations(said) == 0
    (segment,) = segments(said)
    assert segment.texts == ["turn it", "turn it on", "turn it on", "turn it on", "turn it on"]
    assert segment.closed_ms == (1_500, 2_160, 2_160)


def test_sentences_that_are_final_at_the_same_time_take_nothing_back():
    said = [
        partial(1_150, "turn it on", n_final=3, end_ms=1_100),
        final(1_500, "turn", continues=True),
        final(1_500, "it on", seg=2),
    ]
    assert commit_violations(said) == 0
    (segment,) = segments(said)
    assert segment.texts == ["turn it on", "turn it on", "turn it on"]


def test_a_word_that_vanishes_is_stable_only_when_it_is_back():
    flicker = [partial(1_000, "turn it"), partial(1_100, "turn"), partial(1_200, "turn it on")]
    scores = measure([BEGAN, *flicker, final(2_000, "turn it on"), ENDED], REFERENCE)
    assert scores.first == spread([600, 400, 200])
    assert scores.stable == spread([600, 600, 200])
    assert scores.final == spread([1_600, 1_400, 1_000])


def test_words_without_a_time_or_not_in_the_final_have_no_latency():
    reference = [SpokenWord("turn"), SpokenWord("it", 0, 600), SpokenWord("off", 0, 1_000)]
    scores = measure([BEGAN, final(2_000, "turn it on"), ENDED], reference)
    assert (scores.first.n, scores.first.median) == (1, 1_400)
    assert scores.wer == pytest.approx(1 / 3, abs=1e-4)


def test_wrong_words_are_counted_in_the_whole_text_because_numbers_span_words():
    reference = [SpokenWord(word) for word in ("turn", "2", "0", "1", "on")]
    said = [BEGAN, final(1_000, "Turn twenty"), final(2_000, "one on", seg=2), ENDED]
    assert measure(said, reference, "turn 21 on").wer == 0
    assert measure(said, reference, "turn 21 on").words == 4
    assert measure(said, reference, "turn 22 on").wer == 0.25


def test_the_delay_of_a_final_is_endpoint_and_queue_and_compute():
    scores = measure(LOG, REFERENCE)
    assert scores.final_delay == spread([1_160])
    assert scores.endpoint == spread([1_000])  # known at 2000 that "on", to 1000, was the last
    assert scores.compute == spread([150])  # of 250 ms, 100 ran before that
    assert scores.queue == spread([10])
    assert scores.after_endpoint == spread([160])


def test_a_final_that_was_prepared_in_the_silence_waits_for_nothing():
    log = [vad(0, True, 100), window(1_500, 100, 1_800, last=True), vad(2_000, False, 2_000)]
    scores = measure([BEGAN, *log, final(2_000, "turn it on"), ENDED], REFERENCE)
    assert (scores.queue.median, scores.compute.median) == (0, 0)


def test_erasure_is_what_was_shown_in_vain():
    scores = measure(LOG, REFERENCE)
    # words: "of" and "off" went, "on" became "on."; characters: the same and "turn" became "Turn"
    assert scores.erasure_words == pytest.approx((1 + 1 + 3) / 3, abs=1e-4)
    assert scores.erasure_characters == pytest.approx((2 + 2 + 10) / len("Turn it on."), abs=1e-4)


def test_costs_are_shares_of_the_audio():
    scores = measure(LOG, REFERENCE)
    assert (scores.rtf, scores.cpu_share) == (0.0625, 0.1)
    assert (scores.drafted, scores.accepted, scores.windows) == (2, 1, 1)
    assert scores.lag_ms == 50
    assert scores.encoded_frames == 384


@pytest.mark.parametrize(
    ("said", "n"),
    [
        ([partial(1, "turn it", 1), partial(2, "turn on", 1), final(3, "turn on")], 0),
        ([partial(1, "turn it", 2), final(2, "Turn it.")], 0),
        ([partial(1, "turn it", 2), final(2, "turn in")], 1),
        ([partial(1, "turn it", 2), partial(2, "turn it on", 1), final(3, "turn it on")], 1),
        ([partial(1, "turn it", 2), partial(2, "turn", 1), final(3, "turn it")], 1),
        ([final(1, "turn"), final(2, "turn")], 1),
        ([final(1, "turn"), partial(2, "turn")], 1),
        ([final(1, "turn"), final(2, "it", seg=2)], 0),
    ],
)
def test_what_was_committed_must_not_change(said, n):
    assert commit_violations(said) == n


def test_steps_merge_only_within_an_utterance():
    together = [window(0, 0, 500), window(0, 0, 1_000), window(0, 200, 2_500)]
    assert merged_steps(together, 500) == 2
    paused = [window(0, 0, 500), window(0, 0, 900, last=True), window(0, 0, 2_500)]
    apart = [window(0, 0, 500), window(0, 3_000, 3_500)]
    assert merged_steps(paused, 500) == merged_steps(apart, 500) == 0


def test_dropped_is_what_was_lost_and_what_was_let_through_but_not_heard():
    gap = Said(t_ms=0, heard_ms=0, event=Gap(t_ms=50, duration_ms=7, why="overrun"))
    said = [vad(0, True, 100), vad(0, False, 2_000), vad(0, True, 1_900), vad(0, False, 3_000), gap]
    whole = [window(0, 100, 1_000), window(0, 600, 1_800), window(0, 1_900, 2_800)]
    assert dropped_ms(said, whole) == 7
    assert dropped_ms(said, [whole[0], window(0, 1_200, 1_800), whole[2]]) == 7 + 200
    assert dropped_ms(said, whole[:2]) == 7 + 1_100


def test_nothing_said_and_nothing_heard():
    scores = measure([BEGAN, ENDED], [])
    assert scores.wer is None
    assert scores.first == spread([])
    assert scores.erasure_words == 0


def test_erased_is_what_has_to_be_wiped_before_the_next_text():
    assert erased(["a b", "a c", "a c d"]) == 1
    assert erased([["on", "the"], ["on"], ["off"]]) == 2
    assert erased(["only"]) == 0
