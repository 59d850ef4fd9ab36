"""Sound that ffmpeg decodes: whatever libsndfile cannot read, addresses, containers on a pipe.

ffmpeg writes PCM into a pipe, which is read as it is needed: nothing is copied to the disk, and no
more than a few seconds are decoded ahead. It runs in a process group of its own, so that the first
Ctrl-C at a terminal does not end it before we have decided what that means.
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

from streamd.audio.framer import Block, PcmDecoder
from streamd.errors import SourceError
from streamd.types import SAMPLE_RATE

CURE = "install it (apt-get install ffmpeg, dnf install ffmpeg or brew install ffmpeg)"

_URL = re.compile(r"(https?|rtmps?|rtsps?)://", re.IGNORECASE)
_URL_PROTOCOLS = "http,https,httpproxy,tls,tcp,udp,rtp,srtp,rtmp,rtmps,rtmpt,rtmpts,crypto,data"
"""What a stream or a playlist from the network may make ffmpeg open: nothing of this machine."""
_READ_BYTES = 65_536
_MAX_COMPLAINTS = 20
_SLACK_MS = 500
"""Containers state the length of their longest track, with the encoder's delay."""
_LINE = re.compile(r"(?:\[[^]]* @ 0x[0-9a-f]+\] )*\[(\w+)\] (.*)")
_DURATION = re.compile(r"  Duration: (\d+):(\d\d):(\d\d)\.(\d\d),")

log = logging.getLogger(__name__)


def is_here() -> bool:
    """Whether ffmpeg is installed."""
    return shutil.which("ffmpeg") is not None


def is_url(name: str) -> bool:
    """Whether it is the address of sound in the network rather than the name of a file."""
    return _URL.match(name) is not None


