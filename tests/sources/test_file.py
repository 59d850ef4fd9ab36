import asyncio
import threading

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

import streamd.sources.file
from streamd.errors import SourceError
from streamd.sources.file import FileSource, Sndfile
from streamd.sources.framing import Framer
from streamd.sources.tracks import Selection
from streamd.types import FRAME, SAMPLE_RATE

N_RAMP = 60_000
RAMP = np.arange(-(2**15), -(2**15) + N_RAMP, dtype=np.int16)
"""3.75 s in which each sample is its own number."""


class ManualClock:
    """Time that passes only when somebody sleeps or works."""

    def __init__(self):
        self.time_ms = 5000.0

    def now_s(self):
        return self.time_ms / 1000

    async def wait(self, duration_s):
        assert duration_s > 0
        self.time_ms += duration_s * 1000


async def consume(source, work=lambda: None):
    frames = []
    async with source:
        async for item in source:
            frames.append(item)
            work()
    return frames


def is_ramp(frames):
    samples = np.concatenate(frames).reshape(-1)
    ramp, padding = samples[:N_RAMP], samples[N_RAMP:]
    return np.array_equal(ramp, RAMP / np.float32(2**15)) and not padding.any()


@pytest.fixture
def ramp_file(tmp_path, monkeypatch):
    monkeypatch.setattr(streamd.sources.file, "_READ_MS", 1000)  # a ramp takes several reads

    def write(suffix, **how):
        path = tmp_path / f"ramp{suffix}"
        soundfile.write(path, RAMP, SAMPLE_RATE, **how)
        return path

    return write


@pytest.mark.parametrize("n", [0, 1, 319, 320, 48_001])
async def test_the_padding_of_the_last_frame_is_known(tmp_path, n):
    soundfile.write(tmp_path / "a.wav", RAMP[: 320 + n], SAMPLE_RATE)
    source = FileSource(tmp_path / "a.wav")
    frames = np.concatenate(await consume(source))
    assert frames.size - aiter(source).n_padding == 320 + n


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
@pytest.mark.parametrize("realtime", [False, True])
@pytest.mark.parametrize("work_ms", [0, 100, 10_000], ids=["fast", "slow", "stalling"])
async def test_no_sample_is_lost_or_doubled(ramp_file, suffix, realtime, work_ms):
    clock = ManualClock()

    def work():
        clock.time_ms += work_ms

    source = FileSource(ramp_file(suffix), realtime=realtime, now_s=clock.now_s, sleep=clock.wait)
    assert is_ramp(await consume(source, work))
    assert source.duration_ms == 3750
    assert source.live is realtime


async def test_24_bits_arrive_whole(tmp_path):
    path = tmp_path / "ramp.wav"
    ramp = np.arange(-(2**23), 2**23, 250, dtype=np.int32)
    soundfile.write(path, ramp * 256, SAMPLE_RATE, subtype="PCM_24")
    samples = np.concatenate(await consume(FileSource(path))).reshape(-1)[: len(ramp)]
    assert np.array_equal(np.rint(samples.astype(np.float64) * 2**23), ramp)


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
async def test_blocks_decode_like_the_whole_file(tmp_path, suffix):
    """Between blocks soundfile seeks to where it is, by itself."""
    path = tmp_path / f"noise{suffix}"
    noise = np.random.default_rng(3).normal(0, 0.1, (4 * SAMPLE_RATE, 2))
    soundfile.write(path, noise, SAMPLE_RATE)
    whole, _ = soundfile.read(path, dtype="float32")
    clock = ManualClock()
    realtime = FileSource(path, realtime=True, now_s=clock.now_s, sleep=clock.wait)
    async with realtime:
        blocks = []
        while (block := await aiter(realtime)._next_block()) is not None:
            blocks.append(block)
    assert len(blocks) > 35
    decoded = np.concatenate(blocks)
    assert decoded.shape == whole.shape
    assert np.abs(decoded - whole).max() < 1e-6
    frames = np.concatenate(await consume(FileSource(path)))
    assert abs(frames.size - 4 * SAMPLE_RATE) < FRAME


