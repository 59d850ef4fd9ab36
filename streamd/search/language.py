"""Which language is spoken: what the model would write first says it.

Source: openai/whisper ``decoding.py`` (`detect_language`). What was spoken before is believed until
another language is clearly likelier, which openai-whisper, hearing each recording once, need not.
"""

from collections.abc import Mapping

import numpy as np

from streamd.options import DecodingOptions
from streamd.search import Decoder
from streamd.search.paths import Cache, log_softmax
from streamd.search.tokenizer import Tokenizer


def detect_language(decoder: Decoder, tokenizer: Tokenizer) -> dict[str, float]:
    """The probability of each language that the model knows, likeliest first.

    One pass over start-of-transcript. `decoder` must be new, with at least one slot, and may be
    handed to `decode` afterwards.
    """
    _, logits = Cache(decoder).start((tokenizer.sot,), (0,))
    first = tokenizer.sot + 1
    probs = np.exp(log_softmax(logits[0, first : first + len(tokenizer.languages)]))
    order = np.argsort(-probs, kind="stable").tolist()
    return {tokenizer.languages[i]: float(probs[i]) for i in order}


def spoken(probs: Mapping[str, float], before: str, options: DecodingOptions) -> str:
    """The likeliest language, if it is clear that it is no longer the one spoken `before`.

    `probs` are likeliest first; `before` is a code, or empty if nothing is known.
    """
    likeliest = next(iter(probs))
    if before not in probs:
        return likeliest
    clear = (
        probs[likeliest] >= options.language_prob
        and probs[likeliest] - probs[before] >= options.language_margin
    )
    return likeliest if clear else before