class Ffmpeg:
    """ffmpeg at work on one input. Call `open`, then `read` until it gives nothing, then `close`.

    Parameters
    ----------
    name : what messages call it
    path : a file, or an address (`is_url`); empty: what is written into `stdin`
    stdin : as in `subprocess.Popen`
    rate_hz, channels : what it shall become

    Raises
    ------
    SourceError
        ffmpeg is not installed.
    """

    def __init__(
        self,
        name: str,
        path: str,
        *,
        stdin: int = subprocess.DEVNULL,
        rate_hz: int = SAMPLE_RATE,
        channels: int = 1,
    ) -> None:
        program = shutil.which("ffmpeg")
        if program is None:
            raise SourceError(f"{name} can only be read with ffmpeg; {CURE}")
        self.name, self.rate_hz, self.channels = name, rate_hz, channels
        self.duration_ms: int | None = None
        self._is_url = is_url(path)
        self._n_read = 0
        self._stopped = self._is_estimate = self._is_open = False
        self._has_sound = self._has_pictures = False
        self._complaints: list[str] = []
        self._decoder = PcmDecoder("s16le", channels)
        self._ahead: Block = np.empty((0, channels), np.int16)
        # With a protocol in front no name is an option, a pattern or another protocol's address.
        protocols = _URL_PROTOCOLS if self._is_url else "file" if path else "pipe"
        self._url = url = (
            path if self._is_url else f"file:{os.path.abspath(path)}" if path else "pipe:0"
        )
        self._process = subprocess.Popen(
            [
                *(program, "-hide_banner", "-nostdin", "-nostats", "-loglevel", "level+info"),
                *("-protocol_whitelist", protocols, "-i", url, "-vn", "-sn", "-dn"),
                # openai-whisper's own arguments, so that it would hear the same samples.
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
        assert self._process.stdout is not None  # for mypy
        assert self._process.stderr is not None
        self._sound, self._said = self._process.stdout, self._process.stderr
        self._described = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def stdin(self) -> IO[bytes]:
        """Where the input is written to, if that is what was asked for."""
        assert self._process.stdin is not None
        return self._process.stdin

    def open(self) -> None:
        """Wait until the first sound is decoded; `duration_ms` is known then, or never.

        Raises
        ------
        SourceError
            There is no sound in it, it cannot be reached, or it is damaged.
        """
        self._ahead = self.read()
        self._described.wait()  # said before the first sample, but maybe not read yet

    def read(self) -> Block:
        """Give the next (n, channels) samples; n is 0 at the end.

        Raises
        ------
        SourceError
            At the end, if that is not the end of the sound.
        """
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
        """End it now: whoever waits in `open` or `read` gets nothing more. For any thread."""
        self._stopped = True
        self._process.kill()

    def close(self) -> None:
        """End the process and leave nothing of it behind."""
        self.stop()
        self._process.wait()
        self._listener.join()
        for pipe in (self._sound, self._said, self._process.stdin):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written into it does not matter
                    pipe.close()

    def _listen(self) -> None:
        """Take note of what ffmpeg says, for as long as it runs; otherwise it would stop."""
        for line in self._said:
            found = _LINE.match(line.decode(errors="replace").rstrip())
            if found is None:
                continue
            level, text = found.groups()
            is_damage = level == "warning" and "corrupt" in text.lower()
            if is_damage or level in ("error", "fatal", "panic"):
                if len(self._complaints) < _MAX_COMPLAINTS:
                    text = text.removeprefix(f"{self._url}: ")
                    self._complaints.append("".join(c if c.isprintable() else "�" for c in text))
            elif text.startswith("Input #0"):
                self._is_open = True
            elif text.startswith("Estimating duration"):
                self._is_estimate = True
            elif text.startswith("  Stream #0:"):
                self._has_sound |= ": Audio:" in text
                self._has_pictures |= ": Video:" in text and "(attached pic)" not in text
            elif found := _DURATION.match(text):
                hours, minutes, seconds, hundredths = map(int, found.groups())
                self.duration_ms = ((hours * 60 + minutes) * 60 + seconds) * 1000 + hundredths * 10
            if text.startswith("Output #0"):
                self._described.set()
        self._described.set()

    def _failure(self) -> str:
        """Return what went wrong, or nothing; ffmpeg must have ended."""
        if not self._n_read:
            return self._why_nothing()
        complaint = self._complaints[0] if self._complaints else ""
        n_ms = self._n_read * 1000 // self.rate_hz
        seconds = f"{n_ms / 1000:.1f}"
        # A film's sound may end before its pictures do.
        is_sure = not self._is_estimate and (complaint or not self._has_pictures)
        if is_sure and self.duration_ms is not None and n_ms + _SLACK_MS < self.duration_ms:
            return (
                f"{self.name} is damaged or incomplete: only {seconds} of "
                f"{self.duration_ms / 1000:.1f} s could be decoded; get a whole copy for the rest"
            )
        if self._process.returncode:
            return f"{self.name}: ffmpeg failed after {seconds} s: {complaint or 'no reason given'}"
        if complaint:
            log.warning("%s: a part may be missing or wrong; ffmpeg: %s", self.name, complaint)
        return ""

    def _why_nothing(self) -> str:
        """Why there is not a single sample."""
        first, last = (self._complaints[at] if self._complaints else "" for at in (0, -1))
        if self._is_open and not self._has_sound:
            return f"{self.name} has no sound track"
        if first.endswith("partial file"):  # of what can only be read from front to back
            cure = "download it first" if self._is_url else "name the file itself"
            return (
                f"{self.name} is an MPEG-4 file with its index at the end, which has to be read "
                f"first: {cure}, or put the index in front: "
                "ffmpeg -i in.m4a -c copy -movflags +faststart out.m4a"
            )
        if self._is_url and "Invalid data" not in last:
            return f"cannot read {self.name}: {last or 'no reason given'}; check the address"
        if self._complaints:
            return f"{self.name} is damaged or not a sound file (ffmpeg: {first}); get a whole copy"
        return f"{self.name} holds no audio that can be decoded: record or convert it again"
