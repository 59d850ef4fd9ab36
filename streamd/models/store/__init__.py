"""The models on this machine: `finding` finds one by its name, and reads it.

All are read in one form; `imports` brings others into it, and `download` downloads. `cache` is the
one that huggingface_hub and other programs share, `layouts` knows how files are laid out.
"""

from streamd.models.store.finding import (
    BUNDLED,
    best,
    best_family,
    find,
    in_one_form,
    installed,
    is_bundled,
    is_family,
    known_language,
    load_model,
    not_here,
    opened_model,
    told,
)

__all__ = [
    "BUNDLED",
    "best",
    "best_family",
    "find",
    "in_one_form",
    "installed",
    "is_bundled",
    "is_family",
    "known_language",
    "load_model",
    "not_here",
    "opened_model",
    "told",
]
