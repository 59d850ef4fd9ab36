"""Sound that FFmpeg's libraries decode: what libsndfile cannot read, mp3, addresses, pipes.

The libraries come with PyAV and run in this process. They open nothing but what they are given: a
file reaches no address, and an address or a pipe no file.
"""

import logging
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamd.errors import SourceError
from streamd.sources import chains
from streamd.sources.framing import (
    MAX_CHANNELS,
    MAX_RATE_HZ,
    MIN_RATE_HZ,
    Rescaler,
    rescaled,
    scaled,
)
from streamd.sources.mixing import Mixer, cancelled, standard_names
from streamd.sources.source import warn
from streamd.sources.tracks import Selection, in_order
from streamd.types import SAMPLE_RATE

if TYPE_CHECKING:
    from av import AudioFrame, AudioStream, FFmpegError, Packet
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

_JITTER_S = 0.2
"""Containers round times, and recorders write when a packet came: sound that is later than this has
a gap before it."""
_ROUNDING_S = 0.02
"""Times of packets are rounded to less than this."""
_LONGEST_GAP_S = 3_600.0
_LONGEST_JUMP_S = 10.0
"""A longer step is a new clock, not a gap; the second where a format may change clocks, as MPEG-TS.
Source: FFmpeg's ffplay.c, max_frame_duration."""
_HOLE_BYTES = 1_024
"""More between two packets is lost data: a Matroska cluster's head has some 30 bytes."""
_IN_ORDER = frozenset(("matroska,webm", "ogg"))
"""Formats that leave out what is damaged without a word."""
_N_HURT = 3
"""Frames after damage that may be the first behind it: decoders hold back one or two."""
_N_MIXED = 1 << 17
"""Samples that are mixed at once: of many channels less than a second."""
_ARRAYS = frozenset(("u8", "s16", "s32", "flt", "dbl"))
"""Types of samples that PyAV makes arrays of; FFmpeg mixes others."""
_MOST_PLANES = 7
"""Of more, PyAV 18.1 reads beyond an array, and the process ends."""
_FAINT = 3
"""Of 32,768 (-80 dBFS): a muted track has no more behind a lossy codec."""
_TAGS = (b"ID3", b"TAG", b"APE")
"""What joined mp3 files have between them, which is no sound."""

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

    `name` is for messages. `source` is a file's path, the descriptor of an open file, which stays
    open, an address (`is_url`), or what to read from. The input must have one of the `formats`, if
    there are any. It is mixed to so many `channels`; 0: to as many as the first sound has, which
    are known after `open`. One channel is mixed by `Mixer`.

    Sound has the place that its container gives it, from where that begins: silence stands for what
    comes late or is missing. `warnings` has what was logged about the input.
    """

    def __init__(
        self,
        name: str,
        source: str | int | Bytes,
        *,
        formats: str = "",
        rate_hz: int = SAMPLE_RATE,
        channels: int = 1,
        selection: Selection = Selection(),  # noqa: B008 - it is frozen
    ) -> None:
        self.name, self.rate_hz, self.channels = name, rate_hz, channels
        self.duration_ms: int | None = None  # until `open`, and where the container does not say
        self.warnings: list[str] = []
        self._source, self._formats, self._selection = source, formats, selection
        self._is_url = isinstance(source, str) and is_url(source)
        self._is_file = isinstance(source, str | int | chains.FilePart) and not self._is_url
        # What arrives as time passes is not held back; a file is read in few large blocks.
        self._n_least = rate_hz if self._is_file else 1
        self._n_read = self._n_silent = 0
        self._tracks_end_s = 0.0  # where the longest track ends, as far as it was read
        self._complaint = self._failure = ""
        self._missing_s = 0.0  # of the sound, as far as the packets' times tell
        self._n_hurt = 0
        self._stopped = False
        self._container: InputContainer | None = None
        self._is_mpeg4 = self._is_alone = False
        self._stated_ms = 0  # as `duration_ms`, unless that is an estimate
        self._converter: _Converter | None = None
        self._others = ""  # tracks that are not read
        self._is_heard = False
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
        for source, protocols in self._parts():
            try:
                for block in self._sound_in(source, protocols):
                    self._n_read += len(block)
                    if self._others and not self._is_heard:
                        self._is_heard = bool(np.abs(block).max(initial=0) > _FAINT)
                    yield block
            except FFmpegError as error:
                failure = failure or _reason(error)
            if self._stopped:
                return
        self._failure = self._problem(failure)

    def _parts(self) -> Iterator[tuple[str | Bytes, str]]:
        """Yield what to open, one after the other, and with which protocols."""
        if isinstance(self._source, int):
            for start, end in self._found_parts(self._source):
                yield chains.FilePart(self._source, start, end), "none"
            return
        if not isinstance(self._source, str):
            yield self._source, "none"
            return
        if self._is_url:
            yield self._source, _URL_PROTOCOLS
            return
        # With a protocol in front no name is an option, a pattern or an address.
        path = f"file:{os.path.abspath(self._source)}"
        parts: list[tuple[int, int]] = []
        with suppress(OSError):  # FFmpeg will say what it is
            parts = self._found_parts(self._source)
        if len(parts) < 2:
            yield path, "file"
            return
        with open(self._source, "rb") as file:
            for start, end in parts:
                yield chains.FilePart(file.fileno(), start, end), "none"

    def _found_parts(self, file: str | int) -> list[tuple[int, int]]:
        if chains.lacks_end(file):
            warn(self.warnings, f"{self.name} is cut off: get a complete copy")
        return chains.parts(file)

    def _sound_in(self, source: str | Bytes, protocols: str) -> Iterator[NDArray[np.int16]]:
        container, sound = self._opened(source, protocols)
        if self._converter is not None:
            yield from self._converter.flush()
        n_before, read_to = self._n_read, 0
        clock = _Clock(container, sound.index, self._stated_ms / 1000, is_first=n_before == 0)
        has_order = container.format.name in _IN_ORDER
        for packet in _packets(container):
            if self._stopped:
                return
            end_s = clock.end_of(packet)
            stated_end_s = n_before / self.rate_hz + end_s + clock.stated_from_s
            self._tracks_end_s = max(self._tracks_end_s, stated_end_s)
            if packet.pos is not None:
                if has_order and packet.pos > (read_to or packet.pos) + _HOLE_BYTES:
                    self._n_hurt = _N_HURT
                read_to = max(read_to, packet.pos + packet.size)
            if packet.stream.index == sound.index:
                yield from self._sound_of(packet, sound, clock)
                clock.packets_end_s = max(clock.packets_end_s, end_s)
        if self._is_mpeg4 and self._has_more(read_to):
            self.complain("fragments that cannot be found")
        if self._complaint:  # what fails at the end has no frame behind it
            self._missing_s += max(0.0, clock.packets_end_s - clock.end_s)
        if self._converter is not None:
            yield from self._converter.flush()

    def _has_more(self, read_to: int) -> bool:
        """Whether a file has fragments behind what was read: only their chain leads to them."""
        if (file := self._seekable) is None:
            return False
        with suppress(OSError):
            return chains.has(file, b"moof", after=read_to)
        return False

    @property
    def _seekable(self) -> str | int | None:
        """The file, if it can be opened again and read from any place."""
        return self._source if isinstance(self._source, str | int) and self._is_file else None

    def _opened(
        self, source: str | Bytes, protocols: str
    ) -> tuple["InputContainer", "AudioStream"]:
        import av

        options = {"protocol_whitelist": protocols}
        if self._formats:
            options["format_whitelist"] = self._formats

        def opened() -> "InputContainer":
            once = source.again() if isinstance(source, chains.FilePart) else source
            return av.open(once, "r", options=options, metadata_errors="replace")

        if self._container is not None:
            self._container.close()
        self._container = container = opened()
        sound = self._track_of(container, opened)
        if sound.codec_context is None:
            fix = "convert it to another format"
            raise SourceError(f"{self.name}: FFmpeg cannot decode its sound; {fix}")
        sound.codec_context.thread_count = 1  # the process of `confined` may not start any
        self._is_mpeg4 = container.format.name.startswith("mov")
        self._is_alone = len(container.streams) == 1
        if container.duration is not None:
            self.duration_ms = container.duration // 1000
            # An estimate is the time that the whole file takes at the bit rate, headers excepted.
            size_ms = container.size * 8000 / (sound.codec_context.bit_rate or math.inf)
            if container.format.name not in _NO_LENGTH or self.duration_ms > size_ms + _SLACK_MS:
                self._stated_ms = self.duration_ms + self._n_read * 1000 // self.rate_hz
        return container, sound

    def _track_of(
        self, container: "InputContainer", opened: Callable[[], "InputContainer"]
    ) -> "AudioStream":
        """Return the track to read; raises `SourceError` if there is none."""
        import av

        best = container.streams.best("audio")
        if not isinstance(best, av.AudioStream):
            raise SourceError(f"{self.name} has no sound track")
        tracks = list(container.streams.audio)
        if (number := self._selection.track) > len(tracks):
            there = "one sound track" if len(tracks) == 1 else f"{len(tracks)} sound tracks"
            raise SourceError(f"{self.name} has {there}: there is no --track {number}")
        if number:
            return tracks[number - 1]
        if len(tracks) == 1:
            return best
        ordered = in_order(tracks, best, self._selection.languages)
        chosen = ordered[0]
        if self._seekable is not None:
            chosen = next((each for each in ordered if self._has_sound(opened, each)), chosen)
        self._tell_tracks(tracks, chosen)
        return chosen

    def _has_sound(self, opened: Callable[[], "InputContainer"], track: "AudioStream") -> bool:
        """Whether any of a track is not digital silence, as far as it can be decoded."""
        from av import AudioResampler, FFmpegError

        if track.codec_context is None:
            return False
        with opened() as container, suppress(FFmpegError, IndexError):
            resampler = AudioResampler("s16")
            again = next(each for each in container.streams.audio if each.index == track.index)
            again.codec_context.thread_count = 1
            for frame in container.decode(again):
                for piece in resampler.resample(frame):
                    if self._stopped or np.abs(piece.to_ndarray()).max(initial=0) > _FAINT:
                        return True
        return False

    def _tell_tracks(self, tracks: Sequence["AudioStream"], chosen: "AudioStream") -> None:
        named = {
            track.index: f"{number} ({language})" if language else str(number)
            for number, track in enumerate(tracks, 1)
            for language in [track.metadata.get("language", "")]
        }
        read = named.pop(chosen.index)
        self._others = f"--track N reads another: {', '.join(named.values())}"
        _log.info("%s: reading sound track %s; %s", self.name, read, self._others)

    def _sound_of(
        self, packet: "Packet[Stream]", track: "AudioStream", clock: "_Clock"
    ) -> Iterator[NDArray[np.int16]]:
        from av import FFmpegError

        if packet.is_corrupt:
            self.complain("corrupt packet")
        try:
            frames = track.decode(packet)
        except FFmpegError as error:
            if bytes(packet)[:3] not in _TAGS:
                self.complain(_reason(error))
            return
        for frame in frames:
            self.channels = self.channels or min(frame.layout.nb_channels, MAX_CHANNELS)
            # Anything else is damage, and converting it could take gigabytes.
            rate_hz, channels = frame.sample_rate, frame.layout.nb_channels
            if MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ and channels <= MAX_CHANNELS:
                yield from self._placed(frame, clock)
            else:
                self.complain(f"{channels} channels at a sample rate of {rate_hz} Hz")

    def complain(self, what: str) -> None:
        """Take note of damage; the first is told at the end."""
        self._complaint = self._complaint or what
        self._n_hurt = _N_HURT

    def _placed(self, frame: "AudioFrame", clock: "_Clock") -> Iterator[NDArray[np.int16]]:
        """Convert a frame of any form, which may change in the middle, with silence before it."""
        step_s, silence_s = clock.place(frame, is_hurt=self._n_hurt > 0)
        if self._n_hurt and step_s > _ROUNDING_S:
            self._missing_s += step_s
            self._n_hurt = 0
        self._n_hurt = max(0, self._n_hurt - 1)
        form = (frame.format.name, frame.layout.name, frame.sample_rate)
        if self._converter is not None and (silence_s or self._converter.form != form):
            yield from self._converter.flush()
        if self._converter is None or self._converter.form != form:
            self._converter = _Converter(form, frame, self.rate_hz, self.channels)
        n_silent = round(silence_s * self.rate_hz)
        self._n_silent += n_silent
        for at in range(0, n_silent, self.rate_hz):
            n = min(self.rate_hz, n_silent - at)
            yield np.zeros((n, self.channels), np.int16)
        yield from self._converter.push(frame, at_once=not self._is_file)
        for text in self._converter.complaints(self.name):
            warn(self.warnings, text)

    def _problem(self, failure: str) -> str:
        """Return what is wrong with the input, "" if nothing is or a warning is enough."""
        if not self._n_read:
            return self._why_nothing(failure or self._complaint)
        n_ms = self._n_read * 1000 / self.rate_hz
        sound_s = (self._n_read - self._n_silent) / self.rate_hz
        complaint = failure or self._complaint
        # The sound may end before pictures, chapters or other tracks do.
        if max(n_ms, self._tracks_end_s * 1000) + _SLACK_MS < self._stated_ms:
            return cut_short(self.name, sound_s, self._stated_ms / 1000)
        if failure:
            return f"{self.name}: FFmpeg failed after {n_ms / 1000:.1f} s: {failure}"
        if complaint or self._missing_s > _JITTER_S:
            self._tell_damage(complaint)
        if self._others and not self._is_heard:
            warn(self.warnings, f"the sound track of {self.name} is silent; {self._others}")
        return ""

    def _tell_damage(self, complaint: str) -> None:
        missing_s = self._missing_s
        if self._is_alone and self._stated_ms:
            missing_s = max(missing_s, self._stated_ms / 1000 - self._n_read / self.rate_hz)
        what = f"{missing_s:.1f} s are missing" if missing_s >= 0.05 else "a part may be wrong"
        why = f" (FFmpeg: {complaint})" if complaint else ""
        warn(self.warnings, f"{self.name} is damaged: {what}{why}; get a complete copy")

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


class _Clock:
    """Where the sound of a container is, by its packets' times, in seconds from its beginning."""

    def __init__(
        self, container: "InputContainer", track: int, stated_s: float, *, is_first: bool
    ) -> None:
        """`track`: the index of the sound among all; `stated_s`: how long all are, or 0."""
        from av.format import Flags

        start = container.start_time
        self._start_s = None if start is None else start / 1e6
        self._longest_s = _LONGEST_GAP_S
        if Flags.ts_discont in Flags(container.format.flags):
            self._longest_s = _LONGEST_JUMP_S
        # What follows a discontinuity in HLS is joined to what was. Times of bare frames are
        # guesses by the rate of the first.
        if container.format.name in ("hls", *_NO_LENGTH):
            self._longest_s = 0.0
        self._track, self._stated_s = track, stated_s
        # Some formats state where they end, Matroska and Ogg among them, others how long they are.
        self.stated_from_s = max(0.0, self._start_s or 0.0)
        # To multiply fractions would take longer than to decode.
        self._unit_s: defaultdict[int, float] = defaultdict(float)
        self._unit_s |= {each.index: float(each.time_base or 0) for each in container.streams}
        self.end_s = 0.0  # of the last frame
        self.packets_end_s = 0.0
        self._shift_s = 0.0  # what other clocks than the first are behind it
        self._given_s = 0.0
        self._is_begun = not is_first

    def end_of(self, packet: "Packet[Stream]") -> float:
        """Return where a packet of any track ends, 0 if it does not say."""
        if packet.pts is None or self._start_s is None:
            return 0.0
        end_s = (packet.pts + (packet.duration or 0)) * self._unit_s[packet.stream_index]
        return end_s - self._start_s

    def place(self, frame: "AudioFrame", *, is_hurt: bool) -> tuple[float, float]:
        """Return how much later a frame is than the end of the one before, and its silence.

        Where sound `is_hurt`, a short step is also a loss.
        """
        duration_s = frame.samples / frame.sample_rate
        time_s = None if frame.pts is None else frame.pts * self._unit_s[self._track]
        if time_s is not None and self._start_s is None:
            self._start_s = time_s
        at_s = self.end_s if time_s is None else time_s - (self._start_s or 0.0)
        step_s = at_s - self.end_s
        longest_s = self._longest_s if self._is_begun else _LONGEST_GAP_S
        is_beyond = self._stated_s and at_s > self._stated_s + _SLACK_MS / 1000
        if step_s < -_JITTER_S or step_s > longest_s or is_beyond:
            self._shift_s, step_s = self._shift_s - step_s, 0.0
        self._is_begun = True
        late_s = at_s + self._shift_s - self._given_s
        least_s = _ROUNDING_S if is_hurt else _JITTER_S
        silence_s = late_s if late_s > least_s and longest_s else 0.0
        self.end_s = at_s + duration_s
        self._given_s += silence_s + duration_s
        return step_s, silence_s


