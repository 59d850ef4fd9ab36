"""Recordings as they arrive by telephone, across a room, or in a crowd, to measure with.

What is said and when stays the same, so references stay exact. The telephone is G.711 (mu-law) or
GSM full rate by libsndfile, or AMR at 7.95 kbit/s by FFmpeg (for `readers`, Opus at 8 and
AMR at 4.75, too), all at 8 kHz; the room is a simulation
by pyroomacoustics (dependency group ``rooms``): 6 by 5 by 3 m, a speaker and a table microphone in
it. The crowd are five voices at once out of the bundled recording, 10 or 5 dB below the speech.
Microphones may be turned down by 30, 40 or 50 dB, or be far from one of the speakers (`far_from`).
"""

import io
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import cast

import av
import numpy as np
import soundfile
from av.audio.codeccontext import AudioCodecContext
from numpy.typing import NDArray

SAMPLE_RATE, TELEPHONE_RATE = 16_000, 8_000
_BY_FFMPEG = {
    "amr": ("libopencore_amrnb", "amrnb", 7_950),
    "amr475": ("libopencore_amrnb", "amrnb", 4_750),
    "opus": ("libopus", "libopus", 8_000),
}
"""Encoder, decoder and bit rate."""
_CODED = 160
"""Samples that are coded at once."""
TELEPHONES = {"g711": "ULAW", "gsm": "GSM610", "amr": ""}
ROOMS = {"table": (1.0, 0.4), "hall": (3.0, 0.8), "office": (2.0, 0.6)}
_ROOMS = {**ROOMS, "lounge": (2.5, 0.5), "far": (4.0, 1.0)}
"""Distance in m, and the seconds in which an echo dies away by 60 dB; `readers` has two more."""
_CROWDS_DB = {"crowd10": 10.0, "crowd5": 5.0}
_VOICES, _N_VOICES = Path(__file__).parents[1] / "tests" / "speech" / "recording.flac", 5
_DOWN_DB = {"down30": 30.0, "down40": 40.0, "down50": 50.0}
_FAR_DB = 25.0
CHANNELS = (*TELEPHONES, *ROOMS, *_CROWDS_DB, *_DOWN_DB)

Sound = NDArray[np.float64]


def write(path: Path, channel: str, folder: Path) -> Path:
    """Write a recording of 16 kHz as it arrives through one of `CHANNELS`, unless it is there."""
    made = folder / f"{path.stem}_{channel}.flac"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        sound, _ = soundfile.read(path)
        if channel in _DOWN_DB:
            heard = sound * 10 ** (-_DOWN_DB[channel] / 20)
        else:
            through = telephone if channel in TELEPHONES else room if channel in ROOMS else crowd
            heard = through(sound, channel)
        soundfile.write(made, np.clip(heard, -1, 1), SAMPLE_RATE)
    return made


def far_from(path: Path, who: str, turns_ms: Iterable[tuple[int, int]], folder: Path) -> Path:
    """Write a recording in which the turns of one speaker are 25 dB quieter, unless it is there."""
    made = folder / f"{path.stem}_far_{who}.flac"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        sound, rate = soundfile.read(path)
        for start_ms, end_ms in turns_ms:
            sound[start_ms * rate // 1000 : end_ms * rate // 1000] *= 10 ** (-_FAR_DB / 20)
        soundfile.write(made, sound, rate)
    return made


def telephone(sound: Sound, codec: str) -> Sound:
    """The sound after 8 kHz and a codec of telephones."""
    narrow = _resampled(sound, len(sound) * TELEPHONE_RATE // SAMPLE_RATE)
    if codec in _BY_FFMPEG:
        heard = _by_ffmpeg(narrow, *_BY_FFMPEG[codec])
    else:
        coded = io.BytesIO()
        soundfile.write(coded, narrow, TELEPHONE_RATE, subtype=TELEPHONES[codec], format="WAV")
        coded.seek(0)
        heard, _ = soundfile.read(coded)
    return _resampled(heard[: len(narrow)], len(sound))


def _by_ffmpeg(narrow: Sound, encodes: str, decodes: str, bit_rate: int) -> Sound:
    encoder = cast("AudioCodecContext", av.CodecContext.create(encodes, "w"))
    encoder.sample_rate, encoder.layout, encoder.format = TELEPHONE_RATE, "mono", "s16"
    encoder.bit_rate = bit_rate
    encoder.open()
    decoder = cast("AudioCodecContext", av.CodecContext.create(decodes, "r"))
    decoder.sample_rate, decoder.layout = TELEPHONE_RATE, "mono"
    decoder.extradata = encoder.extradata
    n = encoder.frame_size or _CODED
    padded = np.pad(narrow, (0, -len(narrow) % n + n))  # it is late by a frame
    resampler = av.AudioResampler("flt", "mono", TELEPHONE_RATE)  # Opus decodes to 48 kHz
    heard = []
    for at in range(0, len(padded), n):
        samples = np.clip(padded[at : at + n] * 32_768, -32_768, 32_767).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = TELEPHONE_RATE, at
        for packet in encoder.encode(frame):
            for decoded in decoder.decode(packet):
                heard += [each.to_ndarray()[0] for each in resampler.resample(decoded)]
    found: Sound = np.concatenate(heard).astype(np.float64)
    return found


def room(sound: Sound, name: str) -> Sound:
    """The sound across a room, as loud as it was.

    Ends the program with one line if pyroomacoustics is not installed.
    """
    try:
        acoustics = import_module("pyroomacoustics")
    except ModuleNotFoundError:
        sys.exit("rooms need pyroomacoustics: pip install --group rooms")
    metres, echo_s = _ROOMS[name]
    size = np.array([6.0, 5.0, 3.0])
    absorption, order = acoustics.inverse_sabine(echo_s, size)
    box = acoustics.ShoeBox(
        size, fs=SAMPLE_RATE, materials=acoustics.Material(absorption), max_order=order
    )
    speaker, away = np.array([1.5, 2.0, 1.5]), np.array([metres, 0.5, -0.6])
    box.add_source(speaker, signal=sound)
    box.add_microphone(speaker + away)
    box.simulate()
    delay = round(float(np.linalg.norm(away)) / box.c * SAMPLE_RATE)  # of the direct sound
    delay += acoustics.constants.get("frac_delay_length") // 2  # of the simulation
    heard: Sound = box.mic_array.signals[0][delay : delay + len(sound)]
    return heard * (np.sqrt(np.mean(sound**2)) / np.sqrt(np.mean(heard**2)))


def crowd(sound: Sound, name: str) -> Sound:
    """The sound, and others who talk."""
    voices, _ = soundfile.read(_VOICES)
    rng = np.random.default_rng(0)
    offsets = rng.integers(len(voices), size=_N_VOICES)
    others: Sound = sum(np.resize(np.roll(voices, -at), len(sound)) for at in offsets)
    others *= np.sqrt(np.mean(sound**2) / np.mean(others**2)) * 10 ** (-_CROWDS_DB[name] / 20)
    return sound + others


def _resampled(sound: Sound, n: int) -> Sound:
    """The sound in `n` samples, by its spectrum."""
    spectrum = np.fft.rfft(sound)[: n // 2 + 1]
    resampled: Sound = np.fft.irfft(spectrum, n) * (n / len(sound))
    return resampled
