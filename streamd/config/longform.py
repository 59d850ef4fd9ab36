"""The options that only whole recordings have; see `schema`."""

from typing import Annotated

from msgspec import Meta

from streamd.config.group import Group, Ms
from streamd.config.option import Opt


class Longform(Group, frozen=True, kw_only=True):
    """How whole recordings are gone through (openai-whisper's options)."""

    without_timestamps: Annotated[
        bool, Opt("do not let the model place the text in time; one segment a window")
    ] = False
    word_timestamps: Annotated[
        bool, Opt("no words with times and probabilities, only segments")
    ] = True
    condition_on_previous_text: Annotated[
        bool, Opt("do not give the text so far to the next window")
    ] = True
    carry_initial_prompt: Annotated[
        bool, Opt("give --prompt to every window, not only to the first")
    ] = False
    prefix: Annotated[
        str, Opt("text that the first window begins with; it is not written again", rare=True)
    ] = ""
    max_initial_timestamp_ms: Annotated[
        Ms, Opt("latest beginning of a window's first segment; 0: any", unit="ms", rare=True)
    ] = 1_000
    clip_timestamps_ms: Annotated[
        tuple[Annotated[int, Meta(ge=0)], ...],
        Opt("only these parts: START,END,START,END...; instead of --vad", unit="ms"),
    ] = ()
    hallucination_silence_threshold_ms: Annotated[
        Ms, Opt("pass over a longer silence around a hallucination; 0: do not", unit="ms")
    ] = 0
    prepend_punctuations: Annotated[
        str, Opt("marks that belong to the word behind them", rare=True)
    ] = "\"'“¿([{-"
    append_punctuations: Annotated[
        str, Opt("marks that belong to the word before them", rare=True)
    ] = "\"'.。,，!！?？:：”)]}、"
