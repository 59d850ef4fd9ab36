"""Finals on disk: nothing is lost, doubled or altered, wherever the process dies."""

import io
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streamd.errors import ConfigError
from streamd.events import Final, Gap, Missed
from streamd.options import JournalOptions
from streamd.streams.hub import Hub
from streamd.streams.journal import JournalError
from streamd.streams.journal.files import (
    FileJournal,
    Folder,
    JournalPolicy,
    files_in,
    runs,
    sync,
    transcript,
)
from streamd.types import ResumeState, Word

DAY_S = 86_400


def final(seg: int, text: str = "text") -> Final:
    return Final(seg=seg, start_ms=seg * 100, end_ms=seg * 100 + 80, text=text, language="en")


def numbered(seq: int) -> Final:
    return Final(seq=seq, seg=seq, start_ms=0, end_ms=seq * 100, text=f"{seq}", language="en")


def filled(journal: FileJournal, n: int) -> FileJournal:
    for _ in range(n):
        journal.append(numbered(journal.seq + 1))
    return journal


def seqs(journal: FileJournal, after: int = 0) -> list[int]:
    return [final.seq for final in journal.read(after, journal.seq)]


def full_disk(*_: object) -> int:
    raise OSError(28, "No space left on device")


RESUME_STATE = ResumeState(start_ms=20, words=(Word(" a", 1, 2, 0.5, (3,)),))


@pytest.mark.parametrize("rotate_bytes", [1, 1 << 20])
def test_with_what_a_session_goes_on_is_in_every_file(tmp_path, rotate_bytes):
    policy = JournalPolicy(JournalOptions(rotate_bytes=rotate_bytes))
    with Folder(tmp_path, policy) as folder:
        first = folder.open("talk")
        first.finalised_ms, first.resume_state = 20, RESUME_STATE
        filled(first, 1)
        first.note(Gap(t_ms=500, duration_ms=40, why="overrun"))
    with Folder(tmp_path, policy) as folder:
        assert folder.open("talk").resume_state == RESUME_STATE


def test_a_session_that_did_not_end_goes_on_where_it_was(tmp_path):
    with Folder(tmp_path) as folder:
        first = filled(folder.open("talk"), 3)
        first.note(Gap(t_ms=500, duration_ms=40, why="overrun"))
        first.finalised_ms, first.resume_state = 520, RESUME_STATE
        first.mark()
        first.finalised_ms = 530
        first.mark()  # no audio less is needed
    with Folder(tmp_path) as folder:
        second = folder.open("talk")
        assert (second.epoch, second.started) == (first.epoch, first.started)
        assert (second.seq, second.seg, second.finalised_ms, second.end_ms) == (3, 3, 520, 540)
        assert (second.resume_state, second.kept_ms) == (RESUME_STATE, 20)
        filled(second, 2)
        assert [list(second.read(n, 5)) for n in range(6)] == [
            [numbered(seq) for seq in range(n + 1, 6)] for n in range(6)
        ]
        assert list(second.read(1, 3)) == [numbered(2), numbered(3)]


def test_a_session_that_ended_begins_anew(tmp_path):
    with Folder(tmp_path) as folder:
        first = filled(folder.open("talk"), 2)
        first.end("stop")
        second = folder.open("talk")
        assert second.epoch != first.epoch
        assert second.seq == 0
        assert seqs(first) == [1, 2]  # can still be read
    with Folder(tmp_path) as folder:
        assert folder.open("talk").epoch == second.epoch


def test_sessions_do_not_meet(tmp_path):
    with Folder(tmp_path) as folder:
        names = ["a", "a.b", "..", ".", "a-b", "A_1"]
        for n, name in enumerate(names):
            filled(folder.open(name), n)
    with Folder(tmp_path) as folder:
        assert [folder.open(name).seq for name in names] == list(range(len(names)))
    assert {path.parent for path in tmp_path.rglob("*.jsonl")} == {tmp_path}


def test_only_its_owner_can_read_it(tmp_path):
    with Folder(tmp_path / "new" / "journal") as folder:
        folder.open("talk")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new" / "journal").iterdir()]
    assert modes == [0o600, 0o600]  # the journal and the lock
    assert stat.S_IMODE((tmp_path / "new" / "journal").stat().st_mode) == 0o700


