"""All options of streamd, each declared once: name, default, unit, limits, help.

The command line, the variables, the TOML file, the help and docs/options.md are derived from these
structs. A field's outward name is its own in kebab case, or the `name` it is given. Times are
milliseconds here; whoever wires the stations converts them to frames.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from streamd.config.building import Building
from streamd.config.calibration import Calibration
from streamd.config.decoding import Decoding
from streamd.config.group import FrameMs, Group, Ms, Share
from streamd.config.longform import Longform
from streamd.config.option import Opt
from streamd.config.output import Output
from streamd.config.serving import Journal, Server


class Input(Group, frozen=True, kw_only=True):
    """Where the audio comes from."""

    files: Annotated[
        tuple[str, ...],
        Opt("audio files or addresses, one after the other; -: stdin", positional=True),
    ] = ()
    source: Annotated[bool, Opt("take no audio from here, only from the network", rare=True)] = True
    device: Annotated[
        str,
        Opt(
            "microphone, by number or a part of its name",
            metavar="ID|NAME",
            flags=("-d", "-c", "--capture"),
        ),
    ] = ""
    realtime: Annotated[
        bool, Opt("read files as fast as possible, not in real time", off=("--fast",))
    ] = True
    input_rate: Annotated[
        int, Meta(ge=4_000, le=192_000), Opt("sampling rate of raw PCM", unit="Hz")
    ] = 16_000
    input_format: Annotated[
        Literal["auto", "u8", "s16le", "s16be", "s24le", "s32le", "f32le", "f64le"],
        Opt("sample format of raw PCM; auto: s16le, if it is no container", rare=True),
    ] = "auto"
    input_channels: Annotated[int, Meta(ge=1, le=64), Opt("channels of raw PCM", rare=True)] = 1


class Streaming(Group, frozen=True, kw_only=True):
    """When a window is transcribed, and when its words are committed."""

    step_ms: Annotated[
        FrameMs, Opt("new audio per window; 0: only whole utterances", unit="ms")
    ] = field(default=500, name="step")
    length_ms: Annotated[
        int, Meta(ge=20, le=30_000, multiple_of=20), Opt("audio per window, at most", unit="ms")
    ] = field(default=5_000, name="length")
    keep_ms: Annotated[
        FrameMs, Opt("audio kept from the last line (commit rule sliding)", unit="ms", rare=True)
    ] = field(default=200, name="keep")
    commit: Annotated[
        Literal["local-agreement", "align-att", "sliding"],
        Opt("rule by which words become final"),
    ] = "local-agreement"
    agreement: Annotated[
        int, Meta(ge=2, le=8), Opt("windows in a row that must agree on a word", rare=True)
    ] = 2
    hold_ms: Annotated[Ms, Opt("age at which a word may be committed", unit="ms", rare=True)] = 250
    min_progress_ms: Annotated[
        Ms, Opt("new audio that makes an agreement count", unit="ms", rare=True)
    ] = 300
    confident_prob: Annotated[
        Share, Opt("probability at which a word need not be agreed upon", rare=True)
    ] = 0.95
    confident_age_ms: Annotated[Ms, Opt("and the age at which", unit="ms", rare=True)] = 1_000
    frame_threshold_ms: Annotated[
        Ms, Opt("distance to the window's end (align-att)", unit="ms", rare=True)
    ] = 500
    rewind_ms: Annotated[
        Ms, Opt("backward jump that discards a window (align-att)", unit="ms", rare=True)
    ] = 4_000
    context_tokens: Annotated[
        int, Meta(ge=0, le=223), Opt("committed tokens given as prompt, at most", rare=True)
    ] = 64
    keep_context: Annotated[
        bool, Opt("keep the prompt across utterances", flags=("-kc",), rare=True)
    ] = False
    stability: Annotated[Share, Opt("tolerance for keeping drafted words; 0: exact", rare=True)] = (
        0.0
    )
    mask_words: Annotated[
        int, Meta(ge=0, le=10), Opt("newest tentative words not shown; less flicker", rare=True)
    ] = 0
    backlog_ms: Annotated[
        int,
        Meta(ge=30_000, le=86_400_000),
        Opt("audio kept while the engine is behind; beyond it a gap", unit="ms", rare=True),
    ] = 600_000


class Vad(Group, frozen=True, kw_only=True):
    """What counts as speech, and when an utterance ends."""

    vad: Annotated[Literal["webrtc", "energy", "off"], Opt("voice detector")] = "webrtc"
    vad_aggressiveness: Annotated[
        int, Meta(ge=0, le=3), Opt("how eagerly webrtc rejects noise", rare=True)
    ] = 1
    vad_threshold: Annotated[
        Share,
        Opt("share of voiced frames that starts speech", flags=("-vth", "--vad-thold"), rare=True),
    ] = 0.6
    attack_ms: Annotated[
        int,
        Meta(ge=20, le=30_000, multiple_of=20),
        Opt("time over which that share is taken", unit="ms", rare=True),
    ] = 200
    hangover_ms: Annotated[Ms, Opt("pause that still counts as speech", unit="ms", rare=True)] = 100
    pre_roll_ms: Annotated[
        Ms, Opt("audio taken from before the start of speech", unit="ms", rare=True)
    ] = 500
    energy_floor_db: Annotated[
        float,
        Meta(ge=-200.0, le=0.0),
        Opt("level below which nothing is speech", unit="dBFS", rare=True),
    ] = -60.0
    steady_db: Annotated[
        float,
        Meta(ge=0.0, le=60.0),
        Opt("noise moves less than this in 2 s; 0: do not care", unit="dB", rare=True),
    ] = 3.0
    endpoint_ms: Annotated[Ms, Opt("pause that ends an utterance", unit="ms")] = 600
    endpoint_sentence_ms: Annotated[Ms, Opt("the same behind . ? !", unit="ms", rare=True)] = 400
    endpoint_unfinished_ms: Annotated[
        Ms, Opt("the same behind an unfinished phrase", unit="ms", rare=True)
    ] = 1_000
    endpoint_empty_ms: Annotated[
        Ms, Opt("the same while there are no words", unit="ms", rare=True)
    ] = 2_400
    max_utterance_ms: Annotated[
        int,
        Meta(ge=1_000, le=30_000),
        Opt("length at which an utterance is cut", unit="ms", rare=True),
    ] = 28_000
    pre_final_ms: Annotated[
        Ms, Opt("pause after which the final is prepared", unit="ms", rare=True)
    ] = 200


class Config(Group, frozen=True, kw_only=True):
    """Everything that a user can decide."""

    input: Input = Input()
    streaming: Streaming = Streaming()
    vad: Vad = Vad()
    decoding: Decoding = Decoding()
    longform: Longform = Longform()
    building: Building = Building()
    calibration: Calibration = Calibration()
    output: Output = Output()
    server: Server = Server()
    journal: Journal = Journal()
