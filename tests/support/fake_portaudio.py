"""A sounddevice without sound: the test says what the devices are and what they deliver."""

from types import SimpleNamespace

import numpy as np


class PortAudioError(Exception):
    pass


class InputStream:
    """Remembers how it was opened; `deliver` and `vanish` are what the device's driver does."""

    def __init__(self, portaudio, settings):
        self.settings = settings
        self.portaudio = portaudio
        self.n_delivered = 0
        self.running = self.closed = self.aborted = False

    def start(self):
        if self.portaudio.start_fails:
            raise PortAudioError("Error starting stream: Device unavailable [PaErrorCode -9985]")
        self.running = True

    def stop(self):
        self.running = False
        self.settings["finished_callback"]()

    def abort(self):
        self.stop()
        self.aborted = True

    def close(self):
        self.closed = True

    def deliver(self, samples, *, lost=0, late_s=0.0, clock=True):
        """Call back with the next block, before which `lost` samples were thrown away."""
        assert self.running
        self.n_delivered += lost
        adc_s = self.n_delivered / self.settings["samplerate"] + 1000 + late_s if clock else 0.0
        block = np.array(samples, np.float32).reshape(-1, self.settings["channels"])
        self.n_delivered += len(block)
        time = SimpleNamespace(inputBufferAdcTime=adc_s)
        status = SimpleNamespace(input_overflow=lost > 0)
        self.settings["callback"](block, len(block), time, status)
        block[:] = np.nan  # PortAudio uses the memory again

    def vanish(self):
        self.running = False
        self.settings["finished_callback"]()


class FakePortAudio:
    """Goes into `sys.modules` in the place of sounddevice."""

    PortAudioError = PortAudioError
    plugged_in_later = ()

    def _terminate(self):
        assert all(stream.closed for stream in self.streams)

    def _initialize(self):
        self.devices += self.plugged_in_later

    def __init__(self, *devices, default=0, accepts=lambda rate_hz, channels: True):
        self.devices = [
            {
                "index": index,
                "name": name,
                "hostapi": 0,
                "max_input_channels": channels,
                "default_samplerate": float(rate_hz),
            }
            for index, (name, channels, rate_hz) in enumerate(devices)
        ]
        self.default = default
        self.accepts = accepts
        self.streams = []
        self.start_fails = False

    def query_hostapis(self):
        return ({"name": "Fake API"},)

    def query_devices(self, kind=None):
        if kind is None:
            return self.devices
        if self.default is None:
            raise PortAudioError("Error querying device -1")
        return self.devices[self.default]

    def check_input_settings(self, device, channels, dtype, extra_settings, samplerate):
        if not self.accepts(samplerate, channels):
            raise PortAudioError("Invalid sample rate [PaErrorCode -9997]")

    def OutputStream(self, **settings):  # noqa: N802  # sounddevice's name
        self.streams.append(InputStream(self, settings | {"finished_callback": lambda: None}))
        return self.streams[-1]

    def InputStream(self, **settings):  # noqa: N802  # sounddevice's name
        self.streams.append(InputStream(self, settings))
        return self.streams[-1]
