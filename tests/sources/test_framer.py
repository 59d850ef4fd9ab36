import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamd.errors import SourceError
from streamd.sources.framing import ENCODINGS, Framer, PcmDecoder
from streamd.types import FRAME

DTYPES = ["u1", "<i2", ">i2", "<i4", "<f4", ">f4", "<f8"]
RATES = [8_000, 16_000, 22_050, 44_100, 48_000]


def framed(framer, blocks):
    return np.concatenate([*(framer.push(block) for block in blocks), framer.flush()])


def noise(rng, n, channels, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return rng.uniform(-1.2, 1.2, (n, channels)).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, (n, channels), endpoint=True).astype(dtype)


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 3000),
    channels=st.integers(1, 3),
    dtype=st.sampled_from(DTYPES),
    rate=st.sampled_from(RATES),
    cuts=st.lists(st.integers(0, 3000), max_size=30),
)
def test_frames_do_not_depend_on_the_cut(seed, n, channels, dtype, rate, cuts):
    samples = noise(np.random.default_rng(seed), n, channels, dtype)
    whole = framed(Framer(rate, channels), [samples])
    pieces = framed(Framer(rate, channels), np.split(samples, sorted(min(c, n) for c in cuts)))
    one_by_one = framed(Framer(rate, channels), samples.reshape(n, 1, channels))
    assert np.array_equal(whole, pieces)
    assert np.array_equal(whole, one_by_one)
    assert whole.dtype == np.float32
    assert abs(whole.size - n * 16_000 / rate) <= FRAME
    assert np.abs(whole).max(initial=0) <= 1


@given(samples=hnp.arrays(np.float32, st.integers(0, 1000), elements=st.floats(-1, 1, width=32)))
def test_float32_passes_unchanged(samples):
    out = framed(Framer(16_000), [samples]).reshape(-1)
    assert np.array_equal(out[: len(samples)], samples)
    assert not out[len(samples) :].any()
    assert len(out) == -(-len(samples) // FRAME) * FRAME


@given(n=st.integers(0, 3000), rate=st.sampled_from(RATES), cut=st.integers(0, 3000))
def test_the_padding_of_the_last_frame_is_known(n, rate, cut):
    framer = Framer(rate)
    samples = np.full(n, 0.5, np.float32)
    n_frames = len(framer.push(samples[:cut])) + len(framer.push(samples[cut:]))
    n_frames += len(framer.flush())
    n_samples = n_frames * FRAME - framer.n_padding
    assert 0 <= framer.n_padding < FRAME
    assert n_samples == n if rate == 16_000 else abs(n_samples - n * 16_000 / rate) <= 1


def test_every_int16_passes_unchanged():
    ramp = np.arange(-(2**15), 2**15, dtype=np.int16)
    out = framed(Framer(16_000), [ramp]).reshape(-1)[: len(ramp)]
    assert np.array_equal(np.rint(out.astype(np.float64) * 2**15), ramp)


@pytest.mark.parametrize(
    ("dtype", "lowest", "rest", "half"),
    [
        ("u1", 0, 128, 192),
        ("i2", -(2**15), 0, 2**14),
        ("i4", -(2**31), 0, 2**30),
        ("f8", -1, 0, 0.5),
    ],
)
def test_full_scale_is_one(dtype, lowest, rest, half):
    frame = Framer(16_000).push(np.array([lowest, rest, half] * FRAME, dtype))[0]
    assert frame[:3].tolist() == [-1, 0, 0.5]


def test_channels_are_averaged():
    block = np.tile(np.array([[0.5, -0.25, 0.125]], np.float32), (FRAME, 1))
    assert np.array_equal(Framer(16_000, 3).push(block), np.full((1, FRAME), 0.125, np.float32))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("rate", [16_000, 48_000])
def test_what_is_no_number_becomes_silence_and_is_counted(dtype, rate):
    block = np.zeros((rate, 2), dtype)
    block[100] = np.nan, np.inf
    block[200] = -np.inf, np.nan
    framer = Framer(rate, 2)
    assert not framed(framer, [block]).any()
    assert framer.n_invalid == 4


def test_finite_nonsense_is_clipped():
    block = np.full(2 * FRAME, np.finfo(np.float64).max)
    assert np.array_equal(Framer(16_000).push(block), np.ones((2, FRAME), np.float32))


def test_a_block_that_is_reused_by_its_owner_does_no_harm():
    block = np.full(100, 0.25, np.float32)
    framer = Framer(16_000)
    framer.push(block)
    block[:] = 0.75
    assert framer.flush()[0, :100].tolist() == [0.25] * 100


def test_nothing_in_nothing_out():
    for rate in RATES:
        assert Framer(rate).flush().shape == (0, FRAME)


def test_wrong_channel_count_is_a_bug():
    with pytest.raises(ValueError, match=r"shape \(10, 2\) has not 1 channels"):
        Framer(16_000).push(np.zeros((10, 2), np.float32))


def test_absurd_rate_is_the_callers_error():
    with pytest.raises(SourceError, match="100 Hz is not supported"):
        Framer(100)


@given(
    data=st.binary(max_size=600),
    encoding=st.sampled_from(sorted(ENCODINGS)),
    channels=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 600), max_size=30),
)
@example(data=b"\x01\x02\x03\x04\x05", encoding="s16le", channels=2, cuts=[1, 2, 3, 4])
def test_bytes_may_be_cut_anywhere(data, encoding, channels, cuts):
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = PcmDecoder(encoding, channels)
    pieces = [decoder.push(data[a:b]) for a, b in itertools.pairwise(bounds)]
    whole = PcmDecoder(encoding, channels).push(data)
    assert b"".join(piece.tobytes() for piece in pieces) == whole.tobytes()
    width = int(encoding.strip("sulfbe")) // 8
    assert len(whole) == len(data) // (width * channels)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("u8", b"\x40"),
        ("s16le", b"\x00\xc0"),
        ("s16be", b"\xc0\x00"),
        ("s24le", b"\x00\x00\xc0"),
        ("s32le", b"\x00\x00\x00\xc0"),
        ("f32le", b"\x00\x00\x00\xbf"),
        ("f64le", b"\x00\x00\x00\x00\x00\x00\xe0\xbf"),
    ],
)
def test_minus_half_in_every_encoding(encoding, data):
    block = PcmDecoder(encoding, 1).push(data)
    assert Framer(16_000).push(np.repeat(block, FRAME))[0, 0] == -0.5


