"""The options of the model and its search; see `schema`."""

from typing import Annotated, Literal

from msgspec import Meta

from streamd.config.group import Group, Ms, Share
from streamd.config.option import Opt


class Decoding(Group, frozen=True, kw_only=True):
    """The model and its search."""

    model: Annotated[
        str,
        Opt("name or path of a model; without, the best here", metavar="NAME|PATH", flags=("-m",)),
    ] = ""
    language: Annotated[
        str,
        Meta(pattern=r"^(auto|[a-z]{2,3})\Z"),
        Opt(
            "spoken language",
            metavar="CODE",
            flags=("-l",),
            allowed="auto or a code like en, de, yue",
        ),
    ] = "en"
    language_after_ms: Annotated[
        Ms, Opt("of an utterance, after which auto decides on its language", unit="ms", rare=True)
    ] = 2_000
    language_prob: Annotated[
        Share, Opt("probability from which auto believes in another language", rare=True)
    ] = 0.5
    language_margin: Annotated[
        Share, Opt("and by how much it must be likelier than the one before", rare=True)
    ] = 0.2
    task: Annotated[
        Literal["transcribe", "translate"],
        Opt(
            "translate: into English",
            short_for=(("-tr", "translate"), ("--translate", "translate")),
        ),
    ] = "transcribe"
    beam_size: Annotated[
        int, Meta(ge=1, le=32), Opt("beams of a final; 1: greedy", flags=("-bs",))
    ] = 1
    patience: Annotated[
        float, Meta(ge=0.1, le=10.0), Opt("ends the beam search later the higher it is", rare=True)
    ] = 1.0
    length_penalty: Annotated[
        float,
        Meta(ge=-1.0, le=1.0),
        Opt("favours long beams, 0 to 1; -1: the mean of their tokens counts", rare=True),
    ] = -1.0
    best_of: Annotated[
        int,
        Meta(ge=1, le=32),
        Opt("samples when the temperature is above 0", flags=("-bo",), rare=True),
    ] = 5
    temperature: Annotated[
        Share, Opt("temperature of the first attempt", flags=("-tp",), rare=True)
    ] = 0.0
    temperature_inc: Annotated[
        Share, Opt("added for each further attempt; 0: no further ones", flags=("-tpi",), rare=True)
    ] = 0.2
    fallback: Annotated[
        bool,
        Opt("no further attempts at higher temperatures", off=("-nf", "--no-fallback"), rare=True),
    ] = True
    compression_threshold: Annotated[
        float, Meta(ge=0.0, le=100.0), Opt("a more repetitive text is tried again", rare=True)
    ] = 2.4
    logprob_threshold: Annotated[
        float,
        Meta(ge=-100.0, le=0.0),
        Opt("a less probable text is tried again", flags=("-lpt", "--logprob-thold"), rare=True),
    ] = -1.0
    final_logprob_threshold: Annotated[
        float, Meta(ge=-100.0, le=0.0), Opt("the same for a final of a stream", rare=True)
    ] = -1.25
    entropy_threshold: Annotated[
        float,
        Meta(ge=0.0, le=10.0),
        Opt(
            "a final whose last 32 tokens have less is tried again",
            unit="nats",
            flags=("-et", "--entropy-thold"),
            rare=True,
        ),
    ] = 2.8
    no_speech_threshold: Annotated[
        Share,
        Opt(
            "a window less likely to be speech is dropped",
            flags=("-nth", "--no-speech-thold"),
            rare=True,
        ),
    ] = 0.6
    prompt: Annotated[
        str, Opt("text that the model sees before the first word", flags=("--initial-prompt",))
    ] = ""
    hotwords: Annotated[
        str, Opt("words and names to expect, told to the model for every window")
    ] = ""
    suppress_tokens: Annotated[
        tuple[Annotated[int, Meta(ge=-1)], ...],
        Opt("tokens never written; -1: the model's own list, or else annotations", rare=True),
    ] = (-1,)
    suppress_blank: Annotated[bool, Opt("let a window begin with a blank", rare=True)] = True
    max_tokens: Annotated[
        int,
        Meta(ge=0, le=448),
        Opt("tokens per window, at most; 0: by length", flags=("-mt",), rare=True),
    ] = 0
    tokens_per_second: Annotated[
        float,
        Meta(ge=0.0, le=50.0),
        Opt("tokens that a second of audio may have; 0: 6.5 in English, else 13", rare=True),
    ] = 0.0
    loop_word_repeats: Annotated[
        int, Meta(ge=2, le=100), Opt("the same word that often is a loop", rare=True)
    ] = 8
    loop_phrase_words: Annotated[
        int, Meta(ge=6, le=200), Opt("a phrase repeated over so many words is one", rare=True)
    ] = 12
    loop_stuck_tokens: Annotated[
        int, Meta(ge=2, le=100), Opt("so many tokens from one spot are one", rare=True)
    ] = 8
    loop_compression: Annotated[
        float, Meta(ge=1.0, le=100.0), Opt("a tail that compresses better is one", rare=True)
    ] = 3.0
    audio_ctx: Annotated[
        int, Meta(ge=0, le=1_500), Opt("encoder positions; 0: by length", flags=("-ac",), rare=True)
    ] = 0
    audio_ctx_pad: Annotated[
        int, Meta(ge=0, le=1_500), Opt("positions added to the audio's length", rare=True)
    ] = 128
    audio_ctx_floor: Annotated[
        int,
        Meta(ge=0, le=1_500),
        Opt("positions, at least; 0: 384, or what the model needs", rare=True),
    ] = 0
    threads: Annotated[
        int,
        Meta(ge=0, le=256),
        Opt("threads of the engine; 0: two, if there are two", flags=("-t",)),
    ] = 0
    workers: Annotated[
        int,
        Meta(ge=0, le=256),
        Opt("windows at a time; 0: one, or for serve two of a thread each", rare=True),
    ] = 0
    engine_deadline_ms: Annotated[
        int,
        Meta(ge=0),
        Opt("time for one window, after which the engine is dead; 0: any", unit="ms", rare=True),
    ] = 120_000
    precision: Annotated[
        Literal["auto", "float32", "int8"],
        Opt("of the model's weights; auto: int8 where that is faster", rare=True),
    ] = "auto"
    engine: Annotated[
        Literal["auto", "onnx", "coreml", "reference"], Opt("what runs the model", rare=True)
    ] = "auto"
    compute: Annotated[
        Literal["auto", "ane", "gpu", "cpu"],
        Opt("where a Mac runs it; ane: Neural Engine; auto: where it is fastest", rare=True),
    ] = "auto"
