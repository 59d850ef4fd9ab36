"""The language of a stream: held within an utterance, and beyond it until another is clear."""

from dataclasses import dataclass, field
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.events import Final
from streamd.options import DecodingOptions, SessionOptions
from streamd.session.language import Language
from streamd.types import Hypothesis, Suspect, Window
from streamd.whisper.decode import spoken
from tests.support.fakes import WORD, ScriptedRecognizer, drain, scripted_audio, scripted_session

OPTIONS = DecodingOptions()
codes = st.sampled_from(["en", "de", "fr", "yue"])


@st.composite
def likely(draw) -> dict[str, float]:
    """Probabilities of all four languages, likeliest first."""
    weights = {code: draw(st.integers(1, 100)) for code in ("en", "de", "fr", "yue")}
    total = sum(weights.values())
    order = sorted(weights, key=weights.__getitem__, reverse=True)
    return {code: weights[code] / total for code in order}


@dataclass
class Polyglot(ScriptedRecognizer):
    """Hears the scripted words, and languages with the probabilities of each window in turn."""

    probs: list[dict[str, float]]
    asked: list[Window] = field(default_factory=list)
    heard: list[Hypothesis] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def recognize(self, window: Window) -> Hypothesis:
        language = window.language
        if window.detect:
            probs = self.probs[len(self.asked) % len(self.probs)]
            language = spoken(probs, window.language, OPTIONS)
        self.asked.append(window)
        plain = super().recognize(window)
        self.heard.append(Hypothesis(words=plain.words, tokens=plain.tokens, language=language))
        return self.heard[-1]


def listen(speech: list[bool], recognizer: Polyglot, **options) -> list[Final]:
    session = scripted_session(SessionOptions(**options))
    events = []
    for frame in scripted_audio(speech):
        events += session.feed(frame[None]) + drain(session, recognizer, [])
    events += session.flush() + drain(session, recognizer, [])
    return [event for event in events if isinstance(event, Final)]


def utterances(*n_words: int) -> list[bool]:
    speech = [False] * WORD
    for n in n_words:
        speech += [True] * (n * WORD) + [False] * (13 * WORD)
    return speech


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.lists(likely(), min_size=1))
def test_once_decided_it_does_not_change_within_an_utterance(n_words, probs):
    recognizer = Polyglot(probs)
    listen(utterances(*n_words), recognizer)
    before = ""
    numbered = zip(recognizer.asked, recognizer.heard, strict=True)
    for _, group in groupby(numbered, lambda pair: utterance_of(pair[0], n_words)):
        pairs = list(group)
        start = pairs[0][0].start
        late = [h.language for w, h in pairs if w.end - start >= 100]
        assert len(set(late)) <= 1
        early = [h.language for w, h in pairs if w.end - start < 100]
        assert not before or set(early) <= {before}
        before = late[-1] if late else before


def utterance_of(window: Window, n_words: list[int]) -> int:
    """Which one the window is of; the pre-roll of each lies in the silence before it."""
    ends = [WORD]
    for n in n_words:
        ends.append(ends[-1] + (n + 13) * WORD)
    return sum(window.end > end - 25 for end in ends)


@given(st.lists(st.integers(10, 20), min_size=2, max_size=4), st.lists(likely(), min_size=1))
def test_it_changes_only_to_one_that_is_clearly_likelier(n_words, probs):
    recognizer = Polyglot(probs)
    listen(utterances(*n_words), recognizer)
    for number, (window, hypothesis) in enumerate(
        zip(recognizer.asked, recognizer.heard, strict=True)
    ):
        if window.language and hypothesis.language != window.language:
            found = probs[number % len(probs)]
            assert window.detect
            assert found[hypothesis.language] >= OPTIONS.language_prob
            ahead = found[hypothesis.language] - found[window.language]
            assert ahead >= OPTIONS.language_margin


@given(likely(), codes)
def test_a_language_that_is_not_clearly_another_stays(probs, before):
    chosen = spoken(probs, before, OPTIONS)
    best = max(probs, key=probs.__getitem__)
    clear = probs[best] >= 0.5 and probs[best] - probs[before] >= 0.2
    assert chosen == (best if clear else before)
    assert spoken(probs, "", OPTIONS) == next(iter(probs))


def test_finals_say_the_language_and_that_it_changed():
    sure = {"de": 0.9, "en": 0.05, "fr": 0.05}
    unsure = {"en": 0.45, "de": 0.35, "fr": 0.2}
    changed = {"fr": 0.8, "de": 0.1, "en": 0.1}
    languages = []
    recognizer = Polyglot([sure])
    session = scripted_session()
    for probs in (sure, unsure, changed):
        recognizer.probs = [probs]
        events = session.feed(scripted_audio_from(session.now, utterances(15)))
        events += drain(session, recognizer, [])
        languages += [event.language for event in events if isinstance(event, Final)]
    assert languages == ["de", "de", "fr"]


def scripted_audio_from(first: int, speech: list[bool]):
    return scripted_audio([False] * first + speech)[first:]


def test_a_short_utterance_is_in_the_language_of_the_last_long_one():
    recognizer = Polyglot([{"de": 0.9, "en": 0.1}])
    finals = listen(utterances(15), recognizer)
    assert [final.language for final in finals] == ["de"]
    language = Language(after=100)
    language.learn(Hypothesis(language="de"), 120)
    language.begin()
    assert (language.known, language.detect(80), language.detect(100)) == ("de", False, True)
    language.learn(Hypothesis(language="en"), 80)
    assert language.known == "de"


def test_a_language_that_is_not_probable_is_asked_for_again():
    language = Language(after=100)
    language.learn(Hypothesis(language="ml", language_prob=0.3), 120)
    assert (language.known, language.detect(140)) == ("", True)
    language.learn(Hypothesis(language="es", language_prob=0.9), 140)
    assert (language.known, language.detect(160)) == ("es", False)


def test_before_anything_is_known_every_window_listens():
    recognizer = Polyglot([{"en": 0.4, "de": 0.35}, {"de": 0.6, "en": 0.3}])
    listen(utterances(30), recognizer)
    listened = [window.detect for window in recognizer.asked]
    n_listened = listened.count(True)
    assert listened == [True] * n_listened + [False] * (len(listened) - n_listened)
    assert 2 <= n_listened < len(listened)
    ends = [w.end - recognizer.asked[0].start for w in recognizer.asked]
    assert all(end < 100 for end in ends[: n_listened - 1])
    assert ends[n_listened - 1] >= 100


@pytest.mark.parametrize("suspect", [Suspect.LOOP, Suspect.NO_SPEECH])
def test_what_is_suspect_decides_nothing(suspect):
    language = Language(after=100)
    language.learn(Hypothesis(language="de", suspect=suspect), 200)
    assert language.detect(200)
    language.learn(Hypothesis(language="fr"), 225)
    language.learn(Hypothesis(language="de"), 250)
    assert (language.known, language.detect(275)) == ("fr", False)


def test_words_are_not_lost_to_the_language():
    speech = utterances(3, 14)
    finals = listen(speech, Polyglot([{"de": 0.6, "en": 0.4}]), language_after=50)
    said = " ".join(final.text for final in finals).split()
    assert len(said) == 17
