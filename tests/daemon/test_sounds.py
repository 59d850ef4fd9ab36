"""Sessions that are asked for sounds and notices: events, journal, replay, and nothing unasked."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from streamd.config import Config, load, without_source
from streamd.daemon import build
from streamd.engines import yamnet
from streamd.errors import ConfigError
from streamd.events import Final, Notice, Sound
from streamd.notices import Notices
from streamd.options import Choices
from streamd.streams import SessionStorage, Streams
from streamd.streams.hearing import SoundHearing
from streamd.streams.journal.database import Database
from tests.support.fakes import WORD, ScriptedRecognizer, scripted_audio, scripted_session

SPEECH = [False] * 100 + [True] * (20 * WORD) + [False] * 400


def loud_is_a_dog(samples: np.ndarray) -> np.ndarray:
    scores = np.zeros(521, np.float32)
    scores[70] = np.mean(np.abs(samples) > 0.05)
    return scores


@pytest.fixture
def hearing():
    """Makes what hears loud sound as a dog, in a thread."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda told, since_ms: SoundHearing(loud_is_a_dog, thread, told, since_ms=since_ms)


def new_streams(hearing, storage: SessionStorage | None = None, *, sounds: bool = True) -> Streams:
    streams = Streams(lambda _: scripted_session(), max_backlog=500, max_ingest=4, storage=storage)
    streams.context.new_hearing = hearing
    streams.context.new_notices = lambda: Notices(["w9", "sound:dog"])
    streams.choices = Choices(sounds=sounds)
    return streams


async def said(streams: Streams) -> list:
    """Feed a session, and return what a listener gets who comes after its end."""
    task = asyncio.create_task(streams.transcribe(ScriptedRecognizer()))
    stream = streams.open("s")
    with stream.hub.subscribe(partials=False) as live:
        for block in np.split(scripted_audio(SPEECH), 10):
            await stream.wait_for_space()
            stream.feed(block)
        await stream.finish("stop")
        heard = [event async for event in live]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return heard


async def test_a_session_has_sounds_and_notices_beside_its_finals(hearing):
    streams = new_streams(hearing)
    heard = await said(streams)
    sounds = [event for event in heard if isinstance(event, Sound)]
    assert [each.label for each in sounds] == ["dog", "dog"]
    assert abs(sounds[-1].start_ms - 2000) <= 480
    assert abs(sounds[-1].end_ms - (2000 + 20 * WORD * 20)) <= 480
    notices = [event for event in heard if isinstance(event, Notice)]
    assert sorted(each.wanted for each in notices) == ["sound:dog", "w9"]
    hub = streams.hub("s")
    with hub.subscribe(after=0) as late:
        replayed = [event async for event in late]
    assert [each for each in replayed if isinstance(each, Sound)] == sounds
    assert not [each for each in replayed if isinstance(each, Notice)]


async def test_who_did_not_ask_for_sounds_gets_none(hearing):
    heard = await said(new_streams(hearing, sounds=False))
    assert not [event for event in heard if isinstance(event, Sound)]
    assert [event for event in heard if isinstance(event, Final)]


async def test_sounds_are_in_the_journal_and_in_the_library_of_a_later_process(hearing, tmp_path):
    with Database(tmp_path) as journals:
        heard = await said(new_streams(hearing, SessionStorage(journals)))
    sounds = [event for event in heard if isinstance(event, Sound)]
    with Database(tmp_path) as journals:
        later = new_streams(hearing, SessionStorage(journals))
        with later.hub("s").subscribe(after=0) as late:
            replayed = [event async for event in late]
    assert [each for each in replayed if isinstance(each, Sound)] == sounds


def fails(*_):
    raise RuntimeError("broken")


async def test_a_classifier_that_fails_costs_no_word(hearing):
    with ThreadPoolExecutor(1) as thread:
        broken = new_streams(
            lambda told, since_ms: SoundHearing(fails, thread, told, since_ms=since_ms)
        )
        heard = await said(broken)
    words = " ".join(event.text for event in heard if isinstance(event, Final))
    expected = await said(new_streams(hearing, sounds=False))
    assert words == " ".join(event.text for event in expected if isinstance(event, Final))


def test_sounds_that_cannot_be_heard_are_refused_at_the_start(monkeypatch, tmp_path):
    monkeypatch.setenv("STREAMD_STORE", str(tmp_path))
    monkeypatch.setattr(yamnet, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="--sounds needs a library"):
        build.session_factory(load({"sounds": "true"}, {}))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"notify": ["sound:music"]}, "sounds are heard with --sounds"),
        ({"notify": ["sound:thunder"], "sounds": "true"}, "no such sound"),
        ({"notify": ["?"]}, "expected a word"),
        ({"notify": ["Anna", "@Anna"]}, "--notify @Anna: speakers are told apart with --speakers"),
    ],
)
def test_a_notice_that_can_never_come_is_refused(given, why):
    with pytest.raises(ConfigError, match=why):
        build.notices(load(given, {}))


@pytest.mark.parametrize("given", [{"speakers": "true"}, {"people": "x"}, {"channels": "split"}])
def test_a_speaker_can_be_waited_for_where_speakers_are_known(given):
    assert build.notices(load({"notify": ["@Anna"], **given}, {}))()


@pytest.mark.parametrize(("given", "n_lines"), [({}, 1), ({"speakers": "true"}, 0)])
def test_a_server_says_where_speakers_are_not_heard_since_its_clients_choose(
    given, n_lines, caplog
):
    assert build.notices(without_source(load({"notify": ["@Anna"], **given}, {})))()
    told = [line for line in caplog.messages if line.startswith("--notify @Anna: speakers are")]
    assert len(told) == n_lines


def test_without_anything_to_wait_for_nothing_is_looked_for():
    assert build.notices(Config())() is None
