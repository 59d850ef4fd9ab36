"""Join clips of people whom the demo model never heard into the recording that `make demo` plays.

Reads the folders ``demo`` and ``train`` of ``../shared/data`` (or of the folder given), writes
``recording.flac`` and ``recording.json`` beside this file: the reference text and, per clip, where
its speech lies, who speaks and under which licence. The same clips always give the same recording.

It knows nothing about models. The programme was chosen by what the first demo model made of the
clips: most that it read right, two strings of digits that it read with errors, and somebody who is
told "no" and says a number anew.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
RATE_HZ = 16_000
HOP = 320  # samples: 20 ms
SPEECH_DBFS = -23.0
PEAK = 0.89  # -1 dBFS
FLOOR_DBFS = -75.0  # a quiet room: digital silence between voices would be unnatural
RANGE_DB = 35.0  # what is this far below a clip's loudest frame is not speech
MARGIN = 10  # frames kept on either side of the speech: 200 ms, or "six" loses its ends
FADE = 160  # samples: 10 ms, short because some clips begin within a word

LEAD_MS = 700  # silence before the first word
GAP_MS = 180  # between single digits that are joined to a number
PROGRAMME = [  # clip, or several that are joined; and the pause after it in ms
    ("time_1", 1100),
    ("lamp_1", 1300),
    ("cards_5", 1000),
    ("cards_1", 900),
    ("cards_3", 1400),
    ("digits_lucas_0", 1500),
    ("six_1", 1200),
    ("digits_vosk", 1300),
    ("4_lucas_3 2_lucas_3 7_lucas_3", 700),
    ("no_1", 500),
    ("4_lucas_4 2_lucas_4 8_lucas_4", 1000),
]


def active_frames(samples: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell speech from pause, (n // 320,), by the distance from the loudest frame."""
    frames = samples[: len(samples) // HOP * HOP].reshape(-1, HOP)
    level = 10 * np.log10(np.mean(frames**2, axis=1) + 1e-12)
    return np.asarray(level > level.max() - RANGE_DB)


def speech(samples: NDArray[np.float64]) -> tuple[NDArray[np.float64], int, int]:
    """Cut a clip to its speech, level it and fade its ends.

    Returns
    -------
    the samples, the speech's first sample and the sample after its last
    """
    active = active_frames(samples)
    frames = samples[: len(active) * HOP].reshape(-1, HOP)
    rms = float(np.sqrt(np.mean(frames[active] ** 2)))
    where = np.flatnonzero(active)
    start, end = max(0, int(where[0]) - MARGIN), int(where[-1]) + 1 + MARGIN
    cut = samples[start * HOP : end * HOP]
    gain = min(10 ** (SPEECH_DBFS / 20) / rms, PEAK / float(np.abs(cut).max()))
    ramp = np.ones(len(cut))
    ramp[:FADE] = np.sin(np.linspace(0, np.pi / 2, FADE)) ** 2
    ramp[-FADE:] = ramp[FADE - 1 :: -1]
    offset = start * HOP
    return cut * gain * ramp, int(where[0]) * HOP - offset, (int(where[-1]) + 1) * HOP - offset


def said(sounds: list[NDArray[np.float64]]) -> tuple[NDArray[np.float64], int, int]:
    """Cut clips to their speech and join them as one, where it is begun and ended as `speech`."""
    pieces = [speech(sound) for sound in sounds]
    gap = np.zeros(GAP_MS * RATE_HZ // 1000)
    joined = [part for piece, start, end in pieces for part in (piece[start:end], gap)][:-1]
    (first, start, _), (last, _, end) = pieces[0], pieces[-1]
    whole = np.concatenate([first[:start], *joined, last[end:]])
    return whole, start, len(whole) - len(last[end:])


def clips_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the manifests: what is known of each clip, by its short name, with its whole path."""
    known = {}
    for part in ("train", "demo"):
        for line in (folder / part / "manifest.jsonl").read_text().splitlines():
            entry = json.loads(line)
            name = Path(entry["path"]).stem
            known[name] = entry | {"path": folder / part / entry["path"]}
    return known


def read(path: Path) -> NDArray[np.float64]:
    """Read the samples of a clip."""
    samples, rate_hz = soundfile.read(path)
    if rate_hz != RATE_HZ:
        raise SystemExit(f"{path.name} has {rate_hz} Hz, expected {RATE_HZ}")
    return np.asarray(samples)


def join(folder: Path) -> tuple[NDArray[np.float64], list[dict[str, object]]]:
    """Lay the programme's clips end to end; give the samples and a description of each clip."""
    known = clips_of(folder)
    pieces: list[NDArray[np.float64]] = []
    clips: list[dict[str, object]] = []
    spoken = 0  # the sample after the last speech so far
    pause_ms = LEAD_MS
    for name, next_pause_ms in PROGRAMME:
        entries = [known[part] for part in name.split()]
        piece, start, end = said([read(entry["path"]) for entry in entries])
        # The quiet ends of the clips are part of the pause, not added to it.
        written = sum(map(len, pieces))
        rest = spoken + pause_ms * RATE_HZ // 1000 - start - written
        begin = written + rest
        pieces += [np.zeros(rest), piece]
        spoken, pause_ms = begin + end, next_pause_ms
        entry = entries[0]
        clips.append(
            {
                "start_ms": (begin + start) * 1000 // RATE_HZ,
                "end_ms": spoken * 1000 // RATE_HZ,
                "text": " ".join(one["text"] for one in entries),
                "speaker": entry["speaker"],
                "source": entry["source"],
                "licence": entry["licence"],
                "clip": name,
            }
        )
    pieces.append(np.zeros(spoken + pause_ms * RATE_HZ // 1000 - sum(map(len, pieces))))
    joined = np.concatenate(pieces)
    room = np.random.default_rng(0).standard_normal(len(joined)) * 10 ** (FLOOR_DBFS / 20)
    return joined + room, clips


def main() -> None:
    """Write the recording and its description."""
    default = HERE.parents[2] / "shared" / "data"
    samples, clips = join(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
    soundfile.write(HERE / "recording.flac", samples, RATE_HZ, subtype="PCM_16")
    about = {
        "text": " ".join(str(clip["text"]) for clip in clips),
        "duration_ms": len(samples) * 1000 // RATE_HZ,
        "licence": "CC-BY-SA-4.0 as a whole; each clip under its own licence, see ATTRIBUTION.md",
        "clips": clips,
    }
    (HERE / "recording.json").write_text(json.dumps(about, indent=1) + "\n")
    print(f"recording.flac: {about['duration_ms']} ms, {len(clips)} clips")


if __name__ == "__main__":
    main()
