"""Finals on disk: nothing is lost, doubled or altered, wherever the process dies."""

import logging
import os
import shutil
import sqlite3
import stat
import tempfile
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from streamd.errors import ConfigError
from streamd.events import (
    Correction,
    Final,
    Gap,
    Missed,
    Sound,
    SpeakerName,
    SpeakerTurn,
    SpeakerTurns,
    TimedWord,
)
from streamd.options import Choices, JournalOptions
from streamd.streams.hub import Hub
from streamd.streams.journal.database import Database, DatabaseJournal
from streamd.streams.journal.journals import JournalError
from streamd.streams.journal.lines import Fed
from streamd.streams.journal.tables import NAME, runs, transcript
from streamd.types import ResumeState, Word
from tests.support.limits import no_free_descriptor

DAY_S = 86_400
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # no disk to wait for, many times
RESUME_STATE = ResumeState(start_ms=20, words=(Word(" a", 1, 2, 0.5, (3,)),))


def final(seg: int, text: str = "text") -> Final:
    return Final(seg=seg, start_ms=seg * 100, end_ms=seg * 100 + 80, text=text, language="en")


def numbered(seq: int, text: str = "") -> Final:
    text = text or f"{seq}"
    return Final(seq=seq, seg=seq, start_ms=0, end_ms=seq * 100, text=text, language="en")


def note(journal: DatabaseJournal, event: Final | Gap) -> None:
    journal.store(event, lambda _: None)


def filled(journal: DatabaseJournal, n: int, text: str = "") -> DatabaseJournal:
    for _ in range(n):
        note(journal, numbered(journal.seq + 1, text))
    return journal


def seqs(journal: DatabaseJournal, after: int = 0) -> list[int]:
    return [final.seq for final in journal.read(after, journal.seq)]


def replay(hub: Hub) -> list[object]:
    with hub.subscribe(0) as subscription:
        return [*iter(subscription.pop, None)]


def crash(folder: Path) -> Path:
    """Return what is in the files at this moment, as the next process finds it."""
    left = Path(tempfile.mkdtemp(dir=folder.parent))
    for file in folder.glob(f"{NAME}*"):
        if not file.name.endswith("-shm"):  # which does not outlive the last process
            shutil.copy(file, left)
    return left


def full(database: Database) -> None:
    """Let the database take no further page, as if its disk were full."""
    ((n_pages,),) = database.select("PRAGMA page_count")
    database.select(f"PRAGMA max_page_count = {n_pages}")


def changed(folder: Path, statement: str) -> None:
    """Change a database as if it were damaged, or by hand."""
    with closing(sqlite3.connect(folder / NAME)) as connection, connection:
        connection.execute(statement)


def copied(folder: Path) -> None:
    """Bring all that was written into the file of the database itself."""
    changed(folder, "PRAGMA wal_checkpoint")


def test_a_session_that_did_not_end_goes_on_where_it_was(tmp_path):
    with Database(tmp_path) as database:
        first = filled(database.open("talk"), 3)
        note(first, Gap(t_ms=500, duration_ms=40, why="overrun"))
        first.finalised_ms, first.resume_state = 520, RESUME_STATE
        first.mark()
        first.finalised_ms = 530
        first.mark()  # no audio less is needed
        first.feed(Fed(choices=Choices(language="fr"), proof="ab"))
    with Database(tmp_path) as database:
        second = database.open("talk")
        assert (second.epoch, second.started) == (first.epoch, first.started)
        assert (second.seq, second.seg, second.finalised_ms, second.end_ms) == (3, 3, 530, 540)
        assert (second.resume_state, second.kept_ms) == (RESUME_STATE, 20)
        assert second.fed == Fed(choices=Choices(language="fr"), proof="ab")
        filled(second, 2)
        assert [list(second.read(n, 5)) for n in range(6)] == [
            [numbered(seq) for seq in range(n + 1, 6)] for n in range(6)
        ]
        assert list(second.read(1, 3)) == [numbered(2), numbered(3)]


