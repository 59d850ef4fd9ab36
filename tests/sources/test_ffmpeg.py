"""Sound that goes through ffmpeg: real files, pipes and a web server, made from real speech."""

import asyncio
import contextlib
import functools
import http.server
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamd.errors import SourceError
from streamd.options import PcmOptions
from streamd.sources import ffmpeg as module
from streamd.sources.containers import N_HEAD, container
from streamd.sources.file import FileSource
from streamd.sources.stdin import StdinSource
from streamd.types import SAMPLE_RATE

SPEECH = Path(__file__).resolve().parents[1] / "speech" / "recording.flac"
SECONDS = 5

pytestmark = pytest.mark.usefixtures("ffmpeg")


def convert(*args: object, **kwargs) -> None:
    command = ["ffmpeg", "-nostdin", "-loglevel", "error", "-y", *map(str, args)]
    subprocess.run(command, check=True, **kwargs)


@pytest.fixture(scope="module")
def speech(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "speech.wav"
    samples, rate = soundfile.read(SPEECH, dtype="float32", frames=SECONDS * SAMPLE_RATE)
    soundfile.write(path, samples, rate)
    return path


@pytest.fixture
def made(speech, tmp_path):
    """Speech in another format, under any name."""

    def make(name: str, *how: str) -> Path:
        convert("-i", speech, *how, path := tmp_path / name)
        return path

    return make


async def samples_of(source, heard: list | None = None) -> np.ndarray:
    """All of it; what comes before a failure is put into `heard`."""
    frames = [] if heard is None else heard
    async with source:
        async for item in source:
            frames.append(item)  # what came before a failure counts
    return np.concatenate(frames).reshape(-1) if frames else np.empty(0, np.float32)


def assert_is_speech(
    samples: np.ndarray, speech: Path, seconds: float = SECONDS, alike: float = 0.95
) -> None:
    """The same loudness in each 20 ms, up to 120 ms later: codecs keep that, but no sample."""
    assert abs(len(samples) / SAMPLE_RATE - seconds) < 0.15
    expected, _ = soundfile.read(speech, dtype="float32")
    n = round((seconds - 0.3) * 50)
    was, now = (
        np.abs(x[: len(x) // 320 * 320].reshape(-1, 320)).mean(1) for x in (expected, samples)
    )
    assert max(np.corrcoef(was[:n], now[at : at + n])[0, 1] for at in range(7)) > alike


@pytest.mark.parametrize(
    "name",
    [
        *("a.m4a", "a.mp4", "a.mov", "a.webm", "a.mkv", "a.aac", "a.wma", "a.ac3", "a.ts"),
        *("a.avi", "a.ogg", "a.opus"),
    ],
)
async def test_what_libsndfile_cannot_read(made, speech, name):
    source = FileSource(made(name))
    samples = await samples_of(source)
    assert_is_speech(samples, speech, alike=0.6 if name == "a.wma" else 0.95)  # a poor encoder
    assert abs(source.duration_ms - SECONDS * 1000) < 500


async def test_as_if_it_were_spoken_now(made, speech):
    waited_s = 0.0

    async def wait(duration_s: float) -> None:
        nonlocal waited_s
        waited_s += duration_s

    source = FileSource(made("a.m4a"), realtime=True, now_s=lambda: waited_s, sleep=wait)
    assert_is_speech(await samples_of(source), speech)
    assert abs(waited_s - SECONDS) < 0.2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.m4a", "MPEG-4"),
        ("a.webm", "Matroska or WebM"),
        ("a.aac", "AAC"),
        ("a.wma", "ASF"),
        ("a.ts", "MPEG transport stream"),
        ("a.avi", "AVI"),
        ("a.flv", "FLV"),
        ("a.mp2", "MP3"),
    ],
)
def test_what_it_is_can_be_seen(made, name, kind):
    how = ("-ar", "44100") if name.endswith("flv") else ()
    assert container(made(name, *how).read_bytes()[:N_HEAD]) == kind


@pytest.mark.parametrize(
    "name",
    ["my talk.m4a", "-y.m4a", "concat:a|b.m4a", "http:x.m4a", "%d.m4a", 'it\'s "$(x)".m4a'],
)
async def test_a_name_is_only_a_name(speech, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    convert("-i", speech, "plain.m4a")
    os.rename("plain.m4a", name)
    assert_is_speech(await samples_of(FileSource(name)), speech)


async def test_the_sound_of_a_video_may_end_before_its_pictures(speech, tmp_path):
    path = tmp_path / "video.mp4"
    picture = ("-f", "lavfi", "-i", f"color=s=32x32:r=5:d={SECONDS + 4}")
    convert(*picture, "-i", speech, path)
    assert_is_speech(await samples_of(FileSource(path)), speech)


async def test_a_video_without_sound_is_told_from_a_damaged_one(made, tmp_path):
    silent = tmp_path / "silent.mp4"
    convert("-f", "lavfi", "-i", "color=s=32x32:r=5:d=1", silent)
    with pytest.raises(SourceError, match=r"silent\.mp4 has no sound track$"):
        await samples_of(FileSource(silent))
    damaged = made("damaged.m4a")
    damaged.write_bytes(damaged.read_bytes()[:20_000])
    with pytest.raises(SourceError, match=r"damaged\.m4a is damaged .*FFmpeg: Invalid data"):
        await samples_of(FileSource(damaged))


async def test_a_sound_that_nothing_can_decode_is_told(made):
    path = made("odd.mkv", "-c:a", "libmp3lame")
    path.write_bytes(path.read_bytes().replace(b"A_MPEG/L3", b"A_MADE/UP"))
    with pytest.raises(SourceError, match=r"odd\.mkv: FFmpeg cannot decode its sound; convert"):
        await samples_of(FileSource(path))


async def test_the_program_ffmpeg_is_not_needed(made, speech, monkeypatch):
    path = made("a.m4a")
    monkeypatch.setenv("PATH", "")
    assert_is_speech(await samples_of(FileSource(path)), speech)


@pytest.mark.parametrize("rate_hz", [1, 1_300_000_000])
async def test_a_rate_that_would_need_gigabytes_is_refused(made, rate_hz):
    path = made("odd.mkv", "-c:a", "pcm_s16le", "-ar", "4000")
    data = path.read_bytes()
    rate = b"\xb5\x88" + struct.pack(">d", 4000)  # of the track, in Matroska
    assert data.count(rate) == 1
    path.write_bytes(data.replace(rate, rate[:2] + struct.pack(">d", rate_hz)))
    with pytest.raises(SourceError, match=rf"odd\.mkv is damaged .*sample rate of {rate_hz} Hz"):
        await samples_of(FileSource(path))


@pytest.mark.parametrize("name", ["a.m4a", "a.mkv", "a.mp3", "a.ts", "a.flv", "a.wma"])
def test_whatever_is_damaged_there_is_sound_or_one_error(made, name):
    path = made(name, "-ar", "44100")
    whole = path.read_bytes()
    for seed in range(30):
        random = np.random.default_rng(seed)
        data = np.frombuffer(whole, np.uint8).copy()
        at = random.integers(0, len(data) if seed % 2 else 2000, size=random.integers(1, 50))
        data[at] = random.integers(0, 256, size=len(at))
        path.write_bytes(data[: random.integers(100, 2 * len(data))].tobytes())
        decoder = module.Ffmpeg(name, str(path))
        with contextlib.suppress(SourceError):
            decoder.open()
            while len(decoder.read()):
                pass
        decoder.close()


async def test_the_rate_and_the_channels_may_change_in_the_middle(made):
    first, second = made("a.aac"), made("b.aac", "-ar", "44100", "-ac", "2")
    first.write_bytes(first.read_bytes() + second.read_bytes())
    samples = await samples_of(FileSource(first))
    assert abs(len(samples) / SAMPLE_RATE - 2 * SECONDS) < 0.3


@pytest.mark.parametrize(
    ("name", "how"), [("a.m4a", ("-movflags", "+faststart")), ("a.mkv", ()), ("a.mp3", ())]
)
async def test_a_file_that_is_cut_off_gives_all_that_is_left(made, speech, capfd, name, how):
    path = made(name, *how)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    frames = []
    with pytest.raises(SourceError, match=r"incomplete: only [23]\.\d of 5\.\d s") as caught:
        await samples_of(FileSource(path), frames)
    samples = np.concatenate(frames).reshape(-1)
    said_s = float(str(caught.value).partition("only ")[2].split()[0])
    assert abs(said_s - len(samples) / SAMPLE_RATE) < 0.08  # rounded, and the frame is padded
    assert_is_speech(samples, speech, seconds=len(samples) / SAMPLE_RATE)
    assert capfd.readouterr() == ("", "")  # libsndfile's mp3 decoder would complain


async def test_a_part_that_cannot_be_decoded_is_told(made, caplog):
    path = made("a.ts")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = data[len(data) // 2 : -100]
    path.write_bytes(data)
    await samples_of(FileSource(path))
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{path} is damaged: ")


async def test_it_does_not_decode_ahead(tmp_path):
    """Hours of sound do not wait in memory."""
    path = tmp_path / "long.mka"
    convert("-f", "lavfi", "-i", "anullsrc=r=8000:cl=mono:d=600", "-c:a", "pcm_u8", path)
    async with FileSource(path) as source:
        assert source.duration_ms == 600_000
        await anext(aiter(source))
        assert source._decoder._n_read < 2 * SAMPLE_RATE


async def test_stop_ends_it_behind_what_was_read(made):
    source = FileSource(made("a.m4a"))
    async with source:
        await anext(aiter(source))
        source.stop()
        assert sum([len(item) async for item in source]) <= 1  # the frame that was not full yet


@pytest.fixture
def server(tmp_path):
    """A web server on this machine that serves the folder; what is called `stall` never comes."""
    go_on = threading.Event()
    asked = threading.Event()
    paths: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            paths.append(self.path)
            if self.path == "/stall":
                self.send_response(200)
                self.end_headers()
                asked.set()
                go_on.wait()
            elif self.path.startswith("/half/"):
                data = (tmp_path / self.path.removeprefix("/half/")).read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2])
            else:
                super().do_GET()

    handler = functools.partial(Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        web.asked, web.paths = asked, paths
        web.url = f"http://127.0.0.1:{web.server_address[1]}"
        yield web
        go_on.set()
        web.shutdown()
        thread.join()


async def test_an_address(made, speech, server):
    made("a b.mp3")
    assert_is_speech(await samples_of(FileSource(f"{server.url}/a%20b.mp3?x=1")), speech)


async def test_a_playlist(made, speech, server):
    made("live.m3u8", "-hls_time", "2", "-hls_list_size", "0")
    assert_is_speech(await samples_of(FileSource(f"{server.url}/live.m3u8")), speech)


async def test_an_address_that_is_wrong(server):
    url = f"{server.url}/none.mp3"
    with pytest.raises(SourceError, match=f"^cannot read {url}: Server returned 404 Not Found; "):
        await samples_of(FileSource(url))
    shown = r"http://joe:\*\*\*@127.0.0.1:1/a.mp3"
    with pytest.raises(SourceError, match=f"^cannot read {shown}: Connection refused; check the"):
        await samples_of(FileSource("http://joe:secret@127.0.0.1:1/a.mp3"))


async def test_the_address_of_a_page_is_no_sound(server, tmp_path):
    (tmp_path / "watch.html").write_text("<!doctype html><title>A film</title>" * 100)
    with pytest.raises(SourceError, match=r"if it is a web page, get its sound: yt-dlp -o - URL"):
        await samples_of(FileSource(f"{server.url}/watch.html"))


async def test_a_server_that_goes_away_is_told(made, speech, server):
    made("a.ts")
    frames = []
    with pytest.raises(SourceError, match=r"a\.ts"):
        await samples_of(FileSource(f"{server.url}/half/a.ts"), frames)
    samples = np.concatenate(frames).reshape(-1)
    assert_is_speech(samples, speech, seconds=len(samples) / SAMPLE_RATE)


async def test_stop_does_not_wait_for_a_server(server):
    source = FileSource(f"{server.url}/stall")
    opening = asyncio.create_task(samples_of(source))
    await asyncio.to_thread(server.asked.wait)
    source.stop()
    assert not len(await opening)


async def test_being_cancelled_does_not_wait_for_a_server(server):
    opening = asyncio.create_task(samples_of(FileSource(f"{server.url}/stall")))
    await asyncio.to_thread(server.asked.wait)
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()


OPEN_AND_LEAVE = """
import asyncio, sys
from streamd.sources.file import FileSource

async def main():
    source = FileSource(sys.argv[1])
    opening = asyncio.create_task(source.__aenter__())
    await asyncio.to_thread(sys.stdin.read)
    source.stop()
    await opening
    await source.__aexit__()

asyncio.run(main())
"""


def test_the_program_ends_although_a_server_does_not_answer(server):
    command = [sys.executable, "-W", "error", "-c", OPEN_AND_LEAVE, f"{server.url}/stall"]
    # In debug mode asyncio complains of a busy machine.
    env = {**os.environ, "PYTHONASYNCIODEBUG": ""}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, env=env) as process:
        server.asked.wait()
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, b"")


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n"


