"""Join clips of real speech into what the tests caption, and into what ``make demo`` plays.

``python tests/speech/make_recording.py ../shared/data SOUNDS`` reads the manifests of its folders
``eval`` and ``train`` and writes ``recording.flac`` and ``demo.flac`` beside this file, and for
each a ``.json``: per clip its text, where it lies, who speaks, where it comes from and under which
licence. The folder ``SOUNDS`` has the files without speech of `WORDLESS`. The same clips always
give the same recordings.
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
MUSIC_FADE = 4_800
LEAD_MS = 700
Programme = Sequence[tuple[str, tuple[float, float] | None, int]]
"""Of each clip: the part that is used in s, or None for all; the pause behind it in ms."""
PROGRAMMES: Mapping[str, Programme] = {
    "recording": [
        ("sense_0870", None, 700),
        ("sense_0880", None, 1300),
        ("arctic_a0245_1592711461", None, 1500),
        ("jfk", None, 4000),
        ("two_cities", (0.0, 21.0), 1600),
        ("LJ002-0186", None, 1200),
    ],
    # What everybody can check: a famous text first, numbers at the end, and what is no speech.
    "demo": [
        ("two_cities", (0.0, 21.0), 1500),
        ("country", (5.5, 12.0), 1500),
        ("sense_0870", None, 700),
        ("sense_0880", None, 1500),
        ("LJ002-0186", None, 1500),
        ("laugh_evil_01", None, 2000),
        ("test16k", None, 1200),
    ],
}
WORDLESS: Mapping[str, dict[str, Any]] = {
    "country": {
        "path": "country.mp3",
        "speaker": "",
        "source": "raysan5/raylib@abe23bf, examples/audio/resources, by emegeme",
        "licence": "CC0 1.0",
    },
    "laugh_evil_01": {
        "path": "laugh_evil_01.flac",
        "speaker": "AntumDeluge",
        "source": "AntumMT/mod-sounds@a002ea8, sounds_src",
        "licence": "CC0 1.0",
    },
}


def clips_of(folder: Path, sounds: Path) -> dict[str, dict[str, Any]]:
    """Return what is known of each clip, with its whole path, by the file's own name."""
    known = {}
    for part in ("eval", "train"):
        for line in (folder / part / "manifest.jsonl").read_text().splitlines():
            entry = json.loads(line)
            name = Path(entry["path"]).stem.rpartition("__")[2]
            known[name] = entry | {"path": folder / part / entry["path"]}
    for name, entry in WORDLESS.items():
        known[name] = entry | {"path": sounds / entry["path"], "text": "", "words": []}
    return known


def levelled(path: Path, part: tuple[float, float] | None, fade: int) -> NDArray[np.float64]:
    """Return a part of a clip at 16 kHz, at the usual level, with faded ends."""
    samples, rate_hz = soundfile.read(path, always_2d=True)
    samples = soxr.resample(samples.mean(axis=1), rate_hz, RATE_HZ)
    if part is not None:
        samples = samples[int(part[0] * RATE_HZ) : int(part[1] * RATE_HZ)]
    loud = np.abs(samples) > 0.05 * np.abs(samples).max()
    rms = float(np.sqrt(np.mean(samples[loud] ** 2)))
    gain = min(10 ** (SPEECH_DBFS / 20) / rms, PEAK / float(np.abs(samples).max()))
    ramp = np.ones(len(samples))
    ramp[:fade] = np.linspace(0, 1, fade)
    ramp[-fade:] = ramp[fade - 1 :: -1]
    return np.asarray(samples * gain * ramp)


def join(
    known: Mapping[str, dict[str, Any]], programme: Programme
) -> tuple[NDArray[np.float64], list[dict[str, object]]]:
    """Lay the programme's clips end to end; return the samples and a description of each clip."""
    pieces = [np.zeros(LEAD_MS * RATE_HZ // 1000)]
    clips: list[dict[str, object]] = []
    for name, part, pause_ms in programme:
        entry = known[name]
        start = sum(map(len, pieces))
        samples = levelled(entry["path"], part, FADE if entry["text"] else MUSIC_FADE)
        pieces += [samples, np.zeros(pause_ms * RATE_HZ // 1000)]
        text = entry["text"]
        if part is not None:
            n_words = sum(word_end < part[1] for _, _, word_end in entry["words"])
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
    known = clips_of(Path(sys.argv[1]), Path(sys.argv[2]))
    for name, programme in PROGRAMMES.items():
        samples, clips = join(known, programme)
        soundfile.write(HERE / f"{name}.flac", samples, RATE_HZ, subtype="PCM_16")
        about = {"duration_ms": len(samples) * 1000 // RATE_HZ, "clips": clips}
        (HERE / f"{name}.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
        print(f"{name}.flac: {about['duration_ms']} ms, {len(clips)} clips")


if __name__ == "__main__":
    main()
