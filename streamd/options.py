"""What can be chosen about each part of streamd, with its default, type and range.

Each name, default, range and help text stands here and nowhere else. A part takes the dataclass
that is made for it. A field that many need has an `Option` in its `Annotated`; ``--set`` reaches
the others by the name that they have here. This module imports nothing heavy, so that the command
line is answered before numpy is loaded.

The string in an `Annotated` is the unit, or what stands for a text in the help. Times in frames
have milliseconds at the edges. Where no comment says otherwise, how much a number of live captions
matters is measured in ``benchmarks/RESULTS.md``, "What each number is worth".
"""

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from math import ceil
from typing import Annotated, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from streamd.language import LANGUAGE_CODES

FRAME_MS = 20
FRAMES = "frames"
DERIVED = "derived"
"""In place of a unit: users do not set this field. The code derives it from others, from the model
or from the command, or its default is for everybody and only tests shorten it."""
CREDENTIALS = r"(^|,|//)([^:/@]*:)?(?:(?!//).)*@"
"""What may stand before the host of an address, in a list with commas: a user and a password, with
any character, or a token alone. The groups are what stands before it, and the user."""
_URL_CREDENTIALS = r"^([a-z]+://)([^:/?#]*:)?[^/?#]*@"
"""The same in the address of a file."""
_KEYED = r"^((?:youtube|zoom|webhook):https?://)(?:[^/?#]*@)?([^/?#]*).*"
"""A destination whose address is a key as a whole, but for its host."""


