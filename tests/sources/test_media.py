"""Files as recorders, muxers and accidents leave them: where their sound is, and which it is."""

import logging

import numpy as np
import pytest
import soundfile

from streamd.errors import SourceError
from streamd.sources.file import FileSource
from streamd.sources.stdin import StdinSource
from streamd.sources.tracks import Selection
from streamd.types import SAMPLE_RATE
from tests.sources.test_ffmpeg import convert, piped, samples_of
from tests.support import recorded

pytestmark = pytest.mark.usefixtures("ffmpeg")
TONE = ("-f", "lavfi", "-i", "sine=frequency=440:sample_rate=48000:duration=3")
PICTURES = ("-f", "lavfi", "-i", "color=s=32x32:r=25:d=9")


def sounding(samples: np.ndarray) -> list[tuple[float, float]]:
    """From when to when there is sound, in seconds, with pauses of 0.1 s and more between."""
    at = np.flatnonzero(np.abs(samples) > 0.01) / SAMPLE_RATE
    cuts = np.flatnonzero(np.diff(at) > 0.1)
    return list(zip(at[[0, *(cuts + 1)]].round(2), at[[*cuts, len(at) - 1]].round(2), strict=True))


def assert_at(samples: np.ndarray, *expected: tuple[float, float]) -> None:
    assert np.array(sounding(samples)) == pytest.approx(np.array(expected), abs=0.12)


def messages(caplog, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


# -- the time of the sound ------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "mov", "ts", "flv", "webm", "nut"])
async def test_sound_that_begins_late_keeps_its_place(tmp_path, caplog, suffix):
    path = tmp_path / f"late.{suffix}"
    convert(
        *PICTURES, "-itsoffset", "4.5", *TONE, "-ar", "48000" if suffix != "flv" else "44100", path
    )
    assert_at(await samples_of(FileSource(path)), (4.5, 7.5))
    assert not messages(caplog)


async def test_a_broadcast_begins_when_it_begins(tmp_path):
    """MPEG-TS counts from any time: here from 20 hours."""
    path = tmp_path / "late.ts"
    convert(*PICTURES, "-itsoffset", "2", *TONE, "-output_ts_offset", "72000", path)
    assert_at(await samples_of(FileSource(path)), (2, 5))


async def test_sound_of_a_file_without_pictures_begins_at_once(tmp_path):
    path = tmp_path / "a.mka"
    convert("-itsoffset", "4.5", *TONE, path)
    assert_at(await samples_of(FileSource(path)), (0, 3))


def moved(path, out, by_s: float, *more: str) -> None:
    """Everything from 1.5 s on comes so much later."""
    convert(
        "-i", path, "-c", "copy", "-bsf:a", f"setts=ts=TS+gte(TS*TB\\,1.5)*{by_s}/TB", *more, out
    )


@pytest.mark.parametrize("by_s", [0.5, 6, 600])
@pytest.mark.parametrize("suffix", ["mka", "mp4", "webm", "mov", "nut"])
async def test_a_gap_in_the_packets_times_is_silence(tmp_path, caplog, suffix, by_s):
    convert(*TONE, tone := tmp_path / f"tone.{suffix}")
    moved(tone, path := tmp_path / f"gap.{suffix}", by_s)
    assert_at(await samples_of(FileSource(path)), (0, 1.5), (1.5 + by_s, 3 + by_s))
    assert not messages(caplog)


async def test_a_recording_on_a_pipe_has_gaps_too(tmp_path):
    convert(*TONE, tone := tmp_path / "tone.webm")
    moved(tone, path := tmp_path / "gap.webm", 2)
    with piped(path) as writer:
        assert_at(await samples_of(StdinSource(writer.stdout)), (0, 1.5), (3.5, 5))


@pytest.mark.parametrize(
    ("suffix", "by_s"), [("mka", 86_400), ("nut", 86_400), ("ts", 60), ("ts", -1.2), ("mka", -1.2)]
)
async def test_a_clock_that_jumps_is_a_new_clock(tmp_path, suffix, by_s):
    """As players do: nobody waits for a day, or for what was to come back."""
    convert(*TONE, tone := tmp_path / f"tone.{suffix}")
    moved(tone, path := tmp_path / f"jump.{suffix}", by_s)
    samples = await samples_of(FileSource(path))
    assert_at(samples, (0, 3))


async def test_a_gap_behind_a_jump_is_as_long_as_its_own_clock_says(tmp_path):
    convert(*TONE, tone := tmp_path / "tone.ts")
    moved(tone, path := tmp_path / "gap.ts", 2)
    path.write_bytes(path.read_bytes() * 2)
    assert_at(await samples_of(FileSource(path)), (0, 1.5), (3.5, 6.5), (8.5, 10))


async def test_what_an_edit_list_skips_is_not_silence(tmp_path):
    convert(*TONE, tone := tmp_path / "tone.m4a")
    convert("-ss", "1.2", "-i", tone, "-c", "copy", path := tmp_path / "cut.m4a")
    assert_at(await samples_of(FileSource(path)), (0, 1.8))


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "webm", "mov"])
@pytest.mark.parametrize("order", [("1:a", "0:v"), ("0:v", "1:a")], ids=["sound", "pictures"])
async def test_pictures_may_be_longer_than_the_sound(tmp_path, caplog, suffix, order):
    path = tmp_path / f"a.{suffix}"
    convert(*PICTURES, *TONE, *(word for each in order for word in ("-map", each)), path)
    assert_at(await samples_of(FileSource(path)), (0, 3))
    assert not messages(caplog)


