"""The folder of voices that are known again, and what keeps voices of a session."""

import base64
import contextlib
import json
import logging
import shlex
import stat
from functools import partial

import numpy as np
import pytest

from streamd.cli import main
from streamd.config import load
from streamd.daemon import build
from streamd.daemon.people import PeopleFolder, VoiceKeeper
from streamd.errors import ConfigError, WireError
from streamd.events import SpeakerName
from streamd.speakers.clustering import as_bytes
from streamd.speakers.people import MOST_KEPT, Person, likeness_of
from streamd.streams import SessionStorage, Streams
from streamd.streams.hub import Hub
from streamd.streams.journal.database import Database
from streamd.types import ResumeState
from tests.support.recorded import samples, wav
from tests.support.said import spoken


def voiceprint(seed: int) -> bytes:
    return np.random.default_rng(seed).integers(-127, 128, 256).astype(np.int8).tobytes()


def test_a_person_is_a_small_file_that_only_the_owner_reads(tmp_path):
    folder = PeopleFolder(str(tmp_path / "people"))
    path = folder.keep(Person("Ana Botín / x", voiceprint(1), 400), None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.stat().st_size < 1000
    (person,) = folder.people
    assert (person.name, person.voiceprint, person.n) == ("Ana Botín / x", voiceprint(1), 400)


def test_what_is_kept_again_in_a_session_replaces_what_that_session_has_kept(tmp_path):
    folder = PeopleFolder(str(tmp_path))
    first = VoiceKeeper(folder)
    for n in (100, 300):
        first.keep("Ana", voiceprint(1), n)
    assert [each.n for each in folder.people] == [300]
    second = VoiceKeeper(folder)
    for n in (150, 200):
        second.keep("Ana", voiceprint(1), n)
    ((_, kept),) = folder.files()
    assert (kept.frames, kept.sessions) == (500, 2)
    assert kept.person.n < MOST_KEPT


def test_whoever_is_forgotten_while_a_session_goes_on_stays_forgotten(tmp_path):
    folder = PeopleFolder(str(tmp_path))
    folder.keep(Person("Ana", voiceprint(2), 1000), None)
    keeper = VoiceKeeper(folder)
    keeper.keep("Ana", voiceprint(1), 100)
    folder.delete("ana")
    keeper.keep("Ana", voiceprint(1), 300, again=True)
    assert not folder.people
    keeper.keep("Ana", voiceprint(1), 300)  # who was asked once more, and agreed
    assert folder.people == (Person("Ana", voiceprint(1), 300),)


def test_a_name_in_other_capitals_is_the_same_person(tmp_path):
    folder = PeopleFolder(str(tmp_path))
    keeper = VoiceKeeper(folder)
    for name, n in (("Ana", 100), ("ANA", 300)):
        keeper.keep(name, voiceprint(1), n)
    ((_, kept),) = folder.files()
    assert (kept.name, kept.frames, kept.sessions) == ("ANA", 300, 1)


def test_a_copy_of_a_file_is_forgotten_too(tmp_path):
    folder = PeopleFolder(str(tmp_path))
    path = folder.keep(Person("Ana", voiceprint(1), 100), None)
    (tmp_path / "copy.json").write_bytes(path.read_bytes())
    folder.delete("Ana")
    assert not [*tmp_path.iterdir()]


def test_how_to_forget_somebody_is_said_as_a_shell_reads_it(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        VoiceKeeper(PeopleFolder(str(tmp_path))).keep('O\'"Neil"', voiceprint(1), 100)
    command = caplog.messages[-1].partition("forget it with: ")[2]
    assert shlex.split(command) == ["streamd", "people", "delete", 'O\'"Neil"']


def test_too_little_of_a_voice_is_not_kept(tmp_path):
    with pytest.raises(
        ConfigError, match=r"the voice of Ana is known from 1\.0 s of speech: it takes 2"
    ):
        VoiceKeeper(PeopleFolder(str(tmp_path))).keep("Ana", voiceprint(1), 50)
    assert not [*tmp_path.iterdir()]


def person_file(**changed) -> bytes:
    """Return the file of a person as another program may write it."""
    fields = {"name": "Bob", "model": "community-1", "written": "2026-01-01T00:00:00Z"}
    known = {"voiceprint": base64.b64encode(voiceprint(3)).decode(), "frames": 100}
    return json.dumps({**fields, **known, **changed}).encode()


FOREIGN = [{"name": ""}, {"name": "B" * 101}, {"frames": 0}, {"frames": -1}]


@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b"[]", b'{"name":1}', b"\xff", *(person_file(**each) for each in FOREIGN)],
)
def test_a_damaged_file_costs_one_person(damaged, tmp_path, caplog):
    folder = PeopleFolder(str(tmp_path))
    folder.keep(Person("Ana", voiceprint(1), 100), None)
    (tmp_path / "bob.json").write_bytes(damaged)
    path = folder.keep(Person("Zoë", voiceprint(2), 100), None)
    path.write_bytes(path.read_bytes().replace(b"community-1", b"community-2"))
    with caplog.at_level(logging.WARNING):
        assert [person.name for person in folder.people] == ["Ana"]
    assert "bob.json cannot be read" in caplog.text
    assert "of another model" in caplog.text


