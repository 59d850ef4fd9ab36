import unicodedata
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import iter_graphemes

from streamd.events import Final, Partial, TimedWord, aligned
from streamd.labels import by_speaker
from streamd.language import belongs
from streamd.sinks.text import (
    SPEAKERS,
    Look,
    Span,
    caption,
    chunks,
    clean,
    clock,
    stamper,
    width,
    wrapped,
)

any_text = st.text(st.characters())


def timed(*texts, prob=0.9):
    return tuple(
        TimedWord(text=text, start_ms=0, end_ms=1, prob=prob, final=True) for text in texts
    )


def final(text, words=(), start_ms=0):
    return Final(seg=1, start_ms=start_ms, end_ms=1, text=text, language="en", words=words)


@given(any_text)
def test_clean_text_commands_no_terminal_and_keeps_offsets(text):
    cleaned = clean(text)
    assert len(cleaned) == len(text)
    assert not {unicodedata.category(char) for char in cleaned} & {"Cc", "Cs", "Zl", "Zp"}
    assert not {unicodedata.bidirectional(char) for char in cleaned} & {
        "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"
    }  # fmt: skip
    cleaned.encode()


def test_clean_leaves_writing_alone():
    text = "naïve cafe\u0301 日本語 שלום 👩‍👩‍👧 ❤️ می‌خواهم"
    assert clean(text) == text


@given(any_text.map(clean), st.integers(1, 20))
def test_chunks_fit_and_lose_nothing(text, columns):
    parts = list(chunks(text, columns))
    assert "".join(parts) == text
    for part in parts:
        assert width(part) <= columns or len(list(iter_graphemes(part))) == 1


THAI = st.text("กรมอน่้ัิะาำเแไๆ", max_size=60)


@given(THAI, st.integers(1, 20))
def test_chunks_keep_vowels_and_marks_with_their_letters_if_they_fit(text, columns):
    parts = list(chunks(text, columns))
    assert "".join(parts) == text
    for before, after in pairwise(parts):
        if belongs(before, after):  # then it is all one, and does not fit
            assert all(belongs(before[:at], before[at:]) for at in range(1, len(before)))


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        ("อันเศร้าใจ", 3, ["อัน", "เศ", "ร้า", "ใจ"]),
        ("ສະບາຍດີ", 3, ["ສະ", "ບາຍ", "ດີ"]),
        ("今日は雨だ。", 10, ["今日は雨", "だ。"]),
        ("「雨」だった", 6, ["「雨」", "だった"]),
        ("ーーーー", 4, ["ーー", "ーー"]),
    ],
)
def test_rows_and_chunks_break_where_nothing_belongs_together(text, columns, rows):
    assert list(chunks(text, columns)) == rows
    assert ["".join(span.text for span in row) for row in wrapped([Span(text)], columns)] == rows
    coloured = [Span(char, str(i)) for i, char in enumerate(text)]  # each is a word in Thai
    assert ["".join(span.text for span in row) for row in wrapped(coloured, columns)] == rows


def test_letters_below_others_and_ends_of_syllables_stay_with_them():
    assert list(chunks("မြန်မာစကား", 3)) == ["မြန်", "မာစကား"]
    assert list(chunks("ខ្ញុំស្រឡាញ់", 3)) == ["ខ្ញុំ", "ស្រ", "ឡាញ់"]


@given(st.lists(st.tuples(st.text("ab", min_size=1), st.sampled_from([" ", "", "  "]))))
def test_words_are_found_where_they_stand(parts):
    text = "".join(blank + word for word, blank in parts)
    words = timed(*(word for word, _ in parts))
    found = list(aligned(text, words))
    assert [text[start:end] for start, end, _ in found] == [word.text for word in words]


def test_words_that_are_not_in_the_text_end_the_alignment():
    assert [(a, b) for a, b, _ in aligned("one two three", timed("one", "zwei", "three"))] == [
        (0, 3)
    ]


def test_a_caption_without_choices_is_the_text():
    assert caption(final("one two", timed("one", "two")), Look()) == [Span(""), Span("one two")]


@given(any_text, st.integers(0, 50))
def test_styles_add_nothing_to_the_text(text, stable):
    event = Partial(
        seg=1, rev=1, start_ms=0, end_ms=1, text=text, stable=stable, words=timed(*text.split())
    )
    look = Look(ramp=("31", "32"))
    assert "".join(span.text for span in caption(event, look)) == clean(text)


def test_confidence_runs_through_the_ramp():
    ramp = tuple("0123456")
    probs = (-0.1, 0.0, 0.5, 0.7, 0.8, 0.9, 0.99, 1.0)
    words = tuple(timed("x", prob=prob)[0] for prob in probs)
    spans = caption(final("x" * len(words), words), Look(ramp=ramp))
    assert [span.sgr for span in spans[1:]] == list("00023566")


def test_time_stamps():
    started = datetime(2026, 1, 2, 12, 0, 30, tzinfo=UTC)
    event = final("hello", start_ms=3_723_900)
    assert clock(0) == "0:00:00"
    assert caption(event, Look(stamp=stamper("off", started)))[0].text == ""
    assert caption(event, Look(stamp=stamper("rel", started)))[0].text == "[1:02:03] "
    local = datetime(2026, 1, 2, 13, 2, 33, tzinfo=UTC).astimezone()
    assert caption(event, Look(stamp=stamper("clock", started)))[0].text == f"[{local:%H:%M:%S}] "


@pytest.mark.parametrize(
    ("text", "said", "parts"),
    [
        ("1,0001 is it", ("1", ",0001", "is", "it"), ["1,0001", "is it"]),
        ("ill-disposed", ("ill", "-disposed"), ["ill-disposed"]),
        ("你好再见", ("你好", "再见"), ["你好", "再见"]),
        ("你好。", ("你好", "。"), ["你好。"]),
        ("ร้า", ("ร", "้า"), ["ร้า"]),
    ],
)
def test_no_word_is_divided_among_speakers(text, said, parts):
    words = tuple(
        TimedWord(text=word, start_ms=i, end_ms=i + 1, prob=1.0, final=True, speaker=min(i, 1) + 1)
        for i, word in enumerate(said)
    )
    final = Final(seg=0, start_ms=0, end_ms=9, text=text, language="en", words=words)
    assert [part.text for part in by_speaker(final)] == parts


def test_the_names_of_speakers_can_be_read_on_black_and_on_white():
    for sgr in SPEAKERS:
        colour = int(sgr.rpartition(";")[2])
        assert 3 <= (luminance(colour) + 0.05) / 0.05 <= 7


def luminance(colour: int) -> float:
    """Of a colour of the table that xterm has: a cube of 6 levels, then 24 greys."""
    levels = (0, 95, 135, 175, 215, 255)
    n = colour - 16
    rgb = (
        (levels[n // 36], levels[n // 6 % 6], levels[n % 6])
        if colour < 232
        else (8 + 10 * (colour - 232),) * 3
    )
    return sum(
        share * ((value / 255 + 0.055) / 1.055) ** 2.4 if value > 10 else 0.0
        for share, value in zip((0.2126, 0.7152, 0.0722), rgb, strict=True)
    )
