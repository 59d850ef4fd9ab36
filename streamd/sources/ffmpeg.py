"""Sound that FFmpeg's libraries decode: what libsndfile cannot read, mp3, addresses, pipes.

The libraries come with PyAV and run in this process. They open nothing but what they are given: a
file reaches no address, and an address or a pipe no file.
"""

import contextlib
import logging
import math
import os
import re
from collections.abc import Generator, Iterator
from io import FileIO
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from streamd.errors import SourceError
from streamd.sources.framing import MAX_CHANNELS, MAX_RATE_HZ, MIN_RATE_HZ
from streamd.types import SAMPLE_RATE

if TYPE_CHECKING:
    from av import AudioFrame, AudioResampler, AudioStream, FFmpegError, Packet
    from av.container import InputContainer
    from av.stream import Stream

_URL = re.compile(r"(https?|rtmps?|rtsps?)://", re.IGNORECASE)
_URL_PROTOCOLS = "http,https,httpproxy,tls,tcp,udp,rtp,srtp,rtmp,rtmps,rtmpt,rtmpts,crypto,data"
"""Protocols that a stream or playlist from the network may use: none reads local files."""
SELF_CONTAINED = "aac,aiff,amr,ape,asf,au,avi,caf,flac,matroska,mov,mp3,ogg,tta,w64,wav,wv"
"""Formats of uploads, which refer to no other file: a stranger's playlist could read ours. Without
FLV and MPEG streams: PyAV before 19 reads beyond an array where a track begins late."""
_NO_LENGTH = frozenset(("aac", "ac3", "amr", "eac3", "mp3"))
"""Formats that may not state their length, which FFmpeg then estimates from the file's size."""
_SLACK_MS = 500
"""Containers state the length of their longest track, with the encoder's delay."""

_log = logging.getLogger(__name__)


class Bytes(Protocol):
    """Input that can only be read once, in order."""

    def read(self, n: int, /) -> bytes:
        """Return up to `n` bytes, none at the end."""


def is_url(name: str) -> bool:
    """Whether `name` is a network address rather than a file."""
    return _URL.match(name) is not None


def cut_short(name: str, decoded_s: float, stated_s: float) -> str:
    """Return the message about a file whose end cannot be decoded."""
    part = f"only {decoded_s:.1f} of {stated_s:.1f} s could be decoded"
    return f"{name} is damaged or incomplete: {part}; get a complete copy"


