"""What can be chosen about each part of streamd, with its default, type and range.

Each default stands here and nowhere else. A part takes the dataclass that is made for it;
`streamd/config/table.py` makes those that many need options and says what they mean; ``--set``
reaches the others by the name that they have here. This module imports nothing heavy, so that the
command line is answered before numpy is loaded.

The string in an `Annotated` is the unit. Times in frames have milliseconds at the edges.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from msgspec import Meta

FRAME_MS = 20
FRAMES = "frames"
DERIVED = "derived"
"""In place of a unit: the code sets this field from others, from the model or from the command."""

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Span = Annotated[int, Meta(ge=0, le=1_500), FRAMES]
"""A time within the 30 s that Whisper takes at once; users' times are rounded up to frames."""
Hint = Annotated[str, Meta(max_length=4_000)]
"""Text that the model gets before the transcript; 223 tokens of it count."""
DurationMs = Annotated[int, Meta(ge=0), "ms"]
TimedFormat = Literal["srt", "vtt", "lrc", "csv", "tsv", "json", "json-full", "jsonl", "html"]
FormatName = Literal["txt", TimedFormat, "mp4"]
FORMAT_NAMES: tuple[str, ...] = get_args(FormatName)
Transcript = Annotated[str, Meta(pattern=rf"\.({'|'.join({*FORMAT_NAMES} - {'json-full'})})\Z")]
"""The name of a file; ``.full.json`` is json-full."""

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
LANGUAGE_CODES: Mapping[str, str] = {
    name.casefold(): code
    for code, _, name in (entry.strip().partition(" ") for entry in _LANGUAGES.split(","))
}
"""Names in lower case and codes, as openai-whisper has them; codes in the order of their tokens."""


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Where the audio comes from."""

    files: tuple[str, ...] = ()
    source: bool = True
    device: str = ""
    realtime: bool = True


@dataclass(frozen=True, slots=True)
class PcmOptions:
    """The form of raw PCM from standard input or a named pipe."""

    rate_hz: Annotated[int, Meta(ge=4_000, le=192_000), "Hz"] = 16_000
    encoding: Literal["auto", "u8", "s16le", "s16be", "s24le", "s32le", "f32le", "f64le"] = "auto"
    channels: Annotated[int, Meta(ge=1, le=64)] = 1


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How often a stream is transcribed, and how far back."""

    step: Span = 25
    length: Annotated[int, Meta(ge=1, le=1_500), "frames"] = 400
    shown_prob: Share = 0.4
    """A less probable newest word is hidden during speech, against flicker; 1: always."""
    # Of tiny.en's newest words below 0.35, 76 of 112 changed in the next window.
    context_tokens: Annotated[int, Meta(ge=0, le=223)] = 32
    """Committed tokens in a window and its prompt together; with more inside it has no prompt."""
    # Without any, as many words are wrong where windows hold 10 s of words; each takes time.
    keep_context: bool = False
    language_after: Span = 100
    """Length of an utterance after which its detected language is fixed."""
    backlog: Annotated[int, Meta(ge=1_500, le=4_320_000), "frames"] = 30_000
    """Audio kept while the engine lags; older audio becomes a gap."""
    language: Annotated[str, DERIVED] = ""
    """The code of the spoken language; empty: it is detected."""
    task: Annotated[str, DERIVED] = ""
    prompt: Annotated[str, DERIVED] = ""
    hotwords: Annotated[str, DERIVED] = ""


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """The rule by which words of a stream become final."""

    rule: Literal["local-agreement", "align-att", "sliding"] = "local-agreement"
    keep: Span = 10


