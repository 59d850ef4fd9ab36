"""The ways to decode a window again, in the order in which they are tried.

The first decode has the phrases that are expected, and the lowest temperature. Each attempt says
whether it `applies` to the text so far, what to `run`, and whether it `keeps` the result; so
`Recognizer.recognize` is a loop over `ATTEMPTS`. `Hypothesis.work` says which were tried and kept.

- *phrases*: an improbable final is decoded without the phrases that are expected. Kept if it is
  more probable then.
- *fallback*: a final with a loop or little evidence is decoded at higher temperatures. Kept is the
  first text that passes, or the best.
- *digits*: digits with commas between them are decoded without such commas. Kept if there are other
  words, and they are more probable.
- *continuation*: a text that ends long before the voice goes on with other tokens. Kept if what
  follows is probable by itself.
- *marks*: if the window asks for them, marks and capitals are decoded again, but no words. Kept.

What a final costs at most: it is decoded nine times, since no attempt runs twice: once, without
phrases, at five more temperatures, without commas between digits, and to go on. What an attempt
takes is counted in frames of audio whose text may take as many passes (`Effort`), and no
attempt begins, but that for marks, when those before have taken the window's budget. So a final
costs as much as its first decode, the budget (at most a window, 30 s), and one attempt more: for
the longest utterance, 28 s of English, 29 + 30 + 43 s of audio (43 are those of digits, whose
window is encoded again). On the average of a stream it is half of the audio (`AGAIN_RATE`). A
decode takes at most a pass for each token that the window may have, and with phrases one more for
each. Marks take a pass for each 24 words, and one more for each choice that changes.

One more way is the session's: where a final left out voice all the same, the session asks for a
window that begins there, as long as there is a budget (`Session.accept`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from streamd.language import MARKS, is_famous
from streamd.options import DecodingOptions
from streamd.types import MarksAnswer, MarksQuestion, Suspect, is_probable, text_of, with_marks
from streamd.whisper.decode import needs_fallback, with_fallback
from streamd.whisper.engine import alone
from streamd.whisper.punctuation import punctuated
from streamd.whisper.view import AnyText, WindowText

_DIGITS_APART = re.compile(r"( \d,){2,} \d(?!\w|\.\d)")
"""Three single digits with commas between them."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A way to decode a window again; `is_free` of the window's budget or not."""

    name: str
    applies: Callable[[AnyText], bool]
    run: Callable[[AnyText], AnyText]
    keeps: Callable[[AnyText, AnyText], bool]
    """Whether the text after it counts, given that before and after."""
    is_free: bool = False


def _is_improbable_final(text: AnyText) -> bool:
    window, decoded = text.view.window, text.decoded
    is_expecting = text.view.context.vocabulary is not None and decoded.temperature == 0
    return window.last and is_expecting and not is_probable(decoded, clear=window.retry.clear)


def _without_phrases(text: AnyText) -> AnyText:
    """What a phrase costs would otherwise lose the utterance of which it is most."""
    return WindowText(text.view, text.view.decode(0.0, None))


def _has_more_evidence(before: AnyText, after: AnyText) -> bool:
    return after.decoded.evidence > before.decoded.evidence


def _fallback_options(text: AnyText) -> DecodingOptions:
    # There are many ways to translate, so none is probable, and no other try is better. A word
    # alone is improbable, too, and of so short a text a sample is another word.
    view, options = text.view, text.view.options
    takes_any = view.tokenizer.translates or view.window.retry.clear
    return replace(options, least_evidence=-inf) if takes_any else options


def _is_poor(text: AnyText) -> bool:
    options = _fallback_options(text)
    return len(options.temperatures) > 1 and needs_fallback(text.decoded, options)


def _at_higher_temperatures(text: AnyText) -> AnyText:
    view = text.view
    decoded = alone(
        with_fallback(
            lambda temperature: view.search(temperature, view.context.vocabulary),
            _fallback_options(text),
            first=text.decoded,
            may_retry=lambda: view.effort.may_retry,
        )
    )
    return text if decoded is text.decoded else WindowText(view, decoded)


def _is_other(before: AnyText, after: AnyText) -> bool:
    return after is not before


def _has_digits_apart(text: AnyText) -> bool:
    written = text.view.tokenizer.decode(text.decoded.tokens)
    return _DIGITS_APART.search(written) is not None and text.decoded.temperature == 0


def _without_commas(text: AnyText) -> AnyText:
    """Where single digits are dictated, the decoder leaves some out if it writes commas.

    "1, 0, 0, 1" is 10001. Of 16 runs in which they were dictated, tiny.en has all right with the
    other text, 13 if that is decoded with states of an earlier window, 4 without it. That commas
    are refused costs the other text nothing.
    """
    view, window = text.view, text.view.window
    options = replace(window.options, language=view.context.language)
    anew = view.anew(replace(window, options=options, asks=(), encoded=None, draft=()))
    context = replace(anew.context, joins_digits=True)
    anew = replace(anew, window=window, context=context, detected=view.detected, effort=view.effort)
    view.effort.encode(window.end - window.start)
    return WindowText(anew, anew.decode(0.0, anew.context.vocabulary))


