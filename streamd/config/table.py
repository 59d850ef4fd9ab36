"""The configuration, and its options as users write them.

The command line, the environment variables, the TOML file, the help and docs/options.md follow from
the table of options. Types, ranges and defaults are those of the fields, in `streamd.options`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta, inspect

from streamd import options
from streamd.errors import ConfigError
from streamd.options import FRAME_MS, FRAMES

PREFIX = "STREAMD_"
"""Beginning of the environment variables."""
NONE = "none"
"""How a value that may be None is written."""


@dataclass(frozen=True, slots=True)
class Opt:
    """What the table says about an option."""

    group: str = ""  # section of the TOML file
    is_common: bool = False  # whether ``--help`` lists it, too
    help: str = ""  # one line; for a switch it describes the flag that changes the default
    name: str = ""  # key in the TOML file and long flag; by default the field's name
    flags: tuple[str, ...] = ()  # further ones
    off_flags: tuple[str, ...] = ()  # flags that turn a switch off, in place of ``--no-NAME``
    values: Mapping[str, str] = field(default_factory=dict)  # flag -> value that it stands for
    metavar: str = "TEXT"  # stands for a text in the help
    allowed: str = ""  # what values are allowed, where the type cannot say it
    synonyms: Mapping[str, str] = field(default_factory=dict)  # in lower case -> value


@dataclass(frozen=True)
class Field:
    """A field of the configuration as users write it: times in frames become milliseconds.

    `annotation` is the type of what is written, `default` the value as the program has it. `opt` is
    empty if the field has no option.
    """

    part: str
    attribute: str
    default: object
    annotation: object
    unit: str
    in_frames: bool
    opt: Opt

    @property
    def setting(self) -> str:
        """The name for ``--set``."""
        return f"{self.part}.{self.attribute}{'_ms' if self.in_frames else ''}"

    @property
    def name(self) -> str:
        """The key in the TOML file, and the long flag without its dashes."""
        return self.opt.name or self.setting.partition(".")[2].replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper().replace("-", "_")

    @cached_property
    def type(self) -> inspect.Type:
        """The type of what is written, without None."""
        kind = inspect.type_info(self.annotation)
        if isinstance(kind, inspect.UnionType):
            (kind,) = (each for each in kind.types if not isinstance(each, inspect.NoneType))
        return kind

    @property
    def is_optional(self) -> bool:
        """Whether it may be "none"."""
        return NoneType in get_args(self.annotation)

    @property
    def is_switch(self) -> bool:
        """Whether its flags take no value."""
        return isinstance(self.type, inspect.BoolType)

    @property
    def repeats(self) -> bool:
        """Whether its flag adds a text to a list; numbers stand in one list, with commas."""
        item = getattr(self.type, "item_type", None)
        return isinstance(item, inspect.StrType)

    @property
    def is_positional(self) -> bool:
        """Whether it has no flag."""
        return self.opt.metavar.endswith("...")

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags that take a value, or turn a switch on; the long one is last."""
        return () if self.is_positional else (*self.opt.flags, f"--{self.name}")

    @property
    def off_flags(self) -> tuple[str, ...]:
        """Flags that turn a switch off; the long one is last."""
        return (self.opt.off_flags or (f"--no-{self.name}",)) if self.is_switch else ()

    @property
    def shown_flags(self) -> tuple[str, ...]:
        """The flags to show: of a switch, those that change its default."""
        return self.off_flags if self.default is True else self.flags

    @property
    def every_flag(self) -> tuple[str, ...]:
        """All words of the command line that set this option."""
        return (*self.flags, *self.off_flags, *self.opt.values)

    @property
    def choices(self) -> tuple[str, ...]:
        """The only possible values, or nothing where there are too many to list."""
        if not isinstance(self.type, inspect.LiteralType):
            return ()
        return get_args(self.annotation)  # `type` has them too, but sorted

    @property
    def allowed(self) -> str:
        """What a value may be, to follow the words "must be"."""
        if self.choices:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        text = self.opt.allowed or _allowed(self.type, self.unit)
        return f"{text}, or {NONE}" if self.is_optional else text

    def read(self, found: object, culprit: str, *, typed: bool = False) -> object:
        """Return the value that was found somewhere, as the program has it.

        A text may stand for a value of any type, with commas in lists, unless values are `typed`
        there, as in a TOML file. Raises `ConfigError` with `culprit`, what is allowed and what was
        found.
        """
        if found == NONE and self.is_optional:
            return None
        is_text = isinstance(found, str) and not typed
        raw = self.opt.synonyms.get(found.casefold(), found) if isinstance(found, str) else found
        if is_text and isinstance(self.type, inspect.VarTupleType):
            raw = str(found).split(",") if found else []
        try:
            value = msgspec.convert(raw, self.annotation, strict=not is_text)
        except msgspec.ValidationError:
            raise ConfigError(f"{culprit} must be {self.allowed}, got {_shown(found)}") from None
        # Rounded up, so that --step 10 is not --step 0, which stands for whole utterances.
        return -(-value // FRAME_MS) if self.in_frames else value

    def written(self, value: object) -> object:
        """A value as a TOML file has it."""
        if self.in_frames and isinstance(value, int):
            return value * FRAME_MS
        return NONE if value is None else value


def as_written(annotation: Any) -> tuple[Any, str, bool]:  # noqa: ANN401 - any type
    """Return the type as users write it, its unit, and whether the program counts in frames."""
    if NoneType in get_args(annotation):
        (kind,) = (each for each in get_args(annotation) if each is not NoneType)
        written, unit, in_frames = as_written(kind)
        return written | None, unit, in_frames
    marks = getattr(annotation, "__metadata__", ())
    unit = next((mark for mark in marks if isinstance(mark, str)), "")
    if unit != FRAMES:
        return annotation, unit, False
    (limits,) = (mark for mark in marks if isinstance(mark, Meta))
    low, high = (int(bound or 0) * FRAME_MS for bound in (limits.ge, limits.le))
    return Annotated[int, Meta(ge=low, le=high)], "ms", True


def _allowed(kind: inspect.Type, unit: str) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            return noun + (f" of {unit}" if unit else "") + _range(kind)
        case inspect.VarTupleType(item_type=inspect.IntType() as item):
            return f"whole numbers{_range(item)}, separated by commas"
        case inspect.VarTupleType(item_type=inspect.FloatType() as item):
            return f"numbers{_range(item)}, separated by commas"
        case _:
            most = getattr(kind, "max_length", None)
            return f"a text of at most {most} characters" if most else "text"


def _shown(found: object) -> str:
    if isinstance(found, list) and len(found) == 1:
        (found,) = found
    if isinstance(found, str) and found.isprintable() and found.strip() == found != "":
        return found
    return json.dumps(found, ensure_ascii=False, default=str)


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    bounds = (("from", kind.ge), ("to", kind.le))
    return "".join(f" {word} {bound}" for word, bound in bounds if bound is not None)


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown word: the nearest known one, if any."""
    names = list(known)
    # A whole part, such as --rate of --input-rate, says more than some letters in common.
    parts = [name for name in names if word.lstrip("-") in name.split("-")]
    slips = get_close_matches(word, names, n=1, cutoff=0.75)
    near = slips or parts or get_close_matches(word, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


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


# Each entry: [*]PART.FIELD [NAME] [FLAG...] [/ FLAG...] [=METAVAR]: help.
# --help lists those with a star, --help-all all. NAME is the key in the TOML file and the long
# flag; by default the field's name. FLAGs are further ones, mostly whisper.cpp's; FLAG=VALUE stands
# for a value. Behind the slash are those that turn a switch off, in place of --no-NAME. METAVAR
# stands for a text in the help; a field whose own ends in three dots has no flag. A switch's help
# describes the flag that changes its default.
_TABLE = """
[input] Where the audio comes from
input.files =FILE...: audio files or URLs, in this order; -: stdin
input.source: take audio only from the network
*input.device -d -c --capture =ID|NAME: number or part of a name; monitor: what plays
*input.realtime / --fast: read files as fast as possible
pcm.rate_hz input-rate: sampling rate of raw PCM
pcm.encoding input-format: sample format of raw PCM; auto: s16le, unless it is a container
pcm.channels input-channels: channels of raw PCM

[streaming] When a live window is transcribed, and when its words become final
*session.step step: new audio per window; 0: whole utterances
session.length length: how far back a window reads; a longer one reads better and costs more
commit.keep keep: audio repeated from the previous line, with --commit sliding
commit.rule commit: rule by which words become final
session.keep_context -kc: keep earlier utterances in the prompt

[vad] What counts as speech, and when an utterance ends
*vad.detector vad =DETECTOR: silero, webrtc or off
vad.aggressiveness vad-aggressiveness: how eagerly webrtc rejects noise
endpoint.pre_roll: audio included from before speech starts
*endpoint.plain endpoint-ms: pause that ends an utterance
endpoint.longest max-utterance-ms: length at which an utterance is cut

[decoding] The model and how it is used
*decoding.model -m =NAME|PATH: name or path; default: the best on this machine
*decoding.language -l =CODE: spoken language; default: auto
*decoding.task -tr=translate --translate=translate: translate: into English
search.beam_size -bs: beam size for finals; 1: greedy
decoding.temperature -tp: temperature of the first attempt
decoding.fallback / -nf --no-fallback: do not retry at higher temperatures
search.no_speech_threshold -nth --no-speech-thold: drop short text above this no-speech probability
decoding.prompt --initial-prompt: text that the model sees first
*decoding.hotwords: words and names to expect
search.suppress_tokens: tokens never written; -1: the model's list or annotations
search.audio_ctx -ac: cut the encoder's context to so many positions; 0: keep it
*decoding.threads -t: threads per window; 0: up to two
decoding.workers: windows at a time; 0: one, or two for clients alone
decoding.engine_deadline_ms: time for a window after which the engine is dead; 0: unlimited
decoding.precision: of the weights; auto: int8 where that is faster
decoding.engine: runtime of the model
*decoding.compute: processor of a Mac; ane: Neural Engine; auto: the fastest

[longform] How whole recordings are transcribed
*longform.without_timestamps: let the model place no text in time
*longform.word_timestamps: find no times of words
*longform.condition_on_previous_text: do not prompt with the text so far
*longform.carry_initial_prompt: put --prompt before every window
longform.prefix: beginning of the first window's text; it is not written
*longform.clip_timestamps_ms: transcribe only START,END,START,END...
*longform.hallucination_silence_ms hallucination-silence-threshold-ms:
  skip longer silence around hallucinations; 0: never

[building] How a model is built for Core ML
*build.audio_contexts: encoder contexts to build besides the full one
*build.folder build-to =FOLDER: new folder for the packages; default: the cache

[output] Where the text goes
*output.output -o =FILE: transcript file; may be repeated
*output.output_dir =DIR: folder for transcripts named after their files
*output.output_format -f =FORMAT: formats of those transcripts; default: all text
output.format --jsonl=jsonl: format on stdout
cues.line_cells max-line-length -ml --max-len --max-line-width:
  longest line of a subtitle, in cells
cues.max_lines --max-line-count: most lines in a subtitle
cues.max_words max-words-per-cue --max-words-per-line: most words in a subtitle; 0: unlimited
cues.highlight highlight-words: underline each word as it is spoken (srt, vtt)
output.colors: colours on the terminal
*cues.confidence: colour words by probability
output.mark_low: bracket words below this probability
*output.timestamps: time at the start of each line
*output.quiet -q: report errors only
*output.verbose -v=1 -vv=2: detail of messages on stderr
output.log_format: form of messages on stderr

[server] What clients may do over the network
*bind.enabled server: open no websocket
*bind.host =ADDRESS: address to listen on
*bind.port: port to listen on; 0: any
bind.wyoming =[HOST:]PORT: another port, for Home Assistant (10300)
*bind.share sharing --share=listen: give others a link and QR code to listen or speak
*bind.token_file =FILE: file with the token of clients
bind.tls_cert =FILE: PEM certificate: wss and https only
bind.tls_key =FILE: its key, if in a file of its own
bind.allow_host =NAME: another name of this machine; may be repeated
bind.allow_origin =https://HOST: site whose pages may connect; may be repeated
limits.max_streams: most clients that send audio
limits.max_subscribers: most clients that receive captions
limits.max_session_ms: audio after which a client's session ends; 0: never

[journal] What is kept on disk
*journal.folder journal =DIR: keep finals here; auto: the usual place
journal.bus =nats://HOST:PORT: share sessions with other machines
journal.days journal-days: days to keep finals; 0: forever
*journal.record =DIR: keep the audio here, as WAV
"""

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
    r"(?P<star>\*?)(?P<path>[\w.]+)(?: (?P<name>\w\S*))?(?P<flags>(?: -\S+)*)"
    r"(?: /(?P<off>(?: -\S+)+))?(?: =(?P<metavar>\S+))?:\s+(?P<help>.+)"
)


def _option(entry: str, group: str) -> Field:
    found = _ENTRY.fullmatch(entry)
    assert found is not None, entry
    parts = found.groupdict(default="")
    flags = parts["flags"].split()
    opt = Opt(
        group=group,
        is_common=bool(parts["star"]),
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


_GROUPS = re.findall(r"\[(\w+)\] (.+)\n((?:.+\n)+)", _TABLE)
SECTIONS: Mapping[str, str] = {group: title for group, title, _ in _GROUPS}
"""The sections of the help and of the TOML file, with their titles."""
_OPTIONS = [
    _option(entry, group)
    for group, _, entries in _GROUPS
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