@dataclass(frozen=True, slots=True)
class AgreementOptions:
    """When the rule local-agreement commits words."""

    agree: Annotated[int, Meta(ge=2, le=8)] = 2
    """Number of consecutive hypotheses that must begin with the same words."""
    hold: Span = 12
    """Age before which no word is committed."""
    min_progress: Span = 15
    """New audio that a hypothesis needs in order to count as further evidence."""
    confident_prob: Share = 0.95
    """Mean probability at which a word is committed without a second hypothesis."""
    confident_age: Span = 50
    """Age that such a word must have."""
    doubtful_prob: Share = 0.7
    """Mean probability below which agreement alone does not commit a word."""
    doubtful_age: Span = 75
    """Age at which agreement commits such a word, too."""


@dataclass(frozen=True, slots=True)
class AlignAttOptions:
    """When the rule align-att commits words."""

    frame_threshold: Span = 25
    """Distance from the end of the window that a word must keep."""
    rewind: Span = 200
    """A hypothesis whose attention jumps back further than this is ignored."""


@dataclass(frozen=True, slots=True)
class VadOptions:
    """The voice detector."""

    detector: Literal["silero", "webrtc", "off"] = "silero"
    """silero judges what webrtc takes for speech, which alone is also steady noise."""
    aggressiveness: Annotated[int, Meta(ge=0, le=3)] = 1


