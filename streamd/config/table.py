"""The configuration, and the table of its options.

The command line, the environment variables, the TOML file, the help and docs/options.md follow from
this table. Types, ranges and defaults are those of the fields, in `streamd.options`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_type_hints

from streamd import options
from streamd.config.option import Field, Opt, Option, as_written


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a user can choose, in the dataclasses of the parts that it is for."""

    input: options.InputOptions = field(default_factory=options.InputOptions)
    pcm: options.PcmOptions = field(default_factory=options.PcmOptions)
    session: options.SessionOptions = field(default_factory=options.SessionOptions)
    commit: options.CommitOptions = field(default_factory=options.CommitOptions)
    agreement: options.AgreementOptions = field(default_factory=options.AgreementOptions)
    align_att: options.AlignAttOptions = field(default_factory=options.AlignAttOptions)
    vad: options.VadOptions = field(default_factory=options.VadOptions)
    gate: options.GateOptions = field(default_factory=options.GateOptions)
    endpoint: options.EndpointOptions = field(default_factory=options.EndpointOptions)
    decoding: options.ModelOptions = field(default_factory=options.ModelOptions)
    search: options.DecodingOptions = field(default_factory=options.DecodingOptions)
    loop: options.LoopLimits = field(default_factory=options.LoopLimits)
    longform: options.LongformOptions = field(default_factory=options.LongformOptions)
    build: options.BuildOptions = field(default_factory=options.BuildOptions)
    output: options.OutputOptions = field(default_factory=options.OutputOptions)
    cues: options.CueLayout = field(default_factory=options.CueLayout)
    bind: options.BindOptions = field(default_factory=options.BindOptions)
    limits: options.ServerLimits = field(default_factory=options.ServerLimits)
    journal: options.JournalOptions = field(default_factory=options.JournalOptions)


SECTIONS: Mapping[str, str] = {
    "input": "Where the audio comes from",
    "streaming": "When a live window is transcribed, and when its words become final",
    "vad": "What counts as speech, and when an utterance ends",
    "decoding": "The model and how it is used",
    "longform": "How whole recordings are transcribed",
    "building": "How a model is built for Core ML",
    "output": "Where the text goes",
    "server": "What clients may do over the network",
    "journal": "What is kept on disk",
}
"""The sections of the help and of the TOML file, with their titles."""
_COMMON = """
    device realtime step vad endpoint-ms model compute language task
    hotwords threads without-timestamps word-timestamps condition-on-previous-text
    carry-initial-prompt clip-timestamps-ms hallucination-silence-threshold-ms audio-contexts
    build-to output output-dir output-format confidence timestamps quiet verbose server host port
    sharing token-file journal record
"""
COMMON = frozenset(_COMMON.split())
"""The options that ``--help`` lists; the others are in ``--help-all``."""

_LANGUAGES = """
en English, zh Chinese, de German, es Spanish, ru Russian, ko Korean, fr French, ja Japanese,
pt Portuguese, tr Turkish, pl Polish, ca Catalan, nl Dutch, ar Arabic, sv Swedish, it Italian,
id Indonesian, hi Hindi, fi Finnish, vi Vietnamese, he Hebrew, uk Ukrainian, el Greek, ms Malay,
cs Czech, ro Romanian, da Danish, hu Hungarian, ta Tamil, no Norwegian, th Thai, ur Urdu,
hr Croatian, bg Bulgarian, lt Lithuanian, la Latin, mi Maori, ml Malayalam, cy Welsh, sk Slovak,
te Telugu, fa Persian, lv Latvian, bn Bengali, sr Serbian, az Azerbaijani, sl Slovenian,
kn Kannada, et Estonian, mk Macedonian, br Breton, eu Basque, is Icelandic, hy Armenian,
ne Nepali, mn Mongolian, bs Bosnian, kk Kazakh, sq Albanian, sw Swahili, gl Galician,
mr Marathi, pa Punjabi, si Sinhala, km Khmer, sn Shona, yo Yoruba, so Somali, af Afrikaans,
oc Occitan, ka Georgian, be Belarusian, tg Tajik, sd Sindhi, gu Gujarati, am Amharic,
yi Yiddish, lo Lao, uz Uzbek, fo Faroese, ht Haitian Creole, ps Pashto, tk Turkmen, nn Nynorsk,
mt Maltese, sa Sanskrit, lb Luxembourgish, my Myanmar, bo Tibetan, tl Tagalog, mg Malagasy,
as Assamese, tt Tatar, haw Hawaiian, ln Lingala, ha Hausa, ba Bashkir, jw Javanese,
su Sundanese, yue Cantonese, my Burmese, ca Valencian, nl Flemish, ht Haitian,
lb Letzeburgesch, ps Pushto, pa Panjabi, ro Moldavian, ro Moldovan, si Sinhalese,
es Castilian, zh Mandarin
"""
"""Codes and names, as openai-whisper takes them."""
CODE_OF: Mapping[str, str] = {
    name.casefold(): code
    for code, _, name in (entry.strip().partition(" ") for entry in _LANGUAGES.split(","))
}
"""The code of each name, in lower case."""

