"""Options and settings of earlier versions that are gone, and what to do instead.

Those that became a setting of their own name need no entry: `config.table.successor` finds them.
"""

from collections.abc import Mapping

_DROP = "drop it; no other value was worth the choice"

REMOVED: Mapping[str, str] = {
    "audio-contexts": "drop it; a build has the contexts that captions need",
    "audio-ctx": "drop it; the encoder computes as much as there is sound",
    "bind.listen_token_file": 'use --token-file with a FILE.toml, where may = "listen"',
    "build-to": "set STREAMD_CACHE to another folder",
    "carry-initial-prompt": "use --hotwords, which count in every window",
    "clip-timestamps-ms": "cut the file first: ffmpeg -ss START -to END -i FILE part.flac",
    "commit": "use --set commit.rule=align-att, or leave it out",
    "colors": "set the variable NO_COLOR, or FORCE_COLOR, to 1",
    "engine": "use --compute: cpu, gpu or ane",
    "fallback": "use --set search.temperatures=0, if nothing is to be decoded again",
    "hallucination-silence-threshold-ms": "drop it; the voice detector leaves silence out",
    "keep": "drop it; windows overlap by --set session.length_ms",
    "keep-context": "drop it; an utterance that follows at once is read with the one before",
    "length": "use --set session.length_ms=N",
    "look-ahead-ms": "use --set decoding.look_ahead=N",
    "mark-low": "use --confidence, which colours words by their probability",
    **dict.fromkeys(("max-words-per-cue", "max-words-per-line"), "use --set cues.max_words=N"),
    "max-utterance-ms": "use --set endpoint.longest_ms=N",
    "pre-roll-ms": "drop it; half a second before speech is always kept",
    "prefix": "use --prompt",
    "quiet": "use -q, or in a file verbose = -1",
    "source": "use streamd serve, which takes audio only from clients",
    "suppress-tokens": "drop it; annotations are never written",
    "temperature": "use --set search.temperatures=N, or several",
    "vad-aggressiveness": "use --vad silero, or a larger --set gate.open_share",
    "without-timestamps": "drop it; where a window has sentences, they are segments",
    **dict.fromkeys(
        (
            *("agreement.min_progress_ms", "align_att.frame_threshold_ms"),
            *("align_att.rewind_ms", "build.missing"),
            *("build.weight_bits", "endpoint.empty_ms", "endpoint.turn_prob"),
            "journal.rotate_bytes",
            *("limits.max_message_bytes", "limits.max_pending", "limits.ping_ms"),
            *("loop.stuck_tokens", "loop.word_repeats"),
            *("limits.send_deadline_ms", "limits.write_buffer_bytes", "loop.compression"),
            *("loop.phrase_words", "search.stop_margin"),
            *("longform.append_punctuations", "longform.prepend_punctuations"),
            *("search.best_of", "search.language_margin", "search.language_prob"),
            *("search.length_penalty", "search.max_initial_timestamp_ms", "search.max_tokens"),
            *("search.patience", "search.suppress_blank"),
            *("search.tokens_per_second", "session.language_after_ms"),
        ),
        _DROP,
    ),
}
"""By the option's long name, or by the setting's."""

REMOVED_VALUES: Mapping[tuple[str, str], str] = {
    ("commit.rule", "sliding"): "use local-agreement, the default",
    ("journal.fsync", "never"): "use interval, for which no final waits",
}
"""By the setting's name and the value."""
OLD_DEFAULTS: Mapping[str, object] = {
    "source": True,
    "keep-context": False,
    "keep": 200,
    "vad-aggressiveness": 1,
    "pre-roll-ms": 500,
    "max-utterance-ms": 28_000,
    "temperature": 0.0,
    "fallback": True,
    "engine": "auto",
    "suppress-tokens": [-1],
    "audio-ctx": 0,
    "carry-initial-prompt": False,
    "prefix": "",
    "hallucination-silence-threshold-ms": 0,
    "without-timestamps": False,
    "clip-timestamps-ms": [],
    "audio-contexts": [],
    "build-to": "",
    "colors": "auto",
    "mark-low": 0.0,
    "quiet": False,
    "commit": "local-agreement",
    "length": 8_000,
    "look-ahead-ms": "auto",
    "max-words-per-cue": 0,
}
"""What ``--print-config`` wrote of those that nobody had chosen; they mean nothing any more."""
OLD_SECTIONS = ("building",)
"""Sections of the TOML file of which all keys are gone."""
