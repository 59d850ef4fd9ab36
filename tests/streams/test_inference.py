"""The threads that the model runs in."""

import weakref
from threading import Event

from streamd.streams.inference import EngineThread


class Window:
    """What a call is made with; tens of megabytes hang on it."""


def test_a_thread_keeps_nothing_of_a_call_while_it_waits_for_the_next():
    window, freed = Window(), Event()
    weakref.finalize(window, freed.set)
    thread = EngineThread()
    thread.submit(lambda each: None, window).result()
    del window
    assert freed.wait(10)
    thread.close()
