"""Options and settings of earlier versions that are gone, and what to do instead.

Those that became a setting of their own name need no entry: `successor` finds them.
"""

from collections.abc import Mapping

from streamd.config.table import OPTIONS, SETTINGS
from streamd.errors import ConfigError

_PAUSES = "drop it; the pause follows from the text, and is shorter with --endpoint-ms"
_WAITS = "drop it; --set agreement.agree=3 waits longer"

REMOVED: Mapping[str, str] = {
    "agreement.doubtful_age_ms": _WAITS,
    "agreement.doubtful_prob": _WAITS,
    "allow-host": "use --allow NAME",
    "allow-origin": "use --allow https://HOST",
    "audio-contexts": "drop it; a build has the contexts that captions need",
    "audio-ctx": "drop it; the encoder computes as much as there is sound",
    "bind.listen_token_file": 'use --token-file with a FILE.toml, where may = "listen"',
    "build-to": "set STREAMD_CACHE to another folder",
    "carry-initial-prompt": "use --hotwords, which count in every window",
    "clip-timestamps-ms": "cut the file first: ffmpeg -ss START -to END -i FILE part.flac",
    "commit": "use --set commit.rule=align-att, or leave it out",
    "colors": "set the variable NO_COLOR, or FORCE_COLOR, to 1",
    "endpoint.going_on_ms": _PAUSES,
    "endpoint.sentence_ms": _PAUSES,
    "endpoint.unfinished_ms": _PAUSES,
    "engine": "use --compute: cpu, gpu or ane",
    "fallback": "use --set search.temperatures=0, if nothing is to be decoded again",
    "gate.attack_ms": "drop it; --set gate.open_share=N says how much of it must be voice",
    "hallucination-silence-threshold-ms": "drop it; the voice detector leaves silence out",
    "input-channels": "use --set pcm.channels=N",
    "keep": "use library to keep sessions, as --keep does; windows overlap by --length",
    "keep-context": "drop it; an utterance that follows at once is read with the one before",
    "mark-low": "use --confidence, which colours words by their probability",
    **dict.fromkeys(("max-words-per-cue", "max-words-per-line"), "use --set cues.max_words=N"),
    "max-utterance-ms": "use --set endpoint.longest_ms=N",
    "pre-roll-ms": "drop it; half a second before speech is always kept",
    "prefix": "use --prompt",
    "quiet": "use -q, or in a file verbose = -1",
    "server": "use --port off, for no server",
    "source": "use streamd serve, which takes audio only from clients",
    "suppress-tokens": "drop it; annotations are never written",
    "temperature": "use --set search.temperatures=N, or several",
    "vad-aggressiveness": "use --vad silero, or a larger --set gate.open_share",
    "without-timestamps": "drop it; where a window has sentences, they are segments",
}
"""By the option's long name, or by the setting's."""


def successor(name: str) -> str:
    """Return the setting that somebody means who takes it for an option, or an empty string."""
    for setting in SETTINGS:
        part, _, attribute = setting.replace("_", "-").partition(".")
        if name in (attribute, f"{part}-{attribute}") and name not in OPTIONS:
            return setting
    return ""


def refuse_old(name: str, culprit: str, setting: str = "{}") -> None:
    """Raise a `ConfigError` that says what to do instead of an earlier version's option or setting.

    `setting` is how the setting that it has become is written there, with a value.
    """
    if instead := REMOVED.get(name):
        raise ConfigError(f"{culprit} is gone: {instead}")
    if now := successor(name):
        value = str(not SETTINGS[now].default).lower() if SETTINGS[now].is_switch else "..."
        raise ConfigError(f"{culprit} is now {setting.format(now, value)}")
