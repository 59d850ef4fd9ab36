"""The machine's input devices, and how to choose one."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from streamd.errors import SourceError


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
    """Return the `sounddevice` module; loads PortAudio the first time.

    Raises `SourceError` if PortAudio is not installed, or finds no working sound system.
    """
    try:
        import sounddevice
    except OSError:
        raise SourceError(
            "PortAudio is not installed: apt install libportaudio2 (Debian, Ubuntu), "
            "dnf install portaudio (Fedora) or brew install portaudio (macOS)"
        ) from None
    return sounddevice  # type: ignore[no-any-return]  # it has no annotations


def refresh_devices() -> None:
    """Make PortAudio look for devices again; none may be open."""
    portaudio = load_portaudio()
    portaudio._terminate()  # there is no public way to update the list
    portaudio._initialize()


def list_devices() -> list[Device]:
    """Return all devices that can record, in PortAudio's order.

    Devices that were plugged in later appear after `refresh_devices`.

    Raises `SourceError` if PortAudio is not installed.
    """
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
    """Return the device that the user means.

    Parameters
    ----------
    wanted : its number, its name or a part of the name in any case, or None for the default

    Raises `SourceError` if no device or several devices match; the message lists the choices.
    """
    if not devices:
        raise SourceError("no microphone found: plug one in, or name a sound file")
    if wanted is None:
        matches = [device for device in devices if device.default]
        problem = "the system has no default microphone"
    elif isinstance(wanted, int) or wanted.isdecimal():
        matches = [device for device in devices if device.index == int(wanted)]
        problem = f"no input device has the number {wanted}"
    else:
        matches = _by_name(devices, wanted)
        problem = (
            f"{'several input devices match' if matches else 'no input device matches'} {wanted!r}"
        )
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(map(str, matches or devices))
    raise SourceError(f"{problem}: choose one by its number: {listed}")


def _by_name(devices: Sequence[Device], wanted: str) -> list[Device]:
    """Return the devices with exactly this name, or else those whose name contains it."""
    folded = wanted.casefold()
    exact = [device for device in devices if device.name.casefold() == folded]
    return exact or [device for device in devices if folded in device.name.casefold()]