_ENDINGS = [f".{name.replace('json-full', 'full.json')}" for name in options.FORMAT_NAMES]
_TABLE: Mapping[str, tuple[Opt, ...]] = {
    "input": (
        Opt("input.files", "audio files or URLs, in this order; -: stdin", positional=True),
        Opt("input.source", "take audio only from the network"),
        Opt(
            "input.device",
            "number or part of a name; monitor: what plays",
            flags="-d -c --capture",
            metavar="ID|NAME",
        ),
        Opt("input.realtime", "read files as fast as possible", off="--fast"),
        Opt("pcm.rate_hz", "sampling rate of raw PCM", name="input-rate"),
        Opt(
            "pcm.encoding",
            "sample format of raw PCM; auto: s16le, unless it is a container",
            name="input-format",
        ),
        Opt("pcm.channels", "channels of raw PCM", name="input-channels"),
    ),
    "streaming": (
        Opt("session.step", "new audio per window; 0: whole utterances", name="step"),
        Opt("session.length", "longest window", name="length"),
        Opt(
            "commit.keep",
            "audio repeated from the previous line, with --commit sliding",
            name="keep",
        ),
        Opt("commit.rule", "rule by which words become final", name="commit"),
        Opt("session.keep_context", "keep earlier utterances in the prompt", flags="-kc"),
    ),
    "vad": (
        Opt("vad.detector", "silero, webrtc, energy or off", name="vad", metavar="DETECTOR"),
        Opt("vad.aggressiveness", "how eagerly webrtc rejects noise", name="vad-aggressiveness"),
        Opt("endpoint.pre_roll", "audio included from before speech starts"),
        Opt("endpoint.plain", "pause that ends an utterance", name="endpoint-ms"),
        Opt("endpoint.longest", "length at which an utterance is cut", name="max-utterance-ms"),
    ),
    "decoding": (
        Opt(
            "decoding.model",
            "name or path; default: the best on this machine",
            flags="-m",
            metavar="NAME|PATH",
        ),
        Opt(
            "decoding.language",
            "spoken language; default: auto",
            flags="-l",
            metavar="CODE",
            allowed="auto or a language: german, de",
            synonyms=CODE_OF,
        ),
        Opt("decoding.task", "translate: into English", short_for={"translate": "-tr --translate"}),
        Opt("search.beam_size", "beam size for finals; 1: greedy", flags="-bs"),
        Opt("decoding.temperature", "temperature of the first attempt", flags="-tp"),
        Opt("decoding.fallback", "do not retry at higher temperatures", off="-nf --no-fallback"),
        Opt(
            "search.no_speech_threshold",
            "drop a window above this no-speech probability",
            flags="-nth --no-speech-thold",
        ),
        Opt("decoding.prompt", "text that the model sees first", flags="--initial-prompt"),
        Opt("decoding.hotwords", "words and names to expect"),
        Opt("search.suppress_tokens", "tokens never written; -1: the model's list or annotations"),
        Opt(
            "search.audio_ctx",
            "cut the encoder's context to so many positions; 0: keep it",
            flags="-ac",
        ),
        Opt("decoding.threads", "threads per window; 0: up to two", flags="-t"),
        Opt("decoding.workers", "windows at a time; 0: one, or two for clients alone"),
        Opt(
            "decoding.engine_deadline_ms",
            "time for a window after which the engine is dead; 0: unlimited",
        ),
        Opt("decoding.precision", "of the weights; auto: int8 where that is faster"),
        Opt("decoding.engine", "runtime of the model"),
        Opt("decoding.compute", "processor of a Mac; ane: Neural Engine; auto: the fastest"),
    ),
    "longform": (
        Opt("longform.without_timestamps", "let the model place no text in time"),
        Opt("longform.word_timestamps", "find no times of words"),
        Opt("longform.condition_on_previous_text", "do not prompt with the text so far"),
        Opt("longform.carry_initial_prompt", "put --prompt before every window"),
        Opt("longform.prefix", "beginning of the first window's text; it is not written"),
        Opt("longform.clip_timestamps_ms", "transcribe only START,END,START,END..."),
        Opt(
            "longform.hallucination_silence_ms",
            "skip longer silence around hallucinations; 0: never",
            name="hallucination-silence-threshold-ms",
        ),
    ),
    "building": (
        Opt(
            "build.audio_contexts",
            "encoder contexts to build besides the full one",
        ),
        Opt(
            "build.folder",
            "new folder for the packages; default: the cache",
            name="build-to",
            metavar="FOLDER",
        ),
    ),
    "output": (
        Opt(
            "output.output",
            "transcript file; may be repeated",
            flags="-o",
            metavar="FILE",
            allowed=f"FILE{', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}",
        ),
        Opt("output.output_dir", "folder for transcripts named after their files", metavar="DIR"),
        Opt(
            "output.output_format",
            "formats of those transcripts; default: all text",
            flags="-f",
            metavar="FORMAT",
            allowed=f"all or some of {', '.join(options.FORMAT_NAMES)}, separated by commas",
        ),
        Opt("output.format", "format on stdout", short_for={"jsonl": "--jsonl"}),
        Opt(
            "cues.line_cells",
            "longest line of a subtitle, in cells",
            name="max-line-length",
            flags="-ml --max-len --max-line-width",
        ),
        Opt("cues.max_lines", "most lines in a subtitle", flags="--max-line-count"),
        Opt(
            "cues.max_words",
            "most words in a subtitle; 0: unlimited",
            name="max-words-per-cue",
            flags="--max-words-per-line",
        ),
        Opt(
            "cues.highlight",
            "underline each word as it is spoken (srt, vtt)",
            name="highlight-words",
        ),
        Opt("output.colors", "colours on the terminal"),
        Opt("cues.confidence", "colour words by probability"),
        Opt("output.mark_low", "bracket words below this probability"),
        Opt("output.timestamps", "time at the start of each line"),
        Opt("output.quiet", "report errors only", flags="-q"),
        Opt("output.verbose", "detail of messages on stderr", short_for={"1": "-v", "2": "-vv"}),
        Opt("output.log_format", "form of messages on stderr"),
    ),
    "server": (
        Opt("bind.enabled", "open no websocket", name="server"),
        Opt("bind.host", "address to listen on", metavar="ADDRESS"),
        Opt("bind.port", "port to listen on; 0: any"),
        Opt("bind.wyoming", "another port, for Home Assistant (10300)", metavar="[HOST:]PORT"),
        Opt(
            "bind.share",
            "give others a link and QR code to listen or speak",
            name="sharing",
            short_for={"listen": "--share"},
        ),
        Opt("bind.token_file", "file with the token of clients", metavar="FILE"),
        Opt("bind.tls_cert", "PEM certificate: wss and https only", metavar="FILE"),
        Opt("bind.tls_key", "its key, if in a file of its own", metavar="FILE"),
        Opt("bind.allow_host", "another name of this machine; may be repeated", metavar="NAME"),
        Opt(
            "bind.allow_origin",
            "site whose pages may connect; may be repeated",
            metavar="https://HOST",
        ),
        Opt("limits.max_streams", "most clients that send audio"),
        Opt("limits.max_subscribers", "most clients that receive captions"),
        Opt("limits.max_session_ms", "audio after which a client's session ends; 0: never"),
    ),
    "journal": (
        Opt(
            "journal.folder",
            "keep finals here; auto: the usual place",
            name="journal",
            metavar="DIR",
        ),
        Opt("journal.bus", "share sessions with other machines", metavar="nats://HOST:PORT"),
        Opt("journal.days", "days to keep finals; 0: forever", name="journal-days"),
        Opt("journal.record", "keep the audio here, as WAV", metavar="DIR"),
    ),
}

