"""Temperature fallback: decode again, less greedily, until the result passes the thresholds.

Source: openai/whisper ``transcribe.py`` (`decode_with_fallback`). Unlike it, when nothing passes,
the best of the attempts is returned, not the last: it is the one at temperature 1, and text that is
merely repetitive by nature (digits) would be lost (as in SYSTRAN/faster-whisper).
"""

from collections.abc import Callable

from streamd.options import DecodingOptions
from streamd.search.decode import Decoded
from streamd.search.loops import tail_entropy


def is_silence(decoded: Decoded, options: DecodingOptions) -> bool:
    """The decoder doubts both that there is speech and what it wrote.

    Beyond OpenAI's rule, text that it wrote only because it may not be silent counts as doubtful:
    what is then left to choose from can look probable.
    """
    doubtful = decoded.avg_logprob < options.logprob_threshold or decoded.blank
    return doubtful and decoded.no_speech_prob > options.no_speech_threshold


def needs_fallback(decoded: Decoded, options: DecodingOptions) -> bool:
    """The transcript is repetitive or a guess, and the window is not silent."""
    poor = (
        decoded.compression_ratio > options.compression_ratio_threshold
        or decoded.avg_logprob < options.logprob_threshold
        or decoded.loop is not None
        or tail_entropy(decoded.tokens) < options.entropy_threshold
    )
    return poor and not is_silence(decoded, options)


def with_fallback(
    first: Decoded, attempt: Callable[[float], Decoded], options: DecodingOptions
) -> Decoded:
    """`first` if it passes, else the first attempt at one of the later temperatures that does.

    `first` was decoded at ``options.temperatures[0]``; `attempt` decodes at another, with a new
    decoder each time.
    """
    attempts = [first]
    for temperature in options.temperatures[1:]:
        if needs_fallback(attempts[-1], options):
            attempts.append(attempt(temperature))
    if not needs_fallback(attempts[-1], options):
        return attempts[-1]
    return max(attempts, key=lambda decoded: _score(decoded, options))


def _score(decoded: Decoded, options: DecodingOptions) -> tuple[bool, bool, float]:
    varied = decoded.compression_ratio <= options.compression_ratio_threshold
    return decoded.loop is None, varied, decoded.avg_logprob
