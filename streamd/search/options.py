"""What can be chosen about decoding, with the defaults and their sources."""

from dataclasses import dataclass

from streamd.search.loops import USUAL, LoopLimits


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """How a window is turned into text. The defaults are openai/whisper's unless a note says more.

    Attributes
    ----------
    language : code of the spoken language; None: it is heard. English-only models ignore it.
    language_prob, language_margin : a language that was not spoken before is believed from this
        probability on, if it is that much likelier than the one before
    beam_size : hypotheses kept by beam search; 1 is greedy. Only for windows whose words are all
        committed: others are decoded greedily, with their draft.
    patience : beam search ends after ``beam_size * patience`` finished hypotheses
    length_penalty : Google NMT's alpha, 0..1; None divides by the length
    best_of : samples drawn at temperatures above 0
    temperatures : tried in turn until a result passes the thresholds
    compression_ratio_threshold : text that zlib shrinks by more is repetitive
    logprob_threshold : a lower mean log probability is a guess
    final_logprob_threshold : the same for what a stream says for good: a guess is not drawn at a
        higher temperature as soon, from which text comes that nobody said (OpenWhispr#1458)
    entropy_threshold : of the last 32 tokens, in nats; a lower one is repetitive (whisper.cpp;
        OpenWhispr#1458 for the value). 0: do not care, as openai-whisper
    no_speech_threshold : with a mean log probability that low, a higher probability is silence
    timestamps : sample timestamp tokens; off, since word times come from attention
    max_initial_timestamp : the latest first timestamp, in frames; None: any
    suppress_blank : something must be said before the end, unless a prefix says it
    begin_suppress_tokens : what suppress_blank refuses; None: a blank and the end
    suppress_tokens : never sampled; -1: annotations such as brackets and music notes
    text_only : never sample languages, nor timestamps that are not wanted. OpenAI leaves these to
        the model, and streams got lost in endless timestamps that way (ufal/SimulStreaming#1)
    max_tokens : the most that a window may have; 0: by its length
    tokens_per_second : no speech needs more; with 8 tokens on top this ends runaway decodes.
        0: 6.5 for English (moonshine), 13 for all others, whose words are cut into more tokens
    stability : for windows that are not the last word: keep a draft token whose probability is at
        least 1 - stability of the best one's (SSBD, arXiv 2509.21740). 0: exactly greedy
    seed : of the samples; each window has its own generator
    audio_ctx : encoder positions; 0: the audio's frames plus `audio_ctx_pad`, in steps of 64, at
        least `audio_ctx_floor` (whisper.cpp#1855, voxtype#130)
    loops : what counts as a decoder that repeats itself; None: nothing does, as in openai-whisper
    tighten : move word times inwards over frames that are 26 dB quieter than the word
    """

    language: str | None = None
    language_prob: float = 0.5
    language_margin: float = 0.2
    beam_size: int = 1
    patience: float = 1.0
    length_penalty: float | None = None
    best_of: int = 5
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio_threshold: float = 2.4
    logprob_threshold: float = -1.0
    final_logprob_threshold: float = -1.25
    entropy_threshold: float = 2.8
    no_speech_threshold: float = 0.6
    timestamps: bool = False
    max_initial_timestamp: int | None = 50
    suppress_blank: bool = True
    begin_suppress_tokens: tuple[int, ...] | None = None
    suppress_tokens: tuple[int, ...] = (-1,)
    text_only: bool = True
    max_tokens: int = 0
    tokens_per_second: float = 0.0
    stability: float = 0.0
    seed: int = 0
    audio_ctx: int = 0
    audio_ctx_pad: int = 128
    audio_ctx_floor: int = 384
    loops: LoopLimits | None = USUAL
    tighten: bool = True