def test_24_bits_pass_unchanged():
    ramp = np.arange(-(2**23), 2**23, 999)
    data = b"".join(int(value).to_bytes(3, "little", signed=True) for value in ramp)
    out = framed(Framer(16_000), [PcmDecoder("s24le", 1).push(data)]).reshape(-1)[: len(ramp)]
    assert np.array_equal(np.rint(out.astype(np.float64) * 2**23), ramp)


@pytest.mark.parametrize("channels", [1, 2, 32])
def test_a_block_of_hours_takes_less_memory_than_it_has_itself(channels):
    block = noise(np.random.default_rng(3), 4_000_000 // channels, channels, "<f4")
    tracemalloc.start()
    try:
        Framer(48_000, channels).push(block)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < block.nbytes


@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 3000),
    channels=st.integers(1, 3),
    rate=st.sampled_from(RATES),
    cuts=st.lists(st.integers(0, 3000), max_size=30),
)
def test_each_split_channel_is_what_it_would_be_alone(seed, n, channels, rate, cuts):
    samples = noise(np.random.default_rng(seed), n, channels, "<f4")
    split = Framer(rate, channels, split=True)
    apart = framed(split, np.split(samples, sorted(min(c, n) for c in cuts)))
    assert apart.shape[1:] == (channels, FRAME)
    for channel in range(channels):
        alone = Framer(rate)
        assert np.array_equal(apart[:, channel], framed(alone, [samples[:, channel]]))
        assert split.n_padding == alone.n_padding


def test_split_channels_in_opposite_phase_do_not_cancel_each_other_out():
    tone = np.sin(np.arange(32_000) / 5).astype(np.float32)
    framer = Framer(16_000, 2, split=True)
    frames = framed(framer, [np.stack([tone, -tone], 1)])
    assert np.array_equal(frames[:, 0], -frames[:, 1])
    assert not framer.cancels


