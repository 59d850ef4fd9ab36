"""Speech without words is decoded again: from where, and when not."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from streamd.models import ModelDimensions
from streamd.options import DecodingOptions, LongformOptions
from streamd.types import Clip
from streamd.whisper.decode import Decoded
from streamd.whisper.engine import Pass, Search
from streamd.whisper.longform import TranscribedWindow, Transcriber, reader
from streamd.whisper.longform.segments import (
    Split,
    SpokenWord,
    Stretch,
    TimedSegment,
    before_cut,
    before_missed,
    missed_first,
    small_holes,
)
from tests.support.decoders import N_VOCAB, TOKENIZER, decoded

SEEK = 4_000
STRETCH = Stretch(SEEK, 3_000)


def segment(*words: tuple[float, float], timed: bool = True) -> TimedSegment:
    """With words at these seconds of the window, or only with their times as its own."""
    spoken = tuple(SpokenWord(" a", 40 + start, 40 + end, 0.9) for start, end in words)
    return TimedSegment(
        seek=SEEK,
        start_s=spoken[0].start_s,
        end_s=spoken[-1].end_s,
        text=" a" * len(words),
        tokens=(),
        probs=(),
        decoded=None,
        words=spoken if timed else (),
    )


def speech(*stretches: tuple[float, float]) -> np.ndarray:
    """Voiced between these seconds of the window."""
    voiced = np.zeros(4_000, np.bool_)
    for start, end in stretches:
        voiced[2_000 + round(50 * start) : 2_000 + round(50 * end)] = True
    return voiced


def ends_early(*segments: TimedSegment) -> Split:
    """The model says that nothing follows in the window."""
    return Split(list(segments), STRETCH.end, complete=True)


@pytest.mark.parametrize("timed", [True, False])
def test_the_rest_of_a_window_with_speech_is_the_next_window(timed):
    found = ends_early(segment((0.2, 0.8), (0.9, 2.0), timed=timed))
    kept = before_missed(found, STRETCH, speech((0.0, 7.02)))
    assert kept == Split(found.segments, SEEK + 200, complete=False)


@pytest.mark.parametrize(
    "stretches",
    [
        [],
        [(0.0, 7.0)],  # no more than 5 s of voice behind the last word
        [(0.0, 2.0), (30.0, 40.0)],  # behind the window
        [(2.0, 4.0), (10.0, 12.9)],
    ],
)
def test_a_rest_with_little_speech_is_passed_over(stretches):
    found = ends_early(segment((0.2, 2.0)))
    assert before_missed(found, STRETCH, speech(*stretches)) == found


def test_voice_counts_and_not_time():
    found = ends_early(segment((0.2, 2.0)))
    kept = before_missed(found, STRETCH, speech((3.0, 6.0), (15.0, 17.1)))
    assert kept.seek == SEEK + 200


@pytest.mark.parametrize("after", [[(9.0, 12.0)], [(2.0, 3.0), (9.0, 12.0)]], ids=["behind", "in"])
def test_a_segment_behind_a_hole_or_with_one_in_it_is_decoded_again(after):
    before = segment((0.2, 2.0))
    kept = before_missed(ends_early(before, segment(*after)), STRETCH, speech((0.0, 12.0)))
    assert kept == Split([before], SEEK + 200, complete=False)


@pytest.mark.parametrize(
    ("words", "seek"),
    [
        ([(0.0, 0.98)], STRETCH.end),
        ([(0.2, 0.6)], STRETCH.end),
        ([(9.0, 11.0)], SEEK + 1_100),  # the hole behind it; for the one before see below
    ],
)
def test_what_would_be_the_same_window_again_is_not_tried(words, seek):
    found = ends_early(segment(*words))
    kept = before_missed(found, STRETCH, speech((0.0, 30.0)))
    assert (kept.segments, kept.seek) == (found.segments, seek)


TALK = speech((0.0, 31.0))


def test_a_segment_that_the_end_of_the_window_cuts_off_is_left_to_the_next_one():
    """The model ended "and the" with a sentence of its own, or left out what it had begun."""
    whole, cut = segment((0.2, 16.0)), segment((17.0, 28.6))
    assert before_cut(ends_early(whole, cut), STRETCH, TALK) == Split([whole], SEEK + 1_600, False)
    # it ended by itself: 1.5 s of voice follow
    ended = segment((17.0, 28.4))
    kept = before_cut(ends_early(whole, ended), STRETCH, TALK)
    assert kept == Split([whole, ended], SEEK + 2_840, False)
    # without much voice behind it, it reaches the end
    kept = before_cut(ends_early(whole, ended), STRETCH, speech((0.0, 29.0)))
    assert kept == Split([whole], SEEK + 1_600, False)


@pytest.mark.parametrize(
    ("words", "seek"),
    [
        ([[(0.2, 14.0)], [(14.0, 29.8)]], SEEK + 2_980),  # it is more than half of the window
        ([[(0.2, 29.8)]], SEEK + 2_980),
        ([[(0.2, 14.0)], [(14.0, 31.0)]], STRETCH.end),
        ([[(0.2, 0.6)]], STRETCH.end),  # it would be the same window again
        ([], STRETCH.end),
    ],
)
def test_a_window_that_is_cut_off_keeps_its_only_text(words, seek):
    found = ends_early(*(segment(*each) for each in words))
    kept = before_cut(found, STRETCH, TALK)
    assert (kept.segments, kept.seek) == (found.segments, seek)


def test_what_the_model_itself_leaves_to_the_next_window_is_not_looked_at():
    found = Split([segment((0.2, 16.0)), segment((17.0, 28.6))], SEEK + 2_860, complete=False)
    assert before_cut(found, STRETCH, TALK) == found


def test_no_segments_no_hole():
    assert before_missed(ends_early(), STRETCH, speech((0.0, 30.0))) == ends_early()


def test_what_comes_before_the_first_word_is_decoded_alone():
    found = ends_early(segment((9.0, 12.0)))
    assert missed_first(found, STRETCH, speech((0.0, 12.0))) == Stretch(SEEK, 900)


@pytest.mark.parametrize(
    ("found", "voiced"),
    [
        (ends_early(segment((9.0, 12.0))), speech((0.0, 5.0), (9.0, 12.0))),
        (ends_early(segment((0.5, 0.9), (20.0, 21.0))), speech((0.0, 30.0))),  # too short alone
        (ends_early(segment((0.5, 2.0), (7.0, 8.0))), speech((0.0, 30.0))),
        (ends_early(segment((29.5, 30.0))), speech((0.0, 30.0))),  # it would be all of the window
        (ends_early(), speech((0.0, 30.0))),
    ],
)
def test_without_much_speech_before_the_first_word_nothing_is(found, voiced):
    assert missed_first(found, STRETCH, voiced) is None


@pytest.mark.parametrize("words", [[(0.5, 2.5), (9.0, 12.0)], [(0.5, 14.0), (14.0, 15.0)]])
def test_what_comes_before_a_hole_in_the_first_segment_is_decoded_alone(words):
    """Two turns were lost under a word that seemed to last for 11 s."""
    found = ends_early(segment(*words))
    assert missed_first(found, STRETCH, speech((0.0, 30.0))) == Stretch(SEEK, 250)


N_COLUMNS = 20_000


class Window(NamedTuple):
    """A window's first column and length: its log-mel, its features, and its decoder."""

    first: int
    n_columns: int

    def run(self, asked: Pass) -> None:
        """Answer a pass that says nothing."""


