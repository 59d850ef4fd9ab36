"""The configuration and its options: each field that users choose, by the name they know it by.

The command line, the environment variables, the TOML file, the help and docs/options.md follow from
this table. Types, ranges and defaults are those of the fields, in `streamd.options`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, get_type_hints

from streamd.config.option import Field, Opt, Option, make_field
from streamd.options import (
    DERIVED,
    AgreementOptions,
    AlignAttOptions,
    BindOptions,
    BuildOptions,
    CommitOptions,
    CueLayout,
    DecodingOptions,
    EndpointOptions,
    GateOptions,
    InputOptions,
    JournalOptions,
    LongformOptions,
    LoopLimits,
    ModelOptions,
    OutputOptions,
    PcmOptions,
    ServerLimits,
    SessionOptions,
    VadOptions,
)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a user can choose, in the dataclasses of the parts that it is for."""

    input: InputOptions = field(default_factory=InputOptions)
    pcm: PcmOptions = field(default_factory=PcmOptions)
    session: SessionOptions = field(default_factory=SessionOptions)
    commit: CommitOptions = field(default_factory=CommitOptions)
    agreement: AgreementOptions = field(default_factory=AgreementOptions)
    align_att: AlignAttOptions = field(default_factory=AlignAttOptions)
    vad: VadOptions = field(default_factory=VadOptions)
    gate: GateOptions = field(default_factory=GateOptions)
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    decoding: ModelOptions = field(default_factory=ModelOptions)
    search: DecodingOptions = field(default_factory=DecodingOptions)
    loop: LoopLimits = field(default_factory=LoopLimits)
    longform: LongformOptions = field(default_factory=LongformOptions)
    build: BuildOptions = field(default_factory=BuildOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    cues: CueLayout = field(default_factory=CueLayout)
    bind: BindOptions = field(default_factory=BindOptions)
    limits: ServerLimits = field(default_factory=ServerLimits)
    journal: JournalOptions = field(default_factory=JournalOptions)


class Section(NamedTuple):
    """A section of the help and of the TOML file."""

    title: str
    options: tuple[Opt, ...]


SECTIONS: Mapping[str, Section] = {
    "input": Section(
        "Where the audio comes from",
        (
            Opt("input.files", "audio files or URLs, in this order; -: stdin", positional=True),
            Opt("input.source", "take audio only from the network"),
            Opt(
                "input.device",
                "microphone: its number or part of its name",
                metavar="ID|NAME",
                flags=("-d", "-c", "--capture"),
                common=True,
            ),
            Opt("input.realtime", "read files as fast as possible", off=("--fast",), common=True),
            Opt("pcm.rate_hz", "sampling rate of raw PCM", name="input-rate"),
            Opt(
                "pcm.encoding",
                "sample format of raw PCM; auto: s16le, unless it is a container",
                name="input-format",
            ),
            Opt("pcm.channels", "channels of raw PCM", name="input-channels"),
        ),
    ),
    "streaming": Section(
        "When a live window is transcribed, and when its words become final",
        (
            Opt(
                "session.step",
                "new audio per window; 0: whole utterances",
                name="step",
                exact=True,
                common=True,
            ),
            Opt("session.length", "longest window", name="length", exact=True, common=True),
            Opt(
                "commit.keep",
                "audio repeated from the previous line, with --commit sliding",
                name="keep",
                exact=True,
            ),
            Opt("commit.rule", "rule by which words become final", name="commit"),
            Opt("session.keep_context", "keep earlier utterances in the prompt", flags=("-kc",)),
        ),
    ),
    "vad": Section(
        "What counts as speech, and when an utterance ends",
        (
            Opt("vad.detector", "voice detector", name="vad", common=True),
            Opt(
                "vad.aggressiveness", "how eagerly webrtc rejects noise", name="vad-aggressiveness"
            ),
            Opt("endpoint.pre_roll", "audio included from before speech starts"),
            Opt("endpoint.plain", "pause that ends an utterance", name="endpoint-ms", common=True),
            Opt("endpoint.longest", "length at which an utterance is cut", name="max-utterance-ms"),
        ),
    ),
    "decoding": Section(
        "The model and how it is used",
        (
            Opt(
                "decoding.model",
                "name or path; default: the best on this machine",
                metavar="NAME|PATH",
                flags=("-m",),
                common=True,
            ),
            Opt(
                "decoding.language",
                "spoken language, or auto",
                metavar="CODE",
                flags=("-l",),
                allowed="auto or a code like en, de, yue",
                common=True,
            ),
            Opt(
                "decoding.task",
                "translate: into English",
                short_for=(("-tr", "translate"), ("--translate", "translate")),
                common=True,
            ),
            Opt("search.beam_size", "beam size for finals; 1: greedy", flags=("-bs",), common=True),
            Opt("decoding.temperature", "temperature of the first attempt", flags=("-tp",)),
            Opt(
                "decoding.fallback",
                "do not retry at higher temperatures",
                off=("-nf", "--no-fallback"),
            ),
            Opt(
                "search.no_speech_threshold",
                "drop a window above this no-speech probability",
                flags=("-nth", "--no-speech-thold"),
            ),
            Opt(
                "decoding.prompt",
                "text that the model sees first",
                flags=("--initial-prompt",),
                common=True,
            ),
            Opt("decoding.hotwords", "words and names to expect", common=True),
            Opt(
                "search.suppress_tokens",
                "tokens never written; -1: the model's list or annotations",
            ),
            Opt(
                "search.audio_ctx",
                "encoder positions; 0: by the length of the audio",
                flags=("-ac",),
            ),
            Opt("decoding.threads", "threads per window; 0: up to two", flags=("-t",), common=True),
            Opt("decoding.workers", "windows at a time; 0: one, or two for clients alone"),
            Opt(
                "decoding.engine_deadline_ms",
                "time for a window after which the engine is dead; 0: unlimited",
            ),
            Opt("decoding.precision", "of the weights; auto: int8 where that is faster"),
            Opt("decoding.engine", "runtime of the model"),
            Opt("decoding.compute", "processor of a Mac; ane: Neural Engine; auto: the fastest"),
        ),
    ),
    "longform": Section(
        "How whole recordings are transcribed",
        (
            Opt("longform.without_timestamps", "let the model place no text in time", common=True),
            Opt("longform.word_timestamps", "find no times of words", common=True),
            Opt(
                "longform.condition_on_previous_text",
                "do not prompt with the text so far",
                common=True,
            ),
            Opt("longform.carry_initial_prompt", "put --prompt before every window", common=True),
            Opt("longform.prefix", "beginning of the first window's text; it is not written"),
            Opt(
                "longform.clip_timestamps_ms", "transcribe only START,END,START,END...", common=True
            ),
            Opt(
                "longform.hallucination_silence_ms",
                "skip longer silence around hallucinations; 0: never",
                name="hallucination-silence-threshold-ms",
                common=True,
            ),
        ),
    ),
    "building": Section(
        "How a model is built for Core ML",
        (
            Opt(
                "build.audio_contexts",
                "encoder positions to build for; default: what suits the model",
                common=True,
            ),
            Opt(
                "build.folder",
                "new folder for the packages; default: the cache",
                name="build-to",
                metavar="FOLDER",
                common=True,
            ),
        ),
    ),
    "output": Section(
        "Where the text goes",
        (
            Opt(
                "output.output",
                "transcript file; may be repeated",
                metavar="FILE",
                flags=("-o",),
                allowed="FILE.txt, .srt, .vtt, .lrc, "
                ".csv, .tsv, .json, .full.json, .jsonl, .html or .mp4",
                common=True,
            ),
            Opt(
                "output.output_dir",
                "folder for transcripts named after their files",
                metavar="DIR",
                common=True,
            ),
            Opt(
                "output.output_format",
                "formats of those transcripts; default: all text",
                metavar="FORMAT",
                flags=("-f",),
                allowed="all or some of txt, srt, vtt, lrc, csv, tsv, json, json-full, jsonl, "
                "html, mp4, separated by commas",
                common=True,
            ),
            Opt("output.format", "format on stdout", short_for=(("--jsonl", "jsonl"),)),
            Opt(
                "cues.line_cells",
                "longest line of a subtitle, in cells",
                name="max-line-length",
                flags=("-ml", "--max-len", "--max-line-width"),
            ),
            Opt("cues.max_lines", "most lines in a subtitle", flags=("--max-line-count",)),
            Opt(
                "cues.max_words",
                "most words in a subtitle; 0: unlimited",
                name="max-words-per-cue",
                flags=("--max-words-per-line",),
            ),
            Opt(
                "cues.highlight",
                "underline each word as it is spoken (srt, vtt)",
                name="highlight-words",
            ),
            Opt("output.colors", "colours on the terminal"),
            Opt("cues.confidence", "colour words by probability", common=True),
            Opt("output.mark_low", "bracket words below this probability"),
            Opt("output.timestamps", "time at the start of each line", common=True),
            Opt("output.quiet", "report errors only", flags=("-q",), common=True),
            Opt(
                "output.verbose",
                "detail of messages on stderr",
                short_for=(("-v", "1"), ("-vv", "2")),
                common=True,
            ),
            Opt("output.log_format", "form of messages on stderr"),
        ),
    ),
    "server": Section(
        "What clients may do over the network",
        (
            Opt("bind.enabled", "open no websocket", name="server", common=True),
            Opt("bind.host", "address to listen on", metavar="ADDRESS", common=True),
            Opt("bind.port", "port to listen on; 0: any", common=True),
            Opt("bind.token_file", "file with the token of clients", metavar="FILE", common=True),
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
            Opt("limits.max_per_address", "most clients on one other machine; 0: unlimited"),
            Opt("limits.max_session_ms", "audio after which a client's session ends; 0: never"),
            Opt("limits.resume_ms", "how long a session waits for its client to return"),
        ),
    ),
    "journal": Section(
        "What is kept on disk",
        (
            Opt(
                "journal.folder",
                "keep finals here; auto: the usual place",
                name="journal",
                metavar="DIR",
                common=True,
            ),
            Opt("journal.fsync", "when finals are forced to disk", name="journal-fsync"),
            Opt("journal.days", "days to keep finals; 0: forever", name="journal-days"),
            Opt("journal.record", "keep the audio here, as WAV", metavar="DIR", common=True),
        ),
    ),
}
"""All options, by section."""

RENAMED = {
    "agreement": "agreement.agree",
    "compression-threshold": "search.compression_ratio_threshold",
    "energy-floor-db": "gate.floor_db",
    "temperature-inc": "search.temperatures",
    "vad-threshold": "gate.open_share",
}
"""Options of earlier versions whose field has another name; `successor` knows the others."""


_PARTS: Mapping[str, type] = get_type_hints(Config)
_TYPES = {part: get_type_hints(kind, include_extras=True) for part, kind in _PARTS.items()}


def _field(path: str, opt: Opt | None = None) -> Field:
    part, attribute = path.split(".")
    default = getattr(_PARTS[part](), attribute)
    return make_field(part, attribute, _TYPES[part][attribute], default, opt)


def _options() -> dict[str, Option]:
    table = {}
    for group, section in SECTIONS.items():
        for opt in section.options:
            found = _field(opt.field, opt)
            unit = "-ms" if found.in_frames else ""
            name = opt.name or found.attribute.replace("_", "-") + unit
            table[name] = Option(group, name, found, opt)
    return table


OPTIONS: Mapping[str, Option] = _options()
"""Every option by its name."""


def _settings() -> dict[str, Field]:
    named = {option.opt.field for option in OPTIONS.values()}
    paths = [f"{part}.{attribute}" for part, types in _TYPES.items() for attribute in types]
    found = [_field(path) for path in paths if path not in named]
    return {each.name: each for each in found if each.unit != DERIVED}


SETTINGS: Mapping[str, Field] = _settings()
"""The fields without an option, by the name that ``--set`` knows."""


def successor(name: str) -> str:
    """Return the setting that replaces an option of an earlier version, or an empty string."""
    for setting in SETTINGS:
        part, _, attribute = setting.replace("_", "-").partition(".")
        if name in (attribute, f"{part}-{attribute}"):
            return setting
    return RENAMED.get(name, "")