@dataclass(frozen=True, slots=True)
class GateOptions:
    """When the voice gate opens and closes."""

    attack: Annotated[int, Meta(ge=1, le=1_500), "frames"] = 10
    """The gate looks at the latest frames, this many."""
    open_share: Share = 0.6
    """Share of voiced frames at which the gate opens; below half of it, the gate closes."""
    hangover: Span = 5
    """The gate stays open for this long after the last voiced frame."""
    floor_db: Annotated[float, Meta(ge=-200.0, le=0.0), "dBFS"] = -60.0
    """Quieter frames are never voiced."""

    @property
    def close_share(self) -> float:
        """Share of voiced frames below which the gate closes: with one threshold it would flap."""
        return self.open_share / 2


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """When an utterance begins and ends."""

    pre_roll: Span = 25
    pre_final: Span = 10
    """Silence after which the final is decoded in advance; it belongs to the utterance."""
    plain: Span = 30
    """Silence that ends an utterance."""
    sentence: Span = 20
    """The same after a full stop, a question mark or an exclamation mark."""
    unfinished: Span = 50
    """The same after a comma, an improbable word, or a word that cannot end a sentence."""
    empty: Span = 120
    """The same while nothing has been recognised."""
    longest: Annotated[int, Meta(ge=50, le=1_500), "frames"] = 1_400
    """From three fifths of it, an utterance is cut at the next short pause."""
    overlap: Annotated[int, DERIVED] = 0
    """Audio before such a cut that the next utterance begins with (whisper.cpp's ``--keep``)."""
    exact_cut: Annotated[bool, DERIVED] = False
    """Cut exactly at `longest`, never before (whisper.cpp's lines)."""

    @property
    def shortest_pause(self) -> int:
        """No silence shorter than this ends an utterance, whatever its text."""
        return min(self.plain, self.sentence, self.unfinished, self.empty)

    @property
    def longest_pause(self) -> int:
        """Silence of this length ends an utterance, whatever its text."""
        return max(self.plain, self.sentence, self.unfinished, self.empty)

    @property
    def tail(self) -> int:
        """Silence after the last voiced frame that is transcribed as part of the utterance.

        It holds the end of a voiceless consonant. An utterance may end after `shortest_pause`, so
        its final cannot be decoded later than that.
        """
        return min(self.pre_final, self.shortest_pause)


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """From when on a decoder is taken to repeat itself."""

    word_repeats: Annotated[int, Meta(ge=2, le=100)] = 8
    """Repetitions of one word in a row."""
    phrase_words: Annotated[int, Meta(ge=6, le=200)] = 12
    """Words in all repetitions of a phrase of 2 to 8 words, which are at least three."""
    stuck_tokens: Annotated[int, Meta(ge=2, le=100)] = 8
    """Tokens in a row that attend to the same 80 ms of audio."""
    compression: Annotated[float, Meta(ge=1.0, le=100.0)] = 3.0
    """Compression ratio of the last 60 tokens."""
    # WhisperKit has 2.4, but 60 random digits reach 2.8 (200 trials); repeated phrases of that
    # length reach 5 and more.


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """How a window becomes text; as openai-whisper does it unless a comment says otherwise."""

    language: Annotated[str | None, DERIVED] = None
    """Code of the spoken language; None: it is detected. English-only models ignore it."""
    language_prob: Share = 0.5
    """Probability that a newly detected language needs."""
    language_margin: Share = 0.2
    """By how much it must be more probable than the language before it."""
    beam_size: Annotated[int, Meta(ge=1, le=32)] = 1
    """For windows whose words are all committed; others are decoded greedily, with their draft."""
    patience: Annotated[float, Meta(ge=0.1, le=10.0)] = 1.0
    """Beam search ends after `beam_size` times this many finished hypotheses."""
    whole_beams: Annotated[bool, DERIVED] = False
    """Beam search also goes on while a hypothesis is more probable than all that have ended."""
    length_penalty: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    """Alpha of Google NMT's length penalty; none divides by the length."""
    best_of: Annotated[int, Meta(ge=1, le=32)] = 5
    """Number of samples drawn at temperatures above 0."""
    temperatures: tuple[Share, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """Tried in turn until a result passes the thresholds; --temperature is added to each."""
    compression_ratio_threshold: Annotated[float, Meta(ge=0.0, le=100.0)] = 2.4
    """Of a recording, text that zlib shrinks by more is repetitive and is decoded again."""
    logprob_threshold: Annotated[float, Meta(ge=-100.0, le=0.0)] = -1.0
    """Of a recording, text with a lower mean log probability is a guess and is decoded again."""
    no_speech_threshold: Share = 0.6
    """Such a window is dropped if its text is a guess (recordings) or short (streams), too."""
    least_evidence: Annotated[float, Meta(ge=-100.0, le=0.0)] = -1.5
    """Of a stream, text with less evidence is dropped, and a final is decoded again before."""
    timestamps: Annotated[bool, DERIVED] = False
    """Sample timestamp tokens. Off for streams, whose word times come from attention."""
    max_initial_timestamp: Span | None = 50
    """The latest time that a window's first segment may begin at; none: any."""
    suppress_blank: bool = True
    """Do not let a window's text begin with a blank or its end, unless there is a prefix."""
    begin_suppress_tokens: Annotated[tuple[int, ...] | None, DERIVED] = None
    """The tokens that `suppress_blank` suppresses; None: a blank and the end."""
    suppress_tokens: tuple[Annotated[int, Meta(ge=-1)], ...] = (-1,)
    text_only: Annotated[bool, DERIVED] = True
    """Never sample language tokens, nor timestamps that are not wanted. OpenAI leaves these to the
    model, and streams got lost in endless timestamps that way (ufal/SimulStreaming#1)."""
    max_tokens: Annotated[int, Meta(ge=0, le=448)] = 0
    """Limit of a window's tokens; 0: as its new audio's length allows."""
    tokens_per_second: Annotated[float, Meta(ge=0.0, le=50.0)] = 0.0
    """Tokens that a second of audio may have; 0: 6.5 in English, 13 in other languages."""
    # This plus 8 tokens ends runaway decodes. 6.5 is moonshine's; other languages are cut into
    # more tokens.
    stop_margin: Annotated[float, Meta(ge=0.0, le=20.0), "nats"] = 2.0
    """Write a comma instead of a full stop that is not so much more probable."""
    # Whisper ends what it hears with a full stop, so where a live window ends, it favours one. On
    # stream A 22 commas instead of 15 were kept (28 offline), and no full stop became a comma.
    stability: Share = 0.0
    """How much less probable than the best token a drafted one may be; finals are always exact."""
    # SSBD, arXiv 2509.21740.
    seed: Annotated[int, DERIVED] = 0
    """Seed of the samples; each window has its own generator."""
    audio_ctx: Annotated[int, Meta(ge=0, le=1_500)] = 0
    best_attempt: Annotated[bool, DERIVED] = True
    """Where no temperature passes the thresholds, take the best attempt instead of the last."""
    # openai-whisper takes the last, at temperature 1: text that is repetitive by nature, such as
    # digits, would be lost. SYSTRAN/faster-whisper takes the best, too.
    loops: Annotated[LoopLimits | None, DERIVED] = field(default_factory=LoopLimits)
    """What counts as a loop; None: nothing does, as in openai-whisper."""
    tighten: Annotated[bool, DERIVED] = True
    """Move word times inwards over frames that are 26 dB quieter than the word."""


PREPENDED = "\"'“¿([{-"
APPENDED = "\"'.。,，!！?？:：”)]}、"


@dataclass(frozen=True, slots=True)
class LongformOptions:
    """How a recording is transcribed; as openai-whisper does it unless a comment says otherwise."""

    condition_on_previous_text: bool = True
    initial_prompt: Annotated[str, DERIVED] = ""
    """Text before the first window."""
    carry_initial_prompt: bool = False
    prefix: str = ""
    """openai-whisper begins every window with it; SYSTRAN/faster-whisper the first, as here."""
    hotwords: Annotated[str, DERIVED] = ""
    """Words to expect, put before the prompt of every window without a prefix (faster-whisper)."""
    word_timestamps: bool = True
    """The next window begins after the last of the words. openai-whisper has this off."""
    prepend_punctuations: str = PREPENDED
    """Marks that belong to the word after them."""
    append_punctuations: str = APPENDED
    """Marks that belong to the word before them."""
    hallucination_silence_ms: Annotated[int, Meta(ge=0, le=30_000), "ms"] = 0
    """Needs `word_timestamps`."""
    without_timestamps: bool = False
    """Each window becomes one segment."""
    clip_timestamps_ms: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    """None: the voice detector chooses."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The model, what it is asked for, and what runs it."""

    model: str = ""
    language: Annotated[str, Meta(pattern=r"^(|auto|[a-z]{2,3})\Z")] = ""
    """Empty: it is detected if the model knows more than English, but of two equal models the
    English one is taken."""
    task: Literal["transcribe", "translate"] = "transcribe"
    temperature: Share = 0.0
    """Added to each of `DecodingOptions.temperatures`; those above 1 are left out."""
    fallback: bool = True
    prompt: Hint = ""
    hotwords: Hint = ""
    threads: Annotated[int, Meta(ge=0, le=256)] = 0
    """0 is one if there are several workers."""
    workers: Annotated[int, Meta(ge=0, le=256)] = 0
    engine_deadline_ms: DurationMs = 120_000
    precision: Literal["auto", "float32", "int8"] = "auto"
    engine: Literal["auto", "onnx", "coreml", "reference"] = "auto"
    compute: Literal["auto", "ane", "gpu", "cpu"] = "auto"


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How a model is built for Core ML."""

    audio_contexts: tuple[Annotated[int, Meta(ge=1, le=1_500)], ...] = ()
    """Empty: 256 and 512 positions."""
    folder: str = ""
    weight_bits: Literal["16", "8", "6"] = "16"
    """Size of a weight: 16 is float16, others are palettes."""
    missing: bool = False
    """Whether, on a Mac, a model that is not built is built while captions run, and then used."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Where the text goes."""

    output: tuple[Transcript, ...] = ()
    output_dir: str = ""
    output_format: tuple[Literal[FormatName, "all"], ...] = ()
    format: Literal["text", TimedFormat] = "text"
    colors: Literal["auto", "always", "never"] = "auto"
    mark_low: Share = 0.0
    timestamps: Literal["off", "rel", "clock"] = "off"
    quiet: bool = False
    verbose: Annotated[int, Meta(ge=0, le=2)] = 0
    """2 includes the messages of the libraries."""
    log_format: Literal["text", "json"] = "text"


@dataclass(frozen=True, slots=True)
class CueLayout:
    """How much a subtitle holds, and what is marked in it."""

    line_cells: Annotated[int, Meta(ge=8, le=1_000)] = 42
    max_lines: Annotated[int, Meta(ge=1, le=10)] = 2
    max_words: Annotated[int, Meta(ge=0, le=1_000)] = 0
    highlight: bool = False
    confidence: bool = False


@dataclass(frozen=True, slots=True)
class BindOptions:
    """The address to listen on; without a `token` only this machine may connect."""

    enabled: bool = True
    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8765
    wyoming: str = ""
    """It knows no tokens."""
    token_file: str = ""
    """Empty for ``STREAMD_TOKEN``."""
    listen_token_file: str = ""
    """File with a second token, for clients that may listen but not send audio."""
    tls_cert: str = ""
    tls_key: str = ""
    allow_host: tuple[str, ...] = ()
    share: Literal["off", "listen", "speak"] = "off"
    allow_origin: tuple[str, ...] = ()
    token: Annotated[str | None, DERIVED] = None
    listen_token: Annotated[str | None, DERIVED] = None


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What clients may use, and how long the server waits for them."""

    max_streams: Annotated[int, Meta(ge=0, le=1_000)] = 8
    max_subscribers: Annotated[int, Meta(ge=1, le=10_000)] = 100
    max_per_address: Annotated[int, Meta(ge=0, le=10_000)] = 32
    """Connections from one other machine; 0: unlimited."""
    max_session_ms: DurationMs = 0
    resume_ms: DurationMs = 30_000
    """How long a session waits for its client to reconnect, if the client counts samples."""
    max_message_bytes: Annotated[int, Meta(ge=1_024, le=1 << 30), "bytes"] = 1 << 20
    """Limit of a message's size."""
    max_uploads: Annotated[int, Meta(ge=0, le=1_000)] = 8
    """Uploaded recordings at a time."""
    max_upload_bytes: Annotated[int, Meta(ge=1_024), "bytes"] = 100 << 20
    """Limit of their size."""
    max_upload_ms: DurationMs = 7_200_000
    """Limit of their duration; an hour takes 115 MB of memory."""
    max_lag_ms: DurationMs = 5_000
    """Lag of the engine above which `/readyz` reports that the server is not ready."""
    shutdown_ms: DurationMs = 10_000
    """Time for the last finals when the server ends."""
    write_buffer_bytes: Annotated[int, Meta(ge=1_024), "bytes"] = 32 << 10
    """Size of the send buffer of a connection."""
    send_deadline_ms: DurationMs = 10_000
    """How long a message may wait for a client that does not read."""
    ping_ms: Annotated[int, Meta(ge=1), "ms"] = 20_000
    """Silence after which a client is pinged, and the time it has to answer."""
    max_pending: Annotated[int, Meta(ge=1)] = 256
    """Connections without a request yet; above it the oldest of the busiest address is dropped."""

    @property
    def max_speakers(self) -> int:
        """Connections that may send audio: a client may reconnect before its old one has ended."""
        return 2 * self.max_streams

    @property
    def max_connections(self) -> int:
        """Clients that may be connected at a time."""
        return self.max_speakers + self.max_subscribers + self.max_uploads

    @property
    def pending_limit(self) -> int:
        """The effective `max_pending`: all clients may connect at the same time."""
        return max(self.max_pending, self.max_connections)


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """What is kept on disk."""

    folder: str = ""
    bus: str = ""
    """Address of NATS, in place of a folder."""
    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    """Servers of NATS that keep each final."""
    fsync: Literal["always", "interval", "never"] = "interval"
    """When a line is forced to disk, against power failures."""
    days: Annotated[int, Meta(ge=0, le=36_500)] = 30
    record: str = ""
    rotate_bytes: Annotated[int, Meta(ge=1), "bytes"] = 2 << 20
    """Size at which a new file begins."""
