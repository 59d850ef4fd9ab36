"""A private PulseAudio server with a null sink, whose monitor PortAudio captures through ALSA.

Nothing of the user's own sound system is read or touched. The server plays and records by its own
clock, so what is played into the sink comes out of the monitor in real time, sample by sample.
"""

import contextlib
import ctypes.util
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.programs import lacking

PACKAGES = "libportaudio2 pulseaudio pulseaudio-utils libasound2-plugins"
SINK = "ramp"
DEVICE = "streamd_ramp"
"""The name under which PortAudio lists the null sink's monitor."""

_ALSA = """
pcm_type.pulse {{ lib "libasound_module_pcm_pulse.so" }}
pcm.{device} {{ type pulse server "unix:{socket}" device "{sink}.monitor" fallback ""
  hint {{ show on description "null sink" }} }}
pcm.pulse {{ type pulse server "unix:{socket}" hint {{ show on description "any source" }} }}
pcm.!default {device}
"""


@dataclass(frozen=True)
class NullSink:
    """Where to play to; `DEVICE` is where it comes out."""

    server: str
    environment: dict[str, str]

    def play(self, path, sink=SINK):
        """Play a sound file to its end, from the server's memory: it never runs dry in between."""
        command = ["paplay", f"--server={self.server}", f"--device={sink}", "--latency-msec=60000"]
        subprocess.run([*command, path], env=self.environment, check=True)

    def add_output(self, name):
        """Make another null sink the default output, whose monitor is what the computer plays."""
        sink = [f"sink_name={name}", "rate=16000", "format=float32le", "channels=1", "norewinds=1"]
        for command in (["load-module", "module-null-sink", *sink], ["set-default-sink", name]):
            pactl = ["pactl", f"--server={self.server}", *command]
            subprocess.run(pactl, env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def suspend(self, *, on):
        """Let the sink and its monitor sleep, whoever listens, or wake them."""
        pactl = ["pactl", f"--server={self.server}", "suspend-sink", SINK, str(int(on))]
        subprocess.run(pactl, env=self.environment, check=True)

    def quit(self):
        """End the server while it is in use."""
        subprocess.run(["pactl", f"--server={self.server}", "exit"], env=self.environment)


def require_system():
    """Skip the test when a package is missing, or fail where all have to be there."""
    tools = all(map(shutil.which, ["pulseaudio", "paplay", "pactl"]))
    if not tools or not ctypes.util.find_library("portaudio"):
        missing()


def missing():
    """Say what has to be installed."""
    lacking(f"needs PortAudio and PulseAudio: apt-get install {PACKAGES}")


@contextlib.contextmanager
def null_sink(folder: Path):
    """Run the server in `folder` (its path shorter than a socket's may be) and give its sink."""
    require_system()
    socket = folder / "native"
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    command = ["pulseaudio", "-n", "-F", os.devnull, "--daemonize=no", "--use-pid-file=no"]
    command += ["--exit-idle-time=-1", "--realtime=no", "--high-priority=no"]
    command += ["--log-target=stderr", "--log-level=info"]
    command += ["-L", f"module-native-protocol-unix socket={socket} auth-anonymous=1"]
    # With rewinds it renders 2 s at a time until somebody asks for less: a microphone that is
    # opened meanwhile waits for the end of that, and PortAudio polls at full speed.
    sink = f"sink_name={SINK} rate=16000 format=float32le channels=1 norewinds=1"
    command += ["-L", f"module-null-sink {sink}"]
    ready = threading.Event()
    log: list[str] = []

    def read_log(server):
        for line in server.stderr:
            log.append(line)
            if "startup complete" in line:
                ready.set()
        ready.set()  # it is not, but nobody has to wait for it any more

    alsa = folder / "asound.conf"
    alsa.write_text(_ALSA.format(device=DEVICE, sink=SINK, socket=socket))
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as server:
        reader = threading.Thread(target=read_log, args=[server])
        reader.start()
        ready.wait()
        try:
            if server.poll() is not None:
                pytest.fail("pulseaudio does not start: " + "".join(log))
            with _portaudio_sees(alsa) as names:
                if DEVICE not in names:  # ALSA has no plugin for PulseAudio
                    missing()
                yield NullSink(f"unix:{socket}", environment)
        finally:
            server.terminate()
            reader.join()


@contextlib.contextmanager
def _portaudio_sees(alsa: Path):
    """Let PortAudio look for devices again, now and at the end: it does so once per process."""
    import sounddevice

    before = os.environ.get("ALSA_CONFIG_PATH")
    os.environ["ALSA_CONFIG_PATH"] = str(alsa)
    sounddevice._terminate()
    sounddevice._initialize()
    try:
        yield [device["name"] for device in sounddevice.query_devices()]
    finally:
        if before is None:
            del os.environ["ALSA_CONFIG_PATH"]
        else:
            os.environ["ALSA_CONFIG_PATH"] = before
        sounddevice._terminate()
        sounddevice._initialize()