def test_a_session_that_ended_begins_anew(tmp_path):
    with Database(tmp_path) as database:
        first = filled(database.open("talk"), 2)
        first.finalised_ms = 500
        first.end("stop")
        second = database.open("talk")
        assert second.epoch != first.epoch
        assert second.seq == 0
        assert seqs(first) == [1, 2]  # can still be read
    with Database(tmp_path) as database:
        assert database.open("talk").epoch == second.epoch
        assert database.audio_ms("talk", first.epoch) == 500
        assert database.audio_ms("talk", second.epoch) is None
        assert database.audio_ms("nobody", first.epoch) is None


def test_speakers_and_corrections_outlive_the_process(tmp_path):
    word = TimedWord(text="a", start_ms=0, end_ms=80, prob=1, final=True, speaker=1)
    with Database(tmp_path / "a") as journals:
        hub = Hub("live", 2, journal=journals.open("live"))
        hub.publish(replace(final(0), words=(word,)))
        turn = SpeakerTurn(start_ms=0, end_ms=80, speaker=2)
        hub.publish(SpeakerTurns(start_ms=0, end_ms=200, turns=(turn,)))
        hub.publish(correction := Correction(text="b", seq=1, first=0, last=0))
        left = crash(tmp_path / "a")
    later = Correction(text="c", seq=1, first=0, last=0)
    with Database(left) as journals:
        recalled = journals.recall("live")
        assert recalled is not None
        recalled.end("end")
        hub = Hub("live", journal=recalled)
        hub.amend(later)
    revised = replace(final(0), seq=1, words=(replace(word, speaker=2),))
    with Database(left) as journals:
        hub = Hub("live", journal=journals.recall("live"))
        assert replay(hub) == [revised, correction, later]
    assert [*transcript(left, "live")] == [revised, correction, later]


def test_names_and_sounds_before_the_first_final_outlive_the_process(tmp_path):
    music = Sound(label="music", start_ms=0, end_ms=9000, prob=0.9)
    notes = [music, SpeakerName(speaker=1, name="Ana")]
    with Database(tmp_path / "a") as journals:
        hub = Hub("live", journal=journals.open("live"))
        for note in notes:
            hub.publish(note)
        left = crash(tmp_path / "a")
    with Database(left) as journals:
        hub = Hub("live", journal=journals.open("live"))
        assert replay(hub) == notes
        assert hub.named(1) == "Ana"


def test_only_its_owner_can_read_it(tmp_path):
    folder = tmp_path / "new" / "journal"
    with Database(folder) as database:
        database.open("talk")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == dict.fromkeys([".lock", NAME, f"{NAME}-wal", f"{NAME}-shm"], 0o600)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_in_which_nothing_can_be_made_can_be_read(tmp_path, monkeypatch):
    with Database(tmp_path) as database:
        filled(database.open("talk"), 2)
    monkeypatch.setattr(os, "access", lambda *_: False)
    said = transcript(tmp_path, "talk")
    assert next(said).seq == 1
    assert {path.name for path in tmp_path.iterdir()} == {".lock", NAME}
    assert next(said).seq == 2


def test_two_daemons_do_not_write_one_folder(tmp_path):
    with Database(tmp_path), pytest.raises(ConfigError, match="another streamd"):
        Database(tmp_path)
    with Database(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--journal.*file"):
        Database(tmp_path / "file" / "journal")


def test_a_database_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / NAME).mkdir()
    for _ in range(2):  # the folder is not left locked
        with pytest.raises(ConfigError, match=rf"--journal: .*{NAME}: cannot be written"):
            Database(tmp_path)


def test_a_database_of_a_newer_version_is_left_alone(tmp_path):
    with Database(tmp_path):
        pass
    changed(tmp_path, "PRAGMA user_version = 99")
    content = (tmp_path / NAME).read_bytes()
    with pytest.raises(ConfigError, match="a newer streamd has written"):
        Database(tmp_path)
    assert (tmp_path / NAME).read_bytes() == content


@given(data=st.data(), n=st.integers(0, 5))
def test_wherever_a_write_is_torn_the_whole_events_are_kept(data, n):
    with tempfile.TemporaryDirectory(prefix="journal-", dir=MEMORY) as parent:
        torn(data, Path(parent, "journal"), n)