def test_two_daemons_do_not_write_one_folder(tmp_path):
    with Folder(tmp_path), pytest.raises(ConfigError, match="another streamd"):
        Folder(tmp_path)
    with Folder(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--journal.*file"):
        Folder(tmp_path / "file" / "journal")


@given(data=st.data(), n=st.integers(0, 5))
def test_wherever_the_file_is_torn_the_whole_lines_are_kept(tmp_path_factory, data, n):
    path = tmp_path_factory.mktemp("journal")
    with Folder(path) as folder:
        epoch = filled(folder.open("talk"), n).epoch
    (file,) = path.glob("*.jsonl")
    content = file.read_bytes()
    kept = data.draw(st.integers(0, len(content)))
    file.write_bytes(content[:kept])
    n_whole = content[:kept].count(b"\n") - 1  # the first one is the head
    with Folder(path) as folder:
        journal = folder.open("talk")
        assert (journal.epoch == epoch) == (n_whole >= 0)
        assert seqs(filled(journal, 2)) == list(range(1, max(n_whole, 0) + 3))
    assert [event.seq for event in transcript(path, "talk")] == list(range(1, max(n_whole, 0) + 3))


@pytest.mark.parametrize("garbage", [b"\0" * 100, b'{"settled_ms":"x"}\n', b"\xff\xfe", b"{}"])
def test_garbage_at_the_end_is_cut_off(tmp_path, garbage):
    with Folder(tmp_path) as folder:
        filled(folder.open("talk"), 2)
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("ab") as out:
        out.write(garbage)
    with Folder(tmp_path) as folder:
        assert seqs(filled(folder.open("talk"), 1)) == [1, 2, 3]


@pytest.mark.parametrize("n_behind", [0, 1])
def test_an_event_that_only_a_newer_version_knows_is_passed_over(tmp_path, n_behind):
    with Folder(tmp_path) as folder:
        epoch = filled(folder.open("talk"), 2).epoch
    (file,) = tmp_path.glob("*.jsonl")
    *_, last = file.read_bytes().splitlines(keepends=True)
    with file.open("ab") as out:
        out.write(b'{"settled_ms":70,"event":{"type":"chapter","title":"one"},"newer":1}\n')
        out.write(n_behind * last.replace(b'"seq":2', b'"seq":3'))
    with Folder(tmp_path) as folder:
        journal = folder.open("talk")
        assert (journal.epoch, journal.finalised_ms) == (epoch, 70)
        assert seqs(filled(journal, 1)) == list(range(1, 4 + n_behind))
    assert b"chapter" in file.read_bytes()


@pytest.mark.parametrize(
    "fields",
    [
        {"settled_ms": 100, "past": {"start_ms": 20, "until": 1, "anchor": 10**6}},
        {"settled_ms": 100, "past": {"start_ms": 20, "until": 5, "anchor": 0}},
        {"settled_ms": 100, "past": {"start_ms": -20, "until": 1, "anchor": 0}},
        {"settled_ms": 100, "past": {"start_ms": 20, "voiceprints": ["AAAA"]}},
        {"event": {"type": "fed", "choices": {"task": "evil"}}},
        {"event": {"type": "fed", "choices": {"language": "../x"}}},
        {"event": {"type": "fed", "choices": {"endpoint_ms": -20}}},
    ],
)
def test_with_values_that_contradict_each_other_the_session_begins_anew(tmp_path, caplog, fields):
    with Folder(tmp_path) as folder:
        epoch = filled(folder.open("talk"), 2).epoch
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("ab") as out:
        out.write(json.dumps(fields).encode() + b"\n")
    content = file.read_bytes()
    with Folder(tmp_path) as folder:
        assert (folder.recall("talk"), file.read_bytes()) == (None, content)
        assert caplog.text.count(str(file)) == len(caplog.records) == 1
        assert folder.open("talk").epoch != epoch


@given(data=st.data(), n=st.integers(1, 6))
def test_a_flipped_bit_costs_its_line_only(tmp_path_factory, data, n):
    path = tmp_path_factory.mktemp("journal")
    with Folder(path) as folder:
        epoch = filled(folder.open("talk"), n).epoch
    (file,) = path.glob("*.jsonl")
    before = file.read_bytes()
    at = data.draw(st.integers(before.index(b"\n") + 1, len(before) - 1))
    content = bytearray(before)
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    # The first line is the head. A newline that becomes another character joins two lines.
    hit = {before.count(b"\n", 0, at), before.count(b"\n", 0, at + 1)}
    whole = [numbered(seq) for seq in range(1, n + 1) if seq not in hit]
    assert [final for final in transcript(path, "talk") if final in whole] == whole
    with Folder(path) as folder:
        assert folder.audio_ms("talk", epoch) is None
        journal = folder.open("talk")
        assert journal.epoch == epoch
        assert [final for final in journal.read(0, journal.seq) if final in whole] == whole
        filled(journal, 1)
        for after in range(journal.seq):
            replayed = [final.seq for final in journal.read(after, journal.seq)]
            assert replayed == sorted({*replayed})
            assert all(after < seq for seq in replayed)


@pytest.mark.parametrize("damage", ["garbage", "hole"])
def test_what_is_damaged_in_the_middle_is_passed_over(tmp_path, damage, caplog):
    with Folder(tmp_path) as folder:
        epoch = filled(folder.open("talk"), 4).epoch
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2] = b"garbage\n" if damage == "garbage" else b""
    file.write_bytes(b"".join(lines))
    with Folder(tmp_path) as folder:
        journal = folder.open("talk")
        assert (journal.epoch, seqs(journal)) == (epoch, [1, 3, 4])
        assert caplog.text.count(str(file)) == (damage == "garbage")
        assert [type(event) for event in replay(Hub("talk", journal=journal))] == [
            *(Final, Missed, Final, Final),
        ]
    caplog.clear()
    assert [event.seq for event in transcript(tmp_path, "talk")] == [1, 3, 4]
    assert caplog.text.count(str(file)) == (damage == "garbage")
    assert file.read_bytes() == b"".join(lines)


