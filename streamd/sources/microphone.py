"""Input devices and the microphone, through PortAudio.

PortAudio calls back from its own thread, which only hands a copy of the block to the event loop. So
nothing is lost while nobody takes the audio: it waits in memory.
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from types import ModuleType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from streamd.errors import SourceError
from streamd.events import GapReason
from streamd.sources import FrameStream, Lost, Source
from streamd.sources.framing import Block, Framer
from streamd.types import SAMPLE_RATE

_BLOCKS_PER_S = 10
"""In silence the cost is in wake-ups, each with cold caches: 50 blocks cost twice as much."""
_DRIVER_BUFFER_S = 0.2
"""The callback needs Python's interpreter lock; it may be late by this much without a loss."""
TIMEOUT_MS = 10_000
"""A device that delivers nothing for this long is gone: a working one delivers silence, too."""
MONITOR = "monitor"
"""The name of what the computer plays."""
_PULSE = "pulse"
"""ALSA's way to PulseAudio and PipeWire; the variable names the source that it opens."""
_PULSE_SOURCE = "PULSE_SOURCE"
_DEAD_S = 3
"""Digital silence for this long is no quiet room: even a good converter has noise."""
MOST_SPLIT = 8
"""Channels of a device that may be a person each. Sound servers offer any number of channels: of
more than these, two are taken."""
_N_BEFORE = _BLOCKS_PER_S
"""Blocks (1 s) from which `OverflowMeter` knows when the stream began."""


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Device:
    """An input device; `index` is PortAudio's number of it.

    `channels` is the maximum, `rate_hz` its own rate; `default` marks the system's choice.
    """

    index: int
    name: str
    host_api: str
    channels: int
    rate_hz: int
    default: bool

    def __str__(self) -> str:
        return f"{self.index} {self.name!r}"


def load_portaudio() -> ModuleType:
    """Import `sounddevice`; raises `SourceError` if PortAudio cannot be loaded."""
    try:
        import sounddevice
    except OSError:
        raise SourceError(
            "PortAudio is not installed: apt install libportaudio2 (Debian, Ubuntu), "
            "dnf install portaudio (Fedora) or brew install portaudio (macOS)"
        ) from None
    return sounddevice  # type: ignore[no-any-return]  # it has no annotations


def list_devices() -> list[Device]:
    """Return all devices that can record, in PortAudio's order; raises as `load_portaudio`."""
    portaudio = load_portaudio()
    host_apis = portaudio.query_hostapis()
    try:
        default = portaudio.query_devices(kind="input")["index"]
    except portaudio.PortAudioError:  # there is none
        default = None
    return [
        Device(
            index=device["index"],
            name=device["name"],
            host_api=host_apis[device["hostapi"]]["name"],
            channels=device["max_input_channels"],
            rate_hz=round(device["default_samplerate"]),
            default=device["index"] == default,
        )
        for device in portaudio.query_devices()
        if device["max_input_channels"] > 0
    ]


def choose(devices: Sequence[Device], wanted: int | str | None) -> Device:
    """Return the device that the user means; raises `SourceError` unless exactly one matches.

    `wanted` is its number, its name or a part of the name in any case, or None for the default.
    "monitor" is what the computer plays, through PulseAudio if no device is called so.
    """
    if not devices:
        raise SourceError("no microphone found: plug one in, or name a sound file")
    matches, problem = _matches(devices, wanted)
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(map(str, matches or devices))
    raise SourceError(f"{problem}: choose one by its number: {listed}")


def _matches(devices: Sequence[Device], wanted: int | str | None) -> tuple[list[Device], str]:
    """Return the devices that may be meant, and what is wrong unless there is exactly one."""
    if wanted is None:
        return [d for d in devices if d.default], "the system has no default microphone"
    if isinstance(wanted, int) or wanted.isdecimal():
        matches = [device for device in devices if device.index == int(wanted)]
        return matches, f"no input device has the number {wanted}"
    matches = _by_name(devices, wanted) or (_monitors(devices) if wanted == MONITOR else [])
    match = "several input devices match" if matches else "no input device matches"
    return matches, f"{match} {wanted!r}"


def has_monitor(devices: Sequence[Device]) -> bool:
    """Whether "monitor" is what the computer plays, and in no device's name."""
    return any(d.name == _PULSE for d in devices) and not _by_name(devices, MONITOR)


