import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
from itertools import pairwise

import pytest
import srt
from sinks.said import GAP, final, spoken, written

from streamd.errors import ConfigError, StreamdError
from streamd.sinks.cues import Layout
from streamd.sinks.files import FileSink, StreamSink
from streamd.sinks.formats import FORMATS
from streamd.sinks.lines import Text
from streamd.sinks.look import Look


def file_sink(path, name):
    return FileSink(path, FORMATS[name](Layout()))


@pytest.mark.parametrize("name", FORMATS)
def test_after_each_final_the_file_is_what_it_would_be_if_that_were_the_last(tmp_path, name):
    path = tmp_path / "live"
    sink = file_sink(path, name)
    events = [spoken(f"words said {seq}", start_ms=seq * 1000, seq=seq) for seq in range(1, 4)]
    events.insert(2, GAP)
    sizes = []
    for n, event in enumerate(events, 1):
        sink.write(event)
        assert path.read_text(encoding="utf-8") == written(name, *events[:n])
        sizes.append(path.stat().st_size)
    assert all(before <= after for before, after in pairwise(sizes))
    assert sizes[0] < sizes[1] < sizes[3]
    sink.close()
    assert path.stat().st_size == sizes[-1]


@pytest.mark.parametrize("name", ["json", "json-full"])
def test_what_a_long_document_repeats_with_each_final_is_bounded(tmp_path, name):
    path = tmp_path / "live"
    sink = file_sink(path, name)
    events, sizes = [], []
    for seq in range(1, 200):
        said = spoken("words said " * 10, start_ms=seq * 1000, seq=seq)
        for event in (said, GAP) if seq < 50 else (said,):
            sink.write(event)
            events.append(event)
        document = json.loads(path.read_text())
        segments = document["segments" if name == "json" else "transcription"]
        assert len(segments) == seq
        text = "".join(segment["text"] for segment in segments)
        assert document["text"] == (text if len(text) <= 4096 else "")
        *_, last = path.read_text().rpartition("\n]")
        sizes.append(len(last))
    assert max(sizes) < 8192
    assert max(sizes[60:]) < 4096  # what was written over is used up
    sink.close()
    assert path.read_text() == written(name, *events)


KILLED = """
import os, signal, sys
from pathlib import Path
from sinks.said import spoken
from streamd.sinks.cues import Layout
from streamd.sinks.files import FileSink
from streamd.sinks.formats import FORMATS

sink = FileSink(Path(sys.argv[1]), FORMATS[sys.argv[2]](Layout()))
for seq in range(1, 8):
    sink.write(spoken("words said", start_ms=seq * 1000, seq=seq))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", ["json", "json-full", "srt"])
def test_kill_9_leaves_a_whole_file(tmp_path, name):
    tests = os.path.dirname(os.path.dirname(__file__))
    environment = os.environ | {"PYTHONPATH": tests}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "live"), name]
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    text = (tmp_path / "live").read_text()
    if name == "srt":
        assert len(list(srt.parse(text))) == 7
    else:
        (segments,) = (value for value in json.loads(text).values() if len(value) == 7)
        assert segments[-1]["text"] == " words said"


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none/a\.srt: cannot be written: No such file"):
        file_sink(tmp_path / "none" / "a.srt", "srt")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_is_reported_once_and_the_file_can_still_be_closed(tmp_path):
    (tmp_path / "a.txt").symlink_to("/dev/full")
    sink = file_sink(tmp_path / "a.txt", "txt")
    with pytest.raises(StreamdError, match=r"a\.txt: cannot be written: No space left"):
        sink.write(final("lost"))
    sink.close()


@pytest.mark.parametrize("name", ["json", "csv", "srt"])
def test_what_does_not_fit_on_the_disk_leaves_the_file_as_it_was(tmp_path, name):
    path = tmp_path / "live"
    sink = file_sink(path, name)
    sink.write(spoken("fits", seq=1))
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 30, limits[1]))
    try:
        with pytest.raises(StreamdError, match="live: cannot be written: File too large"):
            sink.write(spoken("does not " * 30, start_ms=1000, seq=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    sink.close()


def test_lines_can_be_written_to_a_named_pipe(tmp_path):
    os.mkfifo(path := tmp_path / "a.txt")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    sink = file_sink(path, "txt")
    sink.write(final("one"))
    assert os.read(reader, 100) == b"one\n"
    sink.write(final("two"))
    sink.close()
    assert os.read(reader, 100) == b"two\n"
    os.close(reader)


@pytest.mark.parametrize("name", FORMATS)
def test_a_pipe_gets_the_same_as_a_file(name):
    pipe = io.StringIO()
    sink = StreamSink(pipe, FORMATS[name](Layout()))
    events = [spoken("words said"), GAP, spoken("and more", seq=2)]
    for event in events:
        sink.write(event)
    sink.close()
    assert pipe.getvalue() == written(name, *events)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_standard_output_on_a_full_disk_is_reported():
    stream = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    with pytest.raises(StreamdError, match="standard output cannot be written: No space left"):
        StreamSink(stream, Text(Look())).write(final("lost"))
    with contextlib.suppress(OSError):
        stream.close()
