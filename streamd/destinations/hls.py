"""Captions for players of HTTP Live Streaming: WebVTT segments and their playlist, in a folder.

RFC 8216, 3.5: each segment has all cues that are shown in its time, and maps its times to those of
the video. A web server and a packager of the video do the rest.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path

from streamd.destinations.delivery import DeliveryError, Destination, Parcel
from streamd.destinations.shown import ShownCues
from streamd.events import Eos, Final, SessionEvent, Stats
from streamd.options import CueLayout
from streamd.sinks.cues import Cue
from streamd.sinks.text import timestamp
from streamd.system.disk import put_file

PLAYLIST = "captions.m3u8"
SEGMENT_MS = 6_000
"""Apple's recommendation for segments of video (HLS Authoring Specification, 7.5)."""
_LATE_MS = 6_000
"""How long after its time a segment is written: a sentence is final some seconds after its first
word. What comes later still is shown at the beginning of the next segment. Players of live streams
stay three segments behind, so that they find it."""
_LISTED = 10
"""Segments in the playlist: a minute."""
_KEPT = 2 * _LISTED
"""Segments on disk: a player may still fetch those that have just left the playlist (6.2.2)."""
_OURS = re.compile(rf"captions-\d{{10}}-\d+\.vtt|{re.escape(PLAYLIST)}")


@dataclass(frozen=True, slots=True)
class FolderUpdate:
    """Files to write, in this order, and names of files to remove after that."""

    written: tuple[tuple[str, str], ...]
    removed: tuple[str, ...] = ()


class Hls(Destination[FolderUpdate]):
    """Writes a segment whenever its time and `_LATE_MS` are over, and then the playlist."""

    is_live = False

    def __init__(
        self,
        folder: Path,
        layout: CueLayout,
        names: Mapping[int, str],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = f"HLS ({folder})"
        self._folder, self._cues, self._now = folder, ShownCues(layout, names), now
        self._run = f"{now().timestamp():010.0f}"  # players keep segments by their names
        self._waiting: list[tuple[int, int, str]] = []  # start, end and text of cues
        self._n_closed = self._n_before = 0  # segments; and those that were over when it began
        self._began: datetime | None = None

    def parts(self, event: SessionEvent) -> Sequence[Parcel[FolderUpdate]]:
        cues = self._cues.of(event)
        match event:
            case Stats():
                self._began = self._now() - timedelta(milliseconds=event.audio_ms)
                return self._until(event.audio_ms - _LATE_MS)
            case Final():
                due = self._until(event.start_ms - _LATE_MS)
                for cue in cues:
                    self._add(cue)
                return due
            case Eos():
                end_ms = max((end for _, end, _ in self._waiting), default=0)
                return self._until(end_ms + SEGMENT_MS - 1, is_last=True)
        return ()

    def _add(self, cue: Cue) -> None:
        """Keep a cue; one whose segment is written is shown in the next one."""
        late_ms = max(0, self._n_closed * SEGMENT_MS - cue.start_ms)
        lines = (escape(line, quote=False) for line in self._cues.lines(cue))
        self._waiting.append((cue.start_ms + late_ms, cue.end_ms + late_ms, "\n".join(lines)))

    def _until(self, t_ms: int, *, is_last: bool = False) -> Sequence[Parcel[FolderUpdate]]:
        """Close the segments that end by a time."""
        first, self._n_closed = self._n_closed, max(self._n_closed, t_ms // SEGMENT_MS)
        if self._n_closed == first and not is_last:
            return ()
        listed = range(max(0, self._n_closed - _LISTED), self._n_closed)
        if not first:
            self._n_before = listed.start
        new = [n for n in listed if n >= first]
        written = [(self._file(n), self._segment(n)) for n in new]
        written.append((PLAYLIST, self._playlist(listed, is_last=is_last)))
        gone = range(max(0, first - _KEPT), max(0, self._n_closed - _KEPT))
        end_ms = self._n_closed * SEGMENT_MS
        self._waiting = [each for each in self._waiting if each[1] > end_ms]
        return [Parcel(FolderUpdate(tuple(written), tuple(map(self._file, gone))))]

    def _file(self, n: int) -> str:
        return f"captions-{self._run}-{n}.vtt"

    def _segment(self, n: int) -> str:
        start_ms, end_ms = n * SEGMENT_MS, (n + 1) * SEGMENT_MS
        text = "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:0\n\n"
        for first_ms, last_ms, lines in sorted(self._waiting):
            if first_ms < end_ms and last_ms > start_ms:
                text += f"{timestamp(first_ms, '.')} --> {timestamp(last_ms, '.')}\n{lines}\n\n"
        return text

    def _playlist(self, listed: range, *, is_last: bool) -> str:
        head = ("#EXTM3U", "#EXT-X-VERSION:3", f"#EXT-X-TARGETDURATION:{SEGMENT_MS // 1000}")
        # It may never be less than before (RFC 8216, 6.2.1), in the next session here either.
        first = int(self._run) * 1000 // SEGMENT_MS + listed.start - self._n_before
        lines = [*head, f"#EXT-X-MEDIA-SEQUENCE:{first}"]
        if listed and self._began is not None:
            began = self._began + timedelta(milliseconds=listed.start * SEGMENT_MS)
            lines.append(f"#EXT-X-PROGRAM-DATE-TIME:{began.isoformat(timespec='milliseconds')}")
        for n in listed:
            lines += [f"#EXTINF:{SEGMENT_MS / 1000:.3f},", self._file(n)]
        return "\n".join([*lines, *(["#EXT-X-ENDLIST"] if is_last else [])]) + "\n"

    async def open(self) -> None:
        """Remove the segments of earlier runs, and the playlist that has them."""
        await self._in_thread(self._clear)

    async def send(self, content: FolderUpdate) -> None:
        await self._in_thread(lambda: self._apply(content))

    async def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except OSError as error:
            raise DeliveryError(error.strerror or type(error).__name__) from None

    def _clear(self) -> None:
        for path in self._folder.iterdir():
            if _OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _apply(self, change: FolderUpdate) -> None:
        for name, text in change.written:
            # A web server, which is somebody else, has to read them.
            put_file(self._folder / name, text.encode(), mode=0o644)
        for name in change.removed:
            (self._folder / name).unlink(missing_ok=True)
