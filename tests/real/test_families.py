"""Moonshine tiny's own weights in the library that runs other families: real speech, live."""

import os
from pathlib import Path

import pytest

from streamd.engines.families import FamilyRecognizer
from streamd.engines.families.library import Family
from streamd.session.commit import normalised
from tests.engines.families.test_library import CLIPS, captions, sound
from tests.support.promises import check_transcript

MODELS = Path(os.environ.get("STREAMD_TEST_MODELS", "-")) / "moonshine"
pytestmark = pytest.mark.skipif(not MODELS.is_dir(), reason="needs Moonshine: make test-real")


def test_a_model_that_does_not_stream_captions_real_speech_by_agreement(tmp_path):
    from tests.real import moonshine  # which needs gguf

    path = moonshine.write(MODELS, tmp_path / "moonshine.gguf")
    recognizer, n_wrong = FamilyRecognizer(Family(path, threads=1)), 0
    for clip in ("lamp", "cards", "sense_0880"):  # it spells the numbers of the other one
        events = captions(recognizer, sound(clip))
        check_transcript(events)
        assert any(0 < event.stable < len(event.text) for event in events if not event.is_final)
        heard = " ".join(event.text for event in events if event.is_final).split()
        n_wrong += len({*map(normalised, CLIPS[clip].split())} ^ {*map(normalised, heard)})
    assert n_wrong <= 8, "of 26 words; each wrong one counts about twice"