@pytest.mark.parametrize("suffix", ["mp3", "m4a", "flac", "mka"])
async def test_a_cover_and_chapters_are_no_damage(tmp_path, caplog, suffix):
    convert("-f", "lavfi", "-i", "color=s=64x64:d=0.04", "-frames:v", "1", tmp_path / "c.png")
    chapters = "".join(
        f"[CHAPTER]\nTIMEBASE=1/1\nSTART={at}\nEND={at + 1}\ntitle=Part {at}\n" for at in range(9)
    )
    (tmp_path / "chapters.txt").write_text(f";FFMETADATA1\n{chapters}")
    path = tmp_path / f"a.{suffix}"
    picture = ("-c:v", "copy", "-disposition:v", "attached_pic")
    convert(
        *(*TONE, "-i", tmp_path / "c.png", "-i", tmp_path / "chapters.txt"),
        *("-map", "0", "-map", "1", "-map_chapters", "2", *picture, path),
    )
    assert_at(await samples_of(FileSource(path)), (0, 3))
    assert not messages(caplog)


@pytest.mark.parametrize("suffix", ["opus", "ogg", "mka", "webm"])
async def test_a_recording_need_not_begin_at_zero(tmp_path, caplog, suffix):
    """As some servers write it, with the time of the call."""
    convert(*TONE, "-output_ts_offset", "2.5", path := tmp_path / f"a.{suffix}")
    assert_at(await samples_of(FileSource(path)), (0, 3))
    assert not messages(caplog)


async def test_fragments_behind_a_damaged_one_are_told(tmp_path, caplog):
    fragments = ("-movflags", "frag_keyframe+empty_moov", "-frag_duration", "500000")
    convert(*TONE, *fragments, path := tmp_path / "a.mp4")
    assert_at(await samples_of(FileSource(path)), (0, 3))
    assert not messages(caplog)
    data = path.read_bytes()
    at = data.index(b"moof", len(data) // 2) - 4
    path.write_bytes(data[:at] + bytes(4) + b"\xff" * 60 + data[at + 64 :])
    await samples_of(FileSource(path))
    (told,) = messages(caplog)
    assert told.startswith(f"{path} is damaged: ")


# -- chains and damage ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.ogg", "a.opus", "a.flac", "a.mp3", "a.aac", "a.oga"])
@pytest.mark.parametrize("other", [("-ar", "48000"), ("-ar", "32000", "-ac", "2")])
async def test_files_that_were_joined_are_read_to_the_end(tmp_path, caplog, name, other):
    if name.endswith(("ogg", "flac")) or "32000" not in other or not name.endswith("opus"):
        codec = ("-c:a", "flac") if name.endswith("oga") else ()
        rate = other if not name.endswith("opus") else ("-ar", "48000")
        convert(*TONE, *codec, "-ar", "48000", path := tmp_path / name)
        convert(*TONE, *codec, *rate, second := tmp_path / f"b-{name}")
        path.write_bytes(path.read_bytes() + second.read_bytes())
        samples = await samples_of(FileSource(path))
        assert abs(len(samples) / SAMPLE_RATE - 6) < 0.2
        assert (np.abs(samples[1600:-3200]).reshape(-1, 160).max(1) > 0.01).mean() > 0.95
        assert not messages(caplog)


def damaged(path, share: float = 0.5, n: int = 600) -> None:
    data = bytearray(path.read_bytes())
    at = round(len(data) * share)
    data[at : at + n] = np.random.default_rng(1).bytes(n)
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["a.flac", "a.ogg", "a.opus", "a.m4a", "a.mp3", "a.ts", "a.webm"])
async def test_what_is_behind_damage_keeps_its_place_and_is_told_once(tmp_path, caplog, name):
    # Noise in bursts, as long as their number says: 0.1 s, 0.2 s ...; a codec needs many bytes.
    noise = np.random.default_rng(0).normal(0, 0.1, 12 * SAMPLE_RATE)
    for burst in range(12):
        noise[burst * SAMPLE_RATE + (burst + 1) * 1000 : (burst + 1) * SAMPLE_RATE] = 0
    soundfile.write(tmp_path / "a.wav", noise, SAMPLE_RATE)
    convert("-i", tmp_path / "a.wav", "-b:a", "96k", path := tmp_path / name)
    before = sounding(await samples_of(FileSource(path)))
    damaged(path)
    after = sounding(await samples_of(FileSource(path)))
    kept = [each for each in before if np.abs(np.array(after) - each).max(1).min() < 0.12]
    assert len(kept) >= 9, (before, after)
    assert max(end for _, end in after) == pytest.approx(before[-1][1], abs=0.12)
    (told,) = messages(caplog)
    assert told.startswith(f"{path} is damaged: ")