class Said(NamedTuple):
    """What the model writes in a window, between the timestamps `times` if there are any."""

    text: str
    avg_logprob: float = -0.3
    no_speech_prob: float = 0.1
    compression_ratio: float = 1.0
    times: tuple[tuple[float, float], ...] = ()
    is_endless: bool = False  # takes as many passes as it may have tokens

    @property
    def tokens(self) -> tuple[int, ...]:
        """A segment for each line, if they have times."""
        if not self.times:
            return tuple(TOKENIZER.encode(self.text))
        segments = zip(self.times, self.text.splitlines(), strict=True)
        return tuple(
            token
            for (start_s, end_s), line in segments
            for token in (timestamp(start_s), *TOKENIZER.encode(line), timestamp(end_s))
        )


def timestamp(seconds: float) -> int:
    return TOKENIZER.timestamp_begin + round(50 * seconds)


class Engine:
    """Runs the passes of up to two windows at once, and counts them."""

    dims = ModelDimensions(80, 1500, 8, 1, 1, N_VOCAB, 448, 8, 1, 1)
    n_together = 2
    n_cheap = 4

    def __init__(self) -> None:
        self.ran: list[int] = []

    def encode(self, mel: Window, reuse: object = None) -> Window:
        return mel

    def decoder(self, features: Window, n_slots: int) -> Window:
        return features

    def together(self, is_alone: Callable[[], bool]) -> "Together":
        return Together(self.ran)


