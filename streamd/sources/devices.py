"""The machine's microphones, and which of them is meant."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from streamd.errors import SourceError


@dataclass(frozen=True, slots=True)
class Device:
    """An input device as PortAudio knows it; `index` is its number in `list_devices`' numbering.

    `channels` is the most it has, `rate_hz` its own rate, `default` marks the system's choice.
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
    """Give the `sounddevice` module, loading PortAudio the first time.

    Raises
    ------
    SourceError
        PortAudio is not installed or finds no sound system that works.
    """
    try:
        import sounddevice
    except OSError:
        raise SourceError(
            "PortAudio is not installed: apt install libportaudio2 (Debian, Ubuntu), "
            "dnf install portaudio (Fedora) or brew install portaudio (macOS)"
        ) from None
    return sounddevice  # type: ignore[no-any-return]  # it has no annotations


def look_again() -> None:
    """Have PortAudio look for devices anew; none may be open."""
    portaudio = load_portaudio()
    portaudio._terminate()  # there is no public way, and the list is made once per process
    portaudio._initialize()


def list_devices() -> list[Device]:
    """All devices that can record, in PortAudio's order.

    PortAudio looks for devices once; what is plugged in later is seen after `look_again`.

    Raises
    ------
    SourceError
        There is no PortAudio.
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
    """Find the device that a person means.

    Parameters
    ----------
    wanted : its number, its name or a part of the name in any case, or None for the default

    Raises
    ------
    SourceError
        None or several match; the message lists what there is to choose from.
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
    """Devices with that very name, or else those whose name contains it."""
    folded = wanted.casefold()
    exact = [device for device in devices if device.name.casefold() == folded]
    return exact or [device for device in devices if folded in device.name.casefold()]