def test_a_final_whose_number_is_damaged_is_left_out(tmp_path, caplog):
    with Folder(tmp_path) as folder:
        filled(folder.open("talk"), 4)
    (file,) = tmp_path.glob("*.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"seq":2', b'"seq":6'))
    with Folder(tmp_path) as folder:
        assert seqs(filled(folder.open("talk"), 1)) == [1, 3, 4, 5]
    assert "final 6 follows 1" in caplog.text


def replay(hub: Hub) -> list[object]:
    with hub.subscribe(0) as subscription:
        return [*iter(subscription.pop, None)]


def test_a_full_disk_is_an_error_and_leaves_no_half_line(tmp_path, monkeypatch):
    with Folder(tmp_path) as folder:
        journal = filled(folder.open("talk"), 1)
        write = os.write

        def out_of_space(file: int, data: bytes) -> int:
            if len(data) <= 20:
                raise OSError(28, "No space left on device")
            return write(file, data[:20])

        monkeypatch.setattr(os, "write", out_of_space)
        with pytest.raises(JournalError, match="No space left"):
            filled(journal, 1)
        monkeypatch.undo()
        assert seqs(filled(journal, 1)) == [1, 2]
    with Folder(tmp_path) as folder:
        assert folder.open("talk").seq == 2


def test_what_cannot_be_kept_is_not_published(tmp_path, monkeypatch):
    with Folder(tmp_path) as folder:
        hub = Hub("talk", journal=folder.open("talk"))
        listener = hub.subscribe()

        def fail(*_: object) -> int:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "write", fail)
        with pytest.raises(JournalError):
            hub.publish(final(1))
        monkeypatch.undo()
        assert listener.pop() is None
        assert hub.publish(final(1)).seq == 1


@pytest.mark.parametrize(("fsync", "n_at_once", "n_later"), [
    ("always", 3, 0), ("interval", 0, 1), ("never", 0, 0),
])  # fmt: skip
def test_lines_are_forced_to_the_disk_when_the_user_wants(
    tmp_path, monkeypatch, fsync, n_at_once, n_later
):
    synced = []
    monkeypatch.setattr("streamd.streams.journal.files._force", synced.append)
    with Folder(tmp_path, JournalPolicy(JournalOptions(fsync=fsync))) as folder:
        filled(folder.open("talk"), 2)  # and the head
        assert len(synced) == n_at_once
        later = folder.unsynced()
        assert len(later) == n_later
        assert folder.unsynced() == []
        sync(later)
        assert len(synced) == n_at_once + n_later


