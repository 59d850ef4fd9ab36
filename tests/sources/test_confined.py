"""Files of strangers: what they hold, and what they cannot do."""

import asyncio
import os
import re
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from streamd.cli.doctor import _uploads
from streamd.config import load
from streamd.errors import SourceError
from streamd.sources.confined import ConfinedSource, missing_confinement, stranger_file
from streamd.sources.file import FileSource
from streamd.types import SAMPLE_RATE
from tests.support.loop import turn

SECOND = np.sin(np.arange(SAMPLE_RATE + 100) / 20).astype(np.float32) / 2

READ = """
import asyncio, os, resource, sys
from streamd.errors import SourceError
from streamd.sources.confined import stranger_file

async def read(path):
    try:
        async with stranger_file(os.open(path, os.O_RDONLY), "talk") as source:
            print(sum([item.size async for item in source]))
    except SourceError as error:
        print(error)

asyncio.run(read(sys.argv[1]))
# Not RUSAGE_SELF: that has what the process took that started this one, too.
own = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) >> 10)
"""
"""Prints how many samples there are, or the error, and the most memory that a process took (MB)."""


def read_elsewhere(path: Path) -> tuple[str, int]:
    command = (sys.executable, "-c", READ, str(path))
    said, n_mb = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return said, int(n_mb)


