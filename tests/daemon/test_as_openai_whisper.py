"""``streamd transcribe --vad off --precision float32`` writes what openai-whisper writes.

With the weights in the box on short sounds; tests/real does the same with long ones, and with
OpenAI's own weights.
"""

import pytest

from tests.golden import recordings

BATCHES = {
    name: [case for case in cases if "golden" in case["sound"]]
    for name, cases in recordings.batches(recordings.IN_THE_BOX).items()
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cases", BATCHES.values(), ids=BATCHES)
def test_tokens_segments_and_words(cases, tmp_path):
    found = recordings.transcribed(tmp_path, cases, model="tiny.en")
    for result, case in zip(found, cases, strict=True):
        recordings.check(result, case)
