"""Which of several sound tracks of a file is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamd.language import language_of

if TYPE_CHECKING:
    from av import AudioStream


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a file is read.

    The sound `track` of this number, from 1; 0: one in the first of the `languages` that there is,
    and not silent. Its channels are mixed, or `split`.
    """

    track: int = 0
    languages: tuple[str, ...] = ()
    split: bool = False


def in_order(
    tracks: Sequence["AudioStream"], best: "AudioStream", languages: Sequence[str]
) -> list["AudioStream"]:
    """Return the tracks as they are to be tried.

    Those in one of the wanted `languages` come first, in their order; among the same, FFmpeg's
    `best`, and at the end those that are not for everybody, such as a comment.
    """
    from av.stream import Disposition

    wanted = {code: place for place, code in enumerate(languages)}
    special = Disposition.comment | Disposition.visual_impaired | Disposition.hearing_impaired

    def place(track: "AudioStream") -> tuple[int, bool, bool, int]:
        spoken = language_of(track.metadata.get("language", ""))
        is_special = bool(track.disposition & special)
        return wanted.get(spoken, len(wanted)), is_special, track is not best, track.index

    return sorted(tracks, key=place)