class Together:
    def __init__(self, ran: list[int]) -> None:
        self._ran = ran

    def run(self, passes: Sequence[Pass]) -> list[None]:
        self._ran.append(len(passes))
        return [None] * len(passes)

    def encode_alone(self, mel: Window) -> Window:
        return mel

    def begin(self, mel: Callable[[], Window]) -> Callable[[], Window]:
        return mel


class Mel:
    """Of a recording, only its length."""

    n_columns = N_COLUMNS

    def window(self, first: int, n_columns: int, *, width: int, silent: bool = False) -> Window:
        return Window(first, n_columns)


Write = Callable[[Window, float], Said]
Told = list[tuple[int, int, float, str]]
"""Of each attempt: the window's first column and length, the temperature and the prompt."""


@pytest.fixture
def transcribe(monkeypatch):
    """Transcribes clips with a decoder that is a function of window and temperature."""

    def run(
        write: Write,
        *clips: Clip,
        voiced: bool | np.ndarray = True,
        temperatures: tuple[float, ...] = DecodingOptions().temperatures,
        **options: Any,
    ) -> tuple[list[TranscribedWindow], Told, list[int]]:
        told: Told = []

        def decode(window, tokenizer, *, options, context, temperature, rng) -> Search[Decoded]:
            told.append((*window, temperature, tokenizer.decode(context.prompt)))
            said = write(window, temperature)
            for _ in range(context.max_tokens if said.is_endless else 1):
                yield Pass(window, *[np.zeros(1)] * 5)
            names = ("tokens", "avg_logprob", "no_speech_prob", "compression_ratio")
            known = {name: getattr(said, name) for name in names}
            return decoded(temperature=temperature, **known)

        monkeypatch.setattr(reader, "decode", decode)
        engine = Engine()
        transcriber = Transcriber(
            engine,
            TOKENIZER,
            DecodingOptions(timestamps=False, temperatures=temperatures),
            LongformOptions(word_timestamps=False, **options),
        )
        if isinstance(voiced, bool):
            voiced = np.ones(N_COLUMNS // 2, np.bool_) if voiced else None
        windows = list(transcriber.transcribe(Mel(), clips, language="en", voiced=voiced))
        return windows, told, engine.ran

    return run


def texts(windows: Sequence[TranscribedWindow]) -> list[str]:
    return [segment.text for window in windows for segment in window.segments]


def begins(first: Said, then: Said | None = None) -> Write:
    """Writes one thing at column 1,000, and another everywhere else, to the end of the window."""

    def write(window: Window, temperature: float) -> Said:
        end = Said("and then it was over", times=((0, window.n_columns / 100),))
        return first if window.first == 1_000 else then or end

    return write


def late(window: Window, temperature: float) -> Said:
    return Said(f"from {window.first}") if window.first >= 1_900 else SILENCE


SILENCE = Said("hm", avg_logprob=-1.7, no_speech_prob=0.8)
CLIP = Clip(1_000, 2_800, silent_end=True)


def test_where_somebody_speaks_the_models_silence_is_tried_at_other_temperatures(transcribe):
    def write(window: Window, temperature: float) -> Said:
        return Said("so it is") if temperature == 0.4 else SILENCE

    windows, told, _ = transcribe(write, CLIP)
    assert texts(windows) == ["so it is"]
    assert [temperature for *_, temperature, _ in told] == [0.0, 0.2, 0.4]
    windows, told, _ = transcribe(write, CLIP, voiced=False)
    assert texts(windows) == []  # as openai-whisper
    assert len(told) == 1


def test_speech_that_stays_without_words_is_decoded_by_halves_and_told(transcribe):
    windows, told, _ = transcribe(late, CLIP)
    assert texts(windows) == ["from 2293"]
    lengths = dict.fromkeys(n for first, n, *_ in told if first == 1_000)
    assert list(lengths) == [1_800, 900, 450]
    # only what was read, not the window of which it is the first part
    unheard = [window.unheard for window in windows]
    assert unheard == [Stretch(1_000, 450), Stretch(1_450, 337), Stretch(1_787, 506), None]


def test_a_window_costs_at_most_what_the_reader_says(transcribe, monkeypatch):
    """In babble of seven voices, one took 2,014 passes."""
    n_passes = Counter[int]()
    monkeypatch.setattr(Window, "run", lambda window, *_: n_passes.update([window.first]))
    clip = Clip(0, 1_900, silent_end=True)
    _, told, _ = transcribe(lambda *_: SILENCE._replace(is_endless=True), clip)
    assert n_passes[0] <= 148 + 371 + 148
    assert {n for first, n, *_ in told if first == 0} == {1_900, 950}  # and not only temperatures


def test_a_part_without_a_voice_is_not_told(transcribe):
    voiced = np.zeros(N_COLUMNS // 2, np.bool_)
    voiced[950:1_400] = True  # from column 1,900 to the end
    windows, _, _ = transcribe(late, CLIP, voiced=voiced)
    assert texts(windows) == ["from 1900"]
    assert [window.unheard for window in windows] == [None, None]


INVENTED = Said("of the world", avg_logprob=-1.1, compression_ratio=2.5)


@pytest.mark.parametrize(
    ("said", "is_kept"),
    [
        (INVENTED, False),
        (INVENTED._replace(avg_logprob=-0.7, no_speech_prob=0.4), False),
        (INVENTED._replace(avg_logprob=-0.7), True),  # a song, a list
        (INVENTED._replace(compression_ratio=2.3), True),  # a translation, or misread
        (INVENTED._replace(text="so it is" + 20 * " and now", compression_ratio=5.0), True),  # cut
    ],
)
def test_text_whose_best_attempt_is_improbable_and_repeats_itself_is_left_out(
    transcribe, said, is_kept
):
    """In a crowd it was "the world of the people of the world", for half a minute."""
    clip = Clip(1_000, 4_800, silent_end=True)
    windows, told, _ = transcribe(begins(said, Said("so it is")), clip)
    assert texts(windows)[-1] == "so it is"
    assert (len(texts(windows)) == 2) == is_kept
    # all temperatures are tried, but not its halves
    attempts = [(n, temperature) for first, n, temperature, _ in told if first == 1_000]
    assert {n for n, _ in attempts} == {1_900}
    assert is_kept or [each for _, each in attempts] == list(DecodingOptions().temperatures)
    unheard = [window.unheard for window in windows if window.unheard]
    assert unheard == ([] if is_kept else [Stretch(1_000, 1_900)])


def test_text_is_kept_where_nothing_would_say_that_it_is_missing(transcribe):
    short = Clip(1_000, 1_450, silent_end=True)
    windows, _, _ = transcribe(lambda window, temperature: INVENTED, short)
    assert texts(windows) == [INVENTED.text]
    # neither without other attempts nor without a voice detector: as openai-whisper
    for options in {"temperatures": (0.0,)}, {"voiced": False}:
        windows, _, _ = transcribe(lambda window, temperature: INVENTED, CLIP, **options)
        assert texts(windows) == [INVENTED.text]


def test_a_sentence_that_a_window_cuts_off_is_read_by_the_next_one(transcribe):
    write = begins(Said("so it is\nand of course", times=((0, 12), (12, 19))))
    windows, told, _ = transcribe(write, Clip(1_000, 4_000, silent_end=True))
    assert texts(windows) == ["so it is", "and then it was over"]
    assert [window for *window, _, _ in told] == [[1_000, 1_900], [2_200, 1_800]]


def test_text_that_only_completes_the_one_before_is_decoded_again_without_it(transcribe):
    seen: list[int] = []

    def write(window: Window, temperature: float) -> Said:
        seen.append(window.first)
        if window.first == 1_000:
            return Said("so it is\nand of course", times=((0, 12), (12, 19)))
        if seen.count(2_200) == 1:
            return Said("of course", times=((0, 0.4),))
        return Said("and then it was over", times=((0, 18),))

    windows, told, _ = transcribe(write, Clip(1_000, 4_000, silent_end=True))
    assert texts(windows) == ["so it is", "and then it was over"]
    assert [(first, prompt) for first, *_, prompt in told[1:]] == [(2_200, "so it is"), (2_200, "")]


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("So it is\nAnd so on\nand of course", "So it is.And so on."),
        ("So it is,\nand so on\nand of course", "So it is,and so on"),
        ("So it is.\nAnd so on?\nand of course", "So it is.And so on?"),
    ],
)
def test_sentences_have_full_stops_in_the_prompt(transcribe, text, prompt):
    """A text without marks was followed by others, which left out turns."""
    write = begins(Said(text, times=((0, 6), (6, 12), (12, 19))))
    long = Clip(1_000, 6_000, silent_end=True)
    windows, told, _ = transcribe(write, long)
    assert texts(windows)[:2] == text.splitlines()[:2]
    assert told[1] == (2_200, 1_900, 0.0, prompt)
    _, told, _ = transcribe(write, long, voiced=False)
    assert told[1][3] == "".join(text.splitlines())  # as openai-whisper


