"""The configured model on its engine, prepared once and mapped ever after."""

import logging
import time
from typing import Any

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.coreml import CoreML, brought_up, built_for_core_ml
from streamd.engine import Engine
from streamd.engine.model import Model
from streamd.engine.prepared import open_engine
from streamd.engine.store import load_model

log = logging.getLogger(__name__)


def open_model(
    config: Config, *, settled: bool = False, core_ml: CoreML | None = None
) -> tuple[Model, Engine[Any]]:
    """The configured model and what runs it, which may be all that has its weights.

    On a Mac that is the CPU at first, until Core ML is ready, if the model is built for it. With
    `settled` it is what it will be, for whoever measures.

    Raises
    ------
    ConfigError : what shall run it cannot be had here
    ModelError : there is no such model, or its files are damaged
    EngineError : the runtime refuses the model
    """
    o = config.decoding
    core_ml = core_ml or CoreML()
    built = built_for_core_ml(config, core_ml)
    start = time.perf_counter()
    if o.engine == "reference":
        model = load_model(o.model)
        return model, build.engine(config, model)
    opened = open_engine(o.model, threads=build.threads(config), precision=o.precision)
    seconds = time.perf_counter() - start
    name = opened.model.name
    log.log(
        logging.DEBUG if opened.how == "prepared" else logging.INFO,
        f"model {name} ready in {seconds:.1f} s ({opened.precision}, {opened.how})",
    )
    if built is None:
        return opened.model, opened.engine
    engine = brought_up(config, opened.engine, built, core_ml=core_ml, settled=settled)
    return opened.model, engine
