"""What was found out about a model on this Mac, so that it need not be found out at each start.

A verdict holds for one built model, one version of the system and one chip: another system may
compile another way, or refuse what the last one took.
"""

import hashlib
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from streamd.disk import discard, put_file
from streamd.engine.coreml.built import Built
from streamd.engine.coreml.package import META
from streamd.engine.coreml.runtime.placement import Placement

_COMPILED, _VERDICT = "compiled-", "verdict.json"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How a placement did: the time of a window, in ms, or what was wrong; None is the CPU."""

    placement: Placement | None
    window_ms: float | None = None
    wrong: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The placement that is best, None if it is the CPU, and the trials that say so."""

    best: Placement | None
    trials: tuple[Trial, ...]


def place_of(built: Built) -> Path:
    """The folder for what Core ML and we make of a built model on this machine.

    It lies beside the built model; whoever builds that anew takes it away.
    """
    parts = ((built.folder / META).read_bytes().hex(), *machine())
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return built.folder.with_name(f"{_COMPILED}{built.folder.name}-{key}")


def new_place(built: Built) -> Path:
    """The same folder, made if need be; those of earlier versions of the system are taken away.

    Raises
    ------
    OSError
        It cannot be made.
    """
    place = place_of(built)
    if not place.is_dir():
        for old in place.parent.glob(f"{_COMPILED}{built.folder.name}-*"):
            discard(old)
        place.mkdir(mode=0o700)
    return place


def recall(place: Path) -> Verdict | None:
    """The verdict on the built model with this folder, if there is one."""
    try:
        return msgspec.json.decode((place / _VERDICT).read_bytes(), type=Verdict)
    except (OSError, msgspec.DecodeError):
        return None


def remember(place: Path, verdict: Verdict) -> None:
    """Keep a verdict; if that cannot be, it is found out again next time."""
    with suppress(OSError):
        put_file(place / _VERDICT, msgspec.json.format(msgspec.json.encode(verdict)))


def forget(place: Path) -> None:
    """A verdict did not hold."""
    (place / _VERDICT).unlink(missing_ok=True)


@cache
def machine() -> tuple[str, str]:
    """The chip, and the build of the system."""
    if sys.platform != "darwin":
        return platform.processor() or platform.machine(), platform.version()
    return _said("sysctl", "-n", "machdep.cpu.brand_string"), _said("sw_vers", "-buildVersion")


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