async def test_of_damaged_flac_nothing_comes_twice(tmp_path, caplog):
    path = tmp_path / "a.flac"
    soundfile.write(path, recorded.whole()[: 20 * SAMPLE_RATE], SAMPLE_RATE)
    whole = await samples_of(FileSource(path))
    damaged(path)
    samples = await samples_of(FileSource(path))
    n = 8 * SAMPLE_RATE
    assert np.array_equal(samples[:n], whole[:n])
    assert np.abs(samples[-n:] - whole[-n:]).max() < 1e-4  # 16 bits
    (told,) = messages(caplog)
    assert told.startswith(f"{path} is damaged: ")


async def test_of_a_file_that_is_all_damage_there_is_an_error(tmp_path):
    convert(*TONE, path := tmp_path / "a.m4a")
    data = path.read_bytes()
    path.write_bytes(np.random.default_rng(2).bytes(len(data)))
    with pytest.raises(SourceError, match="is damaged or not a sound file"):
        await samples_of(FileSource(path))


# -- which sound ----------------------------------------------------------------------------------


def speech(n_s: int = 12) -> np.ndarray:
    return recorded.whole()[: n_s * SAMPLE_RATE].astype(np.float32)


def alike(samples: np.ndarray, expected: np.ndarray) -> float:
    """How much louder and softer they are at the same time, in steps of 20 ms, up to 0.1 s late."""
    n = (min(len(samples), len(expected)) - 3200) // 320 * 320
    was, *now = (
        np.abs(x.reshape(-1, 320)).mean(1)
        for x in (expected[:n], *(samples[at : at + n] for at in range(0, 1600, 160)))
    )
    return max(float(np.corrcoef(was, each)[0, 1]) for each in now)


CONTAINERS = ["wav", "flac", "ogg", "m4a", "mp3", "webm", "mkv", "ts", "wma", "caf", "aiff"]


@pytest.mark.parametrize("suffix", CONTAINERS)
@pytest.mark.parametrize("noise", [0.0, 0.01])
async def test_channels_in_opposite_phase_are_read_in_every_container(
    tmp_path, caplog, suffix, noise
):
    sound, random = speech(), np.random.default_rng(0)
    both = np.stack([sound, -sound], 1) + random.normal(0, noise, (len(sound), 2))
    soundfile.write(tmp_path / "a.wav", both, SAMPLE_RATE)
    convert("-i", tmp_path / "a.wav", "-b:a", "128k", path := tmp_path / f"b.{suffix}")
    # FFmpeg's WMA is poor.
    assert alike(await samples_of(FileSource(path)), sound) > (0.7 if suffix == "wma" else 0.9)
    (told,) = messages(caplog)
    assert told == f"the channels of {path} cancel each other out: only one of them is read"


