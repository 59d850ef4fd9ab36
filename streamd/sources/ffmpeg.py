"""Sound that ffmpeg decodes: what libsndfile cannot read, addresses, containers on a pipe.

ffmpeg writes PCM into a pipe, which is read as needed. It runs in a process group of its own, so
that the first Ctrl-C at a terminal does not end it before streamd has reacted.
"""

import contextlib
import logging
import os
import re
import shutil
import subprocess
import threading
from typing import IO

import numpy as np

from streamd.errors import SourceError
from streamd.sources.framing import Block, PcmDecoder
from streamd.types import SAMPLE_RATE

FIX = "install it (apt-get install ffmpeg, dnf install ffmpeg or brew install ffmpeg)"

_URL = re.compile(r"(https?|rtmps?|rtsps?)://", re.IGNORECASE)
_URL_PROTOCOLS = "http,https,httpproxy,tls,tcp,udp,rtp,srtp,rtmp,rtmps,rtmpt,rtmpts,crypto,data"
"""Protocols that a stream or playlist from the network may use: none reads local files."""
SELF_CONTAINED = (
    "aac,aiff,amr,ape,asf,au,avi,caf,flac,flv,matroska,mov,mp3,mpeg,mpegts,ogg,tta,w64,wav,wv"
)
"""Formats that refer to no other file; playlists could make a stranger's file read ours."""
_READ_BYTES = 65_536
_MAX_COMPLAINTS = 20
_ERRORS = ("error", "fatal", "panic")
_SLACK_MS = 500
"""Containers state the length of their longest track, with the encoder's delay."""
_LINE = re.compile(r"(?:\[[^]]* @ 0x[0-9a-f]+\] )*\[(\w+)\] (.*)")
_DURATION = re.compile(r"  Duration: (\d+):(\d\d):(\d\d)\.(\d\d),")

_log = logging.getLogger(__name__)


def has_ffmpeg() -> bool:
    """Whether ffmpeg is installed."""
    return shutil.which("ffmpeg") is not None


def is_url(name: str) -> bool:
    """Whether `name` is a network address rather than a file."""
    return _URL.match(name) is not None


def cut_short(name: str, decoded_s: float, stated_s: float) -> str:
    """Return the message about a file whose end cannot be decoded."""
    part = f"only {decoded_s:.1f} of {stated_s:.1f} s could be decoded"
    return f"{name} is damaged or incomplete: {part}; get a complete copy"


