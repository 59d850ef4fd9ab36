"""Models that requests name: opened if there is memory, closed when nobody uses them."""

import asyncio
import gc
import threading

import pytest
from msgspec.structs import replace

from streamd.config import load
from streamd.daemon.other_models import OtherModels
from streamd.daemon.phrases import with_vocabulary
from streamd.engines import memory
from streamd.errors import ConfigError, EngineError, ModelError, WireError
from streamd.events import Eos, Fault, Final
from streamd.models import store
from streamd.models.catalog import entry
from streamd.options import Choices
from streamd.streams import Streams
from tests.support.fakes import WORD, ScriptedRecognizer, scripted_audio, scripted_session
from tests.support.loop import turns

HERE = ("tiny.en", "base", "small", "medium")


class Opened:
    """Stands for an open model."""

    def __init__(self, name: str) -> None:
        self.name, self.is_closed = name, False
        self.waited: list[float] = []

    def wait(self, load_s: float) -> None:
        self.waited.append(load_s)

    def recognizers(self):
        def choose(before, chosen):
            if chosen.get("language") == "xx":
                raise ConfigError("language xx: no such language")
            return replace(before, **chosen)

        return [ScriptedRecognizer(lambda n: f"-{self.name}")], choose

    def close(self) -> None:
        self.is_closed = True


class Transcribing:
    """Stands for what transcribes a recording."""


@pytest.fixture
def here(monkeypatch):
    """Four models are on this machine, which has memory for `tiny.en`, `base` and `small`."""
    monkeypatch.setattr(
        store, "installed", lambda here: iter([(name, entry(name).outline) for name in HERE])
    )
    takes = [memory.live_bytes(entry(name).outline.dims, "int8") for name in HERE[:3]]
    monkeypatch.setattr(memory, "memory_bytes", lambda: sum(takes) / memory._MOST + 1)


@pytest.fixture
def streams():
    return Streams(lambda choices: scripted_session(), max_backlog=500, max_ingest=8)


@pytest.fixture
async def others(here, streams, tmp_path):
    (words := tmp_path / "words.txt").write_text("Ada")
    given = {"model": "tiny.en", "vocabulary": str(words)}
    opened: list[Opened] = []

    def open_model(config):
        assert config.decoding.expected == "Ada"
        opened.append(Opened(config.decoding.model))
        return opened[-1]

    made = OtherModels(with_vocabulary(load(given, {})), streams, open_model)
    made.seen = opened
    yield made
    made.close()
    assert all(each.is_closed for each in opened)


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("", ""),
        ("whisper-1", ""),
        ("nova-3", ""),
        ("gpt-4o-transcribe", ""),
        ("/etc/passwd", ""),
        ("../base", "base"),
        ("tiny.en", ""),
        ("openai/whisper-tiny.en", ""),
        ("base", "base"),
        ("whisper-base", "base"),
        ("Systran/faster-whisper-small", "small"),
    ],
)
def test_which_model_a_name_means(others, named, meant):
    assert others.meant(named) == meant


def test_a_whisper_that_is_not_here_is_refused(others):
    with pytest.raises(WireError, match=r"model: large-v3 is not on this server") as refused:
        others.meant("Systran/faster-whisper-large-v3")
    assert refused.value.code == "bad_option"
    with pytest.raises(WireError, match=r"model: nova-3 is not on this server"):
        others.meant("nova-3", exactly=True)


SPEECH = [False] * WORD + [True] * (4 * WORD) + [False] * 60


async def said(stream) -> list[str]:
    """What is said in a session that hears four words, and how it ends."""
    stream.feed(scripted_audio(SPEECH))
    await stream.finish("stop")
    with stream.hub.subscribe(after=0) as events:
        told = [event async for event in events if isinstance(event, Final | Fault | Eos)]
    return [
        getattr(each, "text", None) or getattr(each, "message", each.__class__) for each in told
    ]


async def test_each_session_has_the_recognizer_of_its_model(others, streams):
    own = asyncio.create_task(streams.transcribe(ScriptedRecognizer()))
    streams.choices = Choices(language="en")
    sessions = [streams.open(name) for name in ("a", "b", "c")]
    for stream, model in zip(sessions, ("base", "small"), strict=False):
        await stream.choose({"model": model, "task": "translate"})
    # Not English, which is all that the server's own model knows.
    assert [(each.hub.choices.model, each.hub.choices.language) for each in sessions] == [
        ("base", "auto"),
        ("small", "auto"),
        ("", "en"),
    ]
    others.close_unused()
    assert [each.is_closed for each in others.seen] == [False, False]
    with pytest.raises(WireError, match="language xx: no such"):
        await sessions[0].update({"language": "xx"})
    assert await asyncio.gather(*map(said, sessions)) == [
        ["w1-base w2-base w3-base w4-base", Eos],
        ["w1-small w2-small w3-small w4-small", Eos],
        ["w1 w2 w3 w4", Eos],
    ]
    others.close_unused()
    assert [each.is_closed for each in others.seen] == [True, True]
    own.cancel()


class Broken:
    """A recognizer whose engine fails."""

    def recognize(self, window):
        raise EngineError("no more memory")


async def test_a_model_that_fails_ends_its_own_sessions_only(others, streams, monkeypatch):
    own = asyncio.create_task(streams.transcribe(ScriptedRecognizer()))
    failing, fine = streams.open("failing"), streams.open("fine")
    with monkeypatch.context() as patched:
        patched.setattr(Opened, "recognizers", lambda self: ([Broken()], lambda before, _: before))
        await failing.choose({"model": "base"})
    assert await said(failing) == ["base: no more memory", Eos]
    assert await said(fine) == ["w1 w2 w3 w4", Eos]
    again = streams.open("again")
    await again.choose({"model": "base"})
    assert await said(again) == ["w1-base w2-base w3-base w4-base", Eos]
    assert [each.is_closed for each in others.seen] == [True, False]
    own.cancel()