def torn(data: st.DataObject, path: Path, n: int) -> None:
    with Database(path) as database:
        epoch = filled(database.open("talk"), n).epoch
        left = crash(path)
    wal = left / f"{NAME}-wal"
    content = wal.read_bytes()
    kept = data.draw(st.integers(0, len(content)))
    wal.write_bytes(content[:kept] + data.draw(st.binary(max_size=40)))
    with Database(left) as database:
        journal = database.open("talk")
        n_whole = journal.seq
        assert n_whole <= n
        assert journal.epoch == epoch or n_whole == 0
        assert (kept < len(content)) or (journal.epoch, n_whole) == (epoch, n)
        assert seqs(filled(journal, 2)) == list(range(1, n_whole + 3))
    assert [event.seq for event in transcript(left, "talk")] == list(range(1, n_whole + 3))


@given(data=st.data())
def test_whatever_byte_is_damaged_the_next_process_goes_on(data):
    with tempfile.TemporaryDirectory(prefix="journal-", dir=MEMORY) as parent:
        damaged(data, Path(parent, "journal"))


def damaged(data: st.DataObject, path: Path) -> None:
    with Database(path) as database:
        filled(database.open("talk"), 60, "so much text " * 10)
    file = path / NAME
    content = bytearray(file.read_bytes())
    version = range(53, 64)  # of the tables: a newer one is left alone
    at = data.draw(st.integers(0, len(content) - 1).filter(lambda at: at not in version))
    content[at : at + 8] = data.draw(st.binary(min_size=8, max_size=8))
    file.write_bytes(content)
    list(runs(path))
    with Database(path) as database:
        journal = database.open("talk")
        replayed = [event.seq for event in journal.read(0, journal.seq)]
        assert replayed == sorted({*replayed})
        assert seqs(filled(journal, 1))[-1] == journal.seq
    with Database(path) as database:
        assert database.open("talk").epoch == journal.epoch


@pytest.mark.parametrize("place", ["start", "open"])
def test_a_damaged_page_costs_what_is_on_it_and_captions_go_on(tmp_path, caplog, place):
    with Database(tmp_path) as database:
        journal = filled(database.open("talk"), 200, "so much text " * 10)
        epoch = journal.epoch
        if place == "open":
            copied(tmp_path)
            spoil(tmp_path / NAME)
            database.select("PRAGMA shrink_memory")  # it has the page in its cache
            assert_goes_on(Hub("talk", 0, journal=journal), tmp_path)
    if place == "start":
        spoil(tmp_path / NAME)
        kept = [event.seq for event in transcript(tmp_path, "talk")]
        assert 150 < len(kept) < 200
        with Database(tmp_path) as database:
            journal = database.open("talk")
            assert journal.epoch == epoch
            assert_goes_on(Hub("talk", 0, journal=journal), tmp_path)
    assert f"{NAME} is damaged" in caplog.text
    (old,) = tmp_path.glob("damaged-*.db")
    assert str(old) in caplog.text


@pytest.mark.parametrize("n_done", range(5))
def test_wherever_a_process_dies_that_replaces_a_database_the_next_ends_it(
    tmp_path, monkeypatch, n_done
):
    """On a disk on which a file can have one name only, as exFAT."""
    (folder := tmp_path / "journal").mkdir()
    with Database(folder) as database:
        epoch = filled(database.open("talk"), 200, "so much text " * 10).epoch
        filled(database.open("gone"), 1).end("stop")
        changed(folder, "DROP TRIGGER forget_events")  # its run is on a page that is damaged
        changed(folder, "DELETE FROM runs WHERE session = 'gone'")
    spoil(folder / NAME)
    spoiled = (folder / NAME).read_bytes()
    left, replaced, replace = tmp_path / "left", [], os.replace

    def dying_replace(*names: object) -> None:
        if len(replaced) == n_done:
            shutil.copytree(folder, left, ignore=shutil.ignore_patterns("*-shm"))
        replaced.append(names)
        replace(*names)

    monkeypatch.setattr(os, "replace", dying_replace)
    monkeypatch.delattr(os, "link")
    with Database(folder) as database:
        assert 150 < len(seqs(database.open("talk"))) < 200
    assert len(replaced) == 5
    with Database(left) as database:
        journal = database.open("talk")
        assert journal.epoch == epoch
        assert 150 < len(seqs(journal)) < 200
        assert seqs(filled(database.open("new"), 1)) == [1]
    (old,) = left.glob("damaged-*.db")
    assert old.read_bytes()[100:] == spoiled[100:]  # all but the count of its changes
    assert not [*left.glob("*.recovered")]