class _Messages:
    """What ffmpeg reports about its input on standard error.

    With ``-loglevel level+info`` each line is ``[level] text``, preceded by the part that it comes
    from, if any: ``[mp3 @ 0x5581] [warning] text``. The facts are in lines of level info: first
    ``Input #0``, below it the duration and one ``Stream #0:`` line per track, then ``Output #0``,
    which comes before the first sample. The wording has been stable for many versions; if a line
    is missing, only the messages get less exact.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.duration_ms: int | None = None
        self.is_open = self.is_estimate = False
        self.has_sound = self.has_pictures = False
        self.complaints: list[str] = []
        self.described = threading.Event()
        """Set when the lines about the input have been read, or there will be no more lines."""

    def read(self, stderr: IO[bytes]) -> None:
        # All of it until ffmpeg ends; if nobody read, it would block.
        for line in stderr:
            if found := _LINE.match(line.decode(errors="replace").rstrip()):
                self._take(*found.groups())
        self.described.set()

    def _take(self, level: str, text: str) -> None:
        if level in _ERRORS or (level == "warning" and "corrupt" in text.lower()):
            if len(self.complaints) < _MAX_COMPLAINTS:
                self.complaints.append(_printable(text.removeprefix(f"{self._url}: ")))
        elif text.startswith("Input #0"):
            self.is_open = True
        elif text.startswith("Estimating duration"):
            self.is_estimate = True
        elif text.startswith("  Stream #0:"):
            self.has_sound |= ": Audio:" in text
            self.has_pictures |= ": Video:" in text and "(attached pic)" not in text
        elif found := _DURATION.match(text):
            hours, minutes, seconds, hundredths = map(int, found.groups())
            self.duration_ms = ((hours * 60 + minutes) * 60 + seconds) * 1000 + hundredths * 10
        if text.startswith("Output #0"):
            self.described.set()


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


class Ffmpeg:
    """An ffmpeg process that decodes one input: `open` it, `read` until nothing comes, `close` it.

    `name` is for messages. `path` is a file or an address (`is_url`), or empty to write the input
    into `stdin`, which is as in `subprocess.Popen`. The input must have one of the `formats`, if
    there are any. Raises `SourceError` without ffmpeg.
    """

    def __init__(
        self,
        name: str,
        path: str,
        *,
        stdin: int = subprocess.DEVNULL,
        formats: str = "",
        rate_hz: int = SAMPLE_RATE,
        channels: int = 1,
    ) -> None:
        program = shutil.which("ffmpeg")
        if program is None:
            raise SourceError(f"{name} can only be read with ffmpeg; {FIX}")
        self.name, self.rate_hz, self.channels = name, rate_hz, channels
        self._is_url = is_url(path)
        self.duration_ms: int | None = None  # until `open`, and where the container does not say
        self._n_read = 0
        self._stopped = False
        self._decoder = PcmDecoder("s16le", channels)
        self._ahead: Block = np.empty((0, channels), np.int16)
        # With a protocol in front no name is an option, a pattern or another protocol's address.
        url = path if self._is_url else f"file:{os.path.abspath(path)}" if path else "pipe:0"
        protocols = _URL_PROTOCOLS if self._is_url else "file" if path else "pipe"
        self._process = subprocess.Popen(
            [
                *(program, "-hide_banner", "-nostdin", "-nostats", "-loglevel", "level+info"),
                *(("-format_whitelist", formats) if formats else ()),
                *("-protocol_whitelist", protocols, "-i", url, "-vn", "-sn", "-dn"),
                # openai-whisper's own arguments, so that both get the same samples.
                *("-f", "s16le", "-c:a", "pcm_s16le", "-ac", str(channels), "-ar", str(rate_hz)),
                "pipe:1",
            ],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=os.environ | {"AV_LOG_FORCE_NOCOLOR": "1"},
            process_group=0,
        )
        assert self._process.stdout is not None  # it is a pipe
        assert self._process.stderr is not None
        self._sound, self._stderr = self._process.stdout, self._process.stderr
        self._messages = _Messages(url)
        self._listener = threading.Thread(
            target=self._messages.read, args=(self._stderr,), daemon=True
        )
        self._listener.start()

    @property
    def stdin(self) -> IO[bytes]:
        """The pipe for the input, if `stdin` was ``subprocess.PIPE``."""
        assert self._process.stdin is not None
        return self._process.stdin

    def open(self) -> None:
        """Wait until the first sound is decoded; raises `SourceError` if there is none."""
        self._ahead = self.read()
        # ffmpeg describes the input before the first sample, but on another pipe.
        self._messages.described.wait()
        self.duration_ms = self._messages.duration_ms

    def read(self) -> Block:
        """Return the next (n, channels) samples, n = 0 at the end. Raises `SourceError`."""
        if len(self._ahead):
            block, self._ahead = self._ahead, self._ahead[:0]
            return block
        while data := os.read(self._sound.fileno(), _READ_BYTES):
            block = self._decoder.push(data)
            self._n_read += len(block)
            if len(block):
                return block
        self._process.wait()
        self._listener.join()
        if not self._stopped and (failure := self._failure()):
            raise SourceError(failure)
        return self._ahead

    def stop(self) -> None:
        """End now: `open` and `read` return nothing more. Any thread may call it."""
        self._stopped = True
        self._process.kill()

    def close(self) -> None:
        """End the process and close its pipes."""
        self.stop()
        self._process.wait()
        self._listener.join()
        for pipe in (self._sound, self._stderr, self._process.stdin):
            if pipe is not None:
                with contextlib.suppress(OSError):  # input that was not written does not matter
                    pipe.close()

    def _failure(self) -> str:
        said = self._messages
        if not self._n_read:
            return self._why_nothing()
        complaint = said.complaints[0] if said.complaints else ""
        n_ms = self._n_read * 1000 // self.rate_hz
        seconds = f"{n_ms / 1000:.1f}"
        # The sound of a video may end before its pictures do.
        is_sure = not said.is_estimate and (complaint or not said.has_pictures)
        if is_sure and said.duration_ms is not None and n_ms + _SLACK_MS < said.duration_ms:
            return cut_short(self.name, n_ms / 1000, said.duration_ms / 1000)
        if self._process.returncode:
            return f"{self.name}: ffmpeg failed after {seconds} s: {complaint or 'no reason given'}"
        if complaint:
            _log.warning("%s: a part may be missing or wrong; ffmpeg: %s", self.name, complaint)
        return ""

    def _why_nothing(self) -> str:
        said = self._messages
        first, last = (said.complaints[at] if said.complaints else "" for at in (0, -1))
        if said.is_open and not said.has_sound:
            return f"{self.name} has no sound track"
        if first.endswith("partial file"):  # ffmpeg's words for input that it cannot seek in
            fix = "download it first" if self._is_url else "give the name of the file instead"
            return (
                f"{self.name} is an MPEG-4 file with its index at the end, which must be read "
                f"first: {fix}, or move the index to the front: "
                "ffmpeg -i in.m4a -c copy -movflags +faststart out.m4a"
            )
        if self._is_url and "Invalid data" not in last:
            return f"cannot read {self.name}: {last or 'no reason given'}; check the address"
        if said.complaints:
            problem = f"{self.name} is damaged or not a sound file (ffmpeg: {first})"
            return f"{problem}; get a complete copy"
        return f"{self.name} has no audio: record or convert it again"
