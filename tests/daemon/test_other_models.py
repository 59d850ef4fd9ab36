"""Models that requests name: opened if there is memory, closed when nobody uses them."""

import gc

import pytest

from streamd.config import load
from streamd.daemon.other_models import OtherModels
from streamd.engines import memory
from streamd.errors import ConfigError, EngineError, ModelError, WireError
from streamd.models import store
from streamd.models.catalog import entry

HERE = ("tiny.en", "base", "small", "medium")


class Opened:
    """Stands for an open model."""

    def __init__(self, name: str) -> None:
        self.name, self.is_closed = name, False
        self.waited: list[float] = []

    def wait(self, load_s: float) -> None:
        self.waited.append(load_s)

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
def others(here):
    opened: list[Opened] = []

    def open_model(config, known, *, recordings):
        assert (known, recordings) == ("Ada", True)
        if config.decoding.model == "base" and config.decoding.language == "xx":
            raise ConfigError("--language xx: no such language")
        opened.append(Opened(config.decoding.model))
        return opened[-1]

    made = OtherModels(load({"model": "tiny.en"}, {}), "Ada", open_model)
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
    assert refused.value.code == "bad_form"


async def test_a_model_is_opened_once_and_computes_in_one_thread(others):
    async with others.opened("base") as one, others.opened("base") as two:
        assert one is two
        assert await one.run(lambda a: a + 1, 1) == 2
        with pytest.raises(ZeroDivisionError):
            await one.run(lambda: 1 // 0)
    assert [each.name for each in others.seen] == ["base"]


async def test_a_model_that_nobody_uses_makes_room(others):
    async with others.opened("base"), others.opened("small"):
        pass
    async with others.opened("base"):
        pass
    with pytest.raises(WireError, match="no memory for medium beside tiny") as never:
        async with others.opened("medium"):
            pass
    assert never.value.code == "bad_form"
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
        base.keep_for(transcribing)
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
    ],
)
async def test_a_model_that_cannot_be_opened_is_told_without_paths(here, error, told):
    def open_model(*_, **__):
        raise error

    others = OtherModels(load({"model": "tiny.en"}, {}), "", open_model)
    with pytest.raises(WireError, match=told):
        async with others.opened("base"):
            pass
    with pytest.raises(WireError, match=told):  # and again
        async with others.opened("base"):
            pass