@given(work_ms=st.lists(st.integers(0, 400), max_size=100))
def test_real_time_neither_runs_ahead_nor_drifts(tmp_path_factory, work_ms):
    """A block comes when a microphone would have captured it, or at once if that is past."""
    path = tmp_path_factory.mktemp("pace") / "tone.wav"
    soundfile.write(path, np.zeros(44_100, np.int16), 44_100)
    clock = ManualClock()
    pauses = iter(work_ms)
    delays = []

    async def play():
        n_frames = 0
        async with FileSource(path, realtime=True, now_s=clock.now_s, sleep=clock.wait) as source:
            clock.time_ms += 3000
            started_ms = clock.time_ms  # when it is first asked for
            async for frames in source:
                n_frames += len(frames)
                delays.append(clock.time_ms - started_ms - n_frames * 20)
                clock.time_ms += next(pauses, 0)

    asyncio.run(play())
    assert min(delays[:-1]) > -1e-6  # the last frame is padded: part of it lies beyond the end
    if not work_ms:
        assert max(delays) < 100 + 40.001  # one block, and what the resampler holds back


async def test_stop_ends_behind_what_was_read(ramp_file):
    async with FileSource(ramp_file(".wav")) as source:
        first = await anext(aiter(source))
        source.stop()
        rest = [frames async for frames in source]
    assert len(first) == 50
    assert rest == []


async def test_stop_pads_the_last_frame(tmp_path):
    path = tmp_path / "half.wav"
    soundfile.write(path, np.full(1000, 0.5), SAMPLE_RATE)
    async with FileSource(path) as source:
        frames = [await anext(aiter(source))]
        source.stop()
        frames += [item async for item in source]
    samples = np.concatenate(frames).reshape(-1)
    assert np.count_nonzero(samples) == 1000
    assert len(samples) == 4 * FRAME