def spoil(file: Path) -> None:
    """Write zeros over a page that has finals."""
    content = bytearray(file.read_bytes())
    at = content.index(b"so much text", len(content) // 2) // 4096 * 4096
    content[at : at + 4096] = bytes(4096)
    file.write_bytes(content)


def assert_goes_on(hub: Hub, folder: Path) -> None:
    events = replay(hub)
    finals = [event for event in events if isinstance(event, Final)]
    missed = [event for event in events if isinstance(event, Missed)]
    assert 150 < len(finals) < 200
    assert len(finals) + sum(each.to_seq - each.from_seq + 1 for each in missed) == 200
    assert hub.publish(final(201)).seq == 201
    assert [*transcript(folder, "talk")][-1].seq == 201


def test_a_file_that_is_no_database_is_kept_beside_a_new_one(tmp_path, caplog):
    (tmp_path / NAME).write_bytes(b"something else" * 1000)
    with Database(tmp_path) as database:
        assert seqs(filled(database.open("talk"), 1)) == [1]
    (old,) = tmp_path.glob("damaged-*.db")
    assert old.read_bytes() == b"something else" * 1000
    assert [event.seq for event in transcript(tmp_path, "talk")] == [1]
    assert caplog.text.count("not a database") == 1


def test_an_event_that_is_damaged_or_of_a_newer_version_is_passed_over(tmp_path, caplog):
    with Database(tmp_path) as database:
        epoch = filled(database.open("talk"), 4).epoch
    changed(tmp_path, "UPDATE events SET event = '\"garbage' WHERE seq = 2")
    changed(tmp_path, "UPDATE events SET event = replace(event, '\"seq\":3', '\"seq\":7')"
                      " WHERE seq = 3")  # fmt: skip
    with Database(tmp_path) as database:
        journal = database.open("talk")
        assert (journal.epoch, seqs(journal)) == (epoch, [1, 4])
        assert [type(event) for event in replay(Hub("talk", 0, journal=journal))] == [
            *(Final, Missed, Final),
        ]
        assert seqs(filled(journal, 1)) == [1, 4, 5]
    assert [event.text for event in transcript(tmp_path, "talk")] == ["1", "3", "4", "5"]
    assert caplog.text.count("event 2 is damaged and left out") == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"finalised_ms": 100, "resume_state": {"start_ms": 20, "until": 1, "anchor": 10**6}},
        {"finalised_ms": 100, "resume_state": {"start_ms": 20, "until": 5, "anchor": 0}},
        {"finalised_ms": 100, "resume_state": {"start_ms": -20, "until": 1, "anchor": 0}},
        {"finalised_ms": 100, "resume_state": {"start_ms": 20, "voiceprints": ["AAAA"]}},
        {"fed": {"type": "fed", "choices": {"task": "evil"}}},
        {"fed": {"type": "fed", "choices": {"language": "../x"}}},
        {"fed": {"type": "fed", "choices": {"endpoint_ms": -20}}},
        {"seq": "many"},
    ],
)
def test_with_values_that_contradict_each_other_the_session_begins_anew(tmp_path, caplog, fields):
    with Database(tmp_path) as database:
        epoch = filled(database.open("talk"), 2).epoch
        ((data,),) = database.select("SELECT run FROM runs")
        run = msgspec.json.encode(msgspec.json.decode(data) | fields).decode()
        database.write(lambda cursor: cursor.execute("UPDATE runs SET run = ?", (run,)))
    with Database(tmp_path) as database:
        assert database.recall("talk") is None
        assert caplog.text.count("session talk") == len(caplog.records) == 1
        assert database.open("talk").epoch != epoch
        assert database.select("SELECT run FROM runs WHERE id = 1") == [(run.encode(),)]


def test_a_session_with_more_finals_than_it_knows_of_begins_anew(tmp_path, caplog):
    with Database(tmp_path) as database:
        journal = filled(database.open("talk"), 2)
        ((data,),) = database.select("SELECT run FROM runs")
        filled(journal, 1)
        changed(tmp_path, f"UPDATE runs SET run = '{data.decode()}'")
    with Database(tmp_path) as database:
        again = filled(database.open("talk"), 2)
        assert again.epoch != journal.epoch
        assert seqs(again) == [1, 2]
    assert caplog.text.count("session talk: its last final is 2, but there is 3") == 1


