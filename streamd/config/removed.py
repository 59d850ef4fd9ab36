"""Options of whisper.cpp and openai-whisper that streamd once had, and what to do instead.

Those that became a setting of their own name need no entry: `config.table.successor` finds them.
"""

from collections.abc import Mapping

REMOVED: Mapping[str, str] = {
    "audio-ctx": "drop it; the encoder computes as much as there is sound",
    "carry-initial-prompt": "use --hotwords, which count in every window",
    "fallback": "use --set search.temperatures=0, if nothing is to be decoded again",
    "hallucination-silence-threshold-ms": "drop it; the voice detector leaves silence out",
    "keep": "drop it; windows overlap by --length",
    "keep-context": "drop it; an utterance that follows at once is read with the one before",
    **dict.fromkeys(("max-words-per-cue", "max-words-per-line"), "use --set cues.max_words=N"),
    "prefix": "use --prompt",
    "quiet": "use -q, or in a file verbose = -1",
    "suppress-tokens": "drop it; annotations are never written",
    "temperature": "use --set search.temperatures=N, or several",
    "without-timestamps": "drop it; where a window has sentences, they are segments",
}
"""By the option's long name."""
