"""Captions for YouTube and Zoom, which take them as text over HTTP at an address with a key.

YouTube: support.google.com/youtube/answer/6077032. Zoom: support.zoom.com, KB0060368. Both count
posts by ``seq``, which must increase by one for new text, and not when a post is sent again.
YouTube wants UTC by its own clock, which its answers tell.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

from streamd.destinations.delivery import DeliveryError, Destination, Parcel
from streamd.destinations.posting import HttpClient, host_of
from streamd.destinations.shown import ShownCues
from streamd.events import Final, SessionEvent, Stats
from streamd.options import CueLayout

_PLAIN = {"Content-Type": "text/plain; charset=UTF-8"}
_ZOOM_LANGUAGES = {"en": "en-US", "ja": "jp-JP", "zh": "zh-CN"}
"""As Zoom writes them; the others are as ``de-DE``."""


@dataclass(slots=True)
class YouTubePosts:
    """What the posts to one address share, of whichever session: their count, and whose clock.

    `ahead` is by how much YouTube's clock is ahead of this machine's.
    """

    seq: int = 1
    ahead: timedelta = timedelta(0)

    def hear(self, answer: bytes, asked: datetime, answered: datetime) -> None:
        """Learn YouTube's time from its answer, which says it; what is none is ignored."""
        with suppress(ValueError):
            told = datetime.fromisoformat(answer.decode().strip())
            self.ahead = told.replace(tzinfo=told.tzinfo or UTC) - (asked + (answered - asked) / 2)


class YouTube(Destination[str]):
    """Sends each final as one post of its cues, each with the time at which it was said.

    The time of the first sample follows from how much audio there is by now, so that captions stand
    where they were said, although they come later.
    """

    is_live = True

    def __init__(
        self,
        url: str,
        layout: CueLayout,
        names: Mapping[int, str],
        posts: YouTubePosts,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = f"YouTube ({host_of(url)})"
        self._url, self._cues, self._now = url, ShownCues(layout, names), now
        self._http, self._posts = HttpClient(), posts
        self._began: datetime | None = None

    def parts(self, event: SessionEvent) -> Sequence[Parcel[str]]:
        if isinstance(event, Stats):
            self._began = self._now() - timedelta(milliseconds=event.audio_ms)
        cues, body = self._cues.of(event), ""
        for cue in cues:
            began = self._began or self._now() - timedelta(milliseconds=cues[-1].end_ms)
            said = began + timedelta(milliseconds=cue.start_ms) + self._posts.ahead
            # A line is a line of the post: the break within a cue is written otherwise.
            body += (
                f"{said:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + f"\n{'<br>'.join(self._cues.lines(cue))}\n"
            )
        return [Parcel(body)] if body else ()

    async def send(self, content: str) -> None:
        asked, query = self._now(), {"seq": str(self._posts.seq)}
        answer = await self._http.request(
            "POST", self._url, query=query, body=content.encode(), headers=_PLAIN
        )
        self._posts.seq += 1
        self._posts.hear(answer, asked, self._now())

    async def close(self) -> None:
        await self._http.close()


class Zoom(Destination[tuple[str, str]]):
    """Sends a post for each cue, when the one before was shown as long as it was said.

    The number of the last post is asked for, since the meeting may have had some already.
    """

    is_live = True

    def __init__(self, url: str, layout: CueLayout, names: Mapping[int, str]) -> None:
        self.name = f"Zoom ({host_of(url)})"
        self._url, self._cues = url, ShownCues(layout, names)
        self._has_language = "lang" in parse_qs(urlsplit(url).query)
        self._http = HttpClient()
        self._seq: int | None = None

    def parts(self, event: SessionEvent) -> Sequence[Parcel[tuple[str, str]]]:
        paced = self._cues.paced(event)
        code = event.language if isinstance(event, Final) else ""
        language = _ZOOM_LANGUAGES.get(code, f"{code}-{code.upper()}")
        return [Parcel((language, "\n".join(lines)), lasts_ms) for lines, lasts_ms in paced]

    async def open(self) -> None:
        """Ask for the number of the last post."""
        parsed = urlsplit(self._url)
        path = parsed.path.rstrip("/")
        seq_url = parsed._replace(path=f"{path}/seq", fragment="").geturl()
        answer = await self._http.request("GET", seq_url)
        found = re.fullmatch(rb"\s*(\d{1,9})\s*", answer)
        self._seq = int(found[1]) + 1 if found else 0

    async def send(self, content: tuple[str, str]) -> None:
        if self._seq is None:
            # Whatever is wrong with the number, the text may be taken.
            self._seq = 0
            with suppress(DeliveryError):
                await self.open()
        language, text = content
        query = {"seq": str(self._seq)} | ({} if self._has_language else {"lang": language})
        await self._http.request("POST", self._url, query=query, body=text.encode(), headers=_PLAIN)
        self._seq += 1

    async def close(self) -> None:
        await self._http.close()