def test_a_full_disk_is_an_error_and_leaves_no_half_event(tmp_path):
    with Database(tmp_path) as database:
        journal = filled(database.open("talk"), 1)
        full(database)
        with pytest.raises(JournalError, match=rf"{NAME}: cannot be written: No space left"):
            filled(journal, 1, "long " * 10_000)
        assert (journal.seq, seqs(journal)) == (1, [1])
        database.select("PRAGMA max_page_count = 1000000")
        assert seqs(filled(journal, 1)) == [1, 2]
    with Database(tmp_path) as database:
        assert database.open("talk").seq == 2


def test_what_cannot_be_kept_is_not_published(tmp_path):
    with Database(tmp_path) as database:
        hub = Hub("talk", journal=database.open("talk"))
        listener = hub.subscribe()
        full(database)
        with pytest.raises(JournalError):
            hub.publish(final(1, "long " * 10_000))
        assert listener.pop() is None
        assert hub.publish(final(1)).seq == 1


def test_a_session_that_cannot_begin_leaves_nothing_behind(tmp_path):
    with Database(tmp_path) as database:
        long = "talk" * 10_000
        full(database)
        with pytest.raises(JournalError, match="No space left"):
            database.open(long)
        assert (database.recall(long), database.writing) == (None, set())
        database.select("PRAGMA max_page_count = 1000000")
        assert seqs(filled(database.open(long), 1)) == [1]


@pytest.mark.parametrize(("fsync", "level"), [("always", 2), ("interval", 1)])
def test_events_are_forced_to_the_disk_when_the_user_wants(tmp_path, monkeypatch, fsync, level):
    forced: list[bytes] = []
    monkeypatch.setattr(
        "streamd.streams.journal.database.force",
        lambda descriptor: forced.append(os.pread(descriptor, 1 << 30, 0)),
    )
    with Database(tmp_path, JournalOptions(fsync=fsync)) as database:
        assert database.select("PRAGMA synchronous") == [(level,)]  # FULL or NORMAL
        filled(database.open("talk"), 2)
        database.sync()
        (left := crash(tmp_path)).joinpath(f"{NAME}-wal").write_bytes(forced[-1])
    assert [event.seq for event in transcript(left, "talk")] == [1, 2]


def test_old_finals_are_removed_and_the_others_replayed(tmp_path):
    now = [DAY_S * 20_000.0]
    with Database(tmp_path, JournalOptions(days=2), clock=lambda: now[0]) as database:
        journal = database.open("live")
        for _ in range(5):
            filled(journal, 10)
            now[0] += DAY_S
            database.expire()
        filled(journal, 1)
        assert journal.first == 31
        hub = Hub("live", history=5, journal=journal)
        assert hub.subscribe(7).pop() == Missed(from_seq=8, to_seq=30, why="retention")
        assert seqs(journal) == list(range(31, 52))


def test_their_room_is_given_back(tmp_path):
    now = [DAY_S * 20_000.0]
    with Database(tmp_path, clock=lambda: now[0]) as database:
        filled(database.open("talk"), 100, "long " * 10_000)
        database.sync()
        before = (tmp_path / NAME).stat().st_size
        for _ in range(2):
            now[0] += 16 * DAY_S
            database.expire()
        database.sync()
        assert (tmp_path / NAME).stat().st_size < before / 10


def test_nothing_of_their_text_is_left(tmp_path):
    now = [DAY_S * 20_000.0]
    with Database(tmp_path, clock=lambda: now[0]) as database:
        live = filled(database.open("live"), 1, "private")
        filled(live, 1, "kept")
        copied(tmp_path)
        assert b"private" in (tmp_path / NAME).read_bytes()
        changed(tmp_path, "UPDATE events SET written = 0 WHERE seq = 1")
        database.expire()
        database.sync()
        assert seqs(live) == [2]
        assert b"private" not in (tmp_path / NAME).read_bytes()


def test_on_macos_what_is_forced_to_the_disk_leaves_its_cache(tmp_path):
    with Database(tmp_path) as database:
        for pragma in ("fullfsync", "checkpoint_fullfsync"):
            assert database.select(f"PRAGMA {pragma}") == [(1,)]


