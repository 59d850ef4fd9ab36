"""What of a model runs where on a Mac, and why, line by line."""

from collections.abc import Iterator

from streamd.engine.coreml.built import Built
from streamd.engine.coreml.runtime.placement import Placement, forms_here, gpu
from streamd.engine.coreml.runtime.plan import Devices, devices
from streamd.engine.coreml.runtime.verdict import Trial, place_of, recall

_FEW = 3


def trials(built: Built) -> tuple[Placement, list[str]]:
    """Where the model runs best, and what is known of the other ways."""
    verdict = recall(place_of(built))
    if verdict is None:
        first = gpu(forms_here(built.meta.forms))
        return first, ["the Neural Engine has not been tried yet: the first start with it does"]
    best = verdict.best or gpu(forms_here(built.meta.forms))
    where = "the CPU is the fastest here" if verdict.best is None else str(verdict.best)
    return best, [where, *(_told(trial) for trial in verdict.trials)]


def _told(trial: Trial) -> str:
    where = "CPU alone" if trial.placement is None else str(trial.placement)
    return f"{where}: {trial.wrong or f'{trial.window_ms:.0f} ms a window'}"


def functions(built: Built, placement: Placement, library: str) -> Iterator[str]:
    """Where Core ML means to run each function, and what it keeps away from there."""
    for found in devices(built, place_of(built), placement, library):
        yield f"{found.package.removesuffix('.mlpackage')} {found.function}: {_shown(found)}"


def _shown(found: Devices) -> str:
    if not found.shares:
        return "Core ML does not tell"
    shares = ", ".join(f"{share:.0%} {device}" for device, share in found.shares.items())
    main = next(iter(found.shares))
    others = (
        f"{device}: {', '.join(f'{n} {kind}' for kind, n in kinds.most_common(_FEW))}"
        for device, kinds in found.operations.items()
        if device != main
    )
    return "; ".join([shares, *others])
