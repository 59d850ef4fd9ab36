"""Any recording, any clips, whatever the model writes: every window is visited, and it ends."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from unittest.mock import patch

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from streamd.models import ModelDimensions
from streamd.options import DecodingOptions, LongformOptions
from streamd.types import Clip
from streamd.whisper.longform import TranscribedWindow, Transcriber, reader
from streamd.whisper.longform.reader import LEAST_SILENT_REST
from streamd.whisper.longform.segments import in_ms, ms_of, small_holes
from tests.support.decoders import N_VOCAB, TIMESTAMP_BEGIN, TOKENIZER, ContextDecoder, hashed


@dataclass
class Engine:
    """Writes anything: its text is a function of the window's place and of what it was told."""

    seed: int
    eot_bias: float
    timestamp_cost: float
    dims = ModelDimensions(80, 1500, 8, 1, 1, N_VOCAB, 448, 8, 1, 1)
    n_cheap = 4

    def encode(self, mel: np.ndarray) -> int:
        assert 1 <= len(mel) <= 3_000
        return int(mel[0])

    def decoder(self, features: int, n_slots: int) -> ContextDecoder:
        predict = hashed(self.seed + features, eot_bias=self.eot_bias)

        def few_timestamps(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
            logits, alignment = predict(context)
            logits[TIMESTAMP_BEGIN:] -= self.timestamp_cost
            return logits, alignment

        return ContextDecoder(few_timestamps, n_slots)


@dataclass
class Mel:
    """Of a recording, only its length; remembers the windows that were looked at."""

    n_columns: int
    seen: list[tuple[int, int]] = field(default_factory=list)

    def window(self, first: int, n_columns: int, *, width: int, silent: bool = False) -> np.ndarray:
        self.seen.append((first, first + n_columns))
        return np.full(width, first)


def transcribe(
    mel: Mel, clips, engine: Engine, options: LongformOptions, *, voiced=None, **decoding
) -> list[TranscribedWindow]:
    settings = {"temperatures": (0.0,), "logprob_threshold": -99.0, "no_speech_threshold": 1.0}
    transcriber = Transcriber(
        engine, TOKENIZER, DecodingOptions(loops=False, **settings | decoding), options
    )
    return list(transcriber.transcribe(mel, clips, language="en", voiced=voiced))


recordings = st.integers(1, 7_000)
places = st.lists(st.integers(0, 8_000), max_size=6).map(sorted)
engines = st.builds(Engine, st.integers(0, 99), st.floats(4.0, 8.0), st.floats(3.0, 7.0))


@given(recordings, places, engines, st.booleans(), st.booleans(), st.booleans())
def test_every_window_is_visited(n_columns, points, engine, timestamps, words, silent_end):
    mel = Mel(n_columns)
    bounds = [min(point, n_columns) for point in points] + [n_columns] * (len(points) % 2)
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    clips = [Clip(start, end, silent_end) for start, end in pairs if start < end]
    options = LongformOptions(word_timestamps=words)
    heard = transcribe(mel, clips, engine, options, timestamps=timestamps)
    assert len(heard) == len(mel.seen)
    for clip in clips:
        seen = [window for window in mel.seen if clip.start <= window[0] < clip.end]
        assert seen[0][0] == clip.start
        assert all(end <= clip.end for _, end in seen)
        for (first, end), (following, _) in pairwise(seen):
            assert first < following <= end  # nothing twice at the same place, nothing left out
        assert clip.end - seen[-1][1] < (LEAST_SILENT_REST if silent_end else 1)
    _check_times(heard, n_columns)
    if silent_end:
        within = [(10 * clip.start, 10 * clip.end) for clip in clips]
        for segment in (segment for window in heard for segment in window.segments):
            assert any(
                start <= ms_of(segment.seek) and in_ms(segment.end_s) <= end
                for start, end in within
            )


@given(recordings, engines, st.booleans(), st.booleans(), st.booleans())
@example(2_097, Engine(0, 4.0, 3.0), True, True, False)  # a timestamp after the window's end
def test_it_ends_and_goes_forward_where_speech_is_tried_again(
    n_columns, engine, timestamps, words, silent_end
):
    mel = Mel(n_columns)
    clips = [Clip(0, n_columns, silent_end)]
    options, voiced = LongformOptions(word_timestamps=words), np.ones(n_columns // 2 + 1, np.bool_)
    with patch.object(reader, "small_holes", return_value=[]):
        heard = transcribe(mel, clips, engine, options, voiced=voiced, timestamps=timestamps)
    assert all(first <= following <= end for (first, end), (following, _) in pairwise(mel.seen))
    assert max(Counter(mel.seen).values()) <= 2  # again without the text before
    assert n_columns - mel.seen[-1][1] < (LEAST_SILENT_REST if silent_end else 1)
    _check_times(heard, n_columns)


@given(recordings, engines, st.booleans(), st.booleans())
def test_small_holes_are_filled_within_their_window(n_columns, engine, timestamps, words):
    mel, holes = Mel(n_columns), {}

    def found(text, window, voiced):
        parts = small_holes(text, window, voiced)
        # one at the beginning of its window cannot be told from it
        holes.update((part.seek, part) for _, part in parts if part.seek != window.seek)
        return parts

    options, voiced = LongformOptions(word_timestamps=words), np.ones(n_columns // 2 + 1, np.bool_)
    clips = [Clip(0, n_columns)]
    with patch.object(reader, "small_holes", found):
        heard = transcribe(mel, clips, engine, options, voiced=voiced, timestamps=timestamps)
    starts_s = {first: hole.start_s for first, hole in holes.items()}
    ends_s = {first: hole.end / 100 for first, hole in holes.items()}
    for window in heard:
        assert len({segment.seek for segment in window.segments} - holes.keys()) <= 1
        for before, after in pairwise(window.segments):
            if before.seek != after.seek:
                assert before.end_s <= starts_s.get(after.seek, after.start_s)
                assert ends_s.get(before.seek, before.end_s) <= after.start_s
    _check_times(heard, n_columns, in_order=False)  # a segment's `seek` is that of its hole


def _check_times(heard: list[TranscribedWindow], n_columns: int, *, in_order: bool = True) -> None:
    """In order of their windows, and inside the recording."""
    end_ms = 10 * n_columns
    segments = [segment for window in heard for segment in window.segments]
    for segment in segments:
        assert segment.text.strip()
        assert 0 <= in_ms(segment.start_s) <= in_ms(segment.end_s) <= end_ms
        for word in segment.words:
            assert 0 <= in_ms(word.start_s) <= in_ms(word.end_s) <= end_ms
    assert not in_order or [s.seek for s in segments] == sorted(s.seek for s in segments)
    assert all(window.reached_ms <= end_ms for window in heard)


def test_no_clips_no_windows():
    mel = Mel(500)
    assert transcribe(mel, [], Engine(0, 6.0, 5.0), LongformOptions()) == []
    assert mel.seen == []
