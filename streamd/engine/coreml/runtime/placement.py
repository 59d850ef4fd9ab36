"""On which part of the machine each part of a model runs."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from streamd.engine.coreml.package import Form, Function

Unit = Literal["ane", "gpu"]
"""The Neural Engine, or the graphics processor."""

UNITS: dict[Unit, str] = {"ane": "CPU_AND_NE", "gpu": "CPU_AND_GPU"}
"""Their names in ``coremltools.ComputeUnit``; the processor does what the other one cannot."""
_FIRST_WITH_STATES = 15
_NAMES: dict[Unit, str] = {"ane": "Neural Engine", "gpu": "GPU"}


@dataclass(frozen=True, slots=True)
class Placement:
    """Where encoder and decoder run, and where the decoder's caches lie."""

    encoder: Unit
    decoder: Unit
    form: Form

    def unit(self, function: Function) -> Unit:
        """Where a function of the built model runs."""
        return self.encoder if function.kind in ("encode", "cross") else self.decoder

    def __str__(self) -> str:
        return f"encoder on the {_NAMES[self.encoder]}, decoder on the {_NAMES[self.decoder]}"


def gpu(forms: Sequence[Form]) -> Placement:
    """Everything on the GPU, in the best of these forms for it; it is ready within seconds."""
    return Placement("gpu", "gpu", "state" if "state" in forms else forms[0])


def candidates(forms: Sequence[Form]) -> tuple[Placement, ...]:
    """The ways to use the Neural Engine that are worth trying, with these forms.

    Small passes are often faster on the GPU, and whether the Neural Engine takes graphs with
    states at all differs from one system to the next: so both are tried.
    """
    own: Form = "mix" if "mix" in forms else forms[0]
    return Placement("ane", "gpu", gpu(forms).form), Placement("ane", "ane", own)


def forms_here(built: Sequence[Form]) -> tuple[Form, ...]:
    """Those of the forms that this system can run: there are no states before macOS 15."""
    release = platform.mac_ver()[0]
    is_old = release != "" and int(release.partition(".")[0]) < _FIRST_WITH_STATES
    return tuple(form for form in built if (form == "io") == is_old)