def _has_other_words(before: AnyText, after: AnyText) -> bool:
    """Where the words are the same, somebody may count: "1, 2, 3"."""
    decoded, tokenizer = after.decoded, before.view.tokenizer
    is_whole = decoded.ended and decoded.loop is None
    words, others = (
        [word.strip(MARKS) for word in tokenizer.decode(each.decoded.tokens).split()]
        for each in (before, after)
    )
    return is_whole and words != others and decoded.sum_logprob > before.decoded.sum_logprob


def _read_until(text: AnyText) -> int:
    words = text.hypothesis.words
    return words[-1].end if words else text.view.window.prefix_end


def _ends_early(text: AnyText) -> bool:
    view, hypothesis = text.view, text.hypothesis
    until, context = view.window.retry.text_until, view.context
    if until is None or _read_until(text) >= until or view.tokenizer.translates:
        return False
    n_given = len(context.before) + len(context.prefix) + len(hypothesis.tokens)
    is_whole = hypothesis.suspect in {None, Suspect.LOOP} and hypothesis.temperature == 0
    return is_whole and 0 < n_given <= view.engine.dims.n_text_ctx // 2


def _continued(text: AnyText) -> AnyText:
    """In noise the decoder may end a text that goes on, or repeat itself, window after window.

    Where it may do neither, it reads on.
    """
    view, hypothesis, tokens = text.view, text.hypothesis, text.hypothesis.tokens
    context, eot = view.context, view.tokenizer.eot
    is_drafted = context.draft[: len(tokens)] == tokens
    context = replace(
        context,
        before=(*context.before, *context.prefix, *tokens),
        prefix=(),
        draft=context.draft[len(tokens) :] if is_drafted else (),
        refused=((*text.decoded.tokens, eot)[len(tokens)], eot),
    )
    window = replace(view.window, prefix_end=_read_until(text))
    behind = replace(view, window=window, context=context)
    more = behind.hypothesis(behind.decode(0.0, context.vocabulary))
    n, n_more = len(tokens), len(more.tokens)
    total = n * (hypothesis.avg_logprob or 0.0) + n_more * (more.avg_logprob or 0.0)
    both = replace(
        hypothesis,
        words=(*hypothesis.words, *more.words),
        tokens=(*tokens, *more.tokens),
        avg_logprob=total / max(1, n + n_more),
        suspect=None,
    )
    return replace(text, known=both, more=more)


def _adds_text(_: AnyText, after: AnyText) -> bool:
    """What follows counts only if it is probable by itself."""
    if (more := after.more) is None or not more.words or more.suspect:
        return False
    return not is_famous(text_of(more.words)) and is_probable(more)


def _asks_for_marks(text: AnyText) -> bool:
    asks = text.view.window.asked(MarksQuestion) is not None
    return asks and not text.view.tokenizer.translates


def _punctuated(text: AnyText) -> AnyText:
    """Decide the marks and capitals of what is known of the whole text."""
    view, hypothesis = text.view, text.hypothesis
    question = view.window.asked(MarksQuestion)
    given = question.words if question else ()
    vocabulary = view.context.vocabulary
    words = punctuated(
        with_marks((*given, *hypothesis.words)),
        language=view.context.language,
        tokenizer=view.tokenizer,
        new_decoder=lambda n_slots: view.engine.decoder(view.features, n_slots),
        spelled=vocabulary.spelled if vocabulary else (),
    )
    new = tuple(words[len(given) :])
    tokens = tuple(token for word in new for token in word.tokens)
    marked = replace(hypothesis, words=new, tokens=tokens)
    return replace(text, known=marked.answered(MarksAnswer(tuple(words[: len(given)]))))


def _always(_: AnyText, __: AnyText) -> bool:
    return True


ATTEMPTS = (
    Attempt("phrases", _is_improbable_final, _without_phrases, _has_more_evidence),
    Attempt("fallback", _is_poor, _at_higher_temperatures, _is_other),
    Attempt("digits", _has_digits_apart, _without_commas, _has_other_words),
    Attempt("continuation", _ends_early, _continued, _adds_text),
    Attempt("marks", _asks_for_marks, _punctuated, _always, is_free=True),
)
"""All ways to decode again, in order; each sees what those before it have left."""


def decoded_again(text: AnyText) -> AnyText:
    """Try all attempts that apply, and return the text that counts."""
    effort = text.view.effort
    for attempt in ATTEMPTS:
        if not (attempt.is_free or effort.may_retry) or not attempt.applies(text):
            continue
        after = attempt.run(text)
        is_kept = attempt.keeps(text, after)
        effort.attempts.append((attempt.name, is_kept))
        text = after if is_kept else text
    return text
