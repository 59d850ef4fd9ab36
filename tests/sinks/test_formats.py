import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import srt
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import ConfigError, StreamdError
from streamd.events import Correction, Eos, Fault, SpeakerName, SpeakerTurn, SpeakerTurns
from streamd.options import CueLayout
from streamd.sinks.formats import FORMATS, Text
from streamd.sinks.text import Look
from streamd.sinks.transcripts import transcript
from streamd.sinks.writing import FileSink, StreamSink
from tests.support.said import GAP, final, spoken, written

END, STOP, ERROR = (Eos(seq=0, reason=reason) for reason in ("end", "stop", "error"))


def file_sink(path, name, *, whole=False):
    return FileSink(path, FORMATS[name](CueLayout()), whole=whole)


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


@pytest.mark.parametrize("name", FORMATS)
@given(st.data())
def test_after_each_revision_the_file_is_what_it_would_be_at_the_end(name, data):
    events = []
    for seq in range(1, data.draw(st.integers(2, 9))):
        start_ms = seq * data.draw(st.sampled_from([2_000, 70_000]))
        event = spoken("words were said", start_ms=start_ms, seq=seq)
        first, end_ms = data.draw(st.integers(0, 2)), event.end_ms
        since = max(0, end_ms - data.draw(st.sampled_from([500, 5_000, 60_000])))
        turn = SpeakerTurn(start_ms=since, end_ms=end_ms, speaker=data.draw(st.integers(1, 3)))
        turns = SpeakerTurns(start_ms=since, end_ms=end_ms, turns=(turn,))
        meant = data.draw(st.sampled_from(["a", "several other words"]))
        called = data.draw(st.sampled_from(["", "Ana", "Bob"]))
        named = SpeakerName(speaker=data.draw(st.integers(1, 3)), name=called)
        events += [event, GAP, turns, Correction(text=meant, seq=seq, first=first, last=2), named]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "live")
        with contextlib.closing(file_sink(path, name)) as sink:
            for n, event in enumerate(events, 1):
                sink.write(event)
                now = transcript(events[:n], FORMATS[name](CueLayout()))
                # Until the end, footers of JSON are short.
                assert path.read_bytes().rstrip(b" ") == now or name.startswith("json")
        assert path.read_bytes() == now