def _monitors(devices: Sequence[Device]) -> list[Device]:
    if found := [device for device in devices if device.name == _PULSE]:
        return found
    fix = "ALSA's plugin for PulseAudio is missing: apt install libasound2-plugins"
    if sys.platform == "darwin":
        fix = "install BlackHole and use --device BlackHole (docs/recipes.md)"
    raise SourceError(f"no device has what the computer plays: {fix}")


@contextlib.contextmanager
def _recording_from(device: Device, wanted: int | str | None) -> Iterator[None]:
    """Let PulseAudio open the monitor of its default output inside, if that is wanted."""
    if wanted != MONITOR or device.name != _PULSE:
        yield
        return
    before = os.environ.get(_PULSE_SOURCE)
    os.environ[_PULSE_SOURCE] = "@DEFAULT_MONITOR@"
    try:
        yield
    finally:
        os.environ.pop(_PULSE_SOURCE)
        if before is not None:
            os.environ[_PULSE_SOURCE] = before


def _by_name(devices: Sequence[Device], wanted: str) -> list[Device]:
    folded = wanted.casefold()
    exact = [device for device in devices if device.name.casefold() == folded]
    return exact or [device for device in devices if folded in device.name.casefold()]


class Microphone(Source):
    """An input device, captured from the moment it is entered.

    It is opened at 16 kHz mono if the device can do that, or else at its own rate or with all of
    its channels, which are resampled and averaged here. With `split`, it is opened with all of its
    channels, up to `MOST_SPLIT`, which stay apart. `device` is as in `choose`. With `refresh`,
    devices are found that were plugged in since the process started; none may be open.
    """

    def __init__(
        self, device: int | str | None = None, *, refresh: bool = False, split: bool = False
    ) -> None:
        self.name = "microphone"
        self.live = True
        self._wanted, self._refresh, self._split = device, refresh, split
        self._stream: Any = None
        self._stopping: asyncio.Task[None] | None = None
        self._received_s = 0.0
        self._items: asyncio.Queue[Block | Lost | SourceError | None] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "microphone")

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            await self._loop.run_in_executor(self._thread, self._open)
        except BaseException:
            await asyncio.to_thread(self._close)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._stopping is not None:
            await asyncio.wait([self._stopping])
        await asyncio.to_thread(self._close)

    def stop(self) -> None:
        """End after the block that is being captured now."""
        if self._stopping is None and self._stream is not None:
            self._stopping = asyncio.create_task(self._stop_capture())

    async def _stop_capture(self) -> None:
        # Stopping waits for the callback's thread. The loop keeps the order of what other threads
        # hand to it, so all blocks have arrived when this continues.
        # It would wait for ever if the device delivers nothing, as when its output is suspended.
        is_dead = self._loop.time() - self._received_s > 1
        end = self._stream.abort if is_dead else self._stream.stop
        await self._loop.run_in_executor(self._thread, end)
        self._items.put_nowait(None)

    async def _next_block(self) -> Block | Lost | None:
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                item = await self._items.get()
        except TimeoutError:
            if self._items.empty():
                raise self._gone(f"delivered nothing for {TIMEOUT_MS} ms") from None
            item = self._items.get_nowait()  # it came while this thread had no time
        if isinstance(item, SourceError):
            raise item
        return item

    def _open(self) -> None:
        """Find the device, open it and start. Runs in a thread: some drivers take seconds."""
        portaudio = load_portaudio()
        if self._refresh:  # there is no public way to update the list of devices
            portaudio._terminate()
            portaudio._initialize()
        device = choose(list_devices(), self._wanted)
        self.name = MONITOR if self._wanted == MONITOR else device.name
        try:
            with _recording_from(device, self._wanted):
                rate_hz, channels = _settings(portaudio, device, split=self._split)
                # What the computer plays may be silent.
                self._silence = SilenceWatch(rate_hz, self.name) if self.name != MONITOR else None
                self._meter, self._rate_hz = OverflowMeter(rate_hz), rate_hz
                framer = Framer(rate_hz, channels, split=self._split)
                self._frames = FrameStream(framer, self._next_block, name=self.name)
                self._stream = portaudio.InputStream(
                    device=device.index,
                    samplerate=rate_hz,
                    channels=channels,
                    dtype="float32",
                    blocksize=rate_hz // _BLOCKS_PER_S,
                    latency=_DRIVER_BUFFER_S,
                    callback=self._callback,
                    finished_callback=self._finished_callback,
                )
                self._stream.start()
        except portaudio.PortAudioError as error:
            fix = "close other programs that use it, or choose another device"
            raise SourceError(f"cannot record from {device}: {error.args[0]}; {fix}") from None
        log.info("microphone: %s, %d Hz", self.name, rate_hz)

    def _close(self) -> None:
        self._thread.shutdown()
        if self._stream is not None:
            self._stream.close()

    def _callback(
        self,
        block: NDArray[np.float32],
        _: int,
        time: Any,  # noqa: ANN401  # a C struct
        status: Any,  # noqa: ANN401  # sounddevice has no annotations
    ) -> None:
        """Hand a block to the loop. Runs in PortAudio's thread, which owns the block."""
        when = float(time.inputBufferAdcTime), bool(status.input_overflow)
        self._loop.call_soon_threadsafe(self._receive, block.copy(), *when)

    def _finished_callback(self) -> None:
        # In PortAudio's thread, which expects None.
        self._loop.call_soon_threadsafe(self._finished)

    def _receive(self, block: Block, adc_s: float, overflowed: bool) -> None:
        self._received_s = self._loop.time()
        if n_lost := self._meter.lost(len(block), adc_s, overflowed):
            duration_ms = max(1, round(n_lost * 1000 / self._rate_hz))
            self._items.put_nowait(Lost(duration_ms, GapReason.OVERRUN))
        if self._silence is not None:
            self._silence.heard(block)
        self._items.put_nowait(block)

    def _finished(self) -> None:
        if self._stopping is None:
            self._items.put_nowait(self._gone("is gone"))

    def _gone(self, what: str) -> SourceError:
        return SourceError(f"{self.name!r} {what}: connect it again or choose another device")


