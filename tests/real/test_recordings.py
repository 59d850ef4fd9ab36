"""``streamd transcribe --vad off --precision float32`` writes what openai-whisper writes.

With OpenAI's own weights, on all clips of ``../shared/data/eval``, its stream of five minutes, and
with thresholds that make temperature fallback fire; with those in the box on ``tests/speech``.
"""

import os
from pathlib import Path

import pytest

from tests.golden import recordings

MODELS = os.environ.get("STREAMD_TEST_MODELS", "")
BATCHES = {
    name: cases for model in recordings.REAL for name, cases in recordings.batches(model).items()
}


@pytest.mark.parametrize("cases", BATCHES.values(), ids=BATCHES)
@pytest.mark.timeout(1800)
def test_tokens_segments_and_words(cases, tmp_path):
    model = Path(MODELS) / cases[0]["model"]
    if not MODELS or not model.is_dir():
        pytest.skip("STREAMD_TEST_MODELS names no folder with OpenAI's tiny.en and base")
    if not (recordings.ROOT / cases[0]["sound"]).is_file():
        pytest.skip("the recordings of ../shared/data/eval are not there")
    found = recordings.transcribed(tmp_path, cases, model=model)
    for result, case in zip(found, cases, strict=True):
        recordings.check(result, case)


in_full = pytest.mark.skipif(not MODELS, reason="make test-real runs it")


@in_full
@pytest.mark.timeout(300)
def test_the_weights_in_the_box(tmp_path):
    cases = [case for case in recordings.golden(recordings.IN_THE_BOX) if "speech" in case["sound"]]
    (found,) = recordings.transcribed(tmp_path, cases, model="tiny.en")
    recordings.check(found, *cases)
