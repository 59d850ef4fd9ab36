"""Keeps names as they are spelled, where a model would translate or respell them.

Models copy made-up names: of 18 sentences in English and Portuguese, each of those below stood in
all translations, unlike brackets, digits between marks or a single letter with a mark.
"""

import re
from collections.abc import Callable, Iterator, Sequence

STAND_INS = ("Kovarik", "Tavik", "Nolvek", "Zyxwa")
"""As many names can be kept at once as there are of these."""


def keeping(translate: Callable[[str], str], text: str, names: Sequence[str]) -> str:
    """Return the translation of a text, with the `names` that are in it.

    Names without a capital or a digit are words, which are translated. What the model keeps by
    itself stays as it is; of the others, stand-ins are translated, and replaced afterwards. If one
    of them is lost, too, the first translation counts.
    """
    done = translate(text)
    lost = [name for name in _found(text, names) if name not in done][: len(STAND_INS)]
    if not lost:
        return done
    masked = text
    for name, stand_in in zip(lost, STAND_INS, strict=False):
        masked = _place(name).sub(stand_in, masked)
    again = translate(masked)
    for name, stand_in in zip(lost, STAND_INS, strict=False):
        if again.count(stand_in) != masked.count(stand_in):
            return done
        again = again.replace(stand_in, name)
    return again


def _found(text: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the names in a text, longer ones first: they may contain others."""
    for name in sorted(names, key=len, reverse=True):
        is_name = any(char.isupper() or char.isdigit() for char in name)
        if is_name and name in text and _place(name).search(text):
            yield name


def _place(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
