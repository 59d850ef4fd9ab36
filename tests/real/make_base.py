"""Make ``base.json`` with the openai-whisper package: ``python make_base.py FOLDER``

FOLDER holds base with OpenAI's weights, in any layout that streamd reads (`make test-real` leaves
one in ``build/real/base``). Needs the environment of tests/golden/make_golden.py, and the
recordings of ``../shared``.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "golden")]

import make_golden  # noqa: E402 - after the path to it
import soundfile  # noqa: E402
import torch  # noqa: E402
import whisper  # noqa: E402
from cases import CASES, GOLDEN, ROOT, compact  # noqa: E402


def main() -> None:
    torch.set_num_threads(1)
    model = make_golden.load(Path(sys.argv[1]), "base")
    made = []
    for sound, options in CASES:
        samples, rate = soundfile.read(ROOT / sound, dtype="float32")
        assert rate == whisper.audio.SAMPLE_RATE
        result = whisper.transcribe(model, samples, fp16=False, word_timestamps=True, **options)
        made.append({"sound": sound, "options": options, **compact(result)})
        print(sound, options, result["language"], result["text"], flush=True)
    document = {"made_with": make_golden.versions(), "cases": made}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    GOLDEN.write_text(text.replace('{"sound"', '\n{"sound"') + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
