import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from streamd.sources.containers import N_HEAD, container, is_text

SOUND = np.random.default_rng(1).normal(0, 0.1, 16_000)


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        ("wav", "WAV"),
        ("rf64", "WAV"),
        ("w64", "W64"),
        ("aiff", "AIFF"),
        ("flac", "FLAC"),
        ("ogg", "Ogg"),
        ("caf", "CAF"),
        ("au", "AU"),
        ("mp3", "MP3"),
    ],
)
def test_what_libsndfile_writes_is_recognised(tmp_path, suffix, kind):
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, SOUND, 16_000)
    assert container(path.read_bytes()[:N_HEAD]) == kind


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_mp3_without_a_tag_is_known_by_two_frames_in_a_row(tmp_path, rate_hz):
    path = tmp_path / "a.mp3"
    soundfile.write(path, SOUND, rate_hz)
    data = path.read_bytes()
    assert data[0] == 0xFF  # a frame, no tag
    assert container(data[:N_HEAD]) == "MP3"
    broken = bytearray(data[:N_HEAD])
    second = data.index(data[:2], 40)
    broken[second : second + 2] = b"\x00\x00"
    assert container(bytes(broken)) == ""
    assert container(data[:40]) == ""


@given(st.binary(max_size=64), st.integers(0, 2))
def test_anything_may_come(data, n):
    container(data * 100**n)


@pytest.mark.parametrize(
    "samples",
    [
        np.zeros(4096),
        np.full(4096, -1),
        np.random.default_rng(2).normal(0, 3, 4096),
        np.random.default_rng(3).normal(0, 3000, 4096),
        np.arange(-32768, 32767, 16),
        10_000 * np.sin(np.arange(4096) / 10),
    ],
    ids=["silence", "-1", "quiet", "loud", "ramp", "tone"],
)
def test_raw_pcm_is_none_wherever_it_begins(samples):
    for form in ("<i2", "<i4"):
        data = np.round(samples).astype(form).tobytes()
        for at in range(0, 1000, np.dtype(form).itemsize):
            assert container(data[at : at + N_HEAD]) == ""
            assert not is_text(data[at : at + N_HEAD])
