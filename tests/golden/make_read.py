"""Make read.json: what openai-whisper reads in the clips with the bundled weights.

    PYTHONPATH=. python tests/golden/make_read.py

from the repository, in an environment with openai-whisper 20250625 and streamd's dependencies. Each
clip by itself, in float32, greedily, without timestamps, at the full context.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import soundfile
import torch
import whisper

from streamd.assets import asset
from streamd.engine.store import load_model

HERE = Path(__file__).parent
WEIGHTS = asset("tiny.en") / "model.safetensors"


def main() -> None:
    """Write read.json."""
    model = load_model("tiny.en")
    judge = whisper.model.Whisper(whisper.model.ModelDimensions(**asdict(model.dims)))
    weights = {name: torch.tensor(values) for name, values in model.weights.items()}
    judge.load_state_dict(weights)
    options = whisper.DecodingOptions(language="en", without_timestamps=True, fp16=False)
    texts = {}
    for name in json.loads((HERE / "clips.json").read_text()):
        samples, _ = soundfile.read(HERE / f"{name}.flac", dtype="float32")
        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(samples), judge.dims.n_mels)
        texts[name] = whisper.decode(judge, mel, options).text
    told = {
        "openai_whisper": whisper.__version__,
        "weights_sha256": hashlib.sha256(WEIGHTS.read_bytes()).hexdigest(),
        "texts": texts,
    }
    (HERE / "read.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
