"""The configuration, and the table of its options.

The command line, the environment variables, the TOML file, the help and docs/options.md follow from
this table. Types, ranges and defaults are those of the fields, in `streamd.options`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_type_hints

from streamd import options
from streamd.config.option import Field, Opt, as_written


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

# Each entry: PART.FIELD [NAME] [FLAG...] [/ FLAG...] [=METAVAR]: help.
# NAME is the key in the TOML file and the long flag; by default the field's name. FLAGs are further
# ones, mostly whisper.cpp's; FLAG=VALUE stands for a value. Behind the slash are those that turn a
# switch off, in place of --no-NAME. METAVAR stands for a text in the help; a field whose own ends
# in three dots has no flag. A switch's help describes the flag that changes its default.
_TABLE = """
[input]
input.files =FILE...: audio files or URLs, in this order; -: stdin
input.source: take audio only from the network
input.device -d -c --capture =ID|NAME: number or part of a name; monitor: what plays
input.realtime / --fast: read files as fast as possible
pcm.rate_hz input-rate: sampling rate of raw PCM
pcm.encoding input-format: sample format of raw PCM; auto: s16le, unless it is a container
pcm.channels input-channels: channels of raw PCM

[streaming]
session.step step: new audio per window; 0: whole utterances
session.length length: longest window
commit.keep keep: audio repeated from the previous line, with --commit sliding
commit.rule commit: rule by which words become final
session.keep_context -kc: keep earlier utterances in the prompt

[vad]
vad.detector vad =DETECTOR: silero, webrtc, energy or off
vad.aggressiveness vad-aggressiveness: how eagerly webrtc rejects noise
endpoint.pre_roll: audio included from before speech starts
endpoint.plain endpoint-ms: pause that ends an utterance
endpoint.longest max-utterance-ms: length at which an utterance is cut

[decoding]
decoding.model -m =NAME|PATH: name or path; default: the best on this machine
decoding.language -l =CODE: spoken language; default: auto
decoding.task -tr=translate --translate=translate: translate: into English
search.beam_size -bs: beam size for finals; 1: greedy
decoding.temperature -tp: temperature of the first attempt
decoding.fallback / -nf --no-fallback: do not retry at higher temperatures
search.no_speech_threshold -nth --no-speech-thold: drop a window above this no-speech probability
decoding.prompt --initial-prompt: text that the model sees first
decoding.hotwords: words and names to expect
search.suppress_tokens: tokens never written; -1: the model's list or annotations
search.audio_ctx -ac: cut the encoder's context to so many positions; 0: keep it
decoding.threads -t: threads per window; 0: up to two
decoding.workers: windows at a time; 0: one, or two for clients alone
decoding.engine_deadline_ms: time for a window after which the engine is dead; 0: unlimited
decoding.precision: of the weights; auto: int8 where that is faster
decoding.engine: runtime of the model
decoding.compute: processor of a Mac; ane: Neural Engine; auto: the fastest

[longform]
longform.without_timestamps: let the model place no text in time
longform.word_timestamps: find no times of words
longform.condition_on_previous_text: do not prompt with the text so far
longform.carry_initial_prompt: put --prompt before every window
longform.prefix: beginning of the first window's text; it is not written
longform.clip_timestamps_ms: transcribe only START,END,START,END...
longform.hallucination_silence_ms hallucination-silence-threshold-ms:
  skip longer silence around hallucinations; 0: never

[building]
build.audio_contexts: encoder contexts to build besides the full one
build.folder build-to =FOLDER: new folder for the packages; default: the cache

[output]
output.output -o =FILE: transcript file; may be repeated
output.output_dir =DIR: folder for transcripts named after their files
output.output_format -f =FORMAT: formats of those transcripts; default: all text
output.format --jsonl=jsonl: format on stdout
cues.line_cells max-line-length -ml --max-len --max-line-width:
  longest line of a subtitle, in cells