def test_a_window_whose_text_ends_at_once_is_decoded_by_halves(transcribe):
    def write(window: Window, temperature: float) -> Said:
        if window.n_columns > 900:
            return Said("well", times=((0, 0.4),))
        return Said("and then it was over", times=((0, window.n_columns / 100),))

    windows, told, _ = transcribe(write, CLIP)
    assert texts(windows) == ["and then it was over"] * 2
    assert [n for _, n, *_ in told] == [1_800, 900, 900]


HOLED = Said("so it is\nand of course", times=((0, 6), (9, 18)))


@pytest.mark.parametrize(("avg_logprob", "added"), [(-0.9, True), (-1.1, False)])
def test_a_small_hole_is_read_alone_and_filled_if_that_is_probable(transcribe, avg_logprob, added):
    quiet = Said("said a quiet voice", avg_logprob, times=((0, 3),))
    windows, told, _ = transcribe(begins(HOLED, quiet), CLIP)
    between = ["said a quiet voice"] * added
    assert texts(windows) == ["so it is", *between, "and of course"]
    assert told == [(1_000, 1_800, 0.0, ""), (1_600, 300, 0.0, "")]


def test_what_is_read_in_a_small_hole_has_times_within_it(transcribe):
    quiet = Said("said a quiet\nvoice\nagain", times=((0, 2), (2, 5), (5, 6)))
    windows, *_ = transcribe(begins(HOLED, quiet), CLIP)
    times = [(s.text, s.start_s, s.end_s) for window in windows for s in window.segments]
    assert times == [
        ("so it is", 10, 16),
        ("said a quiet", 16, 18),
        ("voice", 18, 19),
        ("and of course", 19, 28),
    ]


