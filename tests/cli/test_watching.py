"""``streamd watch`` against a real server on a real socket."""

import asyncio
import os
import signal
import socket
from contextlib import contextmanager, redirect_stdout, suppress

import pytest

from streamd.cli import main
from streamd.cli.viewing import UNHEARD, show
from streamd.config import Config
from streamd.errors import ConfigError, StreamdError
from streamd.events import Final
from streamd.options import BindOptions, ModelOptions, NoticeOptions, OutputOptions
from tests.support.serving import CountingStreams, serving


def final(seg: int, text: str) -> Final:
    return Final(seg=seg, start_ms=1000 * seg, end_ms=1000 * seg + 900, text=text, language="en")


@pytest.fixture
def streams():
    streams = CountingStreams()
    streams.live.publish(final(0, "One."))
    streams.live.publish(final(1, "Two."))
    return streams


@contextmanager
def piped_stdout():
    """Meanwhile, standard output is a pipe; gives its other end."""
    # No fixture: between fixtures and test, pytest puts its own standard output in place.
    reading, writing = map(os.fdopen, os.pipe(), "rw")
    try:
        with redirect_stdout(writing):
            yield reading
    finally:
        for end in (reading, writing):
            with suppress(BrokenPipeError):
                end.close()


async def test_captions_are_shown_and_stored_until_the_session_ends(streams, capsys, tmp_path):
    # Nothing is translated, so nobody needs the words of a vocabulary.
    vocabulary = ModelOptions(vocabulary=str(tmp_path / "gone.txt"))
    output = OutputOptions(output=(str(tmp_path / "talk.txt"),))
    config = Config(output=output, decoding=vocabulary)
    streams.live.close("done")
    async with serving(streams) as server:
        await show(config, f"ws://127.0.0.1:{server.port}?after=0")
    assert capsys.readouterr().out == "One.\nTwo.\n"
    assert (tmp_path / "talk.txt").read_text() == "One.\nTwo.\n"


async def test_it_ends_when_what_it_waits_for_is_heard(streams, capsys):
    config = Config(notices=NoticeOptions(until=("three", "two")))
    async with serving(streams) as server:
        assert await show(config, f"ws://127.0.0.1:{server.port}?after=0") == 0
    assert capsys.readouterr().out == "One.\nTwo.\n"


@pytest.mark.parametrize("why", ["the session has ended", "stopped"])
async def test_it_says_so_if_that_was_never_heard(why, streams, caplog):
    config = Config(notices=NoticeOptions(until=("three", "four")))
    async with serving(streams) as server:
        with piped_stdout() as reading:
            address = f"ws://127.0.0.1:{server.port}?after=0"
            watching = asyncio.create_task(show(config, address))
            assert await asyncio.to_thread(reading.readline) == "One.\n"
            if why == "stopped":
                os.kill(os.getpid(), signal.SIGINT)
            else:
                streams.live.close("done")
            assert await watching == UNHEARD == 6
    assert caplog.messages[-1] == f"{why}: not heard: three, four"


async def test_what_can_never_be_heard_is_refused_before_it_watches():
    with pytest.raises(ConfigError, match="no such sound"):
        await show(Config(notices=NoticeOptions(until=("sound:thunder",))), "127.0.0.1:1")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_to_be_stopped_is_an_ordinary_end(number, streams):
    async with serving(streams) as server:
        with piped_stdout() as reading:
            watching = asyncio.create_task(show(Config(), f"127.0.0.1:{server.port}?after=0"))
            assert await asyncio.to_thread(reading.readline) == "One.\n"
            os.kill(os.getpid(), number)
            await watching


async def test_reader_that_leaves_ends_it(streams):
    async with serving(streams) as server:
        with piped_stdout() as reading:
            reading.close()
            with pytest.raises(BrokenPipeError):
                await show(Config(), f"127.0.0.1:{server.port}?after=0")


async def test_token_is_shown_to_the_server(streams, capsys, tmp_path):
    (tmp_path / "token").write_text("open sesame, please\n")
    (tmp_path / "token").chmod(0o600)
    streams.live.close("done")
    async with serving(streams, token="open sesame, please") as server:
        address = f"127.0.0.1:{server.port}?after=1"
        await show(Config(bind=BindOptions(token_file=str(tmp_path / "token"))), address)
        assert capsys.readouterr().out == "Two.\n"
        with pytest.raises(StreamdError, match="it needs a token"):
            await show(Config(), address)


def test_no_server_and_no_address_are_one_line_each(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert main(["watch", f"ws://127.0.0.1:{port}"]) == 1
    assert main(["watch", "ftp://somewhere"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"streamd: cannot connect to ws://127.0.0.1:{port}")
    assert second.startswith("streamd: not a server's address: 'ftp://somewhere'")


async def test_unusable_token_file_is_named(tmp_path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "empty").chmod(0o600)
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "open").write_text("0123456789abcdef")
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "several.toml").write_text('[a]\ntoken = "0123456789abcdef"\n')
    (tmp_path / "several.toml").chmod(0o600)
    for name, problem in [
        ("none", "No such file"),
        ("empty", "is empty"),
        ("binary", "not text"),
        ("open", "open to every user"),
        ("several.toml", "has several tokens"),
    ]:
        config = Config(bind=BindOptions(token_file=str(tmp_path / name)))
        with pytest.raises(ConfigError, match=rf"^--token-file: .*{name}.*{problem}"):
            await show(config, "ws://127.0.0.1:1")
