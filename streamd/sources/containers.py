"""Recognizes a file's container by its first bytes, to tell it from raw PCM.

The magic numbers come from the formats' specifications. MPEG audio has none: it is recognized by
two frames at the distance that the first one states.
"""

import codecs
import re

N_HEAD = 4096
"""Bytes that are enough to decide: two frames of MPEG audio."""

SNDFILE = {
    "WAV": rb"(RIFF|RIFX|RF64).{4}WAVE",
    "W64": rb"riff\x2e\x91\xcf\x11",
    "AIFF": rb"FORM.{4}AIF[FC]",
    "FLAC": rb"fLaC",
    "CAF": rb"caff",
    "AU": rb"\.snd",
}
"""Names and patterns of the formats that libsndfile reads as well as FFmpeg, without printing to
standard error. Of Ogg it reads no chains, and it repeats sound where a page is damaged."""
_OTHERS = {
    "Ogg": rb"OggS",
    "MPEG-4": rb".{4}(ftyp|moov|mdat|free|wide|skip|pnot)",
    "Matroska or WebM": rb"\x1a\x45\xdf\xa3",
    "ASF": rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11",
    "AVI": rb"RIFF.{4}AVI ",
    "FLV": rb"FLV\x01",
    "MP3": rb"ID3[\x02-\x04]",
    "AMR": rb"#!AMR",
    "WavPack": rb"wvpk",
    "Monkey's Audio": rb"MAC ",
    "TTA": rb"TTA1",
    "MPEG program stream": rb"\x00\x00\x01\xba",
    "MPEG transport stream": rb"G.{187}G.{187}G",
}
_PATTERNS = [(name, re.compile(p, re.DOTALL)) for name, p in (SNDFILE | _OTHERS).items()]

_KBPS_1_3 = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_KBPS_1_2 = (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384)
_KBPS_2 = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_RATES_HZ = (44_100, 48_000, 32_000)


def container(head: bytes) -> str:
    """Return the name of the container of a file that begins with `head`, or "" if it is unknown.

    `head` has the first `N_HEAD` bytes, or all if there are fewer.
    """
    for name, pattern in _PATTERNS:
        if pattern.match(head):
            return name
    for name, length in (("MP3", _mpeg_length(head)), ("AAC", _adts_length(head))):
        if length and head[length : length + 2] == head[:2]:
            return name
    return ""


def is_text(head: bytes) -> bool:
    """Whether a file that begins with `head` is text in UTF-8, such as a web page.

    Sound in 16 bits has control characters within a few samples: silence consists of them.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return "".join(text.split()).isprintable() and bool(text.strip())


def _mpeg_length(head: bytes) -> int:
    """Return the length of the MPEG audio frame (layer 2 or 3) that begins here, or 0.

    Source: ISO/IEC 11172-3, 2.4.1.3 and 2.4.2.3; 13818-3 for half the rates.
    """
    if len(head) < 4 or head[0] != 0xFF or head[1] < 0xE0:
        return 0
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3  # 3: MPEG-1, 2: MPEG-2, 0: MPEG-2.5
    kbps_at, rate_at, padding = head[2] >> 4, head[2] >> 2 & 3, head[2] >> 1 & 1
    if version == 1 or layer not in (1, 2) or kbps_at in (0, 15) or rate_at == 3:
        return 0
    is_layer_3 = layer == 1
    kbps = (_KBPS_1_3 if is_layer_3 else _KBPS_1_2) if version == 3 else _KBPS_2
    rate_hz = _RATES_HZ[rate_at] >> {3: 0, 2: 1, 0: 2}[version]
    n_samples = 576 if is_layer_3 and version != 3 else 1152
    return n_samples // 8 * 1000 * kbps[kbps_at - 1] // rate_hz + padding


def _adts_length(head: bytes) -> int:
    """Return the length of the AAC frame that begins here, or 0. Source: ISO/IEC 13818-7, 6.2."""
    if len(head) < 7 or head[0] != 0xFF or head[1] & 0xF6 != 0xF0:
        return 0
    return (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
