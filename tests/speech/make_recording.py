"""Join clips of real speech into what the tests caption, and into what ``make demo`` plays.

``python tests/speech/make_recording.py ../shared/data`` reads the manifests of its folders ``eval``
and ``train`` and writes ``recording.flac`` and ``demo.flac`` beside this file, and for each a
``.json``: per clip its text, where it lies, who speaks, where it comes from and under which
licence. All clips are in the public domain or CC0. The same clips always give the same recordings.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
RATE_HZ = 16_000
SPEECH_DBFS = -23.0
PEAK = 0.89  # -1 dBFS
FLOOR_DBFS = -75.0  # Digital silence between voices would be unnatural.
FADE = 160  # samples: 10 ms
LEAD_MS = 700
Programme = Sequence[tuple[str, float | None, int]]
"""Of each clip: how much of it is used in s, or None for all; the pause behind it in ms."""
PROGRAMMES: Mapping[str, Programme] = {
    "recording": [
        ("sense_0870", None, 700),
        ("sense_0880", None, 1300),
        ("arctic_a0245_1592711461", None, 1500),
        ("jfk", None, 4000),
        ("two_cities", 21.0, 1600),
        ("LJ002-0186", None, 1200),
    ],
    # What everybody can check: a famous text first, numbers at the end.
    "demo": [
        ("two_cities", 21.0, 1600),
        ("sense_0870", None, 700),
        ("sense_0880", None, 700),
        ("sense_0890", None, 1500),
        ("common_voice_en_20005955", None, 1500),
        ("LJ002-0186", None, 1200),
    ],
}


def clips_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what the manifests say of each clip, with its whole path, by the file's own name."""
    known = {}
    for part in ("eval", "train"):
        for line in (folder / part / "manifest.jsonl").read_text().splitlines():
            entry = json.loads(line)
            name = Path(entry["path"]).stem.rpartition("__")[2]
            known[name] = entry | {"path": folder / part / entry["path"]}
    return known


def levelled(path: Path, end_s: float | None) -> NDArray[np.float64]:
    """Return a clip's samples up to `end_s` at 16 kHz, at the usual level, with faded ends."""
    samples, rate_hz = soundfile.read(path)
    samples = soxr.resample(samples, rate_hz, RATE_HZ)
    if end_s is not None:
        samples = samples[: int(end_s * RATE_HZ)]
    loud = np.abs(samples) > 0.05 * np.abs(samples).max()
    rms = float(np.sqrt(np.mean(samples[loud] ** 2)))
    gain = min(10 ** (SPEECH_DBFS / 20) / rms, PEAK / float(np.abs(samples).max()))
    ramp = np.ones(len(samples))
    ramp[:FADE] = np.linspace(0, 1, FADE)
    ramp[-FADE:] = ramp[FADE - 1 :: -1]
    return np.asarray(samples * gain * ramp)


def join(folder: Path, programme: Programme) -> tuple[NDArray[np.float64], list[dict[str, object]]]:
    """Lay the programme's clips end to end; return the samples and a description of each clip."""
    known = clips_of(folder)
    pieces = [np.zeros(LEAD_MS * RATE_HZ // 1000)]
    clips: list[dict[str, object]] = []
    for name, end_s, pause_ms in programme:
        entry = known[name]
        start = sum(map(len, pieces))
        samples = levelled(entry["path"], end_s)
        pieces += [samples, np.zeros(pause_ms * RATE_HZ // 1000)]
        text = entry["text"]
        if end_s is not None:
            n_words = sum(word_end < end_s for _, _, word_end in entry["words"])
            text = " ".join(text.split()[:n_words])
        clips.append(
            {
                "start_ms": start * 1000 // RATE_HZ,
                "end_ms": (start + len(samples)) * 1000 // RATE_HZ,
                "text": text,
                "speaker": entry["speaker"],
                "source": entry["source"],
                "licence": entry["licence"],
                "clip": name,
            }
        )
    joined = np.concatenate(pieces)
    room = np.random.default_rng(0).standard_normal(len(joined)) * 10 ** (FLOOR_DBFS / 20)
    return joined + room, clips


def main() -> None:
    """Write the recordings and their descriptions."""
    for name, programme in PROGRAMMES.items():
        samples, clips = join(Path(sys.argv[1]), programme)
        soundfile.write(HERE / f"{name}.flac", samples, RATE_HZ, subtype="PCM_16")
        about = {"duration_ms": len(samples) * 1000 // RATE_HZ, "clips": clips}
        (HERE / f"{name}.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
        print(f"{name}.flac: {about['duration_ms']} ms, {len(clips)} clips")


if __name__ == "__main__":
    main()
