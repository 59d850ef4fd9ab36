"""Words, their times and what becomes of punctuation, prefixes, pauses and padding."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.lib.stride_tricks import sliding_window_view

from streamd.options import DecodingOptions
from streamd.types import FRAME, Word
from streamd.whisper.decode import Context, Decoded
from streamd.whisper.words import (
    attention,
    cumulative,
    find_words,
    is_repeated,
    merge_punctuation,
    n_attended,
    tighten,
    warp,
    words_as_decoded,
)
from tests.support.decoders import (
    EOT,
    TOKENIZER,
    ContextDecoder,
    decode,
    scripted,
)

N_CTX = 200


def textbook_cost(cost: np.ndarray) -> float:
    n, m = cost.shape
    total = np.full((n + 1, m + 1), np.inf)
    total[0, 0] = 0.0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            before = min(total[i - 1, j - 1], total[i - 1, j], total[i, j - 1])
            total[i, j] = cost[i - 1, j - 1] + before
    return float(total[n, m])


matrices = arrays(
    np.float32, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.integers(-5, 5)
)


@given(matrices)
def test_the_path_is_monotonic_and_the_cheapest(cost):
    rows, columns = warp(cost)
    assert (rows[0], columns[0]) == (0, 0)
    assert (rows[-1] + 1, columns[-1] + 1) == cost.shape
    steps = set(zip(np.diff(rows).tolist(), np.diff(columns).tolist(), strict=True))
    assert steps <= {(0, 1), (1, 0), (1, 1)}
    assert cost[rows, columns].sum() == textbook_cost(cost) == cumulative(cost)[-1][-1]


def test_costs_add_up_in_float64():
    """As in openai-whisper: in float32 a word of a long window began 20 ms earlier."""
    cost = np.random.default_rng(0).standard_normal((40, 1_500))
    assert cumulative(cost)[-1][-1] == pytest.approx(textbook_cost(cost), rel=1e-12)


def decoded(data: bytes, frames, *, prefix: bytes = b"", max_tokens=60, n_ctx=N_CTX) -> Decoded:
    """A decode that attends to `frames`, one per byte of prefix and text and one for the end."""
    script = scripted([*data, EOT], frames, n_ctx=n_ctx, prefix=prefix)
    options = DecodingOptions(suppress_tokens=(), suppress_blank=False)
    context = Context(max_tokens, prefix=tuple(prefix))
    return decode(ContextDecoder(script, 400), TOKENIZER, options=options, context=context)


def words_of(data: bytes, frames, *, prefix: bytes = b"") -> list[Word]:
    result = decoded(data, frames, prefix=prefix)
    return find_words(result, TOKENIZER, prefix=tuple(prefix), n_frames=N_CTX)


def test_words_start_where_the_decoder_begins_to_listen():
    words = words_of(b" ab cd", [20, 30, 40, 90, 100, 110, 150])
    assert [word.text for word in words] == [" ab", " cd"]
    assert [word.tokens for word in words] == [tuple(b" ab"), tuple(b" cd")]
    assert words[0].end == words[1].start
    assert words[1].start == pytest.approx(65, abs=6)  # halfway between 40 and 90
    assert words[1].end == pytest.approx(130, abs=6)
    assert all(word.prob > 0.85 for word in words)


def test_a_prefix_takes_part_but_its_words_do_not_come_back():
    frames = [20, 30, 40, 90, 100, 110, 150]
    whole = words_of(b" ab cd", frames)
    behind = words_of(b" cd", frames, prefix=b" ab")
    assert behind == [whole[1]]


def test_the_rest_of_a_word_that_began_in_the_prefix():
    (rest,) = words_of(b"ing", [20, 30, 40, 90, 100, 110, 150], prefix=b" go")
    assert rest.text == "ing"


def test_of_a_long_prefix_only_the_end_is_aligned(monkeypatch):
    prefix, n_frames = b" ab" * 20, 320
    frames = [*range(5, 5 + 4 * len(prefix), 4), 250, 254, 258, 290, 294, 298, 310]
    result = decoded(b" cd ef", frames, prefix=prefix, n_ctx=n_frames)
    sizes = []

    def noted(alignment, rows, n_frames):
        sizes.append((len(alignment), n_frames))
        return attention(alignment, rows, n_frames)

    monkeypatch.setattr("streamd.whisper.words.attention", noted)
    known = {"prefix": tuple(prefix), "n_frames": n_frames}
    whole = find_words(result, TOKENIZER, **known)
    found = find_words(result, TOKENIZER, **known, prefix_end=245)
    for ours, expected in zip(found, whole, strict=True):
        assert ours.start == pytest.approx(expected.start, abs=2)
        assert ours.end == pytest.approx(expected.end, abs=2)
    assert sizes[0] == (2 + len(prefix) + 6, n_frames)
    assert sizes[1] == (1 + 37 + 6, n_frames - 95), "of the 3 s before"


def test_words_between_timestamps_have_the_times_of_their_own_tokens():
    """Of a window whose last segment is left to the next one, only the first words are wanted."""
    begin, tokens = TOKENIZER.timestamp_begin, b" ab"
    script = [*tokens, begin + 45, begin + 80, *b" cd", begin + 120, *b" ef", EOT]
    frames = [20, 30, 40, 45, 80, 90, 100, 110, 120, 130, 140, 150, 160]
    decoder = ContextDecoder(scripted(script, frames, n_ctx=N_CTX), 60)
    options = DecodingOptions(suppress_tokens=(), suppress_blank=False, text_only=False)
    found = decode(decoder, TOKENIZER, options=options, context=Context(20))
    assert found.tokens == (*script[:-1],)
    words = words_as_decoded(found, TOKENIZER, 6, n_frames=N_CTX)
    assert [word.text for word in words] == [" ab", " cd"]
    assert 45 < words[1].start < 90, "behind the timestamp"
    assert 110 < words[1].end < 130, "before it"
    assert [word.prob for word in words] == pytest.approx([0.9, 0.9], abs=0.01)
    assert words_as_decoded(found, TOKENIZER, 0, n_frames=N_CTX) == []


def test_without_an_end_the_last_word_lasts_to_the_end_of_the_audio():
    result = decoded(b" ab cd", [20, 30, 40, 90, 100, 110, 150], max_tokens=6)
    assert not result.ended
    words = find_words(result, TOKENIZER, prefix=(), n_frames=170)
    assert words[-1].end == 170


@given(
    st.text(st.sampled_from("ab ,.é日"), max_size=20),
    st.integers(0, 30),
    st.lists(st.integers(0, N_CTX - 1), min_size=1, max_size=60),
    st.integers(1, N_CTX),
    st.integers(0, N_CTX),
)
def test_times_never_go_back_and_tokens_are_never_lost(
    text, n_prefix, frames, n_frames, prefix_end
):
    data = text.encode()
    prefix = data[:n_prefix]
    result = decoded(data[len(prefix) :], frames, prefix=prefix)
    words = find_words(
        result, TOKENIZER, prefix=tuple(prefix), prefix_end=prefix_end, n_frames=n_frames
    )
    assert [t for word in words for t in word.tokens] == list(TOKENIZER.whole(result.tokens))
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert all(0 <= time <= n_frames for time in times)
    assert all(0.0 <= word.prob <= 1.0 for word in words)


def word(text: str, start: int = 0, end: int = 0) -> Word:
    return Word(text=text, start=start, end=end, prob=0.5, tokens=tuple(text.encode()))


@pytest.mark.parametrize(
    ("texts", "merged"),
    [
        ([" yes", ",", " no", "."], [" yes,", " no."]),
        ([' "', "quoted", '"'], [' "quoted"']),
        ([" (", "a", ")", "?!"], [" (a)", "?!"]),
        ([" -", " dash"], [" - dash"]),
        ([" wait", ".", ".", "."], [" wait..."]),
        ([" ¿", "qué", "?"], [" ¿qué?"]),
        ([","], [","]),
        ([], []),
    ],
)
def test_punctuation_belongs_to_a_word(texts, merged):
    words = merge_punctuation([word(text, i, i + 1) for i, text in enumerate(texts)])
    assert [word.text for word in words] == merged
    assert b"".join(bytes(word.tokens) for word in words) == "".join(texts).encode()


def test_frames_that_hardly_any_token_looks_at_count_like_others():
    """openai-whisper normalises them however little they get; the path depends on it."""
    scores = np.zeros((3, 1, 30), np.float32)
    scores[:, 0, 10:20] = np.log([[1.0], [2.0], [4.0]]) - 30  # weights of 1e-14
    found = attention(scores, range(3), 30)
    np.testing.assert_allclose(found[:, 14], [-1.069, -0.267, 1.336], atol=1e-3)


def test_frames_that_nobody_looks_at_favour_nobody():
    scores = np.zeros((3, 1, 30), np.float32)
    scores[:, 0, 10:20] = -1000  # weights of 0
    assert (attention(scores, range(3), 30) == 0).all()


@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 2), st.integers(4, 12)),
        elements=st.integers(-5, 5),
    )
)
def test_attention_is_smoothed_by_the_median_of_seven(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    spread = weights.std(axis=0)
    standing_out = (weights - weights.mean(axis=0)) / np.where(spread == 0, 1, spread)
    padded = np.pad(standing_out, ((0, 0), (0, 0), (3, 3)), mode="reflect")
    smooth = np.median(sliding_window_view(padded, 7, axis=-1), axis=-1).mean(axis=1)
    rows = [len(scores) - 1, 0]
    found = attention(scores, rows, scores.shape[-1])
    np.testing.assert_allclose(found, smooth[rows], atol=1e-5)


def test_words_that_attend_to_padding_were_not_heard():
    # the words of frames 20 to 110 are in the audio, what follows is behind its end
    result = decoded(b" ab cd ef", [20, 30, 40, 90, 100, 109, 150, 160, 170, 180])
    assert n_attended(result, TOKENIZER, 100) == 6
    assert n_attended(result, TOKENIZER, 200) == 9
    # a glance beyond the end in the middle is no reason to distrust what comes after it
    glance = decoded(b" ab cd", [20, 170, 40, 90, 95, 98, 150])
    assert n_attended(glance, TOKENIZER, 100) == 6


def test_marks_make_no_sound_so_they_may_attend_to_anything():
    result = decoded(b" ab. cd.", [20, 30, 40, 150, 170, 180, 190, 195, 200])
    assert n_attended(result, TOKENIZER, 100) == 4
    result = decoded(b" ab.", [20, 30, 40, 150, 160])
    assert n_attended(result, TOKENIZER, 100) == 4


def test_a_text_that_attends_to_what_was_heard_before_repeats_it():
    # The given text ends at frame 60, the sound at 100; " cd" attends to the first, "." to nothing.
    again = decoded(b" ab cd.", [5, 10, 15, 95, 20, 25, 160])
    assert is_repeated(again, TOKENIZER, heard_until=60, n_frames=100)
    said = decoded(b" ab cd.", [36, 40, 70, 80, 90, 105, 10])
    assert not is_repeated(said, TOKENIZER, heard_until=60, n_frames=100)
    # Two tokens are too few to tell.
    assert not is_repeated(decoded(b" ab", [10, 20, 20]), TOKENIZER, heard_until=60, n_frames=100)


def test_a_word_does_not_include_the_pause_before_it():
    rng = np.random.default_rng(0)
    loudness = np.full(100, 0.001)
    loudness[[*range(10, 20), *range(60, 80)]] = 0.2
    samples = (rng.standard_normal(100 * FRAME) * loudness.repeat(FRAME)).astype(np.float32)
    words = [word(" a", 0, 21), word(" b", 21, 90), word(" c", 90, 100), word(" d", 100, 100)]
    tight = tighten(words, samples)
    assert [(w.start, w.end) for w in tight] == [(10, 20), (60, 80), (90, 100), (100, 100)]
    assert [replace(w, start=0, end=0) for w in tight] == [
        replace(w, start=0, end=0) for w in words
    ]
    assert tighten(words, np.zeros_like(samples)) == words


@pytest.mark.parametrize(("below_db", "end"), [(23, 40), (29, 30)])
def test_a_faint_ending_belongs_to_its_word_and_an_echo_does_not(below_db, end):
    loudness = np.full(60, 1e-4)
    loudness[10:30], loudness[30:40] = 0.2, 0.2 / 10 ** (below_db / 20)
    samples = loudness.repeat(FRAME).astype(np.float32)
    (tight,) = tighten([word(" a", 0, 60)], samples)
    assert (tight.start, tight.end) == (10, end)
