"""Where somebody speaks in a recording, as clips: all speech is in one, and little else."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamd.options import EndpointOptions, GateOptions
from streamd.session.clips import MERGED_PAUSE, SpeechClips
from streamd.session.gate import Gate
from streamd.session.segmenter import Segmenter
from streamd.types import Clip
from tests.support.fakes import loud_frames, scripted_audio

PAUSE, AROUND, LONGEST = 30, 25, 400
OPTIONS = EndpointOptions(
    pre_roll=AROUND,
    pre_final=AROUND,
    plain=PAUSE,
    sentence=PAUSE,
    unfinished=PAUSE,
    longest=LONGEST,
)


def clips(*stretches: tuple[bool, int], longest: int = 0, cut: int = 50) -> list[Clip]:
    """Of speech and silence, in frames."""
    loud = np.concatenate([np.full(n, speech) for speech, n in stretches])
    finder = SpeechClips(Gate(loud_frames, GateOptions()), Segmenter(OPTIONS))
    frames = scripted_audio(loud)
    for at in range(0, len(frames), cut):
        finder.feed(frames[at : at + cut])
    return finder.clips(2 * len(frames), longest=longest)


def test_silence_has_none():
    assert clips((False, 500)) == []


def test_an_utterance_with_what_is_around_it():
    (clip,) = clips((False, 100), (True, 50), (False, 100))
    assert clip == Clip(2 * (100 + 5 - AROUND), 2 * (150 + AROUND), silent_end=True)


def test_neighbours_become_one_if_it_is_not_too_long():
    speech = ((False, 100), (True, 50), (False, 80), (True, 50), (False, 300), (True, 50))
    first, second, third = clips(*speech, (False, 50))
    assert clips(*speech, (False, 50), longest=3000) == [
        Clip(first.start, second.end, silent_end=True),
        third,  # after a long pause
    ]
    assert third.start - second.end > MERGED_PAUSE
    short = second.end - first.start - 1
    assert clips(*speech, (False, 50), longest=short) == [first, second, third]


def test_a_clip_is_certain_if_a_voice_in_it_is():
    frames = scripted_audio([True] * 50 + [False] * 300 + [True] * 50 + [False] * 100)
    probs = iter([0.5] * 350 + [0.9] * 150)

    def confirm(some, likely):
        return [next(probs) * each for each in likely]

    finder = SpeechClips(Gate(loud_frames, GateOptions(), confirm=confirm), Segmenter(OPTIONS))
    finder.feed(frames)
    found = finder.clips(2 * len(frames), longest=0)
    assert [finder.is_certain(clip) for clip in found] == [False, True]


def test_speech_that_is_cut_because_it_is_long_is_one_clip():
    (clip,) = clips((True, 3 * LONGEST + 100), (False, 100))
    assert clip.silent_end
    assert clip.end == 2 * (3 * LONGEST + 100 + AROUND)


def test_the_end_of_the_recording_is_a_pause():
    (clip,) = clips((False, 50), (True, 80))
    assert clip.silent_end
    assert clip.end == 2 * 130


def test_what_depends_on_the_text_cannot_be_asked():
    with pytest.raises(ValueError, match="may not depend on its text"):
        SpeechClips(Gate(loud_frames), Segmenter(EndpointOptions()))


def _no_pause(speaks: np.ndarray) -> bool:
    """Whether no silence is as long as one that ends an utterance, but for that around it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], speaks, [True]]).astype(int)))
    return all(end - start <= PAUSE + AROUND for start, end in edges.reshape(-1, 2))


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 500)), min_size=1, max_size=8),
    st.integers(0, 4000),
    st.integers(1, 200),
)
@example([(False, 1), (True, 392), (False, 7)], 0, 1)
def test_all_speech_is_in_one_clip(stretches, longest, cut):
    found = clips(*stretches, longest=longest, cut=cut)
    assert found == clips(*stretches, longest=longest, cut=10_000)
    loud = np.concatenate([np.full(n, speech) for speech, n in stretches])
    assert all(before.end <= after.start for before, after in pairwise(found))
    heard = np.zeros(len(loud), np.bool_)
    for clip in found:
        assert 0 <= clip.start < clip.end <= 2 * len(loud)
        speaks = loud[clip.start // 2 : clip.end // 2]
        assert clip.end - clip.start <= max(longest, 2 * LONGEST) or _no_pause(speaks)
        # the gate shuts up to ten frames late, and a cut may fall between
        assert loud[max(0, clip.start // 2 - 10) : clip.end // 2].any()
        heard[clip.start // 2 : clip.end // 2] = True
    # six voiced frames of ten open the gate: of longer speech nothing is left out
    edges = np.flatnonzero(np.diff(np.concatenate([[False], loud, [False]]).astype(int)))
    for start, end in edges.reshape(-1, 2):
        assert end - start < 6 or heard[start:end].all()