async def test_the_network_cannot_name_files_of_this_machine(made, tmp_path, server):
    secret = made("secret.ts")
    (tmp_path / "evil.m3u8").write_text(PLAYLIST.format(f"file://{secret}"))
    with pytest.raises(SourceError, match=r"evil\.m3u8"):
        await samples_of(FileSource(f"{server.url}/evil.m3u8"))


async def test_a_file_cannot_name_addresses(made, tmp_path, server):
    made("a.ts")
    (tmp_path / "evil.m3u8").write_text(PLAYLIST.format(f"{server.url}/a.ts"))
    with pytest.raises(SourceError, match=r"evil\.m3u8 is damaged or not a sound file"):
        await samples_of(FileSource(tmp_path / "evil.m3u8"))
    assert not server.paths


def piped(path: Path):
    return subprocess.Popen(["cat", path], stdout=subprocess.PIPE, bufsize=0)


@contextlib.contextmanager
def open_pipe(data: bytes):
    """A pipe that holds the data, and whose other end stays open."""
    reader, writer = os.pipe()
    os.write(writer, data)
    with os.fdopen(reader, "rb") as file:
        yield file
    os.close(writer)


@pytest.mark.parametrize("name", ["a.wav", "a.mp3", "a.flac", "a.ogg", "a.aiff", "a.webm", "a.aac"])
async def test_a_container_on_a_pipe(made, speech, name):
    with piped(made(name)) as writer:
        assert_is_speech(await samples_of(StdinSource(writer.stdout)), speech)