@given(
    quiet_s=st.floats(0, 3),
    dtype=st.sampled_from(["<f4", "<f8"]),
    cuts=st.lists(st.integers(0, 64_000), max_size=10),
)
@example(quiet_s=0.5, dtype="<f4", cuts=[])
def test_floats_that_are_16_bit_integers_are_scaled(quiet_s, dtype, cuts):
    """Also what came up to a second before there were enough that are too loud for floats."""
    rng = np.random.default_rng(0)
    sound = rng.integers(-20_000, 20_000, 64_000)
    n_quiet = int(quiet_s * 16_000)
    sound[:n_quiet] = rng.integers(5, 200, n_quiet)
    sound[n_quiet] = 20_000
    framer = Framer(16_000)
    pieces = np.split(sound.astype(dtype), sorted(cuts))
    out = framed(framer, pieces).reshape(-1)
    expected = sound / np.float32(2**15)
    sure = int(np.flatnonzero(np.abs(sound) > 256)[99])
    first = 0 if sure < 16_000 else sure
    assert np.array_equal(out[first:], expected[first:].astype(np.float32))
    assert np.array_equal(out[:first], np.clip(sound[:first], -1, 1))  # clipped, as it was
    assert framer.rescales


@given(
    places=st.lists(st.integers(0, 31_999), max_size=99),
    level=st.floats(300, 32_768),
    cuts=st.lists(st.integers(0, 32_000), max_size=5),
)
def test_of_clicks_and_damaged_messages_the_sound_after_them_is_not_scaled(places, level, cuts):
    sound = np.full(32_000, 0.25, np.float32)
    sound[places] = level
    framer = Framer(16_000)
    out = framed(framer, np.split(sound, sorted(cuts))).reshape(-1)
    assert np.array_equal(out, np.minimum(sound, 1))
    assert not framer.rescales


@pytest.mark.filterwarnings("error")
def test_a_signalling_nan_becomes_silence():
    sound = np.full(16_000, 10_000, np.float32)
    sound.view(np.uint32)[8_000] = 0x7F800001
    framer = Framer(16_000)
    assert framed(framer, [sound]).reshape(-1)[8_000] == 0
    assert framer.n_invalid == 1


def test_floats_that_are_only_too_loud_are_clipped():
    sound = 20 * np.sin(np.arange(64_000) / 10)
    framer = Framer(16_000)
    assert np.array_equal(
        framed(framer, [sound]).reshape(-1), np.clip(sound, -1, 1).astype(np.float32)
    )
    assert not framer.rescales


def channels(seconds: int) -> np.ndarray:
    rng, t = np.random.default_rng(0), np.arange(seconds * 16_000) / 16_000
    return rng.normal(0, 0.1, len(t)) * (t % 0.5 < 0.3)


@pytest.mark.parametrize("blocks", [320, 777, 48_000])
def test_opposite_phase_comes_and_goes_without_a_click(blocks):
    left = channels(12)
    right = left * np.repeat([1, -1, 1], 64_000)
    both = np.stack([left, right], 1)
    out = framed(Framer(16_000, 2), [both[at : at + blocks] for at in range(0, len(both), blocks)])
    out = out.reshape(-1)
    assert np.array_equal(out[:64_000], left[:64_000].astype(np.float32))
    for first, last in ((6, 8), (9, 12)):  # which takes a second or less to be seen
        part = slice(first * 16_000, last * 16_000)
        assert abs(np.corrcoef(out[part], left[part])[0, 1]) > 0.999
    steps = np.abs(np.diff(out - np.where(np.abs(out - left) < np.abs(out), left, 0)))
    assert steps.max() < 0.5


def test_ordinary_stereo_is_averaged_bit_for_bit():
    rng = np.random.default_rng(0)
    voice, other = channels(6), channels(6)[::-1]
    for right in (voice, 0.5 * voice, np.roll(voice, 11), other, np.zeros_like(voice)):
        both = np.stack([voice, right], 1) + rng.normal(0, 1e-3, (len(voice), 2))
        framer = Framer(16_000, 2)
        out = framed(framer, [both.astype(np.float32)]).reshape(-1)
        wide = both.astype(np.float32).astype(np.float64)
        assert np.array_equal(out, (wide.sum(1) / 2).astype(np.float32))
        assert not framer.cancels
