import os
import re
import stat
import subprocess
import sys
import wave

import numpy as np
import pytest
import soundfile

from streamd.errors import ConfigError
from streamd.sources.framing import Framer
from streamd.streams.wav import WavWriter

RAMP = (np.arange(-16000, 16000) / 32768).astype(np.float32).reshape(-1, 320)


def test_every_sample_is_in_it_once(tmp_path):
    recording = WavWriter(tmp_path / "new" / "talk")
    for start in range(0, len(RAMP), 7):
        recording.write(RAMP[start : start + 7])
    recording.close()
    samples, rate = soundfile.read(tmp_path / "new" / "talk.wav", dtype="int16")
    assert rate == 16000
    assert np.array_equal(samples, np.arange(-16000, 16000))
    assert stat.S_IMODE((tmp_path / "new" / "talk.wav").stat().st_mode) == 0o600


def test_louder_than_full_scale_does_not_wrap(tmp_path):
    recording = WavWriter(tmp_path / "talk")
    recording.write(np.array([[2.0, -2.0] * 160], np.float32))
    recording.close()
    samples, _ = soundfile.read(tmp_path / "talk.wav", dtype="int16")
    assert set(samples) == {32767, -32768}


def test_a_full_file_is_followed_by_another(tmp_path):
    recording = WavWriter(tmp_path / "talk", full_bytes=640 * 40)
    for frame in RAMP:
        recording.write(frame[None])
    recording.close()
    names = ["talk.wav", "talk-2.wav", "talk-3.wav"]
    parts = [soundfile.read(tmp_path / name, dtype="int16")[0] for name in names]
    assert np.array_equal(np.concatenate(parts), np.arange(-16000, 16000))


def test_split_channels_are_recorded_apart_and_others_begin_a_new_file(tmp_path):
    recording = WavWriter(tmp_path / "talk")
    apart = np.stack([RAMP, -RAMP], axis=1)
    for start in range(0, len(apart), 7):
        recording.write(apart[start : start + 7])
    recording.write(RAMP)
    recording.close()
    both, _ = soundfile.read(tmp_path / "talk.wav", dtype="int16", always_2d=True)
    assert np.array_equal(both, np.stack([np.arange(-16000, 16000)] * 2, axis=1) * [1, -1])
    one, _ = soundfile.read(tmp_path / "talk-2.wav", dtype="int16")
    assert np.array_equal(one, np.arange(-16000, 16000))


def test_no_recording_is_overwritten(tmp_path):
    WavWriter(tmp_path / "talk").close()
    with pytest.raises(ConfigError, match=r"--record.*talk.wav"):
        WavWriter(tmp_path / "talk")


def test_16_bit_audio_is_recorded_bit_by_bit(tmp_path):
    every = np.arange(-32768, 32768).astype(np.int16)
    recording, framer = WavWriter(tmp_path / "talk"), Framer(16_000)
    recording.write(framer.push(every))
    recording.write(framer.flush())
    recording.close()
    samples, _ = soundfile.read(tmp_path / "talk.wav", dtype="int16")
    assert np.array_equal(samples[: len(every)], every)


def test_a_full_disk_ends_the_recording_only(tmp_path, caplog):
    recording = WavWriter(tmp_path / "talk")
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), recording._file.fileno())
    for _ in range(3):
        recording.write(np.zeros((50, 320), np.float32))
    recording.close()
    (record,) = caplog.records
    assert re.search(r"talk\.wav.*No space", record.getMessage())


def test_it_leaves_the_last_space_of_a_disk_to_finals(tmp_path, monkeypatch, caplog):
    recording = WavWriter(tmp_path / "talk")
    for is_full in (False, True, False):
        monkeypatch.setattr(
            "streamd.streams.wav.is_nearly_full", lambda _, is_full=is_full: is_full
        )
        recording.write(np.zeros((100, 320), np.float32))
    recording.close()
    assert soundfile.info(tmp_path / "talk.wav").frames == 32_000
    (record,) = caplog.records
    assert "nearly full" in record.getMessage()


def test_nobody_else_can_read_it_at_any_time(tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.chmod", lambda *_: None)  # too late for somebody who watches
    before = os.umask(0)
    try:
        WavWriter(tmp_path / "talk").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "talk.wav").stat().st_mode) == 0o600


def test_nothing_is_left_of_a_recording_that_cannot_begin(tmp_path, monkeypatch):
    monkeypatch.setattr("streamd.streams.wav.write_all", no_space)
    n_open = len(os.listdir("/dev/fd"))
    with pytest.raises(ConfigError, match="No space"):
        WavWriter(tmp_path / "talk")
    assert (list(tmp_path.iterdir()), len(os.listdir("/dev/fd"))) == ([], n_open)


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


SPEAK_UNTIL_KILLED = """
import sys, numpy as np
from pathlib import Path
from streamd.streams.wav import WavWriter
recording, at = WavWriter(Path(sys.argv[1])), 0
while True:
    samples = (np.arange(at, at + 320 * 7) % 32768).astype(np.float32) / 32768
    recording.write(samples.reshape(-1, 320))
    at += 320 * 7
    if at > 100_000:
        print("enough", flush=True)
"""


@pytest.mark.parametrize("attempt", range(3))
def test_it_is_valid_after_kill_9(tmp_path, attempt):
    command = [sys.executable, "-c", SPEAK_UNTIL_KILLED, str(tmp_path / "talk")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as speaker:
        for _ in range(1 + attempt * 50):
            speaker.stdout.readline()
        speaker.kill()
    with wave.open(str(tmp_path / "talk.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert len(samples) > 80_000
    assert np.array_equal(samples, np.arange(len(samples)) % 32768)
