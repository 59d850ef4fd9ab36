"""A start, as the daemon makes it, told step by step, for peers.py to time: ``start.py MODEL``."""

import sys

import numpy as np

from streamd.config import load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.types import FRAME, TextOptions, Window


def main() -> None:
    """Say what is reached."""
    config = load({"model": sys.argv[1]}, {})
    session = build.new_session(config)
    session.feed(np.zeros((1, FRAME), np.float32))
    print("frame", flush=True)
    recognizer = build.recognizer(config, *open_model(config))
    print("model", flush=True)
    recognizer.recognize(
        Window(
            0, 250, np.zeros(250 * FRAME, np.float32), options=TextOptions(language="en"), asks=()
        )
    )
    print("hypothesis", flush=True)


if __name__ == "__main__":
    main()
