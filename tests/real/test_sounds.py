"""The thresholds for sounds on real speech and music, with YAMNet's weights."""

import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamd.engines import yamnet
from streamd.engines.yamnet import RecordedSounds
from streamd.events import Sound
from streamd.types import FRAME, SAMPLE_RATE
from tests.real.cases import ROOT
from tests.support.yamnet import loaded

NETWORKS = {
    name: Path(os.environ.get("STREAMD_TEST_MODELS", "-")) / "yamnet" / name
    for name in ("model.onnx", "yamnet.tflite")
}
"""An export that `make test-real` gets, and Google's own file, which who has it may put there."""
SHARED = ROOT.parent / "shared/data"
SPEECH = [
    SHARED / "eval/streams/A_clean.flac",
    *(SHARED / "conversations/streams" / f"conv{each}_dev.flac" for each in (1, 2, 3, "7_sky")),
]


@pytest.fixture(params=NETWORKS)
def classify(request):
    path = NETWORKS[request.param]
    if not path.exists():
        pytest.skip(f"{request.param} is not here (make test-real)")
    return loaded(path) if path.suffix == ".onnx" else yamnet.load(path)


def sounds(path: Path, classify) -> list[Sound]:
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    samples, rate = soundfile.read(path, dtype="float32")
    assert rate == SAMPLE_RATE
    recorded = RecordedSounds(classify)
    recorded.feed(np.pad(samples, (0, -len(samples) % FRAME)).reshape(-1, FRAME))
    return recorded.sounds()


def test_music_is_heard_where_it_is(classify):
    """There is a chuckle, too, which is in one window only."""
    (music,) = sounds(ROOT / "tests/speech/demo.flac", classify)
    assert music.label == "music"
    assert abs(music.start_ms - 23_200) <= 500
    assert abs(music.end_ms - 29_700) <= 500


def test_two_passages_of_music_are_two_sounds(classify):
    found = sounds(SHARED / "eval/streams/C_turns_gaps_music.flac", classify)
    times = [(each.label, each.start_ms, each.end_ms) for each in found]
    assert [label for label, *_ in times] == ["music", "music"]
    for (_, start_ms, end_ms), truth in zip(
        times, [(102_086, 112_086), (197_355, 203_355)], strict=True
    ):
        assert abs(start_ms - truth[0]) <= 600
        assert abs(end_ms - truth[1]) <= 600


@pytest.mark.parametrize(
    "path", [ROOT / "tests/speech/recording.flac", *SPEECH], ids=lambda p: p.stem
)
def test_speech_has_no_sounds(path, classify):
    assert sounds(path, classify) == []
