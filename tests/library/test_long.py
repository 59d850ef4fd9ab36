"""A session of hours takes no more memory than one of minutes."""

import gc
import sys

from streamd.library.additions import Addition
from streamd.library.shelf import Shelf
from streamd.library.tables import opened
from streamd.options import JournalOptions
from tests.library.test_shelf import said

HOUR = 720
"""Finals of 5 s."""


def test_the_second_hour_of_a_session_takes_no_memory(tmp_path):
    with opened(tmp_path) as library:
        options = JournalOptions(keep_audio="off")
        addition = Addition(library, options, "talk", history=100)
        blocks = []
        with addition.hub.subscribe(0) as events:
            for n in range(2 * HOUR):
                addition.hub.publish(said(f"This is sentence {n} of many.", 1, start_ms=n * 5000))
                while events.more and events.pop() is not None:
                    pass
                if n % HOUR == HOUR - 1:
                    gc.collect()
                    blocks.append(sys.getallocatedblocks())
        addition.end("end")
    # A final with its words takes some 30.
    assert blocks[1] - blocks[0] < HOUR
    (kept,) = Shelf(tmp_path).sessions()
    assert (kept.n_finals, kept.duration_ms // 60_000) == (2 * HOUR, 119)