async def test_a_container_becomes_what_the_options_for_pcm_say(made, speech):
    with piped(made("a.wav", "-ar", "44100", "-ac", "2")) as writer:
        source = StdinSource(writer.stdout, PcmOptions(rate_hz=32_000, channels=2))
        assert_is_speech(await samples_of(source), speech)


async def test_a_format_that_is_named_is_believed(made):
    path = made("a.wav")
    with path.open("rb") as file:
        samples = await samples_of(StdinSource(file, PcmOptions(encoding="s16le")))
    pcm = np.frombuffer(path.read_bytes(), "<i2") / np.float32(2**15)
    assert np.array_equal(samples[: len(pcm)], pcm)


@pytest.mark.parametrize("how", [("-movflags", "+faststart"), ()], ids=["front", "end"])
async def test_where_an_m4a_has_its_index(made, speech, how):
    path = made("a.m4a", "-ar", "48000", "-ac", "2", "-b:a", "320k", *how)  # more than is buffered
    with path.open("rb") as file:  # may be read in any order
        assert_is_speech(await samples_of(StdinSource(file)), speech)
    with piped(path) as writer:
        source = StdinSource(writer.stdout)
        if how:
            assert_is_speech(await samples_of(source), speech)
        else:
            with pytest.raises(SourceError, match="stdin is an MPEG-4 file with its index at the"):
                await samples_of(source)


