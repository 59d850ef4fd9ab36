"""``streamd devices``: the microphones that ``--device`` can name."""

from collections.abc import Sequence

from streamd.errors import SourceError
from streamd.sources.microphone import Device


def table(devices: Sequence[Device]) -> str:
    """One line for each device; a star marks the default.

    Raises
    ------
    SourceError
        there is none
    """
    if not devices:
        raise SourceError("no microphone found: plug one in, or name a sound file")
    return "".join(
        f"{'*' if device.default else ' '} {device.index:>2}  {device.name}  "
        f"({device.host_api}, channels: {device.channels}, {device.rate_hz} Hz)\n"
        for device in devices
    )
