"""YouTube and Zoom get captions as they publish it, and a number is never used for other text."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from streamd.destinations.delivery import DeliveryError
from streamd.destinations.ingestion import YouTube, YouTubePosts, Zoom
from streamd.events import Stats
from streamd.options import CueLayout
from tests.support.receivers import Receiver, receiving
from tests.support.said import spoken

NOW = datetime(2026, 11, 28, 12, 0, 10, tzinfo=UTC)


def stats(audio_ms):
    return Stats(audio_ms=audio_ms, lag_ms=0, lost_ms=0, rtf=0.1, listeners=0)


def youtube(url, posts=None):
    return YouTube(url, CueLayout(), {1: "Ana"}, posts or YouTubePosts(), now=lambda: NOW)


async def sent(destination, *events):
    for event in events:
        for part in destination.parts(event):
            await destination.send(part.content)
    await destination.close()


def queries(receiver):
    return [parse_qs(urlsplit(request.path).query) for request in receiver.requests]


async def test_youtube_gets_the_time_at_which_it_was_said():
    with receiving(Receiver()) as there:
        # 10 s of audio until now: it began at 12:00:00.
        await sent(
            youtube(f"{there.url}/closedcaption?cid=a%2Cb-c&x=%2C"),
            stats(10_000),
            spoken("Hello, world.", start_ms=7_250),
            spoken("More & more.", start_ms=9_000, seq=2),
        )
    first, second = there.requests
    assert first.path == "/closedcaption?cid=a%2Cb-c&x=%2C&seq=1"
    assert second.path.endswith("&seq=2")
    assert first.headers["content-type"] == "text/plain; charset=UTF-8"
    assert first.body == b"2026-11-28T12:00:07.250\nHello, world.\n"
    assert second.body == b"2026-11-28T12:00:09.000\nMore & more.\n"


async def test_youtube_gets_a_long_final_in_one_post_with_breaks_in_its_cues():
    text = "a word and another word of a long sentence " * 6
    with receiving(Receiver()) as there:
        await sent(youtube(f"{there.url}/c?cid=1"), stats(0), spoken(text.strip()))
    (request,) = there.requests
    lines = request.body.decode().splitlines()
    assert all(datetime.fromisoformat(line) for line in lines[::2])
    assert [len(line) for line in lines[::2]] == [23] * (len(lines) // 2)
    assert " ".join(lines[1::2]).replace("<br>", " ") == text.strip()
    assert len(lines) > 4


async def test_a_number_stands_for_one_text():
    with receiving(Receiver(codes=[500, 403])) as there:
        destination = youtube(f"{there.url}/c?cid=1")
        for is_refusal in (False, True):
            with pytest.raises(DeliveryError) as error:
                await destination.send("one")
            assert error.value.is_refusal is is_refusal
        await destination.send("one")
        await destination.send("two")
        await destination.close()
    assert [query["seq"] for query in queries(there)] == [["1"], ["1"], ["1"], ["2"]]


async def test_youtube_counts_on_in_the_next_session():
    posts = YouTubePosts()
    with receiving(Receiver(codes=[500])) as there:
        for _ in range(3):
            destination = youtube(f"{there.url}/c?cid=1", posts)
            with suppress(DeliveryError):
                await destination.send("text")
            await destination.close()
    assert [query["seq"] for query in queries(there)] == [["1"], ["1"], ["2"]]


@pytest.mark.parametrize(
    ("answer", "ahead_s"),
    [
        (b"2026-11-28T12:00:17.500\n", 7.5),
        (b"2026-11-28T12:00:05.000Z", -5),
        (b"2026-11-28T13:00:10.400+01:00", 0.4),
        (b"", 0),
        (b"<html>Thank you</html>", 0),
        (b"\xff\xfe", 0),
    ],
)
async def test_times_are_those_of_youtubes_clock_once_it_has_told_them(answer, ahead_s):
    with receiving(Receiver(answer=answer)) as there:
        said = spoken("One.", start_ms=5000), spoken("Two.", start_ms=8000, seq=2)
        await sent(youtube(f"{there.url}/c?cid=1"), stats(10_000), *said)
    first, second = (
        datetime.fromisoformat(request.body.decode().splitlines()[0] + "Z")
        for request in there.requests
    )
    assert first == NOW - timedelta(seconds=5)
    assert second - first == timedelta(seconds=3 + ahead_s)


async def test_zoom_goes_on_behind_the_number_of_the_meeting():
    with receiving(Receiver(answer=b"41\n")) as there:
        destination = Zoom(f"{there.url}/closedcaption?id=1&ns=G%3D%3D", CueLayout(), {})
        await destination.open()
        await sent(destination, spoken("Olá.", language="pt"), spoken("Hi.", seq=2))
    asked, first, second = there.requests
    assert (asked.method, asked.path) == ("GET", "/closedcaption/seq?id=1&ns=G%3D%3D")
    assert first.path == "/closedcaption?id=1&ns=G%3D%3D&seq=42&lang=pt-PT"
    assert first.body == "Olá.".encode()
    assert second.path.endswith("&seq=43&lang=en-US")


async def test_zoom_keeps_the_language_of_the_address_and_begins_with_0_if_nothing_is_known():
    with receiving(Receiver(codes=[400])) as there:
        await sent(Zoom(f"{there.url}/c?id=1&lang=en-GB", CueLayout(), {}), spoken("Hi."))
    assert there.requests[-1].path == "/c?id=1&lang=en-GB&seq=0"


@pytest.mark.parametrize(
    ("told", "after_s"), [("7", 7), ("86400", 600), ("Sat, 28 Nov 2026 12:00:00 GMT", 0), ("-1", 0)]
)
async def test_a_service_says_when_to_try_again(told, after_s):
    with receiving(Receiver(codes=[429], headers={"Retry-After": told})) as there:
        destination = youtube(f"{there.url}/c?cid=1")
        with pytest.raises(DeliveryError, match="HTTP 429") as error:
            await destination.send("one")
        await destination.close()
    assert (error.value.after_s, error.value.is_refusal) == (after_s, False)


async def test_redirects_are_not_followed():
    with receiving(Receiver(codes=[307])) as there:
        destination = youtube(f"{there.url}/c?cid=1")
        with pytest.raises(DeliveryError, match="HTTP 307"):
            await destination.send("one")
        await destination.close()
    assert len(there.requests) == 1