def test_a_clock_that_is_put_forward_removes_nothing_of_an_open_session(tmp_path):
    """A machine without a clock battery: it begins in 2020 and learns the date later."""
    now = [DAY_S * 18_262.0]
    with Database(tmp_path, clock=lambda: now[0]) as database:
        journal = filled(database.open("live"), 5)
        for n_days in (2500, 20):
            now[0] += n_days * DAY_S
            database.expire()
            assert seqs(journal) == list(range(1, 6))


def test_a_session_in_which_nobody_speaks_for_long_goes_on(tmp_path):
    now = [DAY_S * 20_000.0]
    with Database(tmp_path, JournalOptions(days=3), clock=lambda: now[0]) as database:
        journal = filled(database.open("live"), 2)
        for _ in range(5):
            now[0] += DAY_S
            database.expire()
        assert (seqs(journal), journal.first) == ([], 3)
    with Database(tmp_path, JournalOptions(days=3), clock=lambda: now[0]) as database:
        again = database.open("live")
        assert (again.epoch, again.seq) == (journal.epoch, 2)


def test_old_sessions_are_removed(tmp_path):
    now = [DAY_S * 20_000.0]
    with Database(tmp_path, JournalOptions(days=2), clock=lambda: now[0]) as database:
        filled(database.open("old"), 1).end("stop")
        database.open("silent").close()
        now[0] += 3 * DAY_S
        database.open("new")
        database.expire()
        assert [run.session for _, run in runs(tmp_path)] == ["new"]
        assert database.recall("old") is None


def test_finals_are_kept_for_ever_if_the_user_wants(tmp_path):
    now = [DAY_S * 20_000.0]
    with Database(tmp_path, JournalOptions(days=0), clock=lambda: now[0]) as database:
        journal = filled(database.open("talk"), 1)
        now[0] += 10_000 * DAY_S
        database.expire()
        assert seqs(journal) == [1]


def test_a_replay_that_outlives_its_finals_tells_what_is_missing(tmp_path):
    with Database(tmp_path) as database:
        hub = Hub("live", history=0, journal=database.open("live"))
        for seg in range(1, 301):
            hub.publish(final(seg))
        replay = hub.subscribe(0)
        assert replay.pop().seq == 1
        changed(tmp_path, "DELETE FROM events WHERE seq BETWEEN 150 AND 250")
        hub.publish(final(301))
        events = [*iter(replay.pop, None)]
    missed = [event for event in events if isinstance(event, Missed)]
    assert missed == [Missed(from_seq=150, to_seq=250, why="retention")]
    heard = [event.seq for event in events if isinstance(event, Final)]
    assert heard == [*range(2, 150), *range(251, 302)]


def test_a_session_that_somebody_else_removes_is_not_missed(tmp_path):
    with Database(tmp_path) as database:
        journal = filled(database.open("talk"), 3)
        others = filled(database.open("other"), 2)
        changed(tmp_path, "DELETE FROM runs WHERE session = 'talk'")
        assert seqs(journal) == []
        assert seqs(filled(journal, 1)) == [4]
        assert database.open("talk").epoch == journal.epoch
        assert seqs(others) == [1, 2]


def test_a_database_that_somebody_removes_is_begun_anew(tmp_path, caplog):
    with Database(tmp_path) as database:
        journal = filled(database.open("talk"), 3)
        for file in tmp_path.glob(f"{NAME}*"):
            file.unlink()
        database.renew_if_removed()
        assert f"{NAME} has been removed" in caplog.text
        assert seqs(filled(journal, 1)) == [4]
        left = crash(tmp_path)
    with Database(left) as database:
        again = database.open("talk")
        assert (again.epoch, again.seq) == (journal.epoch, 4)


def test_where_no_descriptor_is_free_finals_are_still_forced_to_the_disk(tmp_path):
    with Database(tmp_path) as database:
        journal = filled(database.open("talk"), 1)
        with no_free_descriptor():
            database.sync()
            filled(journal, 100, "long " * 10_000)
            database.sync()
        assert (tmp_path / NAME).stat().st_size > 4_000_000  # it was copied, too
        assert len(seqs(filled(journal, 1))) == 102