@pytest.mark.parametrize(("suffix", "n_whole"), [(".flac", None), (".wav", 30_000)])
async def test_a_file_that_is_cut_off_gives_all_that_is_left(ramp_file, suffix, n_whole):
    path = ramp_file(suffix)
    whole = np.clip(soundfile.read(path, dtype="float32")[0], -1, 1)
    data = path.read_bytes()
    path.write_bytes(data[: 44 + 2 * n_whole if n_whole else len(data) // 2])
    frames = []
    source = FileSource(path)

    async def collect():
        async with source:
            async for item in source:
                frames.append(item)  # noqa: PERF401  # what came before the error counts

    if n_whole:  # libsndfile takes the file's size for the truth, not the header
        await collect()
    else:
        with pytest.raises(SourceError, match=r"is damaged or incomplete: only .* of 3.8 s could"):
            await collect()
    samples = np.concatenate(frames).reshape(-1)
    n_decoded = n_whole or len(samples) - FRAME
    assert n_decoded > 10_000
    assert np.abs(samples[:n_decoded] - whole[:n_decoded]).max() < 1e-6


def test_flac_is_decoded_up_to_its_last_whole_block(ramp_file):
    """4096 samples a block: soundfile alone would lose the part of it that one read got."""
    path = ramp_file(".flac")
    path.write_bytes(path.read_bytes()[:-10])
    decoder = Sndfile(str(path))
    n = 0
    while len(block := decoder.read()):
        n += len(block)
    decoder.close()
    assert n == N_RAMP // 4096 * 4096
    (told,) = decoder.warnings
    assert told.startswith(f"{path} is damaged: 0.2 s are missing")


async def test_flac_without_a_length_is_read_to_its_end(ramp_file):
    """As programs write it through a pipe: in its header, the number of samples (36 bits) is 0."""
    path = ramp_file(".flac")
    whole = np.clip(soundfile.read(path, dtype="float32")[0], -1, 1)
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    path.write_bytes(data)
    assert soundfile.info(path).frames > 1 << 60  # what libsndfile makes of it
    async with FileSource(path) as source:
        frames = [item async for item in source]
    samples = np.concatenate(frames).reshape(-1)
    assert N_RAMP <= len(samples) < N_RAMP + FRAME
    assert np.abs(samples[:N_RAMP] - whole).max() < 1e-6


def broken(folder, kind):
    path = folder / "talk.wav"
    match kind:
        case "directory":
            path.mkdir()
        case "empty":
            path.touch()
        case "text":
            path.write_text("This is not audio. " * 1000)
        case "no samples":
            soundfile.write(path, np.zeros(0), SAMPLE_RATE)
        case "header only":
            path.write_bytes(b"RIFF\x24\x00\x00\x00WAVE")
        case "100 Hz":
            soundfile.write(path, np.zeros(1000), 100)
        case "33 channels":
            soundfile.write(path, np.zeros((100, 33)), SAMPLE_RATE)
    return path


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("missing", "cannot read {path}: No such file or directory; check the path"),
        ("directory", "cannot read {path}: Is a directory; name the files in it"),
        ("empty", "{path} is empty: record it again"),
        ("text", "{path} is damaged or not a sound file (FFmpeg: Invalid data found"),
        ("header only", "{path} is damaged or not a sound file (FFmpeg: Invalid data found"),
        ("no samples", "{path} has no audio"),
        ("100 Hz", "{path}: a sample rate of 100 Hz is not supported"),
        ("33 channels", "{path}: 33 channels are not supported: use at most 32"),
    ],
)
async def test_what_cannot_be_played_is_named(tmp_path, kind, says):
    path = broken(tmp_path, kind)
    with pytest.raises(SourceError) as caught:
        await consume(FileSource(path))
    assert str(caught.value).startswith(says.format(path=path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("suffix", "how", "says"),
    [
        (".wav", {}, "only 2.4 of 4.0 s are there"),
        (".wav", {"subtype": "MS_ADPCM"}, "only 2.4 of 4.0 s are there"),
        (".w64", {}, "only 2.4 of 4.0 s are there"),
        (".aiff", {}, "only 2.4 of 4.0 s are there"),
        (".au", {}, "only 2.4 of 4.0 s are there"),
        (".ogg", {}, "get a complete copy"),
        (".ogg", {"subtype": "OPUS"}, "get a complete copy"),
    ],
)
async def test_a_file_that_is_shorter_than_it_says_is_told_once(
    tmp_path, caplog, suffix, how, says
):
    path = tmp_path / f"noise{suffix}"
    noise = np.random.default_rng(4).normal(0, 0.1, 4 * SAMPLE_RATE)
    soundfile.write(path, noise, SAMPLE_RATE, **how)
    assert await consume(FileSource(path))
    assert caplog.records == []
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    assert await consume(FileSource(path))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"{path} is cut off: ")
    assert says in record.getMessage()


async def test_a_header_that_does_not_know_the_length_is_no_fault(ramp_file, caplog):
    """As programs write it that write into a pipe."""
    path = ramp_file(".wav")
    data = bytearray(path.read_bytes())
    for size in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x80"):
        data[4:8] = data[40:44] = size
        path.write_bytes(data)
        assert is_ramp(await consume(FileSource(path)))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.nan, "has NaN or infinite samples, which count as silence"),
        (-np.inf, "has NaN or infinite samples, which count as silence"),
        (
            -3e4,
            "has 16-bit samples as floats, which were divided by 32768: write it again",
        ),
        (
            -3e5,
            "has samples of 3e+05 times full scale, which are clipped: write it again with samples",
        ),
        (1.5, ""),
    ],
)
async def test_samples_that_cannot_be_a_recording_s_are_told_once(tmp_path, caplog, value, says):
    path = tmp_path / "odd.wav"
    samples = np.zeros(3 * SAMPLE_RATE)
    samples[::100] = value
    soundfile.write(path, samples, SAMPLE_RATE, subtype="FLOAT")
    assert np.isfinite(np.concatenate(await consume(FileSource(path)))).all()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == bool(says)
    assert all(line.startswith(f"{path} {says}") for line in told)


