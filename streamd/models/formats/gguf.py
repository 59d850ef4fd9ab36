"""The metadata at the beginning of a GGUF file, which says whose model it is; weights are not read.

All numbers are little-endian: the magic number, a version, how many tensors and how many values;
then the values, each with a name and a type. Lists and long texts are skipped. Source: ggml
``docs/gguf.md``.
"""

from dataclasses import dataclass
from pathlib import Path

from streamd.errors import ModelError
from streamd.models.formats.reading import BinaryFile, read_start, shown

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_VALUES = 10_000
"""Limit for the values of one file; models of speech have about 60."""
_MAX_LISTED = 1_000_000
"""Limit for the texts of one list; the largest vocabulary has 152 thousand."""
_N_LANGUAGES = 200
_MAX_TEXT = 1000
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Type -> bytes of a number."""
_BOOL, _TEXT, _LIST = 7, 8, 9

FAMILIES = {
    *("canary", "canary_qwen", "cohere_asr", "funasr_nano", "gigaam", "granite_speech"),
    *("granite_speech_nar", "medasr", "moonshine", "moonshine_streaming", "moss", "parakeet"),
    *("qwen3_asr", "sensevoice", "voxtral", "voxtral_realtime", "whisper"),
}
"""Architectures of models that write text, of transcribe.cpp's ``src/arch``."""

Value = str | bool | tuple[str, ...] | None
"""None stands for all that streamd does not need."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a file says of its model; empty where it says nothing.

    `family` is its architecture, such as ``moonshine_streaming``. `streams` is whether it was made
    for streaming.
    """

    family: str
    name: str
    languages: tuple[str, ...]
    licence: str
    streams: bool


def is_one(path: Path) -> bool:
    """Return whether a file begins as GGUF does. Raises `ModelError` if it cannot be read."""
    return read_start(path, len(MAGIC)) == MAGIC


def read_header(path: Path) -> GgufHeader:
    """Read what a file says of its model. Raises `ModelError` if it is damaged or names none."""
    file = BinaryFile(path)
    if file.text(len(MAGIC)) != MAGIC:
        raise file.damaged("it is no GGUF")
    (version,) = file.numbers("I")
    _, n_values = file.numbers("QQ")
    if version not in _VERSIONS or n_values > _MAX_VALUES:
        raise file.damaged(f"version {version} with {n_values} values")
    known: dict[str, Value] = {}
    for _ in range(n_values):
        name = _text(file)
        known[name or ""] = _value(file, file.numbers("I")[0])
    family, called = known.get("general.architecture"), known.get("general.name")
    languages, licence = known.get("general.languages"), known.get("general.license")
    if not isinstance(family, str) or not family:
        raise file.damaged("it names no architecture")
    return GgufHeader(
        shown(family),
        shown(called) if isinstance(called, str) else "",
        languages if isinstance(languages, tuple) else (),
        shown(licence) if isinstance(licence, str) else "",
        known.get("stt.capability.streaming") is True,
    )


def _value(file: BinaryFile, kind: int) -> Value:
    if kind == _TEXT:
        return _text(file)
    if kind == _LIST:
        return _list(file)
    if kind == _BOOL:
        return file.numbers("B") == (1,)
    file.skip(_size(file, kind))
    return None


def _list(file: BinaryFile) -> Value:
    kind, n_items = file.numbers("IQ")
    if kind != _TEXT:
        file.skip(n_items * _size(file, kind))
        return None
    if n_items > _MAX_LISTED:
        raise file.damaged(f"a list of {n_items} texts")
    texts = [_text(file) for _ in range(n_items)]
    return tuple(each for each in texts if each) if n_items <= _N_LANGUAGES else None


def _text(file: BinaryFile) -> str | None:
    (n_bytes,) = file.numbers("Q")
    if n_bytes > _MAX_TEXT:
        file.skip(n_bytes)
        return None
    try:
        return file.text(n_bytes).decode()
    except UnicodeDecodeError:  # tokens may be any bytes
        return None


def _size(file: BinaryFile, kind: int) -> int:
    if kind not in _SIZES:
        raise file.damaged(f"a value of the type {kind}")
    return _SIZES[kind]


def speech_family(path: Path) -> GgufHeader:
    """Return the header of a model of speech that transcribe.cpp reads.

    Raises `ModelError` if it is damaged, or a model of anything else.
    """
    header = read_header(path)
    if header.family not in FAMILIES:
        raise ModelError(
            f"{path}: GGUF of the architecture {header.family}, which is no model of speech that "
            "transcribe-cpp runs"
        )
    return header