def test_a_segment_within_a_range_has_no_time_outside():
    long = segment((0.0, 1.0), (1.0, 3.0), (3.0, 5.0))
    assert long.within(40.5, 42.0) == replace(
        segment((0.5, 1.0), (1.0, 2.0), (2.0, 2.0)), text=long.text
    )


@pytest.mark.parametrize(
    ("stretches", "holes"),
    [
        ([(0.0, 12.0)], [(1, 4.0, 6.5), (2, 9.0, 12.0)]),
        ([(0.0, 4.0), (4.2, 6.3)], [(1, 4.0, 6.3)]),
        ([(9.8, 12.0)], [(2, 9.3, 12.0)]),  # with half a second before it, not all
        ([(4.2, 6.18)], []),  # less than 2 s
        ([(2.0, 4.0), (6.5, 9.0)], []),  # it has words
    ],
)
def test_small_holes_are_between_and_behind_segments(stretches, holes):
    found = ends_early(segment((0.2, 0.8), (2.2, 4.0)), segment((6.5, 7.0), (8.8, 9.0)))
    parts = [
        (n, (part.seek - SEEK) / 100, (part.end - SEEK) / 100)
        for n, part in small_holes(found, STRETCH, speech(*stretches))
    ]
    assert parts == holes


CLAUSES = [" ".join(f"{letter}o" for letter in "abcdefghijklmnopqrst"[:n]) for n in (3, 13, 20)]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        *((" ".join([clause] * max(4, 14 // len(clause.split()))), clause) for clause in CLAUSES),
        ("she said " + "a" * 300, "she said " + "a" * 10),
    ],
    ids=["3", "13", "20", "a held vowel"],
)
def test_what_is_written_again_and_again_is_written_once(transcribe, text, kept):
    windows, told, _ = transcribe(lambda *_: Said(text), CLIP)
    assert texts(windows) == [kept]
    assert len(told) == len(DecodingOptions().temperatures)  # another one may not repeat it
    again, told, _ = transcribe(lambda *_: Said(text), CLIP, voiced=False)
    assert (texts(again), len(told)) == ([text], 1)


@pytest.mark.parametrize(
    ("text", "no_speech_prob", "is_kept"),
    [
        ("Thank you.", 0.6, False),  # coughs, after a prompt
        ("Thank you.", 0.05, True),
        ("Thank you, Mary.", 0.6, True),
    ],
)
def test_what_is_written_for_noise_needs_speech(transcribe, text, no_speech_prob, is_kept):
    said = Said(text, no_speech_prob=no_speech_prob)
    windows, _, _ = transcribe(lambda window, temperature: said, CLIP)
    assert texts(windows) == [text] * is_kept
    again, _, _ = transcribe(lambda window, temperature: said, CLIP, voiced=False)
    assert texts(again) == [text], "openai-whisper keeps it"


def test_clips_are_decoded_at_once_in_order_and_do_not_depend_on_each_other(transcribe):
    clips = [Clip(start, start + 1_500, silent_end=True) for start in range(0, 15_000, 3_000)]

    def write(window: Window, temperature: float) -> Said:
        slow = window.first == 0 and temperature < 0.8
        return Said(f"from {window.first}", avg_logprob=-2.0 if slow else -0.3)

    windows, told, ran = transcribe(write, *clips, initial_prompt="well")
    assert texts(windows) == [f"from {clip.start}" for clip in clips]
    assert max(ran) == 2
    reached = [window.reached_ms for window in windows]
    assert reached == sorted(reached)
    assert {prompt.strip() for *_, prompt in told} == {"well", ""}
