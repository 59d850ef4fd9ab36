"""A library of 10,000 sessions and 1,000 hours is opened, searched, exported and tidied."""

import random
import shutil
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.json import encode

from streamd.cli import main
from streamd.library.shelf import Shelf, sought
from streamd.library.tables import NAME, opened, written
from streamd.streams.journal.tables import Run
from tests.library.test_shelf import give_name
from tests.support.said import final

N_SESSIONS, N_FINALS, FINAL_MS, N_WORDS, N_TEXTS = 10_000, 12, 30_000, 75, 1_200
STARTED = datetime(2026, 1, 1, tzinfo=UTC)
EVERY = timedelta(minutes=20)


def texts():
    """Texts of synthetic words, as frequent as words are, each with one of its own."""
    draw = random.Random(1)
    words = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "ra", "lo", "min")]
    weights = [1 / (i + 1) for i in range(len(words))]
    for n in range(N_TEXTS):
        yield f"{' '.join(draw.choices(words, weights, k=N_WORDS))} own{n}x."


def number_of_text(session, seq):
    return (session * 7 + seq) % N_TEXTS


def run(session):
    return Run(
        session=f"talk-{session}",
        epoch=f"{session:08x}",
        started=STARTED + session * EVERY,
        seq=N_FINALS,
        seg=N_FINALS,
        end_ms=N_FINALS * FINAL_MS,
        ended="end",
    )


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The library, written by SQL in bulk: by finals it would take minutes."""
    folder = tmp_path_factory.mktemp("library") / "large"
    with opened(folder):
        pass
    said = [
        [
            encode(final(text, seq=seq, start_ms=(seq - 1) * FINAL_MS, end_ms=seq * FINAL_MS))
            for text in texts()
        ]
        for seq in range(1, N_FINALS + 1)
    ]
    triggers = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND sql LIKE ?"
    with written(folder / NAME) as database:
        database.execute("PRAGMA synchronous = OFF")
        dropped = database.execute(triggers, ("%AFTER INSERT ON events%",)).fetchall()
        for name, _ in dropped:
            database.execute(f"DROP TRIGGER {name.decode()}")
        database.execute("BEGIN")
        database.executemany(
            "INSERT INTO runs (id, session, epoch, run, written) VALUES (?, ?, ?, ?, ?)",
            (
                (n, each.session, each.epoch, encode(each).decode(), each.started.timestamp())
                for n, each in enumerate(map(run, range(N_SESSIONS)), 1)
            ),
        )
        database.executemany(
            "INSERT INTO events (run, seq, event, written) VALUES (?, ?, ?, ?)",
            (
                (n + 1, seq, said[seq - 1][number_of_text(n, seq)].decode(), began_s + seq * 30)
                for n in range(N_SESSIONS)
                for began_s in [(STARTED + n * EVERY).timestamp()]
                for seq in range(1, N_FINALS + 1)
            ),
        )
        words = "SELECT id, json_extract(event, '$.text') FROM events"
        database.execute(f"INSERT INTO search (rowid, text) {words}")
        database.execute("COMMIT")
        for _, sql in dropped:
            database.execute(sql.decode())
    return folder


def expected(text):
    return [
        (n + 1, seq)
        for n in reversed(range(N_SESSIONS))
        for seq in range(N_FINALS, 0, -1)
        if number_of_text(n, seq) == text
    ]


@pytest.mark.parametrize(
    "query", ["own77x", '"own77x"', "OWN77X lang:en", "own77x after:2026-01-01"]
)
def test_every_sentence_with_a_word_is_found(large, query):
    hits = Shelf(large).search(sought(query), 1000)
    assert [(hit.id, hit.seq) for hit in hits] == expected(77)
    assert all(hit.text[slice(*hit.marks[0])].lower() == "own77x" for hit in hits)


def test_the_newest_of_many_are_found_and_listed(large):
    shelf = Shelf(large)
    assert len(shelf.sessions(50)) == 50
    assert len(shelf.search(sought("own*"), 50)) == 50
    before, after = shelf.search(sought("own77x before:2026-02-01"), 1), expected(77)[-1]
    assert before[0].id < N_SESSIONS // 4
    assert shelf.search(sought("own77x"), 1000)[-1].id == after[0]
    assert [each.id for each in shelf.sessions(2, before=100)] == [99, 98]


def test_one_of_them_is_exported(large, tmp_path):
    file = tmp_path / "talk.srt"
    command = ["library", "export", "--keep", str(large), "-q", "-o", str(file), "talk-7000"]
    assert main(command) == 0
    assert file.read_text().count("own") == N_FINALS


def test_it_is_opened_and_what_is_old_and_deleted_goes(large, tmp_path):
    folder = shutil.copytree(large, tmp_path / "copy")
    shelf, last = Shelf(folder), (STARTED + N_SESSIONS * EVERY).timestamp()
    shelf.delete(7001)
    assert [hit.id for hit in shelf.search(sought("own77x"), 1000) if hit.id == 7001] == []
    with opened(folder, days=30, clock=lambda: last) as library:
        assert library.recall("talk-9999") is not None
        ((n_left,),) = library.select("SELECT count(*) FROM runs")
        ((n_finals,),) = library.select("SELECT count(*) FROM events")
        ((n_words,),) = library.select("SELECT count(*) FROM search")
    assert n_left == 30 * 72
    assert n_finals == n_words == n_left * N_FINALS


def test_a_name_is_looked_for_only_in_the_sessions_that_have_it(large, monkeypatch):
    shelf, n_steps, connect = Shelf(large), 0, sqlite3.connect
    give_name(shelf, 5000, 3, "Zoë")

    def count():
        nonlocal n_steps
        n_steps += 1

    def counting(*args, **more):
        connection = connect(*args, **more)
        connection.set_progress_handler(count, 1000)  # instructions of SQLite's machine
        return connection

    monkeypatch.setattr(sqlite3, "connect", counting)
    word = next(texts()).split()[0]
    assert len(shelf.search(sought(f"{word} before:2026-02-01"), 50)) == 50
    n_steps = 0
    assert shelf.search(sought(f"{word} speaker:zoe")) == []
    assert n_steps < 10
