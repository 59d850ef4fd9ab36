"""A process that writes a library is killed, again and again, at any moment."""

import sqlite3
import subprocess
import sys
from contextlib import closing

import av
import pytest

from streamd.events import Final
from streamd.library.shelf import Shelf, sought
from streamd.library.tables import opened

N_KILLS = 24
PROGRAM = """
import os, signal, sys
from pathlib import Path
import numpy as np
from streamd.events import Correction
from streamd.library.additions import Addition
from streamd.library.tables import opened
from streamd.options import JournalOptions
from tests.support.said import spoken

def write(folder, acknowledge):
    noise = np.random.default_rng(1).normal(0, 0.1, (50, 320)).astype(np.float32)
    with opened(folder) as library:
        addition = Addition(library, JournalOptions(), "talk")
        for seq in range(1, 1000):
            addition.hear(noise)
            final = spoken(f"number n{seq} was said", start_ms=1000 * seq - 1000)
            addition.hub.publish(final)
            if seq % 3 == 0:
                addition.hub.publish(Correction(text=f"m{seq}", seq=seq, first=1, last=1))
            acknowledge(seq)

for kill in range(1, int(sys.argv[2]) + 1):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        write(Path(sys.argv[1], str(kill)), lambda seq: os.write(writing, b"%d\\n" % seq))
    os.close(writing)
    with open(reading) as lines:
        for line in lines:
            if int(line) == kill:
                break
        os.kill(child, signal.SIGKILL)
        last = kill
        for line in lines:
            last = int(line)
    os.waitpid(child, 0)
    print(last, flush=True)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folders of libraries whose process was killed, with the last final it had published."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", PROGRAM, str(folder), str(N_KILLS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    last = map(int, done.stdout.split())
    return [(folder / str(kill), seq) for kill, seq in enumerate(last, 1)]


def test_no_final_that_was_published_is_lost(killed):
    assert len(killed) == N_KILLS
    for folder, last in killed:
        shelf = Shelf(folder)
        finals = [event for event in shelf.read(1) if isinstance(event, Final)]
        assert len(finals) in (last, last + 1)
        for final in finals[:last]:
            word = f"m{final.seq}" if final.seq % 3 == 0 else f"n{final.seq}"
            assert final.text == f"number {word} was said"
            (hit,) = shelf.search(sought(f"n{final.seq}"))
            assert (hit.seq, hit.text) == (final.seq, final.text)


def test_no_file_is_broken_and_the_session_can_be_resumed(killed):
    for folder, last in killed:
        with opened(folder) as library:
            journal = library.recall("talk")
            assert journal is not None
            assert not journal.ended
            assert journal.seq in (last, last + 1)
        with closing(sqlite3.connect(folder / "library.sqlite")) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            database.execute("INSERT INTO search (search) VALUES ('integrity-check')")


def test_all_audio_but_the_last_second_or_two_can_be_heard(killed):
    for folder, last in killed:
        (sound,) = (folder / "audio").iterdir()
        try:
            with closing(av.open(str(sound))) as container:
                heard_s = sum(each.samples / each.sample_rate for each in container.decode(audio=0))
        except EOFError:  # it has no second yet
            heard_s = 0.0
        assert heard_s >= last - 2.0