def test_the_loop_does_not_wait_for_the_disk_at_every_final(tmp_path):
    """A transaction after a copy begins journal.db-wal anew, and waits for that."""
    with Database(tmp_path) as database:
        journal = filled(database.open("talk"), 1)
        before = (tmp_path / f"{NAME}-wal").read_bytes()[:32]
        for _ in range(20):
            filled(journal, 1)
            database.sync()
        assert (tmp_path / f"{NAME}-wal").read_bytes()[:32] == before


def test_a_database_that_is_removed_before_it_is_synced_is_not_made_by_that(tmp_path):
    with Database(tmp_path) as database:
        journal = filled(database.open("talk"), 1)
        removed(tmp_path)
        database.sync()
        assert [*tmp_path.glob(f"{NAME}*")] == []
        database.renew_if_removed()
        assert seqs(filled(journal, 1)) == [2]


def test_a_copy_that_is_put_in_the_place_of_the_database_is_written(tmp_path):
    copy = tmp_path / "copy.db"
    with Database(tmp_path) as database:
        filled(database.open("lost"), 1).end("stop")
        changed(tmp_path, f"VACUUM INTO '{copy}'")
        journal = filled(database.open("talk"), 2)
        removed(tmp_path)
        copy.rename(tmp_path / NAME)
        database.renew_if_removed()
        assert seqs(filled(journal, 1)) == [3]
    assert [run.session for _, run in runs(tmp_path)] == ["lost", "talk"]
    assert [event.seq for event in transcript(tmp_path, "talk")] == [3]


def test_a_folder_that_somebody_removes_is_made_anew(tmp_path):
    folder = tmp_path / "state" / "journal"
    with Database(folder) as database:
        journal = filled(database.open("talk"), 2)
        shutil.rmtree(folder.parent)
        filled(journal, 1)
        database.sync()
        database.renew_if_removed()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert seqs(filled(journal, 1)) == [4]
        with pytest.raises(ConfigError, match="another streamd"):
            Database(folder)
    with Database(folder) as database:
        assert database.open("talk").seq == 4


def test_while_another_program_writes_the_database_finals_wait(tmp_path, caplog, monkeypatch):
    with Database(tmp_path) as database, closing(sqlite3.connect(tmp_path / NAME)) as shell:
        journal = filled(database.open("talk"), 1)
        database.select("PRAGMA busy_timeout = 0")
        shell.isolation_level = None
        shell.execute("BEGIN IMMEDIATE")

        def let_go(record: logging.LogRecord) -> bool:
            if shell.in_transaction:
                shell.execute("COMMIT")
            return True

        monkeypatch.setattr(caplog.handler, "filters", [let_go])
        filled(journal, 1)
        assert caplog.text.count("another program writes it; all streams wait") == 1
        assert seqs(journal) == [1, 2]
        monkeypatch.setattr("streamd.streams.journal.database._PATIENCE_S", 0)
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError, match="database is locked"):
            filled(journal, 1)


def test_where_no_descriptor_is_free_a_database_is_begun_anew(tmp_path):
    with Database(tmp_path) as database:
        journal = filled(database.open("talk"), 1)
        removed(tmp_path)
        with no_free_descriptor():
            database.renew_if_removed()
        assert seqs(filled(journal, 1)) == [2]


def test_a_folder_in_whose_place_is_something_else_is_named(tmp_path):
    folder = tmp_path / "journal"
    with Database(folder) as database:
        database.open("talk")
        shutil.rmtree(folder)
        folder.touch()
        with pytest.raises(JournalError, match=rf"journal/{NAME}: cannot be written"):
            database.renew_if_removed()
        folder.unlink()
        folder.mkdir()
        (folder / NAME).mkdir()
        with pytest.raises(JournalError, match=rf"{NAME}: cannot be written"):
            database.renew_if_removed()


def removed(folder: Path) -> None:
    for file in folder.glob(f"{NAME}*"):
        file.unlink()


@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_a_run_that_is_gone_never_has_the_text_of_another(tmp_path, how):
    """Numbers of rows begin again in a new database."""
    with Database(tmp_path) as database:
        live = filled(database.open("live"), 1)
        over = filled(database.open("secret"), 2)
        over.end("stop")
        if how == "removed":
            removed(tmp_path)
            database.renew_if_removed()
        else:
            changed(tmp_path, "DELETE FROM runs WHERE session = 'secret'")
            copied(tmp_path)
            content = bytearray((tmp_path / NAME).read_bytes())
            content[:16] = bytes(16)
            (tmp_path / NAME).write_bytes(content)
        others = [filled(database.open(f"other {n}"), 2, "not yours") for n in range(3)]
        assert over.number not in {each.number for each in others}
        assert (seqs(over), over.first) == ([], 3)
        assert {event.text for event in filled(live, 1).read(0, 2)} <= {"1", "2"}
        assert [seqs(each) for each in others] == [[1, 2]] * 3