async def test_what_a_journal_names_is_no_path(others, streams):
    streams.loaded.set()
    stream = streams.open("talk")
    stream.hub.choices = Choices(model="/srv/models/evil.gguf")
    with pytest.raises(WireError, match=r"evil.gguf is not on this server"):
        await stream.choose({})
    stream.hub.choices = Choices(model="tiny.en")  # which is the server's own by now
    await stream.choose({})
    assert (others.seen, streams.on("")) == ([], [stream])


async def test_a_model_is_opened_once_and_computes_in_one_thread(others):
    async with others.opened("base") as one, others.opened("base") as two:
        assert one is two
        assert await one.run(lambda a: a + 1, 1) == 2
        with pytest.raises(ZeroDivisionError):
            await one.run(lambda: 1 // 0)
    assert [each.name for each in others.seen] == ["base"]


async def test_one_that_fails_answers_the_recordings_that_it_has(others, streams, monkeypatch):
    streams.loaded.set()
    with monkeypatch.context() as patched:
        patched.setattr(Opened, "recognizers", lambda self: ([Broken()], lambda before, _: before))
        async with others.opened("base") as base:
            failing = streams.open("failing")
            await failing.choose({"model": "base"})
            await said(failing)
    async with others.opened("base") as again:
        with pytest.raises(EngineError, match="no more memory"):
            await base.run(int)
        assert await again.run(int) == 0


async def test_one_that_does_not_suit_the_options_is_closed(others, monkeypatch):
    def unsuitable(_):
        raise ConfigError("--language de: base knows en only")

    monkeypatch.setattr(Opened, "recognizers", unsuitable)
    with pytest.raises(WireError, match="--language de"):
        async with others.opened("base"):
            pass
    assert [each.is_closed for each in others.seen] == [True]


@pytest.fixture
async def slowly(others):
    """Opening goes on only when this is set."""
    go, open_model = threading.Event(), others._open_model

    def open_slowly(*given):
        assert go.wait(60)
        return open_model(*given)

    others._open_model = open_slowly
    yield go
    go.set()


async def test_a_request_that_gives_up_leaves_a_model_that_is_opened_to_the_others(others, slowly):
    gone, stays = (asyncio.create_task(others.for_session("base")) for _ in range(2))
    await turns(5)
    gone.cancel()
    await asyncio.wait({gone})
    slowly.set()
    await stays
    async with others.opened("base"):
        assert [each.name for each in others.seen] == ["base"]
    others.close_unused()
    assert others.seen[0].is_closed


async def test_a_session_waits_for_no_preparation_which_goes_on(others, slowly, monkeypatch):
    monkeypatch.setattr("streamd.daemon.other_models._OPENING_S", 0)
    with pytest.raises(WireError, match="base is being prepared for this machine") as told:
        await others.for_session("base")
    assert told.value.code == "busy"
    slowly.set()
    async with others.opened("base"):
        assert [each.name for each in others.seen] == ["base"]
    assert await others.for_session("base")


async def test_a_model_that_computes_waits_for_no_other_to_be_opened(others, slowly):
    slowly.set()
    await others.for_session("base")
    slowly.clear()
    opening = asyncio.create_task(others.for_session("small"))
    await turns(5)
    await asyncio.wait_for(others.for_session("base"), 10)
    assert not opening.done()
    slowly.set()
    await opening


async def test_a_model_that_nobody_uses_makes_room(others):
    async with others.opened("base"), others.opened("small"):
        pass
    async with others.opened("base"):
        pass
    with pytest.raises(WireError, match="no memory for medium beside tiny") as never:
        async with others.opened("medium"):
            pass
    assert never.value.code == "bad_option"
    assert [each.is_closed for each in others.seen] == [False, False]


async def test_a_model_in_use_is_not_closed_for_another(others, monkeypatch):
    both = [memory.live_bytes(entry(name).outline.dims, "int8") for name in ("tiny.en", "small")]
    monkeypatch.setattr(memory, "memory_bytes", lambda: sum(both) / memory._MOST + 1)
    transcribing = Transcribing()
    async with others.opened("base") as base:
        with pytest.raises(WireError, match="no memory for small while others use base") as busy:
            async with others.opened("small"):
                pass
        assert busy.value.code == "busy"
        base.users.add(transcribing)
    others.close_unused()
    assert not others.seen[0].is_closed
    del transcribing
    gc.collect()
    async with others.opened("small"):
        assert [each.is_closed for each in others.seen] == [True, False]
    others.close_unused()
    assert others.seen[1].is_closed


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigError("--language de: base.en knows en only"), "model: --language de"),
        (ModelError("/srv/base is damaged"), "model: base cannot be used: see the log"),
        (EngineError("no memory"), "model: base cannot be used: see the log"),
        (MemoryError(), "model: no memory for base now"),
    ],
)
async def test_a_model_that_cannot_be_opened_is_told_without_paths(here, streams, error, told):
    def open_model(*_, **__):
        raise error

    others = OtherModels(load({"model": "tiny.en"}, {}), streams, open_model)
    with pytest.raises(WireError, match=told):
        async with others.opened("base"):
            pass
    with pytest.raises(WireError, match=told):  # and again
        async with others.opened("base"):
            pass
