"""Which of several sound tracks of a file is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamd.options import LANGUAGE_CODES

if TYPE_CHECKING:
    from av import AudioStream

_TAGS = """
af afr, am amh, ar ara, as asm, az aze, ba bak, be bel, bg bul, bn ben, bo bod tib, br bre, bs bos,
ca cat, cs ces cze, cy cym wel, da dan, de deu ger, el ell gre, en eng, es spa, et est, eu eus baq,
fa fas per, fi fin, fo fao, fr fra fre, gl glg, gu guj, ha hau, he heb iw, hi hin, hr hrv, ht hat,
hu hun, hy hye arm, id ind in, is isl ice, it ita, ja jpn, jw jav jv, ka kat geo, kk kaz, km khm,
kn kan, ko kor, la lat, lb ltz, ln lin, lo lao, lt lit, lv lav, mg mlg, mi mri mao, mk mkd mac,
ml mal, mn mon, mr mar, ms msa may, mt mlt, my mya bur, ne nep, nl nld dut, nn nno, no nor nob nb,
oc oci, pa pan, pl pol, ps pus, pt por, ro ron rum, ru rus, sa san, sd snd, si sin, sk slk slo,
sl slv, sn sna, so som, sq sqi alb, sr srp, su sun, sv swe, sw swa, ta tam, te tel, tg tgk, th tha,
tk tuk, tl tgl fil, tr tur, tt tat, uk ukr, ur urd, uz uzb, vi vie, yi yid, yo yor, zh zho chi cmn
"""
_CODES = {tag: code for code, *tags in map(str.split, _TAGS.split(",")) for tag in tags}
"""Whisper's codes by those of ISO 639-2 in containers, and by what else is used for them."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a file is read.

    The sound `track` of this number, from 1; 0: one in the first of the `languages` that there is,
    and not silent. Its channels are mixed, or `split`.
    """

    track: int = 0
    languages: tuple[str, ...] = ()
    split: bool = False


def language_of(tag: str) -> str:
    """Return Whisper's code of the language that a track's tag names, or "" if there is none."""
    first = tag.casefold().replace("_", "-").partition("-")[0].strip()
    code = _CODES.get(first) or LANGUAGE_CODES.get(first, first)
    return code if code in LANGUAGE_CODES.values() else ""


def in_order(
    tracks: Sequence["AudioStream"], best: "AudioStream", languages: Sequence[str]
) -> list["AudioStream"]:
    """Return the tracks as they are to be tried.

    Those in one of the wanted `languages` come first, in their order; among the same, FFmpeg's
    `best`, and at the end those that are not for everybody, such as a comment.
    """
    wanted = {code: place for place, code in enumerate(languages)}

    def place(track: "AudioStream") -> tuple[int, bool, bool, int]:
        spoken = language_of(track.metadata.get("language", ""))
        special = bool(track.disposition & _special())
        return wanted.get(spoken, len(wanted)), special, track is not best, track.index

    return sorted(tracks, key=place)


def _special() -> int:
    from av.stream import Disposition

    return Disposition.comment | Disposition.visual_impaired | Disposition.hearing_impaired