class Ffmpeg:
    """Decodes one input: `open` it, `read` until nothing comes, `close` it.

    `name` is for messages. `source` is a file's path, an address (`is_url`), or what to read from,
    which is never closed: an open file (`FileIO`), or anything else, whose bytes come once. The
    input must have one of the `formats`, if there are any. It is mixed to so many `channels`; 0: to
    as many as the first sound has, which are known after `open`.
    """

    def __init__(
        self,
        name: str,
        source: str | Bytes,
        *,
        formats: str = "",
        rate_hz: int = SAMPLE_RATE,
        channels: int = 1,
    ) -> None:
        self.name, self.rate_hz, self.channels = name, rate_hz, channels
        self.duration_ms: int | None = None  # until `open`, and where the container does not say
        self._source, self._formats = source, formats
        self._is_url = isinstance(source, str) and is_url(source)
        self._is_file = isinstance(source, str | FileIO) and not self._is_url
        # What arrives as time passes is not held back; a file is read in few large blocks.
        self._n_least = rate_hz if self._is_file else 1
        self._n_read = 0
        self._others_end_ms = 0.0  # where tracks other than the sound end, as far as they were read
        self._complaint = self._failure = ""
        self._stopped = False
        self._container: InputContainer | None = None
        self._is_mpeg4 = False
        self._stated_ms = 0  # as `duration_ms`, unless that is an estimate
        self._form: tuple[str, str, int] | None = None
        self._resampler: AudioResampler | None = None
        self._blocks = self._decoded()
        self._ahead: NDArray[np.int16] = np.empty((0, channels), np.int16)

    def open(self) -> None:
        """Wait until the first sound is decoded; raises `SourceError` if there is none."""
        self._ahead = self.read()

    def read(self) -> NDArray[np.int16]:
        """Return the next (n, channels) samples, n = 0 at the end. Raises `SourceError`."""
        blocks, self._ahead = [self._ahead] if len(self._ahead) else [], self._ahead[:0]
        n = sum(map(len, blocks))
        while n < self._n_least and not self._stopped:
            block = next(self._blocks, None)
            if block is None:
                break
            blocks.append(block)
            n += len(block)
        if not n and self._failure:
            raise SourceError(self._failure)
        return np.concatenate(blocks) if blocks else self._ahead

    def stop(self) -> None:
        """End now: `open` and `read` return nothing more. Any thread may call it."""
        self._stopped = True

    def close(self) -> None:
        """Close the input. No other call may be running."""
        self._blocks.close()
        if self._container is not None:
            self._container.close()

    def _decoded(self) -> Generator[NDArray[np.int16]]:
        from av import FFmpegError  # 22 MB of memory, which most streams do not need

        failure = ""
        try:
            container, sound = self._opened()
            for packet in _packets(container):
                if self._stopped:
                    return
                if packet.stream_index == sound.index:
                    yield from self._sound_of(packet, sound)
                else:
                    self._others_end_ms = max(self._others_end_ms, self._end_ms(packet))
            yield from self._resampled(None)
        except FFmpegError as error:
            failure = _reason(error)
        self._failure = self._problem(failure)

    def _opened(self) -> tuple["InputContainer", "AudioStream"]:
        import av

        source, protocols = self._source, "none"
        if self._is_url:
            protocols = _URL_PROTOCOLS
        elif isinstance(source, str):
            # With a protocol in front no name is an option, a pattern or an address.
            source, protocols = f"file:{os.path.abspath(source)}", "file"
        options = {"protocol_whitelist": protocols}
        if self._formats:
            options["format_whitelist"] = self._formats
        container = av.open(source, "r", options=options, metadata_errors="replace")
        self._container = container
        sound = container.streams.best("audio")
        if not isinstance(sound, av.AudioStream):
            raise SourceError(f"{self.name} has no sound track")
        if sound.codec_context is None:
            fix = "convert it to another format"
            raise SourceError(f"{self.name}: FFmpeg cannot decode its sound; {fix}")
        sound.codec_context.thread_count = 1  # the process of `confined` may not start any
        self._is_mpeg4 = container.format.name.startswith("mov")
        if container.duration is not None:
            self.duration_ms = container.duration // 1000
            # An estimate is the time that the whole file takes at the bit rate, headers excepted.
            size_ms = container.size * 8000 / (sound.codec_context.bit_rate or math.inf)
            if container.format.name not in _NO_LENGTH or self.duration_ms > size_ms + _SLACK_MS:
                self._stated_ms = self.duration_ms
        return container, sound

    def _sound_of(
        self, packet: "Packet[Stream]", track: "AudioStream"
    ) -> Iterator[NDArray[np.int16]]:
        from av import FFmpegError

        if packet.is_corrupt:
            self._complaint = self._complaint or "corrupt packet"
        try:
            frames = track.decode(packet)
        except FFmpegError as error:
            self._complaint = self._complaint or _reason(error)
            return
        for frame in frames:
            self.channels = self.channels or min(frame.layout.nb_channels, MAX_CHANNELS)
            # Anything else is damage, and converting it could take gigabytes.
            rate_hz, channels = frame.sample_rate, frame.layout.nb_channels
            if MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ and channels <= MAX_CHANNELS:
                yield from self._resampled(frame)
            else:
                odd = f"{channels} channels at a sample rate of {rate_hz} Hz"
                self._complaint = self._complaint or odd

    def _resampled(self, frame: "AudioFrame | None") -> Iterator[NDArray[np.int16]]:
        """Convert a frame of any rate and type, which may change in the middle; None is the end."""
        from av import AudioResampler

        form = (frame.format.name, frame.layout.name, frame.sample_rate) if frame else None
        ready = []
        if form != self._form:
            ready += self._resampler.resample(None) if self._resampler else []
            # The conversion of openai-whisper's own call of ffmpeg, so that both get the same.
            self._resampler = AudioResampler("s16", f"{self.channels}c", self.rate_hz)
            self._form = form
        if frame and self._resampler:
            ready += self._resampler.resample(frame)
        for piece in ready:
            block = np.asarray(piece.to_ndarray(), np.int16).reshape(-1, self.channels)
            self._n_read += len(block)
            yield block

    def _end_ms(self, packet: "Packet[Stream]") -> float:
        if packet.pts is None or self._container is None:
            return 0
        end = packet.pts + (packet.duration or 0)
        return float(end * packet.time_base) * 1000 - (self._container.start_time or 0) / 1000

    def _problem(self, failure: str) -> str:
        """Return what is wrong with the input, "" if nothing is or a warning is enough."""
        if not self._n_read:
            return self._why_nothing(failure or self._complaint)
        n_ms = self._n_read * 1000 / self.rate_hz
        complaint = failure or self._complaint
        # The sound of a video may end before its pictures do.
        end_ms = n_ms if complaint else max(n_ms, self._others_end_ms)
        if end_ms + _SLACK_MS < self._stated_ms:
            return cut_short(self.name, n_ms / 1000, self._stated_ms / 1000)
        if failure:
            return f"{self.name}: FFmpeg failed after {n_ms / 1000:.1f} s: {failure}"
        if complaint:
            _log.warning("%s: a part may be missing or wrong; FFmpeg: %s", self.name, complaint)
        return ""

    def _why_nothing(self, reason: str) -> str:
        if self._is_mpeg4 and not (self._is_file or self._is_url):
            return (
                f"{self.name} is an MPEG-4 file with its index at the end, which must be read "
                "first: give the name of the file instead, or move the index to the front: "
                "ffmpeg -i in.m4a -c copy -movflags +faststart out.m4a"
            )
        if self._is_url and reason and "Invalid data" not in reason:
            return f"cannot read {self.name}: {reason}; check the address"
        if reason:
            problem = f"{self.name} is damaged or not a sound file (FFmpeg: {reason})"
            page = "if it is a web page, get its sound: yt-dlp -o - URL | streamd -"
            return f"{problem}; {page if self._is_url else 'get a complete copy'}"
        return f"{self.name} has no audio: record or convert it again"


def _packets(container: "InputContainer") -> Iterator["Packet[Stream]"]:
    # At the end PyAV may raise this where another track began in the middle, as in MPEG and FLV.
    with contextlib.suppress(IndexError):
        yield from container.demux()


def _reason(error: "FFmpegError") -> str:
    return error.strerror or type(error).__name__