def test_old_files_are_removed_and_the_others_replayed(tmp_path):
    now = [DAY_S * 20_000.0]
    options = JournalPolicy(JournalOptions(days=2), clock=lambda: now[0])
    with Folder(tmp_path, options) as folder:
        journal = folder.open("live")
        for _ in range(5):
            filled(journal, 10)
            for file in files_in(tmp_path):
                if file.path.stat().st_mtime > now[0]:  # written today
                    os.utime(file.path, (now[0], now[0]))
            now[0] += DAY_S
        filled(journal, 1)
        assert journal.first == 31
        hub = Hub("live", history=5, journal=journal)
        assert hub.subscribe(7).pop() == Missed(from_seq=8, to_seq=30, why="retention")
        assert seqs(journal) == list(range(31, 52))


def test_a_clock_that_is_put_forward_removes_nothing_of_an_open_session(tmp_path):
    """A machine without a clock battery: it begins in 2020 and learns the date later."""
    now = [DAY_S * 18_262.0]
    options = JournalPolicy(JournalOptions(rotate_bytes=1), clock=lambda: now[0])
    with Folder(tmp_path, options) as folder:
        journal = filled(folder.open("live"), 5)
        for file in files_in(tmp_path):
            os.utime(file.path, (now[0], now[0]))
        now[0] += 2500 * DAY_S
        filled(journal, 2)
        assert seqs(journal) == list(range(1, 8))
        folder.open("another")  # removes what is too old
        assert seqs(journal) == list(range(1, 8))


def test_the_file_that_is_being_written_stays_however_long_nobody_speaks(tmp_path):
    now = [DAY_S * 20_000.0]
    options = JournalPolicy(JournalOptions(days=3), clock=lambda: now[0])
    with Folder(tmp_path, options) as folder:
        journal = filled(folder.open("live"), 2)
        (file,) = files_in(tmp_path)
        os.utime(file.path, (now[0], now[0]))
        for day in range(4):
            now[0] += DAY_S
            folder.open(f"other{day}")
        assert seqs(journal) == [1, 2]


def test_what_has_lost_its_first_line_is_kept(tmp_path, caplog):
    with Folder(tmp_path) as folder:
        epoch = filled(folder.open("talk"), 3).epoch
    (file,) = tmp_path.glob("*.jsonl")
    rest = file.read_bytes().partition(b"\n")[2]
    file.write_bytes(rest)
    with Folder(tmp_path) as folder:
        assert folder.recall("talk") is None
        assert folder.open("talk").epoch != epoch
    assert file.read_bytes() == rest
    assert str(file) in caplog.text


@pytest.mark.parametrize("call", ["open", "write"])
def test_a_session_that_cannot_begin_leaves_nothing_behind(tmp_path, monkeypatch, call):
    with Folder(tmp_path) as folder:
        n_open = len(os.listdir("/dev/fd"))
        with monkeypatch.context() as disk:
            disk.setattr(os, call, full_disk)
            with pytest.raises(JournalError, match="No space left"):
                folder.open("talk")
        assert files_in(tmp_path) == []
        assert len(os.listdir("/dev/fd")) == n_open
        assert seqs(filled(folder.open("talk"), 1)) == [1]


def test_a_file_that_cannot_be_followed_by_another_is_continued(tmp_path, monkeypatch, caplog):
    """Without a descriptor; on a full disk, writing to the old file fails next."""
    with Folder(tmp_path, JournalPolicy(JournalOptions(rotate_bytes=1))) as folder:
        journal = filled(folder.open("talk"), 1)
        n_files = len(files_in(tmp_path))
        with monkeypatch.context() as table:
            table.setattr(os, "open", full_disk)
            table.setattr(os, "dup", full_disk)
            filled(journal, 2)
            assert folder.unsynced() == []
        assert "continued" in caplog.text
        assert len(files_in(tmp_path)) == n_files
        sync(folder.unsynced())
        assert seqs(filled(journal, 1)) == [1, 2, 3, 4]
    with Folder(tmp_path) as folder:
        assert seqs(folder.open("talk")) == [1, 2, 3, 4]