async def test_a_named_pipe(made, speech, tmp_path):
    os.mkfifo(path := tmp_path / "fifo")
    writing = asyncio.to_thread(path.write_bytes, made("a.webm").read_bytes())
    source = StdinSource(str(path))
    samples, _ = await asyncio.gather(samples_of(source), writing)
    assert_is_speech(samples, speech)
    assert source.name == str(path)


async def test_stop_ends_a_pipe_that_stays_open_and_gives_what_was_in_it(made, speech):
    with open_pipe(made("a.wav").read_bytes()[:50_000]) as file:
        async with StdinSource(file) as source:
            source.stop()
            frames = [item async for item in source]
    samples = np.concatenate(frames).reshape(-1)
    assert_is_speech(samples, speech, seconds=(50_000 - 44) / 32_000)


async def test_leaving_while_everybody_waits(made):
    """The writer for us, and we for the writer."""
    with open_pipe(made("a.wav").read_bytes()[:N_HEAD]) as file:
        async with StdinSource(file) as source:
            asking = asyncio.ensure_future(anext(aiter(source)))
            while source._ffmpeg is None:
                await asyncio.to_thread(lambda: None)
            asking.cancel()


def test_what_is_an_address():
    assert module.is_url("https://a/b.mp3")
    assert module.is_url("RTSP://camera/1")
    for name in ("a.mp3", "file:///etc/passwd", "concat:a|b", "http:/a", "./http://a"):
        assert not module.is_url(name)
