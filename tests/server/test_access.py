"""Whose sessions a token reads and feeds, and what the log and the metrics say of everybody."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import pytest
from websockets.exceptions import InvalidStatus

from streamd.config import load, read_tokens
from streamd.daemon.serving import reload, server
from streamd.daemon.sharing import invite
from streamd.errors import ConfigError
from streamd.options import BindOptions
from streamd.server import Invitation, Rights, Server, grants
from streamd.server.access import Access
from streamd.streams import Streams
from tests.support.serving import INFO, CountingStreams, client, joined, serving

TOKENS = """
[ops]
token = "ops-0123456789abcdef"
may = "keep"
sessions = ["*"]

[alice]
token = "alice-0123456789abcdef"

[hall]
token = "hall-0123456789abcdef"
may = "listen"
sessions = ["keynote", "live"]
"""
OPS, ALICE, HALL = (f"{name}-0123456789abcdef" for name in ("ops", "alice", "hall"))


@pytest.fixture
def token_file(tmp_path):
    (tmp_path / "tokens.toml").write_text(TOKENS)
    (tmp_path / "tokens.toml").chmod(0o600)
    return str(tmp_path / "tokens.toml")


@asynccontextmanager
async def of_three_people(token_file) -> AsyncIterator[Server]:
    bind = BindOptions(port=0, tokens=read_tokens(token_file))
    # Who may send recordings is decided before they are read.
    async with serving(CountingStreams(), bind=bind, recordings=Mock()) as running:
        yield running


async def ask(
    port: int, path: str, token: str, *, method: str = "GET", **headers: str
) -> tuple[int, str]:
    every = {"Authorization": f"Bearer {token}", **headers}

    def fetch() -> tuple[int, str]:
        try:
            request = Request(f"http://127.0.0.1:{port}{path}", headers=every, method=method)
            with urlopen(request) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


def with_token(token: str, **headers: str) -> Mapping[str, object]:
    return {"additional_headers": {"Authorization": f"Bearer {token}", **headers}}


async def is_refused(port: int, query: str, token: str) -> bool:
    try:
        async with client(port, query, **with_token(token)):
            return False
    except InvalidStatus as error:
        return error.response.status_code == 403


async def test_sessions_of_others_are_neither_listed_nor_read_nor_fed(token_file):
    async with of_three_people(token_file) as running:
        port = running.port
        async with (
            joined(port, "role=both&session=alice-notes", **with_token(ALICE)) as alice,
            joined(port, "role=both&session=keynote", **with_token(OPS)),
        ):
            listed = {}
            for token in (OPS, ALICE, HALL):
                answer = json.loads((await ask(port, "/v1/sessions", token))[1])
                names = [each["name"] for each in answer["sessions"]]
                listed[token] = [names, answer["may"], answer.get("within")]
            assert listed == {
                OPS: [["live", "alice-notes", "keynote"], "keep", None],
                ALICE: [["alice-notes"], "speak", "alice-*"],
                HALL: [["live", "keynote"], "listen", "keynote"],
            }
            for token, session in ((ALICE, "keynote"), (ALICE, "live"), (HALL, "alice-notes")):
                assert await is_refused(port, f"session={session}", token)
                path = f"/v1/sessions/{session}/transcript?format=txt"
                assert (await ask(port, path, token))[0] == 403
            assert await is_refused(port, "role=ingest&session=bob", ALICE)
            assert await is_refused(port, "role=ingest&session=keynote", HALL)
            assert not await is_refused(port, "session=alice-notes", ALICE)
            assert not await is_refused(port, "session=keynote", HALL)
        async with client(port, "role=ingest", **with_token(ALICE)) as alice:
            assert re.fullmatch(r"alice-Client-[\d-]+-[0-9a-f]{8}", (await alice.get())["session"])


@pytest.mark.parametrize(
    ("path", "query"), [("/v1/listen", "encoding=linear16&sample_rate=16000"), ("/", "")]
)
async def test_clients_of_other_services_keep_to_their_sessions(token_file, path, query):
    bind = BindOptions(port=0, tokens=read_tokens(token_file))
    async with serving(streams := CountingStreams(), bind=bind) as running:
        port, options = running.port, {"path": path, **with_token(ALICE)}
        with pytest.raises(InvalidStatus):
            async with client(port, f"{query}&session=bob", **options):
                pass
        async with client(port, query, **options) as alice:
            await alice.say(bytes(640))
            await streams.opened.wait()
            names = json.loads((await ask(port, "/v1/sessions", ALICE))[1])["sessions"]
            assert [each["name"].partition("-")[0] for each in names] == ["alice"]


async def test_a_link_is_for_one_session_and_has_no_more_rights_than_who_makes_it(token_file):
    async with of_three_people(token_file) as running:
        port, at = running.port, "https://captions.example/"

        async def link(token: str, **query: str) -> tuple[int, str]:
            status, body = await ask(port, f"/v1/share?{urlencode({'at': at, **query})}", token)
            return status, urlsplit(json.loads(body)["link"]).fragment[6:] if status == 200 else ""

        assert (await link(ALICE, session="keynote"))[0] == 403
        assert (await link(HALL, session="keynote", may="speak"))[0] == 403
        assert (await link(ALICE))[0] == 403
        status, guest = await link(ALICE, session="alice-notes")
        assert (status, guest.startswith("listen.alice-notes.")) == (200, True)
        async with client(port, "role=both&session=alice-notes", **with_token(ALICE)):
            assert not await is_refused(port, "session=alice-notes", guest)
            assert await is_refused(port, "role=both&session=alice-notes", guest)
            assert await is_refused(port, "session=alice-other", guest)
            assert await link(guest, session="alice-notes") == (200, guest)
            assert (await link(guest, session="alice-notes", may="speak"))[0] == 403
        _, speaker = await link(OPS, session="bob", may="speak")
        for path in ("/metrics", "/v1/library/sessions", "/v1/sessions/live/transcript"):
            assert (await ask(port, path, speaker))[0] == 403
        for path in ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/listen"):
            assert (await ask(port, path, speaker, method="POST"))[0] == 403
        assert not await is_refused(port, "role=both&session=bob", speaker)
        assert await is_refused(port, "role=both&session=bob2", speaker)
        forged = (
            speaker.replace("bob", "bob2"),
            guest.replace("listen", "speak"),
            f"{guest[:-1]}0",
        )
        for wrong in forged:
            if wrong != guest:
                assert (await ask(port, "/v1/sessions", wrong))[0] == 401


def test_a_long_beginning_leaves_a_generated_name_what_makes_it_unique():
    long = Access(sessions=("a" * 31 + "*",))
    name = long.session_for("OpenAIRealtime-20261128-150000-0a1b2c3d")
    assert len(name) == 64
    assert name.endswith("-150000-0a1b2c3d")
    assert long.covers(name)
    assert Access().session_for("talk-1") == "talk-1"


async def test_a_page_that_everybody_may_speak_on_shows_each_only_their_own():
    bind = BindOptions(port=0, token="the token of the owner", share="speak")
    guest = next(each for each in grants(bind) if each.is_guest)
    async with serving(CountingStreams(), bind=bind) as running:
        query = "role=both&session=Chrome-20261128-100000-0a1b2c3d"
        async with joined(running.port, query, **with_token(guest.secret)):
            answer = json.loads((await ask(running.port, "/v1/sessions", guest.secret))[1])
            assert answer == {"sessions": [{"name": "live"}], "may": "speak"}


async def test_beside_a_link_for_everybody_each_shares_their_own_sessions(token_file):
    tokens = read_tokens(token_file)
    bind = BindOptions(port=0, token="the token of the owner", share="speak", tokens=tokens)
    async with serving(CountingStreams(), bind=bind) as running:
        for_all = "https://captions.example/#token=guest"
        running.invitation = Invitation(for_all, speak=True)
        path = "/v1/share?session=alice-notes"
        link = json.loads((await ask(running.port, path, ALICE))[1])["link"]
        assert "#token=listen.alice-notes." in link
        assert (await ask(running.port, "/v1/share?session=live", ALICE))[0] == 403
        assert (await ask(running.port, "/v1/share", ALICE))[0] == 403
        assert json.loads((await ask(running.port, "/v1/share", OPS))[1])["link"] == for_all


async def test_the_link_that_is_printed_for_a_microphone_is_for_its_captions_only():
    bind = BindOptions(port=0, token="the token of the owner", listen_token="ears")
    async with Server(bind, sessions=CountingStreams(), info=INFO) as running:
        owner = grants(bind)[0]
        running.invitation = Invitation(
            f"{running.page}#token={owner.signed('live', Rights.LISTEN)}"
        )
        token = running.invitation.link.partition("token=")[2]
        assert not await is_refused(running.port, "", token)
        assert await is_refused(running.port, "session=talk", token)


async def test_a_line_in_the_log_says_who_begins_ends_and_is_refused_and_why(
    token_file, caplog, streams
):
    caplog.set_level(logging.INFO, "streamd")
    bind = BindOptions(port=0, tokens=read_tokens(token_file))
    streams.max_streams = 1
    async with serving(streams, bind=bind) as running:
        port, proxied = running.port, {"X-Forwarded-For": "10.0.0.1, 192.0.2.7"}
        async with joined(
            port, "role=ingest&session=alice-1", **with_token(ALICE, **proxied)
        ) as one:
            await one.say(bytes(32_000))
            async with client(port, "role=ingest&session=two", **with_token(OPS)) as two:
                assert (await two.get())["code"] == "too_many_streams"
            await one.stop()
        with pytest.raises(InvalidStatus):
            async with client(port, **with_token("wrong")):
                pass
        for _ in range(3):  # in one line
            assert await is_refused(port, "session=bob", ALICE)
        async with client(port, "role=ingest&session=two", **with_token(OPS)) as two:
            await two.say({"type": "start", "model": "\x1b[31m\nx"})
            assert (await two.rest())[-1]["code"] == "bad_option"
        metrics = ""
        while "bad_option" not in metrics:  # the client may hear of it before it is counted
            _, metrics = await ask(port, "/metrics", OPS)
    lines = [each.getMessage() for each in caplog.records if "connection" not in each.getMessage()]
    assert lines == [
        "session alice-1 begun by 192.0.2.7 (alice)",
        "refused 127.0.0.1 (ops): too_many_streams, no room for another stream",
        "session alice-1 of 192.0.2.7 (alice) ended (stop): 1.0 s of audio, 1 finals",
        "refused 127.0.0.1 at /v1/stream: 401, "
        "this token is wrong: send Authorization: Bearer TOKEN",
        "refused 127.0.0.1 (alice) at /v1/stream: 403, "
        "this token is not for session 'bob', but for: alice-*",
        "session two begun by 127.0.0.1 (ops)",
        "session two of 127.0.0.1 (ops) ended (error): 0.0 s of audio, 0 finals",
        "refused 127.0.0.1 (ops): bad_option, model: \ufffd[31m\ufffdx is not on this server",
    ]
    for code, n in {"401": 1, "403": 3, "too_many_streams": 1, "bad_option": 1}.items():
        assert f'streamd_refused_total{{code="{code}"}} {n}.0' in metrics
    assert "0123456789abcdef" not in caplog.text


async def test_strangers_cannot_fill_the_log_or_write_into_it(token_file, caplog):
    caplog.set_level(logging.INFO, "streamd")
    async with of_three_people(token_file) as running:
        for n in range(300):
            headers = {"X-Forwarded-For": f"fe80::{n:x}%1 (ops) did nothing wrong"}
            with pytest.raises(InvalidStatus):
                async with client(running.port, path=f"/{'x' * 3000}", additional_headers=headers):
                    pass
    lines = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
    assert len(lines) == 256
    assert lines[1].startswith("refused fe80::1 at /xxx")
    assert max(map(len, lines)) < 300
    assert "ops" not in caplog.text
    assert [n for n, line in enumerate(lines) if "more than these" in line] == [255]


async def test_a_page_learns_why_its_websocket_is_refused():
    async with serving(CountingStreams(), token="secret", max_subscribers=1) as running:
        path, port = "/v1/stream", running.port
        evil = {"Origin": "https://evil.example"}
        status, why = await ask(port, path, "secret", method="POST", **evil)
        assert (status, "origin not allowed" in why) == (403, True)
        assert (await ask(port, path, "wrong", method="POST"))[0] == 401
        assert (await ask(port, path, "secret", method="POST"))[0] == 426
        async with client(port, **with_token("secret")):
            assert await ask(port, path, "secret", method="POST") == (503, "too many clients\n")


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("", "has no token"),
        ('token = "0123456789abcdef"', "put it into a table"),
        ("[a", "tokens.toml"),
        ('[a]\ntoken = "short"', r"\[a\].*16 characters"),
        ('[a]\ntoken = "0123456789abcdef"\nmay = "write"', r"\[a\].*listen, speak or keep"),
        ('[a]\ntoken = "0123456789abcdef"\nsession = "b"', r"\[a\].*session"),
        ('[a]\ntoken = "0123456789abcdef"\nsessions = ["a*b"]', r"\[a\].*the last character"),
        ('[a]\ntoken = "0123456789abcdef"\n[b]\ntoken = "0123456789abcdef"', "the same token"),
    ],
)
def test_a_wrong_file_of_tokens_is_refused_in_one_line(tmp_path, text, culprit):
    (tmp_path / "tokens.toml").write_text(text)
    (tmp_path / "tokens.toml").chmod(0o600)
    with pytest.raises(ConfigError, match=culprit) as caught:
        read_tokens(str(tmp_path / "tokens.toml"))
    assert "\n" not in str(caught.value)


async def test_the_file_is_read_again_on_sighup(token_file):
    config = load({"port": "0", "token-file": token_file, "allow": ["captions.example"]}, {})
    streams = Streams(lambda _: None, max_backlog=1, max_ingest=1)
    async with server(config, streams) as running:
        invite(running, has_live=True)
        before = running.invitation.link.partition("=")[2]
        reload(config, running)
        assert running.invitation.link.endswith(before)
        assert (await ask(running.port, "/v1/sessions", before))[0] == 200
        assert (await ask(running.port, "/v1/sessions", ALICE))[0] == 200
        changed = TOKENS.replace("alice-0", "alice-1").replace("ops-0", "ops-1")
        await asyncio.to_thread(Path(token_file).write_text, changed)
        reload(config, running)
        assert (await ask(running.port, "/v1/sessions", ALICE))[0] == 401
        assert (await ask(running.port, "/v1/sessions", HALL))[0] == 200
        # The link that the page shows follows, and that which was printed is no longer valid.
        after = running.invitation.link.partition("=")[2]
        assert (await ask(running.port, "/v1/sessions", before))[0] == 401
        assert (await ask(running.port, "/v1/sessions", after))[0] == 200