def test_a_replay_that_outlives_its_files_tells_what_is_missing(tmp_path):
    with Folder(
        tmp_path, JournalPolicy(JournalOptions(rotate_bytes=1))
    ) as folder:  # a file for each final
        journal = folder.open("live")
        hub = Hub("live", history=0, journal=journal)
        for seg in range(1, 7):
            hub.publish(final(seg))
        replay = hub.subscribe(0)
        assert replay.pop().seq == 1
        for file in files_in(tmp_path, "live"):
            if file.seq in (2, 3):
                file.path.unlink()
        hub.publish(final(7))
        events = [replay.pop() for _ in range(5)]
    assert events[1] == Missed(from_seq=3, to_seq=4, why="retention")
    assert [event.seq for event in events if isinstance(event, Final)] == [2, 5, 6, 7]


def test_old_sessions_are_removed_when_others_begin(tmp_path):
    now = DAY_S * 20_000.0
    with Folder(tmp_path, JournalPolicy(JournalOptions(days=2), clock=lambda: now)) as folder:
        filled(folder.open("old"), 1).end("stop")
        (file,) = files_in(tmp_path)
        os.utime(file.path, (now, now))
        now += 3 * DAY_S
        assert folder.open("new").seq == 0
        assert [file.session for file in files_in(tmp_path)] == ["new"]


def test_asking_for_any_session_does_not_read_the_folder(tmp_path, monkeypatch):
    with Folder(tmp_path) as folder:
        filled(folder.open("talk"), 1)

        def fail(*_: object) -> None:
            raise AssertionError("the folder is read")

        for name in ("listdir", "scandir"):
            monkeypatch.setattr(os, name, fail)
        assert folder.recall("nobody") is None
        assert folder.audio_ms("nobody", "e") is None
        assert folder.recall("talk").seq == 1
        filled(folder.open("other"), 1)


def test_files_that_somebody_else_removes_are_not_missed(tmp_path):
    now = DAY_S * 20_000.0
    kept = JournalOptions(days=2, rotate_bytes=1)  # a file for each final
    options = JournalPolicy(kept, clock=lambda: now)
    with Folder(tmp_path, options) as folder:
        journal = filled(folder.open("talk"), 4)
        said = transcript(tmp_path, "talk")
        assert next(said).seq == 1
        files = files_in(tmp_path)
        for file in files[2:4]:
            file.path.unlink()
        assert [event.seq for event in said] == [4]
        assert [run.session for run in runs(tmp_path)] == ["talk"]
        now += 3 * DAY_S
        assert folder.open("new").seq == 0
        for file in files_in(tmp_path):
            file.path.unlink()
        assert (folder.recall("talk"), folder.audio_ms("talk", journal.epoch)) == (None, None)
        assert folder.open("talk").epoch != journal.epoch


def test_a_file_that_vanishes_while_it_is_opened_begins_the_session_anew(tmp_path, monkeypatch):
    with Folder(tmp_path) as folder:
        epoch = filled(folder.open("talk"), 1).epoch
    real = os.open

    def vanish(path, flags, *mode, **options):
        if str(path).endswith(".jsonl") and not flags & os.O_CREAT:
            Path(path).unlink(missing_ok=True)
        return real(path, flags, *mode, **options)

    with Folder(tmp_path) as folder:
        monkeypatch.setattr(os, "open", vanish)
        journal = folder.open("talk")
        monkeypatch.undo()
        assert (journal.epoch != epoch, journal.seq) == (True, 0)


def test_a_clock_that_is_put_back_changes_no_order(tmp_path):
    now = 30 * DAY_S
    options = JournalPolicy(clock=lambda: now)
    with Folder(tmp_path, options) as folder:
        first = filled(folder.open("talk"), 1)
        now = 10 * DAY_S
        filled(first, 2)
        first.end("stop")
        second = filled(folder.open("talk"), 1)
        n_files = len(files_in(tmp_path))
        filled(second, 2)
        assert len(files_in(tmp_path)) == n_files  # a day is a day
    now = 20 * DAY_S
    with Folder(tmp_path, options) as folder:
        again = filled(folder.open("talk"), 1)
        assert (again.epoch, seqs(again)) == (second.epoch, [1, 2, 3, 4])
    assert [event.seq for event in transcript(tmp_path, "talk")] == [1, 2, 3, 4]