def test_people_are_listed_renamed_and_forgotten(tmp_path, capsys):
    folder = PeopleFolder(str(tmp_path))
    for seed, name in enumerate(("Bob", "Ana")):
        folder.keep(Person(name, voiceprint(seed), 200), None)
    given = ["--people", str(tmp_path)]
    assert main(["people", "--people", str(tmp_path / "none")]) == 0
    assert "nobody's voice is kept" in capsys.readouterr().err
    assert main(["people", *given]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == ["Ana", "Bob"]
    assert main(["people", "rename", "ana", "Ana Botín", *given]) == 0
    assert main(["people", "rename", "Bob", "ana botín", *given]) == 2
    assert main(["people", "rename", "Bob", "\x1b[2J", *given]) == 2
    assert main(["people", "rename", "Bob", *given]) == 2
    assert main(["people", "delete", "BOB", *given]) == 0
    assert main(["people", "delete", "Bob", *given]) == 2
    assert "nobody is called Bob here" in capsys.readouterr().err
    assert main(["people", "list", "--json", *given]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["name"] == "Ana Botín"
    assert len([*tmp_path.iterdir()]) == 1


def test_a_recording_of_one_person_is_enrolled_and_one_of_several_is_not(tmp_path, capsys):
    given, folder = ["--people", str(tmp_path / "people")], PeopleFolder(str(tmp_path / "people"))
    both = np.concatenate([samples("two_cities"), samples("jfk")])
    several, alone = (
        str(wav(tmp_path / name, sound))
        for name, sound in (("both.wav", both), ("one.wav", samples("two_cities")))
    )
    assert main(["people", "enroll", "Ana", several, *given]) != 0
    assert "both.wav: several people speak in it: cut out what Ana says" in capsys.readouterr().err
    assert not folder.people
    assert main(["people", "enroll", "Ana", alone, *given]) == 0
    (ana,) = folder.people
    assert ana.name == "Ana"
    assert 0.3 < likeness_of(ana.voiceprint, ana.in_room) < 0.95
    path, known = folder.find("Ana")
    again = folder.keep(Person("Ana", ana.voiceprint, 100), known)
    assert again == path
    assert folder.people[0].in_room == ana.in_room


@pytest.mark.parametrize(("cosine", "is_refused"), [(0.6, False), (0.4, True)])
def test_a_voice_that_changes_its_tone_is_enrolled(cosine, is_refused, tmp_path, monkeypatch):
    # Of two minutes of one acted voice, 418 of 5,581 frames were taken for another's (0.57).
    own, other = np.zeros((2, 256), np.float32)
    own[0], other[:2] = 1, (cosine, (1 - cosine**2) ** 0.5)
    heard = [(5000, as_bytes(own)), (400, as_bytes(other))]
    monkeypatch.setattr("streamd.cli.people._heard", lambda config, sound: heard)
    given = ["--people", str(tmp_path / "people")]
    sound = str(wav(tmp_path / "faye.wav", np.zeros(32_000, np.float32)))
    assert (main(["people", "enroll", "Faye", sound, *given]) != 0) == is_refused


def test_whoever_says_a_word_before_a_person_is_not_kept_as_that_person(tmp_path, monkeypatch):
    announced = [(60, voiceprint(8)), (40, voiceprint(7))]  # in the minute of which a room is made
    heard = iter([[(5000, voiceprint(7)), (60, voiceprint(8))], announced])
    monkeypatch.setattr("streamd.cli.people._heard", lambda config, sound: next(heard))
    sound = str(wav(tmp_path / "ana.wav", np.zeros(32_000, np.float32)))
    assert main(["people", "enroll", "Ana", sound, "--people", str(tmp_path / "people")]) == 0
    assert PeopleFolder(str(tmp_path / "people")).people[0].in_room == b""


class Voices:
    """A session whose speakers have voices, by number, of which more and more is heard."""

    def __init__(self, *voices: bytes) -> None:
        self.voices, self.n = dict(enumerate(voices, 1)), dict.fromkeys(range(1, 3), 0)

    def voice(self, speaker: int) -> tuple[bytes, int] | None:
        n = self.n.get(speaker)
        return (self.voices[speaker], n) if n else None


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Give a session that keeps voices, what is heard in it, and the folder."""
    folder, said = PeopleFolder(str(tmp_path)), Voices(voiceprint(7), voiceprint(8))
    streams = Streams(build.session_factory(load({}, {})), max_backlog=1, max_ingest=1)
    streams.context.new_keeper = partial(VoiceKeeper, folder)
    stream = streams.open("talk")
    monkeypatch.setattr(stream.session, "voice", said.voice)
    return stream, said, folder


def test_a_voice_is_kept_when_it_is_named_and_again_at_the_end(named):
    stream, said, folder = named
    for n, problem in ((0, "too little of Ana"), (60, "too little of Ana"), (150, "")):
        said.n[1] = n
        name = SpeakerName(speaker=1, name="Ana")
        if problem:
            with pytest.raises(WireError, match=problem):
                stream.rename(name, keep=True)
            assert stream.hub.named(1) == "Ana"
        else:
            stream.rename(name, keep=True)
        assert [each.n for each in folder.people] == ([] if problem else [150])
    said.n[1] = 400
    stream.end("stop", resumable=False)
    assert [(each.name, each.n) for each in folder.people] == [("Ana", 400)]


def test_a_voice_of_which_too_little_was_said_is_not_kept_at_the_end(named, caplog):
    stream, said, folder = named
    said.n[1] = 60
    with pytest.raises(WireError, match="the voice is kept at the end"):
        stream.rename(SpeakerName(speaker=1, name="Ana"), keep=True)
    stream.end("stop", resumable=False)
    assert "too little of Ana was heard so far: it is not kept" in caplog.text
    assert not folder.people


@pytest.mark.parametrize("name", ["Bob", ""])
@pytest.mark.parametrize("keep", [True, False])
def test_a_voice_that_is_somebody_elses_is_not_kept_under_the_first_name(name, keep, named):
    stream, said, folder = named
    known = Person("Ana", voiceprint(1), 500)
    folder.keep(known, None)
    said.n[1] = 200
    stream.rename(SpeakerName(speaker=1, name="Ana"), keep=True)
    assert [each.n for each in folder.people] == [700]
    stream.rename(SpeakerName(speaker=1, name=name), keep=keep)
    bob = [Person("Bob", voiceprint(7), 200)] if name and keep else []
    assert [*folder.people] == [known, *bob]
    stream.end("stop", resumable=False)
    assert [*folder.people] == [known, *bob]


def test_a_voice_stays_kept_when_somebody_who_may_not_keep_any_gives_another_name(named):
    stream, said, folder = named
    said.n[1] = 200
    stream.rename(SpeakerName(speaker=1, name="Ana"), keep=True)
    stream.rename(SpeakerName(speaker=1, name="Bob"), keep=None)
    assert stream.hub.named(1) == "Bob"
    said.n[1] = 400
    stream.end("stop", resumable=False)
    assert [(each.name, each.n) for each in folder.people] == [("Ana", 400)]


@pytest.mark.parametrize("n", [60, 200])
def test_what_was_not_kept_or_is_forgotten_is_not_taken_back(n, named):
    stream, said, folder = named
    known = Person("Ana", voiceprint(1), 500)
    folder.keep(known, None)
    said.n[1] = n
    with contextlib.suppress(WireError):  # too little was heard
        stream.rename(SpeakerName(speaker=1, name="Ana"), keep=True)
    if n == 200:
        folder.delete("Ana")
    stream.rename(SpeakerName(speaker=1, name="Bob"))
    assert folder.people == ((known,) if n == 60 else ())


@pytest.mark.parametrize("second", ["Ana", "ANA"])
@pytest.mark.parametrize(("n", "at_last"), [(150, [150]), (60, [])])
def test_of_two_speakers_with_one_name_the_voice_of_whom_more_was_heard_is_kept(
    second, n, at_last, named
):
    stream, said, folder = named
    said.n = {1: 400, 2: n}
    for number, name in ((1, "Ana"), (2, second)):
        stream.rename(SpeakerName(speaker=number, name=name), keep=True)
    assert folder.people == (Person(second, voiceprint(7), 400),)
    stream.rename(SpeakerName(speaker=1, name="Bob"))
    assert not folder.people  # it was Bob's
    stream.end("stop", resumable=False)
    assert [*folder.people] == [Person(second, voiceprint(8), n) for n in at_last]


def test_a_name_that_somebody_gives_is_not_replaced_by_that_of_a_voice(tmp_path):
    streams = Streams(build.session_factory(load({}, {})), max_backlog=1, max_ingest=1)
    stream = streams.open("talk")
    with pytest.raises(WireError, match="start it with --people"):
        stream.rename(SpeakerName(speaker=1, name="Ana"), keep=True)
    stream._publish([SpeakerName(speaker=number, name="Bob") for number in (1, 2)])
    assert [stream.hub.named(number) for number in (1, 2)] == ["Ana", "Bob"]


def test_a_name_that_somebody_gave_stays_when_another_process_goes_on(tmp_path):
    left = ResumeState(start_ms=2_000)
    with Database(tmp_path) as journals:
        journal = journals.open("talk")
        hub = Hub("talk", journal=journal)
        journal.finalised_ms, journal.resume_state = 2_000, left
        hub.publish(spoken("Hi."))
        hub.publish(SpeakerName(speaker=1, name="Ana"))
        journal.close()
    with Database(tmp_path) as journals:
        storage = SessionStorage(journals=journals)
        session = build.session_factory(load({}, {}))
        streams = Streams(session, max_backlog=1, max_ingest=1, storage=storage)
        hub = streams.hub("talk")
        assert hub is not None
        stream = streams._streams["talk"]
        stream.begin(is_resumed=True)
        stream._publish([SpeakerName(speaker=1, name="Bob")])  # whose voice is known
        assert hub.named(1) == "Ana"


def test_a_bug_in_notices_ends_no_captions(caplog):
    class Broken:
        def take(self, event):
            raise KeyError("bug")

    streams = Streams(build.session_factory(load({}, {})), max_backlog=1, max_ingest=1)
    streams.context.new_notices = Broken
    stream = streams.open("talk")
    stream._publish([spoken("One."), spoken("Two.")])
    assert (stream.hub.seq, stream.is_over) == (2, False)
    assert caplog.text.count("nobody is told of anything any more") == 1