def test_a_slow_reader_holds_no_room(tmp_path, monkeypatch):
    """Only what is not being read can be written over."""
    monkeypatch.setattr("streamd.streams.journal.database._WAL_BYTES", 100_000)
    with Database(tmp_path) as database:
        journal = filled(database.open("talk"), 300)
        heard = journal.read(0, journal.seq)
        assert next(heard).seq == 1
        database.sync()
        before = (tmp_path / f"{NAME}-wal").stat().st_size
        for _ in range(5):
            filled(journal, 20)
            database.sync()
        assert (tmp_path / f"{NAME}-wal").stat().st_size <= before
        assert [each.seq for each in heard] == list(range(2, 301))


def test_a_clock_that_is_put_back_changes_no_order(tmp_path):
    now = [30.0 * DAY_S]
    with Database(tmp_path, clock=lambda: now[0]) as database:
        first = filled(database.open("talk"), 1)
        now[0] = 10.0 * DAY_S
        filled(first, 2).end("stop")
        second = filled(database.open("talk"), 3)
    now[0] = 20.0 * DAY_S
    with Database(tmp_path, clock=lambda: now[0]) as database:
        again = filled(database.open("talk"), 1)
        assert (again.epoch, seqs(again)) == (second.epoch, [1, 2, 3, 4])
    assert [event.seq for event in transcript(tmp_path, "talk")] == [1, 2, 3, 4]


def test_a_transcript_is_of_one_run_and_is_read_while_it_is_written(tmp_path):
    with Database(tmp_path) as database:
        filled(database.open("talk"), 1).end("stop")
        second = filled(database.open("talk"), 3)
        note(second, Gap(t_ms=1, duration_ms=2, why="device"))
        said = transcript(tmp_path, "talk")
        assert next(said).seq == 1
        filled(second, 1)
        rest = [*said]
    assert ([getattr(event, "seq", None) for event in rest]) == [2, 3, None, 4]
    with pytest.raises(JournalError, match="nobody"):
        transcript(tmp_path, "nobody")
    with pytest.raises(JournalError, match="holds no"):
        transcript(tmp_path / "nowhere", "talk")


class DyingDaemon(RuleBasedStateMachine):
    """A session that speaks, a daemon that dies anywhere, and a subscriber that comes back."""

    @initialize(history=st.integers(0, 4))
    def begin(self, history):
        self.parent = Path(tempfile.mkdtemp(prefix="journal-", dir=MEMORY))
        self.path = self.parent / "journal"
        self.history = history
        self.said: list[str] = []
        self.heard: list[Final] = []
        self.after, self.epoch = 0, None
        self.start_daemon()

    def start_daemon(self):
        self.database = Database(self.path)
        journal = self.database.open("live")
        self.hub = Hub("live", self.history, journal=journal)
        assert self.epoch in (None, self.hub.epoch)
        self.epoch = self.hub.epoch
        self.listener = self.hub.subscribe(self.after, epoch=self.epoch)

    @rule(text=st.text(max_size=30))
    def speak(self, text):
        seq = self.hub.publish(final(len(self.said) + 1, text)).seq
        self.said.append(text)
        assert seq == len(self.said)

    @rule()
    def sync(self):
        self.database.sync()

    @rule()
    def copy(self):
        copied(self.path)

    @rule(torn=st.binary(max_size=40))
    def die(self, torn):
        """In the middle of a write: its beginning is on the disk."""
        left = crash(self.path)
        self.database.__exit__()
        self.path = left
        with (left / f"{NAME}-wal").open("ab") as file:
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
        if hasattr(self, "database"):
            self.come_back()
            self.listen(len(self.said) + 1)
            assert len(self.heard) == len(self.said)
            self.database.__exit__()
            shutil.rmtree(self.parent)


TestDyingDaemon = DyingDaemon.TestCase