@pytest.mark.parametrize("name", FORMATS)
def test_a_name_stands_in_the_whole_file_also_before_it_was_given(tmp_path, name):
    path = tmp_path / "live"
    sink = file_sink(path, name)
    said = spoken("words were said")
    words = tuple(msgspec.structs.replace(word, speaker=1) for word in said.words)
    sink.write(msgspec.structs.replace(said, words=words))
    for called in ("Bob", "Ana Botín"):
        sink.write(SpeakerName(speaker=1, name=called))
        text = path.read_text(encoding="utf-8")
        # Lyrics have no place for it; a table needs its column (`Table.add_speakers`).
        assert (called in text) == (name not in ("lrc", "csv", "tsv"))
    assert "Bob" not in text
    sink.close()


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
        document = msgspec.json.decode(path.read_bytes())  # long, and read 200 times
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


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("events", [[], [STOP], [Fault(code="engine", message="x"), ERROR]])
def test_nothing_is_destroyed_by_a_run_that_has_nothing_to_say(tmp_path, name, whole, events):
    for path, before in ((tmp_path / "old", b"precious"), (tmp_path / "new", None)):
        if before:
            path.write_bytes(before)
        sink = file_sink(path, name, whole=whole)
        for event in events:
            sink.write(event)
        sink.close()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"precious"]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_a_silent_recording_is_an_empty_transcript(tmp_path, name, whole):
    (path := tmp_path / "old").write_text("another one, " * 100)
    sink = file_sink(path, name, whole=whole)
    sink.write(END)
    sink.close()
    assert path.read_text() == written(name)
    assert os.listdir(tmp_path) == ["old"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("end", [END, STOP, ERROR], ids=["end", "stop", "error"])
def test_a_whole_file_appears_when_it_is_complete(tmp_path, name, end):
    (real := tmp_path / "real").write_text("another one, " * 1000)
    real.chmod(0o640)
    (path := tmp_path / "link").symlink_to("real")
    sink = file_sink(path, name, whole=True)
    events = [spoken(f"words said {seq}", start_ms=seq * 1000, seq=seq) for seq in range(1, 4)]
    for n, event in enumerate(events, 1):
        sink.write(event)
        assert real.read_text() == "another one, " * 1000
        assert (tmp_path / ".real.part").read_text() == written(name, *events[:n])
    sink.write(end)
    sink.close()
    assert path.is_symlink()
    if end is STOP:  # it is not whole, and must not look so
        assert real.read_text() == "another one, " * 1000
        real = tmp_path / "real.partial"
    assert real.read_text() == written(name, *events)
    assert real.stat().st_mode & 0o777 == 0o640
    assert {*os.listdir(tmp_path)} == {"link", "real", real.name}


@pytest.mark.parametrize("name", ["json", "srt", "txt"])
def test_words_are_corrected_in_a_file_that_was_renamed(tmp_path, name):
    sink, said = file_sink(tmp_path / "a", name), [spoken("One two.", seq=1)]
    sink.write(said[0])
    (tmp_path / "a").rename(tmp_path / "b")
    revision = Correction(text="TWO", seq=1, first=1, last=1)
    for event in (revision, Eos(seq=1, reason="end")):
        sink.write(event)
    sink.close()
    wanted = transcript([*said, revision], FORMATS[name](CueLayout()))
    assert (tmp_path / "b").read_bytes().rstrip() == wanted.rstrip()


def test_what_an_earlier_run_left_is_written_over(tmp_path):
    (tmp_path / ".a.txt.part").write_text("died in the middle of a long text")
    sink = file_sink(tmp_path / "a.txt", "txt", whole=True)
    sink.write(final("one"))
    sink.close()
    assert (tmp_path / "a.txt").read_text() == "one\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("whole", [False, True])
def test_a_file_that_is_protected_is_not_replaced(tmp_path, whole):
    (path := tmp_path / "a.txt").write_text("precious")
    path.chmod(0o400)
    with pytest.raises(ConfigError, match=r"a\.txt: cannot be written: Permission denied"):
        file_sink(path, "txt", whole=whole)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.said import spoken
from streamd.options import CueLayout
from streamd.sinks.writing import FileSink
from streamd.sinks.formats import FORMATS

sink = FileSink(Path(sys.argv[1]), FORMATS[sys.argv[2]](CueLayout()))
for seq in range(1, 8):
    sink.write(spoken("words said", start_ms=seq * 2000, seq=seq))
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


@pytest.mark.parametrize("whole", [False, True])
def test_a_path_that_cannot_be_written_is_named(tmp_path, whole):
    with pytest.raises(ConfigError, match=r"none/a\.srt: cannot be written: No such file"):
        file_sink(tmp_path / "none" / "a.srt", "srt", whole=whole)
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        file_sink(tmp_path, "srt", whole=whole)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_is_reported_once_and_the_file_can_still_be_closed(tmp_path):
    (tmp_path / "a.txt").symlink_to("/dev/full")
    sink = file_sink(tmp_path / "a.txt", "txt")
    with pytest.raises(StreamdError, match=r"a\.txt: cannot be written: No space left"):
        sink.write(final("lost"))
    sink.close()


@contextlib.contextmanager
def limited(file):
    """Files cannot become more than 30 bytes longer than this one."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.fstat(file.fileno()).st_size + 30, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", ["json", "csv", "srt"])
def test_what_does_not_fit_on_the_disk_leaves_the_file_as_it_was(tmp_path, name, whole):
    """That of an earlier run if it is to appear when it is complete."""
    (path := tmp_path / "a").write_text("another one")
    sink = file_sink(path, name, whole=whole)
    sink.write(spoken("fits", seq=1))
    before = path.read_bytes()
    assert (before == b"another one") is whole
    with (
        limited(sink._file),
        pytest.raises(StreamdError, match="a: cannot be written: File too large"),
    ):
        sink.write(spoken("does not " * 30, start_ms=1000, seq=2))
    assert path.read_bytes() == before
    sink.close()
    assert not whole or [path.read_bytes() for path in tmp_path.iterdir()] == [before]


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
    sink = StreamSink(pipe, FORMATS[name](CueLayout()))
    events = [spoken("words said"), GAP, spoken("and more", start_ms=2000, seq=2)]
    for event in events:
        sink.write(event)
    sink.close()
    assert pipe.getvalue() == written(name, *events)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"jsonl"}))
def test_a_session_that_fails_before_its_first_words_writes_no_document(name):
    pipe = io.StringIO()
    sink = StreamSink(pipe, FORMATS[name](CueLayout()))
    sink.write(Fault(code="source", message="no such file", fatal=True))
    sink.write(ERROR)
    sink.close()
    assert pipe.getvalue() == ""
    sink.write(END)
    sink.close()
    assert pipe.getvalue() == written(name)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_standard_output_on_a_full_disk_is_reported():
    stream = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    with pytest.raises(StreamdError, match="standard output cannot be written: No space left"):
        StreamSink(stream, Text(Look())).write(final("lost"))
    with contextlib.suppress(OSError):
        stream.close()


def test_a_name_that_is_taken_back_leaves_no_blanks_at_the_end(tmp_path):
    path = tmp_path / "live"
    sink = file_sink(path, "json")
    sink.write(spoken("words were said"))
    before = path.read_text(encoding="utf-8")
    for called in ("Ana", ""):
        sink.write(SpeakerName(speaker=2, name=called))
    assert path.read_text(encoding="utf-8") == before
    sink.close()
    assert path.read_text(encoding="utf-8") == before