@pytest.mark.parametrize(
    ("suffix", "layout"),
    [
        *((suffix, "5.1") for suffix in ("wav", "ogg", "mkv", "opus", "caf", "ac3")),
        *(("flac", layout) for layout in ("3.0", "5.0", "7.1")),
        *(("m4a", layout) for layout in ("5.1", "7.1")),
    ],
)
@pytest.mark.parametrize("centre", [True, False], ids=["centre", "sides"])
async def test_the_centre_is_read_alone_if_it_has_sound(tmp_path, suffix, layout, centre):
    names = {"3.0": "FL FR FC", "5.0": "FL FR FC BL BR", "5.1": "FL FR FC LFE BL BR"}.get(
        layout, "FL FR FC LFE BL BR SL SR"
    )
    sound, t = speech(), np.arange(12 * SAMPLE_RATE) / SAMPLE_RATE
    random = np.random.default_rng(0)
    columns = {name: random.normal(0, 1e-3, len(sound)) for name in names.split()}
    if centre:
        columns["FL"] = columns["FR"] = 0.1 * np.sin(2 * np.pi * 300 * t) * (t % 3 < 2)
        columns["FC"] = sound
    else:
        columns["FL"] = columns["FR"] = sound
    if "LFE" in columns:
        columns["LFE"] = 0.5 * np.sin(2 * np.pi * 38 * t)
    soundfile.write(
        tmp_path / "a.wav", np.stack(list(columns.values()), 1), SAMPLE_RATE, subtype="PCM_16"
    )
    channels = f"channelmap={'|'.join(map(str, range(len(columns))))}:{layout}"
    how = ("-i", tmp_path / "a.wav", "-af", channels, "-ar", "48000", "-b:a", "400k")
    codec = ("-c:a", "pcm_s16le") if suffix == "caf" else ()
    mapping = ("-mapping_family", "1") if suffix == "opus" else ()
    convert(*how, *codec, *mapping, path := tmp_path / f"b.{suffix}")
    assert alike(await samples_of(FileSource(path)), sound) > 0.9


def tracks(path, *channels: tuple[str, str]) -> None:
    """A film in which each track has a tone of its own (frequency, or "" for silence)."""
    inputs, maps = [], []
    for number, (hz, language) in enumerate(channels):
        sound = f"sine=frequency={hz}:duration=3" if hz else "anullsrc=r=44100:cl=stereo:d=3"
        inputs += ["-f", "lavfi", "-i", sound]
        maps += ["-map", f"{number}:a"]
        maps += [f"-metadata:s:a:{number}", f"language={language}"] if language else []
    convert(*inputs, *maps, path)


def pitch(samples: np.ndarray) -> int:
    second = np.abs(np.fft.rfft(samples[SAMPLE_RATE : 2 * SAMPLE_RATE]))
    return int(second.argmax())


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "ts"])
@pytest.mark.parametrize(
    ("made", "selection", "read", "told"),
    [
        (
            [("440", "ger"), ("660", "eng")],
            Selection(languages=("en",)),
            660,
            "2 (eng); --track N reads another: 1 (ger)",
        ),
        ([("440", "eng"), ("660", "deu")], Selection(languages=("de", "en")), 660, ""),
        ([("440", "ger"), ("660", "eng")], Selection(languages=("fr",)), 440, "1 (ger); "),
        ([("440", "ger"), ("660", "eng")], Selection(), 440, ""),
        ([("", ""), ("660", "")], Selection(), 660, ""),
        ([("", "eng"), ("660", "ger")], Selection(languages=("en",)), 660, ""),
        ([("", ""), ("440", ""), ("660", "")], Selection(track=3), 660, ""),
        ([("440", "ger"), ("660", "eng")], Selection(1, ("en",)), 440, ""),
    ],
)
async def test_which_of_several_tracks_is_read(
    tmp_path, caplog, suffix, made, selection, read, told
):
    caplog.set_level(logging.INFO)
    tracks(path := tmp_path / f"a.{suffix}", *made)
    samples = await samples_of(FileSource(path, selection=selection))
    assert pitch(samples) == read
    found = [line for line in messages(caplog, logging.INFO) if "reading sound track" in line]
    assert len(found) == (not selection.track)
    assert all(told in line for line in found)


async def test_a_track_that_is_not_there_is_named(tmp_path):
    tracks(path := tmp_path / "a.mkv", ("440", ""), ("660", ""))
    with pytest.raises(SourceError, match=r"a\.mkv has 2 sound tracks: there is no --track 3"):
        await samples_of(FileSource(path, selection=Selection(track=3)))
    convert(*TONE, path := tmp_path / "a.wav")
    with pytest.raises(SourceError, match=r"a\.wav has one sound track: there is no --track 2"):
        await samples_of(FileSource(path, selection=Selection(track=2)))


async def test_a_silent_track_of_a_pipe_is_told(tmp_path, caplog):
    """What was read cannot be read again."""
    tracks(path := tmp_path / "a.mkv", ("", ""), ("660", "eng"))
    with piped(path) as writer:
        samples = await samples_of(StdinSource(writer.stdout))
    assert not samples.any()
    (told,) = messages(caplog)
    assert told == "the sound track of stdin is silent; --track N reads another: 2 (eng)"
