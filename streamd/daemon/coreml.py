"""Whether Core ML runs the configured model, and how it is brought up while captions run.

What is for Macs is imported when it is needed: other machines need not load it.
"""

import atexit
import logging
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Thread
from typing import TYPE_CHECKING, Any

from streamd.config import Config
from streamd.engine import Engine
from streamd.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from streamd.engine.coreml.built import Built

log = logging.getLogger(__name__)

LIBRARY = "coremltools"
"""As in `engine.coreml.tools`, which other machines need not load."""


@dataclass(frozen=True, slots=True)
class CoreML:
    """What runs Core ML: a module, which if it is another than coremltools needs no Mac.

    `answer_s`: how long a worker may take for a pass before it counts as hung.
    """

    library: str = LIBRARY
    answer_s: float = 20.0


def built_for_core_ml(config: Config, core_ml: CoreML) -> "Built | None":
    """What was built of the configured model, if Core ML is to run it; None: the CPU is.

    Raises
    ------
    ConfigError : Core ML was asked for, and there can be none
    ModelError : it was asked for, and the model is not built for it, or damaged
    """
    o = config.decoding
    asked = _asked(config)
    if o.engine in ("onnx", "reference") or o.compute == "cpu":
        return None
    library = core_ml.library
    if sys.platform != "darwin" and library == LIBRARY:
        if asked:
            raise ConfigError(f"{asked}: there is Core ML on a Mac only; leave it away")
        return None
    from streamd.engine.coreml.place import built_model

    if find_spec(library) is None:
        missing = f"{library} is not installed: pip install {library}"
    elif built := built_model(o.model):
        return built
    else:
        missing = (
            f"{o.model} is not built for Core ML: streamd models build {o.model} --engine coreml"
        )
    if asked:
        raise ModelError(f"{asked}: {missing}")
    log.info("on the CPU: %s", missing)
    return None


def _asked(config: Config) -> str:
    """The option that asks for Core ML, if one does. Raises `ConfigError`."""
    o = config.decoding
    if o.engine == "coreml":
        if o.compute == "cpu":
            raise ConfigError(
                "--engine coreml runs nothing on the CPU alone, as --compute cpu asks"
            )
        return "--engine coreml"
    if o.compute not in ("ane", "gpu"):
        return ""
    if o.engine != "auto":
        raise ConfigError(f"--compute {o.compute} needs Core ML, not --engine {o.engine}")
    return f"--compute {o.compute}"


def brought_up(
    config: Config, engine: Engine[Any], built: "Built", *, core_ml: CoreML, settled: bool
) -> Engine[Any]:
    """An engine that begins as `engine` and goes on where Core ML is right and faster.

    With `settled` it has done so when this returns, which may take minutes.
    """
    from streamd.engine.coreml.runtime.supervisor import Patience
    from streamd.engine.coreml.runtime.takeover import Site, Takeover
    from streamd.engine.coreml.runtime.verdict import new_place
    from streamd.engine.relay import Relay

    try:
        place = new_place(built)
    except OSError as error:
        log.warning("on the CPU: %s cannot be written to (%s)", built.folder.parent, error)
        return engine
    relay = Relay(engine)
    site = Site(built, place, core_ml.library, Patience(answer_s=core_ml.answer_s))
    compute = config.decoding.compute
    takeover = Takeover(relay, site, compute if compute in ("ane", "gpu") else "auto")

    def run() -> None:
        try:
            takeover.run()
        except ModelError as error:
            log.warning("on the CPU: %s", error)

    # Before the workers are ended, which is registered when their module is imported.
    atexit.register(takeover.stop)
    thread = Thread(target=run, name="core-ml", daemon=True)
    thread.start()
    if settled:
        thread.join()
    return relay