_PARTS: Mapping[str, type] = get_type_hints(Config)
_TYPES = {part: get_type_hints(kind, include_extras=True) for part, kind in _PARTS.items()}


def _known(path: str) -> tuple[str, str, object, object, str, bool]:
    part, attribute = path.split(".")
    default = getattr(_PARTS[part](), attribute)
    return part, attribute, default, *as_written(_TYPES[part][attribute])


_OPTIONS = [Option(*_known(o.path), o, group) for group, opts in _TABLE.items() for o in opts]
OPTIONS: Mapping[str, Option] = {option.name: option for option in _OPTIONS}
"""Every option by its name."""

_FIELDS = [Field(*_known(f"{part}.{name}")) for part, types in _TYPES.items() for name in types]
_WITH_OPTION = {option.setting for option in _OPTIONS}
SETTINGS: Mapping[str, Field] = {
    field.setting: field
    for field in _FIELDS
    if field.setting not in _WITH_OPTION and field.unit != options.DERIVED
}
"""The fields without an option, by the name that ``--set`` knows."""


def successor(name: str) -> str:
    """Return the setting that somebody means who takes it for an option, or an empty string."""
    for setting in SETTINGS:
        part, _, attribute = setting.replace("_", "-").partition(".")
        if name in (attribute, f"{part}-{attribute}"):
            return setting
    return ""