class _Converter:
    """Turns frames of one `form` into int16 of a rate and a number of channels."""

    def __init__(
        self, form: tuple[str, str, int], frame: "AudioFrame", rate_hz: int, channels: int
    ) -> None:
        from av import AudioResampler

        self.form = form
        # The conversion of openai-whisper's own call of ffmpeg, so that both get the same.
        self._new_resampler = partial(AudioResampler, "s16", f"{channels}c", rate_hz)
        self._resampler = self._new_resampler()
        self._channels, self._n = channels, frame.layout.nb_channels
        self._is_planar = frame.format.is_planar
        self._packs: AudioResampler | None = None
        if self._is_planar and self._n > _MOST_PLANES:
            packed = frame.format.packed
            self._packs = AudioResampler(packed, frame.layout, frame.sample_rate)
            self._is_planar = False
        self._is_array = channels == 1 and form[0].removesuffix("p") in _ARRAYS
        self._mixer: Mixer | None = None
        if self._is_array and self._n > 1:
            names = standard_names([each.name for each in frame.layout.channels])
            self._mixer = Mixer(frame.sample_rate, self._n, names)
        # Packed floats are PCM: coded ones are planar.
        self._rescaler = Rescaler(frame.sample_rate, self._n) if form[0] in ("flt", "dbl") else None
        self._waiting: list[NDArray[Any]] = []
        self._n_waiting = 0

    def complaints(self, name: str) -> Iterator[str]:
        """Yield what is wrong with the sound so far."""
        if self._mixer is not None and self._mixer.cancels:
            yield cancelled(name)
        if self._rescaler is not None and self._rescaler.scales:
            yield rescaled(name)

    def push(self, frame: "AudioFrame", *, at_once: bool) -> Iterator[NDArray[np.int16]]:
        """Take a frame, and yield what is ready; a second at a time costs less than `at_once`."""
        if not self._is_array:
            yield from self._resampled(frame)
            return
        for each in self._packs.resample(frame) if self._packs else (frame,):
            samples = each.to_ndarray()
            self._waiting.append(samples if self._is_planar else samples.reshape(-1, self._n).T)
            self._n_waiting += each.samples
        if at_once or self._n_waiting >= min(frame.sample_rate, _N_MIXED // self._n):
            yield from self._mixed()

    def flush(self) -> Iterator[NDArray[np.int16]]:
        """Yield what is held back; more may be pushed."""
        yield from self._mixed()
        if self._rescaler is not None:
            yield from self._mono(self._rescaler.flush())
        if self._mixer is not None:
            yield from self._resampled(self._as_frame(self._mixer.flush(), "fltp"))
        yield from self._resampled(None)
        self._resampler = self._new_resampler()

    def _mixed(self) -> Iterator[NDArray[np.int16]]:
        if self._waiting:
            block = np.concatenate(self._waiting, axis=1).T
            self._waiting, self._n_waiting = [], 0
            yield from self._mono(self._rescaler.push(block) if self._rescaler else block)

    def _mono(self, block: NDArray[Any]) -> Iterator[NDArray[np.int16]]:
        if self._mixer is not None:
            yield from self._resampled(self._as_frame(self._mixer.push(scaled(block)), "fltp"))
        else:
            yield from self._resampled(self._as_frame(block[:, 0], self.form[0]))

    def _as_frame(self, mono: NDArray[Any], form: str) -> "AudioFrame | None":
        from av import AudioFrame

        if not len(mono):
            return None
        frame = AudioFrame.from_ndarray(mono[np.newaxis], format=form, layout="mono")
        frame.sample_rate = self.form[2]
        return frame

    def _resampled(self, frame: "AudioFrame | None") -> Iterator[NDArray[np.int16]]:
        for piece in self._resampler.resample(frame):
            yield np.asarray(piece.to_ndarray(), np.int16).reshape(-1, self._channels)


def _packets(container: "InputContainer") -> Iterator["Packet[Stream]"]:
    # At the end PyAV may raise this where another track began in the middle, as in MPEG and FLV.
    with suppress(IndexError):
        yield from container.demux()


def _reason(error: "FFmpegError") -> str:
    return error.strerror or type(error).__name__