def test_a_line_that_grows_while_it_is_read_is_not_damaged(tmp_path, monkeypatch):
    with Folder(tmp_path) as folder:
        filled(folder.open("talk"), 2)
    (file,) = files_in(tmp_path)
    content = file.path.read_bytes()

    class Growing(io.BytesIO):
        """Ends in the middle of a line; what is read behind that is the rest of it."""

        def __init__(self) -> None:
            super().__init__(content[:-9])

        def read(self, size: int | None = -1) -> bytes:
            return super().read(size) or content[-9:][:size]

    monkeypatch.setattr(Path, "open", lambda *_: Growing())
    assert [event.seq for event in transcript(tmp_path, "talk")] == [1]


def test_a_transcript_is_of_one_run(tmp_path):
    with Folder(tmp_path, JournalPolicy(JournalOptions(rotate_bytes=400))) as folder:
        filled(folder.open("talk"), 1).end("stop")
        second = filled(folder.open("talk"), 4)
        second.note(Gap(t_ms=1, duration_ms=2, why="device"))
    *said, gap = transcript(tmp_path, "talk")
    assert ([event.seq for event in said], type(gap)) == ([1, 2, 3, 4], Gap)
    with pytest.raises(JournalError, match="nobody"):
        list(transcript(tmp_path, "nobody"))
    with pytest.raises(JournalError, match="holds no"):
        list(transcript(tmp_path / "nowhere", "talk"))


class DyingDaemon(RuleBasedStateMachine):
    """A session that speaks, a daemon that dies anywhere, and a subscriber that comes back."""

    @initialize(
        history=st.integers(0, 4),
        rotate_bytes=st.sampled_from([1, 500, 1 << 20]),
    )
    def begin(self, history, rotate_bytes):
        self.path = Path(tempfile.mkdtemp(prefix="journal-"))
        self.history, self.options = (
            history,
            JournalPolicy(JournalOptions(rotate_bytes=rotate_bytes)),
        )
        self.said: list[str] = []
        self.heard: list[Final] = []
        self.after, self.epoch = 0, None
        self.start_daemon()

    def start_daemon(self):
        self.folder = Folder(self.path, self.options)
        journal = self.folder.open("live")
        self.hub = Hub("live", self.history, journal=journal)
        assert self.epoch in (None, self.hub.epoch)
        self.epoch = self.hub.epoch
        self.listener = self.hub.subscribe(self.after, epoch=self.epoch)

    @rule(text=st.text(max_size=30))
    def speak(self, text):
        seq = self.hub.publish(final(len(self.said) + 1, text)).seq
        self.said.append(text)
        assert seq == len(self.said)

    @rule(torn=st.binary(max_size=40).filter(lambda tail: b"\n" not in tail))
    def die(self, torn):
        """In the middle of a write: its beginning is on the disk."""
        newest = files_in(self.path, "live")[-1].path
        self.folder.__exit__()
        with newest.open("ab") as file:
            file.write(torn)
        self.start_daemon()

    @rule(n=st.integers(1, 6))
    def listen(self, n):
        for _ in range(n):
            if (event := self.listener.pop()) is not None:
                assert isinstance(event, Final)
                self.heard.append(event)
                self.after = event.seq

    @rule()
    def come_back(self):
        self.listener.close()
        self.listener = self.hub.subscribe(self.after, epoch=self.epoch)

    @invariant()
    def what_was_heard_is_what_was_said(self):
        heard = getattr(self, "heard", [])
        assert [event.seq for event in heard] == list(range(1, len(heard) + 1))
        assert [event.text for event in heard] == getattr(self, "said", [])[: len(heard)]

    def teardown(self):
        if hasattr(self, "folder"):
            self.come_back()
            self.listen(len(self.said) + 1)
            assert len(self.heard) == len(self.said)
            self.folder.__exit__()
            shutil.rmtree(self.path)


TestDyingDaemon = DyingDaemon.TestCase