def _settings(portaudio: ModuleType, device: Device, *, split: bool) -> tuple[int, int]:
    """Return a rate and channel count that the device accepts, the cheapest first.

    If it accepts nothing, these are its own, and opening it raises the error.
    """
    apart = device.channels if device.channels <= MOST_SPLIT else 2
    for rate_hz in (SAMPLE_RATE, device.rate_hz):
        for channels in (apart,) if split else (1, device.channels):
            with contextlib.suppress(portaudio.PortAudioError):
                portaudio.check_input_settings(device.index, channels, "float32", None, rate_hz)
                return rate_hz, channels
    return device.rate_hz, apart if split else device.channels


class SilenceWatch:
    """Warns, once, of a device that gives nothing but zeros, as muted and forbidden ones do."""

    def __init__(self, rate_hz: int, name: str) -> None:
        self._n_left, self._name = _DEAD_S * rate_hz, name

    def heard(self, block: Block) -> None:
        """Take the next samples of any device, (n, channels)."""
        if self._n_left <= 0:
            return
        if block.any():
            self._n_left = 0  # it works
            return
        self._n_left -= len(block)
        if self._n_left <= 0:
            log.warning("%s gives only silence: %s", self._name, silence_fix())


def silence_fix() -> str:
    """Say why a device may give only zeros on this system, and what to do."""
    if sys.platform == "darwin":
        allow = "System Settings, Privacy & Security, Microphone"
        return f"it is muted, or this application may not use it; allow it in {allow}"
    return "it is muted or the wrong one; see pavucontrol or alsamixer, and streamd devices"


class OverflowMeter:
    """Measures how much audio an input overflow lost, in one stream of blocks at `rate_hz`.

    PortAudio only reports *that* it dropped audio before a block. But each block has the time at
    which its first sample was captured (``inputBufferAdcTime``). That time minus the duration of
    all samples delivered before is the time when the stream began: the same at each block but for
    jitter, until samples are missing, which make it later by their duration.

    With PortAudio 19.6 the jitter is below 0.1 ms; through PulseAudio the value may drift by some
    100 ms within half a second while streams come and go (measured on a null sink's monitor), and
    some host APIs report no time at all. The median of the last second does not mind that an
    overflow may be reported a block or two late.
    """

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._n_delivered = 0
        self._began_s: deque[float] = deque(maxlen=_N_BEFORE)

    def lost(self, n_samples: int, adc_s: float, overflowed: bool) -> int:
        """Return how many samples were lost before a block that was captured at `adc_s`.

        It is 0 without an overflow, and the length of one block where the clock must be wrong.
        """
        began_s = adc_s - self._n_delivered / self._rate_hz
        n_lost = 0
        if overflowed:
            usual_s = median(self._began_s or (began_s,))
            n_lost = round((began_s - usual_s) * self._rate_hz)
            n_lost = n_lost if n_lost > 0 else n_samples
            self._began_s.clear()
        self._n_delivered += n_samples
        self._began_s.append(began_s)
        return n_lost
