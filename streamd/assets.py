"""Finds the files that ship with the code, in an installed wheel and in a checkout."""

from pathlib import Path

from streamd.errors import StreamdError

_IN_CHECKOUT = {
    "tiny.en": "models/tiny.en",
    "golden": "tests/golden",
    "speech": "tests/speech",
    "web": "clients/web",
}
"""Asset -> folder in the repository; in the wheel it is ``streamd/_<asset>`` (pyproject.toml)."""


def asset(name: str) -> Path:
    """Return the folder of a bundled asset; `name` is a key of the table above.

    Raises `StreamdError` if the installation lacks it.
    """
    package = Path(__file__).parent
    for folder in (package / f"_{name}", package.parent / _IN_CHECKOUT[name]):
        if folder.is_dir():
            return folder
    raise StreamdError(f"this installation lacks the bundled {name} files: install streamd again")