@pytest.mark.parametrize(("right", "is_told"), [(-1.0, True), (-0.9, True), (0.0, False)])
async def test_channels_that_cancel_each_other_out_are_told_once(tmp_path, caplog, right, is_told):
    path = tmp_path / "phase.wav"
    left = 0.2 * np.sin(np.arange(3 * SAMPLE_RATE) / 10)
    soundfile.write(path, np.stack([left, right * left], axis=1), SAMPLE_RATE)
    await consume(FileSource(path))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == is_told
    assert all(line.startswith(f"the channels of {path} cancel each other out") for line in told)


def test_a_read_has_a_greatest_size(tmp_path):
    sound = np.tile(RAMP[:10_000, np.newaxis], (10, 32))
    soundfile.write(tmp_path / "wide.wav", sound, 192_000)
    decoder = Sndfile(str(tmp_path / "wide.wav"), split=True)
    blocks = []
    while len(block := decoder.read()):
        blocks.append(block)
    decoder.close()
    assert max(block.nbytes for block in blocks) <= 2 << 20
    assert np.array_equal(np.concatenate(blocks), sound / np.float32(2**15))


async def test_a_second_of_sound_is_mixed_beside_the_event_loop(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "talk.wav", np.tile(RAMP[:, np.newaxis], 2), 48_000)
    threads = []

    def push(self, block):
        threads.append(threading.get_ident())
        return mix(self, block)

    mix = Framer.push
    monkeypatch.setattr(Framer, "push", push)
    await consume(FileSource(tmp_path / "talk.wav"))
    assert threads
    assert threading.get_ident() not in threads[:1]


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3"])
@pytest.mark.parametrize("rate_hz", [16_000, 44_100])
async def test_each_channel_of_a_file_can_stay_apart(tmp_path, suffix, rate_hz):
    # libsndfile reads the first two, FFmpeg the third.
    path, tones_hz = tmp_path / f"a.{suffix}", (440, 1_000)
    t_s = np.arange(2 * rate_hz) / rate_hz
    sound = np.stack([0.5 * np.sin(2 * np.pi * hz * t_s) for hz in tones_hz], 1)
    soundfile.write(path, sound, rate_hz)
    async with FileSource(path, selection=Selection(split=True)) as source:
        frames = np.concatenate([item async for item in source])
    assert frames.shape[1:] == (2, FRAME)
    for channel, hz in enumerate(tones_hz):
        heard = np.abs(np.fft.rfft(frames[25:75, channel].reshape(-1)))  # 1 s
        assert heard.argmax() == hz
        assert heard[tones_hz[1 - channel]] < 0.01 * heard[hz]


@pytest.mark.parametrize(("right", "is_told"), [(1.0, True), (-1.0, False), (0.9, False)])
async def test_split_channels_with_the_same_sound_are_told_once(tmp_path, caplog, right, is_told):
    path, left = tmp_path / "a.wav", 0.5 * np.sin(np.arange(48_000) / 10)
    soundfile.write(path, np.stack([left, right * left], 1), SAMPLE_RATE)
    await consume(FileSource(path, selection=Selection(split=True)))
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if "same sound" in line] == told
    assert len(told) == is_told


async def test_a_file_that_grows_while_it_is_read_is_told(ramp_file, caplog):
    path = ramp_file(".wav")
    source = FileSource(path)
    async with source:
        await anext(aiter(source))
        with path.open("ab") as file:
            file.write(bytes(32_000))
        _ = [item async for item in source]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"{path} is still growing, and was read to where it ended"
    )