cues.max_lines --max-line-count: most lines in a subtitle
cues.max_words max-words-per-cue --max-words-per-line: most words in a subtitle; 0: unlimited
cues.highlight highlight-words: underline each word as it is spoken (srt, vtt)
output.colors: colours on the terminal
cues.confidence: colour words by probability
output.mark_low: bracket words below this probability
output.timestamps: time at the start of each line
output.quiet -q: report errors only
output.verbose -v=1 -vv=2: detail of messages on stderr
output.log_format: form of messages on stderr

[server]
bind.enabled server: open no websocket
bind.host =ADDRESS: address to listen on
bind.port: port to listen on; 0: any
bind.wyoming =[HOST:]PORT: another port, for Home Assistant (10300)
bind.share sharing --share=listen: give others a link and QR code to listen or speak
bind.token_file =FILE: file with the token of clients
bind.tls_cert =FILE: PEM certificate: wss and https only
bind.tls_key =FILE: its key, if in a file of its own
bind.allow_host =NAME: another name of this machine; may be repeated
bind.allow_origin =https://HOST: site whose pages may connect; may be repeated
limits.max_streams: most clients that send audio
limits.max_subscribers: most clients that receive captions
limits.max_session_ms: audio after which a client's session ends; 0: never

[journal]
journal.folder journal =DIR: keep finals here; auto: the usual place
journal.bus =nats://HOST:PORT: share sessions with other machines
journal.days journal-days: days to keep finals; 0: forever
journal.record =DIR: keep the audio here, as WAV
"""
_COMMON = """
    device realtime step vad endpoint-ms model compute language task
    hotwords threads without-timestamps word-timestamps condition-on-previous-text
    carry-initial-prompt clip-timestamps-ms hallucination-silence-threshold-ms audio-contexts
    build-to output output-dir output-format confidence timestamps quiet verbose server host port
    sharing token-file journal record
"""
COMMON = frozenset(_COMMON.split())
"""The options that ``--help`` lists; the others are in ``--help-all``."""

_ENDINGS = [f".{name.replace('json-full', 'full.json')}" for name in options.FORMAT_NAMES]
_ALLOWED = {
    "decoding.language": "auto or a language: german, de",
    "output.output": f"FILE{', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}",
    "output.output_format": (
        f"all or some of {', '.join(options.FORMAT_NAMES)}, separated by commas"
    ),
}
"""What values are allowed, where the type cannot say it."""

_PARTS: Mapping[str, type] = get_type_hints(Config)
_TYPES = {part: get_type_hints(kind, include_extras=True) for part, kind in _PARTS.items()}


def _field(path: str, opt: Opt | None = None) -> Field:
    part, attribute = path.split(".")
    default = getattr(_PARTS[part](), attribute)
    return Field(part, attribute, default, *as_written(_TYPES[part][attribute]), opt or Opt())


_ENTRY = re.compile(
    r"(?P<path>[\w.]+)(?: (?P<name>\w\S*))?(?P<flags>(?: -\S+)*)(?: /(?P<off>(?: -\S+)+))?"
    r"(?: =(?P<metavar>\S+))?:\s+(?P<help>.+)"
)


def _option(entry: str, group: str) -> Field:
    found = _ENTRY.fullmatch(entry)
    assert found is not None, entry
    parts = found.groupdict(default="")
    flags = parts["flags"].split()
    opt = Opt(
        group=group,
        help=parts["help"],
        name=parts["name"],
        flags=tuple(flag for flag in flags if "=" not in flag),
        off_flags=tuple(parts["off"].split()),
        values=dict(flag.split("=") for flag in flags if "=" in flag),
        metavar=parts["metavar"] or "TEXT",
        allowed=_ALLOWED.get(parts["path"], ""),
        synonyms=options.LANGUAGE_CODES if parts["path"] == "decoding.language" else {},
    )
    return _field(parts["path"], opt)


_OPTIONS = [
    _option(entry, group)
    for group, entries in re.findall(r"\[(\w+)\]\n((?:.+\n)+)", _TABLE)
    for entry in re.split(r"\n(?! )", entries.strip())
]
OPTIONS: Mapping[str, Field] = {option.name: option for option in _OPTIONS}
"""Every option by its name."""

_FIELDS = [_field(f"{part}.{name}") for part, types in _TYPES.items() for name in types]
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
