import ctypes.util
import sys

import pytest

from streamd.errors import SourceError
from streamd.sources.microphone import Device, choose, list_devices
from tests.support.fake_portaudio import FakePortAudio

MICS = [("Built-in Microphone", 2, 48_000), ("Speakers", 0, 48_000), ("USB mic", 1, 16_000)]


@pytest.fixture
def fake(monkeypatch):
    portaudio = FakePortAudio(*MICS, ("USB mic 2", 1, 44_100))
    monkeypatch.setitem(sys.modules, "sounddevice", portaudio)
    return portaudio


def test_only_devices_that_record_are_listed(fake):
    assert list_devices() == [
        Device(0, "Built-in Microphone", "Fake API", 2, 48_000, default=True),
        Device(2, "USB mic", "Fake API", 1, 16_000, default=False),
        Device(3, "USB mic 2", "Fake API", 1, 44_100, default=False),
    ]


@pytest.mark.parametrize(
    ("wanted", "index"),
    [(None, 0), (2, 2), ("3", 3), ("built-IN", 0), ("usb mic", 2), ("USB mic 2", 3), ("2", 2)],
)
def test_a_device_is_found_by_number_name_or_part_of_it(fake, wanted, index):
    assert choose(list_devices(), wanted).index == index


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (1, "no input device has the number 1: choose one by its number: 0 'Built-in Microphone'"),
        ("headset", "no input device matches 'headset': choose one by its number: 0 'Built-in"),
        ("usb", "several input devices match 'usb': choose one by its number: 2 'USB mic', 3 'USB"),
    ],
)
def test_otherwise_the_candidates_are_named(fake, wanted, says):
    with pytest.raises(SourceError, match=says):
        choose(list_devices(), wanted)


def test_no_default(fake):
    fake.default = None
    with pytest.raises(SourceError, match="the system has no default microphone: choose one by"):
        choose(list_devices(), None)


@pytest.mark.parametrize("wanted", [None, 0, "usb"])
def test_no_microphone_at_all(wanted):
    with pytest.raises(SourceError, match="no microphone found: plug one in"):
        choose([], wanted)


def test_without_portaudio_the_package_is_named(monkeypatch):
    """The real sounddevice, on a machine where the library cannot be found."""
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(SourceError, match=r"PortAudio is not installed: apt install libportaudio2"):
        list_devices()