def without_password(name: str) -> str:
    """The name of a file or a destination; what is secret in an address is replaced by ``***``."""
    if re.match(_KEYED, name, flags=re.DOTALL):
        return re.sub(_KEYED, r"\1\2/***", name, flags=re.DOTALL)
    return re.sub(_URL_CREDENTIALS, r"\1\2***@", name, flags=re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Option:
    """How a field is set on the command line, in a variable and in the TOML file.

    `help` is one line; of a switch, it describes the flag that changes the default.
    """

    help: str
    _: KW_ONLY
    name: str = ""  # key in the TOML file and long flag; by default the field's name
    flags: tuple[str, ...] = ()  # further ones, mostly whisper.cpp's
    off_flags: tuple[str, ...] = ()  # flags that turn a switch off, in place of ``--no-NAME``
    values: Mapping[str, str] = field(
        default_factory=dict, hash=False
    )  # flag -> value that it stands for
    common: bool = False  # whether ``--help`` lists it, too
    allowed: str = ""  # what values are allowed, where the type cannot say it
    synonyms: Mapping[str, str] = field(default_factory=dict, hash=False)  # in lower case -> value
    secret: bool = False  # whether it may have a password, which must not be shown
    unset: str = "none"  # how None is written, if the field may be that


DEFAULT_STEP = 25
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Span = Annotated[int, Meta(ge=0, le=1_500), FRAMES]
"""A time within the 30 s that Whisper takes at once; users' times are rounded up to frames."""
PositiveSpan = Annotated[int, Meta(ge=1, le=1_500), FRAMES]
Threads = Annotated[int, Meta(ge=0, le=256)]
Count = Annotated[int, Meta(ge=0, le=1_000)]
Hint = Annotated[str, Meta(max_length=4_000)]
"""Text that the model gets before the transcript; 223 tokens of it count."""
DurationMs = Annotated[int, Meta(ge=0), "ms"]
TimedFormat = Literal[
    "srt", "vtt", "lrc", "ass", "edl", "csv", "tsv", "json", "json-full", "jsonl", "html"
]
FormatName = Literal["txt", "md", TimedFormat]
DocumentName = Literal["docx", "eaf"]
"""Formats of which nothing can be written before the end."""
FORMAT_NAMES: tuple[str, ...] = (*get_args(FormatName), *get_args(DocumentName))
_ENDINGS = [f".{name.replace('json-full', 'full.json')}" for name in FORMAT_NAMES]
Transcript = Annotated[str, Meta(pattern=rf"\.({'|'.join({*FORMAT_NAMES} - {'json-full'})})\Z")]
"""The name of a file; ``.full.json`` is json-full."""
_NAMING = r"^(?!(.*,)?\s*[1-9][0-9]{0,3}=\s*(,|\Z))[1-9][0-9]{0,3}=\s*\S.{0,999}\Z"
"""One or more names of speakers, of which none is empty."""

_NEXT_NAME = re.compile(r",(?=\s*[1-9][0-9]{0,3}=)")

EndpointRule = Literal["silence", "smart"]


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Where the audio comes from."""

    files: Annotated[
        tuple[str, ...],
        "FILE...",
        Option("audio files or URLs, in order; - is standard input", secret=True),
    ] = ()
    source: Annotated[bool, DERIVED] = True
    """Whether this machine is a source, besides clients; it is none for ``streamd serve``."""
    device: Annotated[
        str,
        "ID|NAME",
        Option(
            "microphone; monitor: what plays; mic+system: both",
            flags=("-d", "-c", "--capture"),
            common=True,
        ),
    ] = ""
    channels: Annotated[
        Literal["mix", "split"],
        Option("mix channels, or split them: each gets captions of its own"),
    ] = "mix"
    track: Annotated[Count, Option("sound track of files that have several, from 1")] = 0
    """0: one in the wanted language, and not silent."""
    realtime: Annotated[
        bool, Option("read files as fast as possible", off_flags=("--fast",), common=True)
    ] = True
    play: Annotated[bool, Option("play files while they are captioned", common=True)] = False
    skip_existing: Annotated[
        bool, Option("skip files that already have transcripts", common=True)
    ] = False


@dataclass(frozen=True, slots=True)
class PcmOptions:
    """The form of raw PCM from standard input or a named pipe."""

    rate_hz: Annotated[
        int, Meta(ge=4_000, le=192_000), "Hz", Option("sample rate of raw PCM", name="input-rate")
    ] = 16_000
    encoding: Annotated[
        Literal["auto", "u8", "s16le", "s16be", "s24le", "s32le", "f32le", "f64le"],
        Option("sample format of raw PCM; auto: s16le unless in a container", name="input-format"),
    ] = "auto"
    channels: Annotated[int, Meta(ge=1, le=64)] = 1
    """Channels of raw PCM."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How often a stream is transcribed, and how far back."""

    # Of half and double: benchmarks/RESULTS.md, "Commit rules, steps, lengths and beams".
    step: (
        Annotated[
            Span, Option("how often to caption, or auto; 0: at pauses", unset="auto", common=True)
        ]
        | None
    ) = DEFAULT_STEP
    """None: see `streamd.streams.auto_step`."""
    length: Annotated[
        PositiveSpan,
        Option("how far back a transcription reaches; longer is more accurate and slower"),
    ] = 400
    shown_prob: Share = 0.4
    """The last word is hidden during speech if it is less probable, against flicker; 1: always."""
    # Of tiny.en's newest words below 0.35, 76 of 112 changed in the next window.
    context_tokens: Annotated[int, Meta(ge=0, le=223)] = 32
    """Committed tokens in a window and its prompt together; if it has more, it gets no prompt."""
    # Without any, as many words are wrong where windows hold 10 s of words; each takes time.
    backlog: Annotated[int, Meta(ge=1_500, le=4_320_000), "frames"] = 30_000
    """Audio kept while the engine lags; older audio becomes a gap."""
    # Ten minutes are 38 MB.
    languages: Annotated[tuple[str, ...], DERIVED] = ()
    """Codes of the languages that may be spoken; empty: any. Of several, one is detected."""
    task: Annotated[str, DERIVED] = ""
    prompt: Annotated[str, DERIVED] = ""
    vocabulary: Annotated[str, DERIVED] = ""
    """Phrases to expect, one a line."""
    speakers: Annotated[bool, DERIVED] = False


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """The rule by which words of a stream become final."""

    rule: Literal["local-agreement", "align-att"] = "local-agreement"
    """Rule by which words become final: `local-agreement` or `align-att`."""


@dataclass(frozen=True, slots=True)
class AgreementOptions:
    """When the rule local-agreement commits words."""

    agree: Annotated[int, Meta(ge=2, le=8)] = 2
    """Number of consecutive hypotheses that must begin with the same words."""
    min_progress: Annotated[Span, DERIVED] = 15
    """New audio that a hypothesis needs in order to count as further evidence."""
    # Without it, 136 instead of 126 words of two conversations are wrong.
    doubtful_prob: Annotated[Share, DERIVED] = 0.7
    """Mean probability below which agreement alone does not commit a word."""
    doubtful_age: Annotated[Span, DERIVED] = 75
    """Age at which agreement commits such a word after all."""


@dataclass(frozen=True, slots=True)
class VadOptions:
    """The voice detector."""

    detector: Annotated[
        Literal["silero", "webrtc", "off"], Option("voice detector", name="vad")
    ] = "silero"
    """silero judges what webrtc takes for speech, which alone is also steady noise."""


@dataclass(frozen=True, slots=True)
class GateOptions:
    """When the voice gate opens and closes."""

    attack: Annotated[PositiveSpan, DERIVED] = 10
    """Length of the latest audio, from which the gate decides."""
    open_share: Share = 0.6
    """Share of voiced frames at which the gate opens; with one frame fewer it stays open."""
    floor_db: Annotated[float, Meta(ge=-200.0, le=0.0), "dBFS"] = -60.0
    """Quieter frames are never voiced; where all speech is quiet, it is up to 20 dB lower."""

    @property
    def opens(self) -> int:
        """Voiced frames at which the gate opens."""
        return ceil(self.open_share * self.attack)

    @property
    def stays_open(self) -> int:
        """Voiced frames with which it stays open: with as many as open it, it would flap."""
        return max(self.opens - 1, min(self.opens, 1))

    @property
    def voice_share(self) -> float:
        """Share of voiced frames at which clients are told of a voice."""
        return self.open_share * 2 / 3

    @property
    def doubtful_share(self) -> float:
        """Share of voiced frames that may be the start of a word; below it, no voice is told."""
        return self.open_share / 2


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """When an utterance begins and ends."""

    rule: Annotated[
        EndpointRule,
        Option(
            "what ends an utterance; smart: wait longer if the speaker does not sound finished",
            name="endpoint",
        ),
    ] = "silence"
    pre_roll: Annotated[Span, DERIVED] = 25
    """Audio before speech starts that belongs to the utterance."""
    pre_final: Span = 6
    """Silence after which the final is decoded in advance; it belongs to the utterance."""
    # What `streamd.engines.smart_turn` adds to it is for this value.
    plain: Annotated[
        Span, Option("silence that ends an utterance", name="endpoint-ms", common=True)
    ] = 30
    """Silence that ends an utterance."""
    sentence: Annotated[Span, DERIVED] = 20
    """Silence that ends an utterance after a full stop, question mark or exclamation mark."""
    unfinished: Annotated[Span, DERIVED] = 50
    """Silence that ends an utterance after a comma, an improbable word behind another one, or a
    word that cannot end a sentence, and one in which nothing has been recognised."""
    # There, with the plain pause, 136 instead of 126 words of two conversations are wrong. With 2.4
    # s, a word that is not understood draws those after it into an utterance of which nothing is.
    going_on: Annotated[Span, DERIVED] = 75
    """Silence that ends an utterance whose speaker is probably not done, with the rule smart."""
    turn_prob: Annotated[Share, DERIVED] = 0.5
    """Probability below which a speaker is not done."""
    longest: Annotated[int, Meta(ge=50, le=1_500), "frames"] = 1_400
    """Length at which an utterance is cut; from three fifths of it, at the next short pause."""
    # Whisper takes 30 s; the rest is for the words before the utterance.

    @property
    def shortest_pause(self) -> int:
        """No silence shorter than this ends an utterance, whatever its text."""
        return min(self.plain, self.sentence, self.unfinished)

    @property
    def longest_pause(self) -> int:
        """Silence of this length ends an utterance, whatever its text."""
        longest = max(self.plain, self.sentence, self.unfinished)
        return max(longest, self.going_on) if self.is_smart else longest

    @property
    def is_smart(self) -> bool:
        """Whether it matters how the speaker sounds."""
        return self.rule == "smart"

    @property
    def trailing_silence(self) -> int:
        """Silence after the last voiced frame that is transcribed as part of the utterance.

        It holds the end of a voiceless consonant. An utterance may end after `shortest_pause`, so
        its final cannot be decoded later than that.
        """
        return min(self.pre_final, self.shortest_pause)


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """How a window becomes text; as openai-whisper does it unless a comment says otherwise."""

    languages: Annotated[tuple[str, ...], DERIVED] = ()
    """As `SessionOptions.languages`, of a recording. English-only models ignore them."""
    beam_size: Annotated[
        int, Meta(ge=1, le=32), Option("beam size for finals; 1: greedy search", flags=("-bs",))
    ] = 1
    """For windows whose words are all committed; others are decoded greedily, with their draft."""
    whole_beams: Annotated[bool, DERIVED] = False
    """Beam search also goes on while a hypothesis is more probable than all that have ended."""
    best_of: Annotated[int, DERIVED] = 5
    """Number of samples drawn at temperatures above 0."""
    temperatures: tuple[Share, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """Tried in turn until a result passes the thresholds; 0 alone: nothing is decoded again."""
    compression_ratio_threshold: Annotated[float, Meta(ge=0.0, le=100.0)] = 2.4
    """In recordings, text that zlib compresses more is repetitive and is decoded again; if the best
    attempt is also improbable, it is left out where there are more than 5 s of speech."""
    logprob_threshold: Annotated[float, Meta(ge=-100.0, le=0.0)] = -1.0
    """In recordings, text with a lower mean log probability is a guess and is decoded again."""
    no_speech_threshold: Share = 0.6
    """A window with a higher probability of no speech is dropped if its text is a guess
    (recordings) or short (streams), too."""
    least_evidence: Annotated[float, Meta(ge=-100.0, le=0.0)] = -1.5
    """In streams, text with less evidence is dropped; a final is decoded again first."""
    timestamps: Annotated[bool, DERIVED] = False
    """Sample timestamp tokens. Off for streams, whose word times come from attention."""
    suppress_blank: Annotated[bool, DERIVED] = True
    """Never begin a window's text with a blank or end it at once, unless there is a prefix."""
    begin_suppress_tokens: Annotated[tuple[int, ...] | None, DERIVED] = None
    """The tokens that `suppress_blank` suppresses; None: a blank and the end."""
    suppress_tokens: Annotated[tuple[int, ...], DERIVED] = (-1,)
    """Tokens that are never sampled; -1: annotations, such as musical notes."""
    text_only: Annotated[bool, DERIVED] = True
    """Never sample language tokens, nor timestamps that are not wanted. OpenAI leaves these to the
    model, and streams got lost in endless timestamps that way (ufal/SimulStreaming#1)."""
    stop_margin: Annotated[float, DERIVED] = 2.0
    """A full stop becomes a comma unless it is more probable than a comma by so many nats."""
    # Whisper ends what it hears with a full stop, so where a live window ends, it favours one. On
    # stream A 22 commas instead of 15 were kept (28 offline), and no full stop became a comma.
    best_attempt: Annotated[bool, DERIVED] = True
    """Where no temperature passes the thresholds, take the best attempt instead of the last."""
    # openai-whisper takes the last, at temperature 1: text that is repetitive by nature, such as
    # digits, would be lost. SYSTRAN/faster-whisper takes the best, too.
    loops: Annotated[bool, DERIVED] = True
    """Cut off what repeats (`streamd.whisper.guards`), which openai-whisper does not do."""
    tighten: Annotated[bool, DERIVED] = True
    """Move word times inwards over frames that are 26 dB quieter than the word."""


@dataclass(frozen=True, slots=True)
class LongformOptions:
    """How a recording is transcribed; as openai-whisper does it unless a comment says otherwise."""

    condition_on_previous_text: bool = True
    """Whether the text of one window is a prompt for the next."""
    initial_prompt: Annotated[str, DERIVED] = ""
    """Text before the first window."""
    num_speakers: Annotated[
        int, Meta(ge=0, le=64), Option("how many people speak: tells them apart; 0: unknown")
    ] = 0
    word_timestamps: bool = True
    """Whether words get times; the next window begins after the last of them. openai-whisper has
    this off."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The model, what it is asked for, and what runs it."""

    model: Annotated[
        str,
        "NAME|PATH",
        Option("name or path; default: the best on this machine", flags=("-m",), common=True),
    ] = ""
    language: Annotated[
        str,
        Meta(pattern=r"^(|auto|[a-z]{2,3}(,[a-z]{2,3})*)\Z"),
        "CODE",
        Option(
            "spoken language, or several: en,es; default: auto",
            flags=("-l",),
            common=True,
            allowed="auto or languages: german, de, en,es",
            synonyms=LANGUAGE_CODES,
        ),
    ] = ""
    """Empty: it is detected if the model knows more than English, but of two equal models the
    English one is taken."""
    task: Annotated[
        Literal["transcribe", "translate"],
        Option(
            "translate into English",
            values={"-tr": "translate", "--translate": "translate"},
            common=True,
        ),
    ] = "transcribe"
    temperature: Annotated[Share, DERIVED] = 0.0
    """A client's of the REST API. Added to each of `DecodingOptions.temperatures`; those above 1
    are left out."""
    prompt: Annotated[
        Hint, Option("text that the model is given as context", flags=("--initial-prompt",))
    ] = ""
    hotwords: Annotated[Hint, Option("words and names to expect: Ada, JetStream", common=True)] = ""
    vocabulary: Annotated[
        str, "FILE", Option("file with words and names to expect", common=True)
    ] = ""
    """A line may end in a weight: ``JetStream:1.5``. Empty: the user's own vocabulary.txt, if there
    is one."""
    expected: Annotated[str, DERIVED] = ""
    """The phrases of that file, one a line, which all sessions expect."""
    context: Annotated[
        tuple[str, ...],
        "FILE",
        Option("document whose names and rare words to expect: txt, md, html, docx, pptx, pdf"),
    ] = ()
    """May be repeated."""
    replace: Annotated[
        tuple[str, ...],
        "FILE",
        Option("file of words to replace; commands: spoken commands; may be repeated"),
    ] = ()
    """Of two files with the same words, the later one counts. ``streamd dictate`` has commands
    unless something else is chosen."""
    speakers: Annotated[bool, Option("tell speakers apart", common=True)] = False
    sounds: Annotated[bool, Option("show sounds that are not speech: [music], [laughter]")] = False
    """After ``streamd models get sounds``."""
    people: Annotated[
        str, "DIR", Option("tell speakers apart, and know voices of this folder again; auto: yours")
    ] = ""
    """With this, whoever owns the server may keep the voice of somebody whom they name."""
    threads: Annotated[
        Threads, Option("threads per transcription; 0: one a fast core, up to four", flags=("-t",))
    ] = 0
    """0 is one if there are several workers."""
    workers: Threads = 0
    """Transcriptions at a time; 0: one, or one a fast core, up to four, if only clients send audio.
    """
    engine_deadline_ms: DurationMs = 120_000
    """Time limit of a transcription, after which streamd exits; 0: none."""
    precision: Annotated[
        Literal["auto", "float32", "int8"], Option("precision of weights; auto: int8 where faster")
    ] = "auto"
    compute: Annotated[
        Literal["auto", "cpu", "gpu", "ane"],
        Option("processor; ane: a Mac's Neural Engine", common=True),
    ] = "auto"
    look_ahead: Annotated[
        Literal["auto", "0", "80", "480", "1040"],
        Option("sound that Nemotron hears after a word; auto: 80", name="look-ahead-ms"),
    ] = "auto"
    """The more, the fewer words are wrong, and the later they come."""


@dataclass(frozen=True, slots=True)
class DictationOptions:
    """When `streamd dictate` types."""

    stop_phrase: str = "stop dictation"
    """Words that end dictation; empty: none. They are not typed, but must end a sentence or be
    followed by a pause."""
    push_to_talk: bool = False
    """Whether to listen only from one SIGUSR1 to the next."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Where the text goes."""

    output: Annotated[
        tuple[Transcript, ...],
        "FILE",
        Option(
            "file to write a transcript to; may be repeated",
            flags=("-o",),
            common=True,
            allowed=f"FILE{', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}; --format is for stdout",
        ),
    ] = ()
    output_dir: Annotated[
        str, "DIR", Option("folder for transcripts, each named after its input", common=True)
    ] = ""
    output_format: Annotated[
        tuple[Literal[FormatName, DocumentName, "all"], ...],
        "FORMAT",
        Option(
            "formats in --output-dir; default: txt,srt,json",
            flags=("-f",),
            common=True,
            allowed=f"all or some of {', '.join(FORMAT_NAMES)}, separated by commas",
        ),
    ] = ()
    format: Annotated[
        FormatName,
        Option("format on stdout", values={"--jsonl": "jsonl"}, synonyms={"text": "txt"}),
    ] = "txt"
    afterwards: Annotated[
        bool, Option("write a better transcript when the session has ended: talk.better.txt")
    ] = False
    """By the largest model that is here, beside each file of ``-o`` or ``--output-dir``."""
    to: Annotated[
        tuple[
            Annotated[
                str, Meta(pattern=r"^(obs(:.+)?|(youtube|zoom|webhook):https?://.+|hls:.+)\Z")
            ],
            ...,
        ],
        "obs|KIND:WHERE",
        Option(
            "also send captions to obs, youtube:URL, zoom:URL, hls:FOLDER, webhook:URL",
            allowed="obs, obs:HOST:PORT, youtube:URL, zoom:URL, hls:FOLDER or webhook:URL",
            secret=True,
        ),
    ] = ()
    """May be repeated."""
    json: Annotated[bool, Option("print JSON, for programs", common=True)] = False
    timestamps: Annotated[
        Literal["off", "rel", "clock"], Option("time at the start of each line", common=True)
    ] = "off"
    translate_into: Annotated[
        str,
        Meta(pattern=r"^(|[a-z]{2,3}(,[a-z]{2,3})*)\Z"),
        "CODE",
        Option(
            "translations for readers and files: pt,de",
            common=True,
            allowed="languages: pt,de",
            synonyms=LANGUAGE_CODES,
        ),
    ] = ""
    """By a model for text, unlike the task ``translate``. Readers choose one of them."""
    names: Annotated[
        tuple[Annotated[str, Meta(pattern=_NAMING)], ...],
        "1=NAME",
        Option("what speakers are called: 1=Ana,2=Bob", allowed="numbers and names: 1=Ana,2=Bob"),
    ] = ()
    verbose: Annotated[
        int,
        Meta(ge=-1, le=2),
        Option(
            "show only errors on stderr (-q), or more messages (-v, -vv)",
            values={"-q": "-1", "--quiet": "-1", "-v": "1", "-vv": "2"},
            common=True,
        ),
    ] = 0
    """2 includes the messages of the libraries."""
    log_format: Annotated[Literal["text", "json"], Option("format of messages on stderr")] = "text"

    @property
    def languages(self) -> tuple[str, ...]:
        """What `translate_into` names, each once."""
        return tuple(dict.fromkeys(filter(None, self.translate_into.split(","))))

    @property
    def called(self) -> dict[int, str]:
        """What speakers are called, by number; another comma belongs to a name."""
        named = (each.partition("=") for text in self.names for each in _NEXT_NAME.split(text))
        return {int(number): name.strip() for number, _, name in named}


AwaitedText = Annotated[str, Meta(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True)
class NoticeOptions:
    """What somebody waits for (`streamd.notices`)."""

    notify: Annotated[
        tuple[AwaitedText, ...],
        "WORD|@NAME|sound:LABEL",
        Option("tell when a word, speaker or sound is heard; may be repeated"),
    ] = ()
    until: Annotated[
        tuple[AwaitedText, ...],
        "WORD|@NAME|sound:LABEL",
        Option("end when a word, speaker or sound is heard; may be repeated", common=True),
    ] = ()


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How a transcript is handed on."""

    anonymous: Annotated[bool, Option("replace names and numbers, and list them", common=True)] = (
        False
    )
    """By rule (docs/library-of-sessions.md), which is a help and no guarantee."""
    line_numbers: bool = False
    """Whether lines are numbered in docx."""


@dataclass(frozen=True, slots=True)
class CueLayout:
    """How much a subtitle holds, and what is marked in it."""

    line_cells: Annotated[
        int,
        Meta(ge=8, le=1_000),
        Option(
            "maximum length of a subtitle line, in character cells",
            name="max-line-length",
            flags=("-ml", "--max-len", "--max-line-width"),
        ),
    ] = 42
    max_lines: Annotated[int, Meta(ge=1, le=10)] = 2
    """Maximum number of lines of a subtitle."""
    max_words: Count = 0
    """Maximum number of words in a subtitle; 0: no limit."""
    highlight_words: bool = False
    """Whether each word is underlined while it is spoken, in srt and vtt."""
    confidence: Annotated[bool, Option("colour words by probability")] = False


class TokenOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file with several tokens: what a client may do, in which sessions.

    `sessions` are names, or beginnings of names with a ``*`` behind them; by default those that
    begin with the `name` of the table and a hyphen.
    """

    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]{1,30}\Z")]
    token: Annotated[str, Meta(pattern=r"\A[!-~]{16,}\Z")]
    may: Literal["listen", "speak", "keep"] = "speak"
    sessions: Annotated[
        tuple[
            Annotated[str, Meta(pattern=r"\A([A-Za-z0-9_.-]{1,64}|[A-Za-z0-9_.-]{0,31}\*)\Z")], ...
        ],
        Meta(min_length=1),
    ]


@dataclass(frozen=True, slots=True)
class BindOptions:
    """The address to listen on; without a token only this machine may connect."""

    host: Annotated[
        str, Meta(min_length=1), "ADDRESS", Option("address to listen on", common=True)
    ] = "127.0.0.1"
    port: (
        Annotated[
            int,
            Meta(ge=0, le=65_535),
            Option("port to listen on; 0: any free port; off: no server", unset="off", common=True),
        ]
        | None
    ) = 8765
    wyoming: Annotated[str, "[HOST:]PORT", Option("port for Home Assistant, usually 10300")] = ""
    """It knows no tokens."""
    share: Annotated[
        Literal["off", "listen", "speak"],
        Option(
            "show a link and QR code for listeners or speakers",
            name="sharing",
            values={"--share": "listen"},
            common=True,
        ),
    ] = "off"
    token_file: Annotated[
        str, "FILE", Option("file with the token that clients must present", common=True)
    ] = ""
    """Empty for ``STREAMD_TOKEN``; with several tokens, a ``.toml`` with a table for each."""
    tls_cert: Annotated[str, "FILE", Option("PEM certificate; allows only wss and https")] = ""
    tls_key: Annotated[str, "FILE", Option("private key, if --tls-cert does not contain it")] = ""
    allow: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^(https?://)?[^/]+\Z")], ...],
        "NAME|https://HOST",
        Option(
            "another host name of this machine, or a website whose pages may connect",
            allowed="a host name, or a website's origin, such as https://captions.example:8443",
        ),
    ] = ()
    """May be repeated."""
    token: Annotated[str | None, DERIVED] = None
    listen_token: Annotated[str | None, DERIVED] = None
    tokens: Annotated[tuple[TokenOptions, ...], DERIVED] = ()

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """Other host names of this machine."""
        return tuple(each for each in self.allow if "://" not in each)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What clients may use, and how long the server waits for them."""

    max_streams: (
        Annotated[
            Count,
            Option(
                "maximum number of clients that send audio; auto: as many as this machine can",
                unset="auto",
            ),
        ]
        | None
    ) = 8
    """None is replaced by an estimate before the server starts."""
    max_subscribers: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Maximum number of clients that receive captions."""
    max_per_address: Annotated[int, Meta(ge=0, le=10_000)] = 32
    """Maximum number of connections from one other machine; 0: no limit."""
    max_session_ms: DurationMs = 0
    """Audio after which a session ends; 0: never."""
    resume_ms: DurationMs = 30_000
    """How long a session waits for its client to reconnect, if the client counts samples."""
    max_message_bytes: Annotated[int, DERIVED] = 1 << 20
    """Maximum size of a message."""
    max_uploads: Count = 8
    """Maximum number of uploaded recordings at a time."""
    max_upload_bytes: Annotated[int, Meta(ge=1_024), "bytes"] = 100 << 20
    """Maximum size of an upload."""
    max_upload_ms: DurationMs = 7_200_000
    """Maximum duration of an upload; an hour takes 115 MB of memory."""
    max_lag_ms: DurationMs = 5_000
    """Lag of the engine above which `/readyz` reports that the server is not ready."""
    shutdown_ms: DurationMs = 10_000
    """How long the program may take to end; the last two seconds are for clients to hear of it, and
    for the end of the process."""
    write_buffer_bytes: Annotated[int, DERIVED] = 32 << 10
    """Size of the send buffer of a connection."""
    send_deadline_ms: Annotated[int, DERIVED] = 10_000
    """How long a message may wait for a client that does not read."""
    ping_ms: Annotated[int, DERIVED] = 20_000
    """Silence after which a client is pinged, and the time it has to answer."""
    max_pending: Annotated[int, DERIVED] = 256
    """Maximum number of connections without a request; if there are more, the oldest one of the
    busiest address is dropped."""

    @property
    def most_streams(self) -> int:
        """The effective `max_streams`."""
        return 8 if self.max_streams is None else self.max_streams

    @property
    def max_speakers(self) -> int:
        """Connections that may send audio: a client may reconnect before its old one has ended."""
        return 2 * self.most_streams

    @property
    def max_connections(self) -> int:
        """Clients that may be connected at a time."""
        return self.max_speakers + self.max_subscribers + self.max_uploads

    @property
    def uploads_per_address(self) -> int:
        """Uploads from one other machine at a time: half, so that it shuts nobody out."""
        return max(1, self.max_uploads // 2)

    @property
    def pending_limit(self) -> int:
        """The effective `max_pending`: all clients may connect at the same time."""
        return max(self.max_pending, self.max_connections)


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """What is kept on disk."""

    folder: (
        Annotated[
            str,
            "DIR",
            Option("folder for finals; auto: the default; off: none", name="journal", unset="off"),
        ]
        | None
    ) = ""
    bus: Annotated[
        str, "nats://HOST:PORT", Option("NATS servers through which to share sessions", secret=True)
    ] = ""
    """Address of NATS, in place of a folder."""
    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    """Number of NATS servers that keep each final."""
    fsync: Literal["always", "interval"] = "interval"
    """Whether each final is forced to disk before it is sent, against power failures, or once a
    second."""
    days: Annotated[int, Meta(ge=0, le=36_500)] = 30
    """Days to keep finals in a journal; 0: forever."""
    record: Annotated[str, "DIR", Option("folder for audio (WAV), or off", unset="off")] | None = ""
    keep: (
        Annotated[
            str,
            Meta(pattern=r"^(?![0-9]+\Z)"),
            "DIR",
            Option(
                "folder for sessions; auto: the default; off: none",
                name="library",
                flags=("--keep",),
                common=True,
                allowed="auto or a folder, such as ./talks",
                unset="off",
            ),
        ]
        | None
    ) = ""
    """Text, words and audio, to be searched and heard later. A number is whisper.cpp's ``--keep``,
    in ms. Unlike None, the default allows what the user once agreed to."""
    keep_days: Annotated[int, Meta(ge=0, le=36_500)] = 0
    """Days to keep sessions in the library; 0: forever."""
    keep_audio: Literal["opus", "flac", "off"] = "opus"
    """Form of the audio in the library."""
    keep_gb: Annotated[float, Meta(ge=0.0, le=1_000_000.0)] = 0.0
    """Gigabytes of audio in the library, beyond which that of the oldest sessions is removed; their
    text stays. 0: no limit."""


_MODEL, _ENDPOINT = ModelOptions(), EndpointOptions()


class Choices(Struct, frozen=True, kw_only=True):
    """What the client that feeds a session may choose: options, under their names."""

    language: str = "auto"
    task: str = _MODEL.task
    prompt: str = _MODEL.prompt
    hotwords: str = _MODEL.hotwords
    endpoint: EndpointRule = _ENDPOINT.rule
    endpoint_ms: int = _ENDPOINT.plain * FRAME_MS
    speakers: bool | UnsetType = UNSET
    sounds: bool | UnsetType = UNSET
    split: bool | UnsetType = UNSET
    """Whether each channel has captions of its own."""
    model: str = ""
    """Another model than the server's own."""