async def everything(source) -> tuple[np.ndarray, int]:
    async with source:
        frames = source.__aiter__()
        blocks = [item async for item in frames]
    return np.concatenate(blocks), frames.n_padding


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The descriptor of a file, which somebody else has read to its end."""
    descriptor = os.open(path, os.O_RDONLY)
    os.lseek(descriptor, 0, os.SEEK_END)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("form", ["FLAC", "OGG", "MP3", "WAV"])
async def test_it_is_what_anybody_hears(tmp_path, form):
    soundfile.write(path := tmp_path / "talk", SECOND, SAMPLE_RATE, format=form)
    expected, n_padding = await everything(FileSource(path))
    with opened(path) as file:
        for source in (ConfinedSource(file, "talk"), stranger_file(file, "talk")):
            frames, padding = await everything(source)
            assert np.array_equal(frames, expected)
            assert padding == n_padding


@pytest.mark.parametrize(("subtype", "is_plain"), [("PCM_16", True), ("IMA_ADPCM", False)])
def test_only_wav_whose_samples_are_stored_as_they_are_needs_no_process(
    tmp_path, subtype, is_plain
):
    path = tmp_path / "talk"
    soundfile.write(path, SECOND, SAMPLE_RATE, format="WAV", subtype=subtype)
    with opened(path) as file:
        assert isinstance(stranger_file(file, "talk"), FileSource) == is_plain


async def test_other_tracks_need_nothing_that_is_forbidden(tmp_path):
    path = tmp_path / "talk"
    with av.open(str(path), "w", format="matroska") as film:
        sound = film.add_stream("flac", rate=44_100, layout="stereo")
        screen = film.add_stream("mpeg4", rate=25, width=64, height=64, pix_fmt="yuv420p")
        words = film.add_stream("subrip")
        words.codec_context.subtitle_header = b"[Script Info]\nScriptType: v4.00+\n"
        film.mux(screen.encode(av.VideoFrame(64, 64, "yuv420p")))
        text = av.Packet(b"hi")
        text.stream, text.pts, text.dts, text.duration = words, 0, 0, 1
        film.mux(text)
        samples = np.repeat((SECOND * 32_767).astype(np.int16)[None], 2, axis=1)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="stereo")
        frame.sample_rate, frame.pts = 44_100, 0
        film.mux([*sound.encode(frame), *sound.encode(None), *screen.encode(None)])
    expected, n_padding = await everything(FileSource(path, upload="talk"))
    assert len(expected)
    with opened(path) as file:
        frames, padding = await everything(ConfinedSource(file, "talk"))
    assert np.array_equal(frames, expected)
    assert padding == n_padding


async def test_a_block_may_be_longer_than_a_message(tmp_path):
    path = tmp_path / "talk"
    with av.open(str(path), "w", format="matroska") as film:
        sound = film.add_stream("pcm_s16le", rate=SAMPLE_RATE, layout="mono")
        samples = np.tile((SECOND * 32_767).astype(np.int16), 20)[None]
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate, frame.pts = SAMPLE_RATE, 0
        film.mux(sound.encode(frame))
    expected, n_padding = await everything(FileSource(path, upload="talk"))
    with opened(path) as file:
        frames, padding = await everything(ConfinedSource(file, "talk"))
    assert np.array_equal(frames, expected)
    assert padding == n_padding


async def test_warnings_and_errors_are_those_of_any_file(tmp_path, caplog):
    soundfile.write(path := tmp_path / "talk", SECOND, SAMPLE_RATE, format="AIFF")
    path.write_bytes(path.read_bytes()[:-10_000])
    with opened(path) as file:
        async with ConfinedSource(file, "talk") as source:
            assert [item async for item in source]
        assert "talk is cut off: only 0.7 of 1.0 s are there" in caplog.text
        path.write_bytes(b"no sound" * 100)
        with pytest.raises(SourceError, match=r"^talk is damaged or not a sound file"):
            await everything(ConfinedSource(file, "talk"))


@pytest.mark.parametrize(
    ("ended_by", "says"),
    [("SIGKILL", "has ended with -9"), ("SIGXCPU", "decoding it takes too long")],
)
async def test_a_decoder_that_ends_ends_nobody_else(tmp_path, ended_by, says):
    soundfile.write(path := tmp_path / "talk", SECOND, SAMPLE_RATE, format="FLAC")
    with opened(path) as file:
        async with ConfinedSource(file, "talk") as source:
            source._process.send_signal(getattr(signal, ended_by))
            with pytest.raises(SourceError, match=rf"^talk is damaged: .*{says}"):
                await anext(source)


@pytest.mark.parametrize("message", [b"f\x7f\0\0\0", b"f\0\0\0\5short", b"?\0\0\0\0"])
async def test_a_process_that_was_taken_over_can_send_nothing_that_costs_memory(tmp_path, message):
    """It says that 2 GB follow; has half a sample; says what has no meaning."""
    with opened(Path(os.devnull)) as file:
        async with ConfinedSource(file, "talk") as source:
            taken_over = asyncio.StreamReader()
            taken_over.feed_data(message)
            taken_over.feed_eof()
            source._out = taken_over
            with pytest.raises(SourceError, match=r"^talk is damaged: .* taken over"):
                await anext(source)


async def test_who_leaves_early_leaves_no_process(tmp_path):
    long = np.tile(SECOND, 99)
    soundfile.write(path := tmp_path / "talk", long, SAMPLE_RATE, format="FLAC")
    with opened(path) as file:
        async with asyncio.timeout(60):
            async with ConfinedSource(file, "talk") as source:
                await anext(source)
                number = source._process.pid
                pipe = source._process._transport.get_pipe_transport(1)
                while pipe.is_reading():  # until more is unread than is kept
                    await turn()
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and its limits")


@needs_linux
async def test_the_process_knows_and_may_do_no_more_than_it_needs(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMD_TOKEN", "sixteen-characters-secret")
    soundfile.write(path := tmp_path / "talk", np.tile(SECOND, 99), SAMPLE_RATE, format="FLAC")
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with opened(path) as file:
        async with ConfinedSource(file, "secret name.mp3") as source:
            await anext(source)
            folder = Path(f"/proc/{source._process.pid}")
            says = {name: (folder / name).read_text() for name in ("cmdline", "environ", "status")}
            limits = (folder / "limits").read_text()
            assert os.getpriority(os.PRIO_PROCESS, source._process.pid) == min(nice + 10, 19)
    assert "secret" not in says["cmdline"]
    assert str(tmp_path) not in says["cmdline"]
    names = {each.partition("=")[0] for each in says["environ"].split("\0") if each}
    assert names <= {"PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "OPENBLAS_NUM_THREADS"}
    status = dict(line.split(":\t", 1) for line in says["status"].splitlines())
    assert (status["NoNewPrivs"], status["Threads"]) == ("1", "1")
    for limit in ("core file size", "file size", "processes", "open files"):
        assert re.search(rf"(?m)^Max {limit} +0 +0 ", limits), limit
    n_s = int(re.search(r"(?m)^Max cpu time +(\d+) ", limits)[1])
    assert 60 <= n_s <= 60 + 99


async def test_what_this_machine_cannot_forbid_is_said():
    missing = await missing_confinement()
    assert ("limits for root" in missing) == (os.geteuid() == 0)
    assert ("a limit of memory" in missing) == (sys.platform != "linux")
    (finding,) = await asyncio.to_thread(lambda: list(_uploads(load({}, {}))))
    assert missing in finding.text
    assert finding.state == ("--" if missing else "ok")


def test_who_computes_longer_than_is_allowed_is_ended():
    code = "from streamd.system.sandbox import limit_cpu; limit_cpu(1)\nwhile True: pass"
    assert subprocess.run((sys.executable, "-c", code), check=False).returncode == -signal.SIGXCPU


def box(kind: bytes, *parts: bytes) -> bytes:
    return struct.pack(">I", 8 + sum(map(len, parts))) + kind + b"".join(parts)


def mpeg4(n_samples: int) -> bytes:
    """Return a file that says that it has so many samples of a byte each; it has none."""
    esds = "000000000380808022000100048080801440150000000000000000000000058080800212100680808001 02"
    entry = struct.pack(">6xH8xHHHHI", 1, 2, 16, 0, 0, 44_100 << 16)
    mp4a = box(b"mp4a", entry, box(b"esds", bytes.fromhex(esds.replace(" ", ""))))
    table = box(
        b"stbl",
        box(b"stsd", struct.pack(">II", 0, 1), mp4a),
        box(b"stts", struct.pack(">IIII", 0, 1, n_samples, 1024)),
        box(b"stsc", struct.pack(">IIIII", 0, 1, 1, n_samples, 1)),
        box(b"stsz", struct.pack(">III", 0, 1, n_samples)),
        box(b"stco", struct.pack(">III", 0, 1, 40)),
    )
    reference = box(b"dinf", box(b"dref", struct.pack(">II", 0, 1), box(b"url ", b"\0\0\0\1")))
    media = box(
        b"mdia",
        box(b"mdhd", struct.pack(">IIIIIHH", 0, 0, 0, 44_100, 441_000, 0x55C4, 0)),
        box(b"hdlr", struct.pack(">II4s12x", 0, 0, b"soun"), b"\0"),
        box(b"minf", box(b"smhd", bytes(8)), reference, table),
    )
    track = box(b"tkhd", struct.pack(">IIIIII", 7, 0, 0, 1, 0, 10_000), bytes(60))
    movie = box(b"mvhd", struct.pack(">IIIII", 0, 0, 0, 1000, 10_000), bytes(80))
    brand = box(b"ftyp", b"isom\0\0\2\0isom")
    return brand + box(b"mdat", bytes(4096)) + box(b"moov", movie, box(b"trak", track, media))


def picture(width: int) -> bytes:
    """Return a PNG of so many black pixels in each direction."""
    packer = zlib.compressobj(1)
    rows = [packer.compress(bytes(1 + 3 * width)) for _ in range(width)]
    size = struct.pack(">IIBBBBB", width, width, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", size), (b"IDAT", b"".join(rows) + packer.flush()), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


@needs_linux
def test_a_table_that_would_need_gigabytes_is_not_made(tmp_path):
    (path := tmp_path / "talk").write_bytes(mpeg4(40_000_000))
    said, n_mb = read_elsewhere(path)
    assert said.startswith("talk ")
    assert n_mb < 350


@needs_linux
def test_a_picture_that_would_need_a_gigabyte_is_not_decoded(tmp_path):
    soundfile.write(path := tmp_path / "talk", SECOND, SAMPLE_RATE, format="MP3")
    cover = b"\0image/png\0\x03\0" + picture(12_000)
    frame = b"APIC" + struct.pack(">IH", len(cover), 0) + cover
    size = bytes(len(frame) >> shift & 127 for shift in (21, 14, 7, 0))
    path.write_bytes(b"ID3\x03\0\0" + size + frame + path.read_bytes())
    said, n_mb = read_elsewhere(path)
    assert abs(int(said) - len(SECOND)) < 2000
    assert n_mb < 350


@needs_linux
def test_many_channels_take_no_more_memory_than_few(tmp_path):
    block = np.zeros((400_000, 32), np.int16)
    soundfile.write(path := tmp_path / "talk", block, 192_000, format="WAV")
    said, n_mb = read_elsewhere(path)
    soundfile.write(path, block[:, :1], 192_000, format="WAV")
    assert read_elsewhere(path)[0] == said
    assert n_mb < 100


@needs_linux
def test_a_header_that_states_a_thousand_channels_takes_nothing(tmp_path):
    soundfile.write(path := tmp_path / "talk", np.zeros((4, 1024), np.int16), 192_000, format="WAV")
    said, n_mb = read_elsewhere(path)
    assert said == "talk: 1024 channels are not supported: use at most 32"
    assert n_mb < 100


MOST = b"\xff" * 8
DECLARED = {
    "FLAC": lambda data: data[:22] + MOST[:4] + data[26:],
    "AIFF": lambda data: patched(data, b"COMM", 6, b"\x7f" + MOST[:3]),
    "CAF": lambda data: patched(data, b"data", 0, b"\x7f" + MOST[:7]),
    "W64": lambda data: patched(data, b"data", 12, MOST[:7] + b"\x7f"),
    "RF64": lambda data: patched(data, b"ds64", 4, (MOST[:7] + b"\x7f") * 3),
    "AU": lambda data: data[:8] + b"\x7f" + MOST[:3] + data[12:],
}
"""How a file of each format says that it holds as much as its header can say."""


def patched(data: bytes, mark: bytes, after: int, put: bytes) -> bytes:
    """Return the data with other bytes so far behind a mark."""
    at = data.index(mark) + len(mark) + after
    return data[:at] + put + data[at + len(put) :]


@needs_linux
@pytest.mark.parametrize("form", DECLARED)
def test_a_length_that_is_not_there_takes_no_memory(tmp_path, form):
    soundfile.write(path := tmp_path / "talk", SECOND, SAMPLE_RATE, format=form)
    path.write_bytes(DECLARED[form](path.read_bytes()))
    said, n_mb = read_elsewhere(path)
    assert said.startswith("talk") or abs(int(said) - len(SECOND)) < SAMPLE_RATE
    assert n_mb < 350


@needs_linux
def test_frames_without_sound_until_memory_is_used_up_are_called_that(tmp_path):
    empty_frame = b"\xff\xf1\x50\x80\x00\xff\xfc"  # of AAC: its 7 bytes are all header
    (path := tmp_path / "talk").write_bytes(empty_frame * 700_000)
    said, n_mb = read_elsewhere(path)
    assert said.startswith("talk is damaged: 256 MB of memory are not enough to decode it")
    assert n_mb < 350


@needs_linux
def test_boxes_within_boxes_end(tmp_path):
    inner = b""
    for kind in (b"moov", b"trak", b"mdia", b"minf") * 5_000:
        inner = box(kind, inner)
    (path := tmp_path / "talk").write_bytes(box(b"ftyp", b"isom\0\0\2\0isom") + inner)
    said, n_mb = read_elsewhere(path)
    assert said.startswith("talk is damaged or not a sound file")
    assert n_mb < 350


@needs_linux
def test_the_picture_of_a_film_is_not_decoded(tmp_path):
    path = tmp_path / "talk"
    with av.open(str(path), "w", format="mov") as film:
        screen = film.add_stream("png", rate=1)
        screen.width = screen.height = 16_000
        screen.pix_fmt = "rgb24"
        sound = film.add_stream("pcm_s16le", rate=SAMPLE_RATE, layout="mono")
        packet = av.Packet(picture(16_000))
        packet.stream, packet.pts, packet.dts = screen, 0, 0
        film.mux(packet)
        samples = (SECOND * 32_767).astype(np.int16)[None]
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate, frame.pts = SAMPLE_RATE, 0
        film.mux(sound.encode(frame))
        film.mux(sound.encode(None))
    said, n_mb = read_elsewhere(path)
    assert abs(int(said) - len(SECOND)) < 2_000
    assert n_mb < 350
