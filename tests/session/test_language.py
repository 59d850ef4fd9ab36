"""The language of a stream: held within an utterance, and beyond it until another is clear."""

from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamd.events import Final
from streamd.options import SessionOptions
from streamd.session.language import SURE, Change, Language, surely_read
from streamd.types import DetectedLanguage, Hypothesis, LanguageQuestion, Suspect, Window, Word
from streamd.whisper.decode import CLEARLY_NEW, NEW_LANGUAGE, spoken
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    drain,
    fed,
    scripted_audio,
    scripted_session,
)

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
        known, question = window.options.language, window.asked(LanguageQuestion)
        heard = DetectedLanguage(known)
        if question is not None:
            probs = self.probs[len(self.asked) % len(self.probs)]
            code = spoken(probs, known)
            heard = DetectedLanguage(code, probs[code], probs.get(known, 0.0))
        self.asked.append(window)
        language = heard.language if question and question.decides else known
        found = replace(super().recognize(window), language=language, answers=(heard,))
        self.heard.append(found)
        return found


def listen(speech: list[bool], recognizer: Polyglot, **options) -> list[Final]:
    session = scripted_session(SessionOptions(**options))
    events = fed(session, recognizer, scripted_audio(speech), flush=True)
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
        decided = next((i for i, (w, h) in enumerate(pairs) if is_sure(w, h, start)), len(pairs))
        late = [h.language for _, h in pairs[decided:]]
        assert len(set(late)) <= 1
        early = [h.language for w, h in pairs[:decided] if w.end - start < 100]
        assert not before or set(early) <= {before}
        before = late[-1] if late else before


def is_sure(window: Window, hypothesis: Hypothesis, start: int) -> bool:
    return window.end - start >= 100 and (hypothesis.answer(DetectedLanguage).prob or 0.0) >= SURE


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
        known, question = window.options.language, window.asked(LanguageQuestion)
        if known and hypothesis.language != known:
            found = probs[number % len(probs)]
            assert question
            assert question.decides
            assert found[hypothesis.language] >= NEW_LANGUAGE
            ahead = found[hypothesis.language] - found[known]
            assert ahead >= CLEARLY_NEW


@given(likely(), codes)
@example({"en": 0.55, "de": 0.4, "fr": 0.03, "yue": 0.02}, "de")  # hardly more probable
@example({"en": 0.45, "de": 0.2, "fr": 0.2, "yue": 0.15}, "de")  # clearly, but it is doubtful
def test_a_language_that_is_not_clearly_another_stays(probs, before):
    chosen = spoken(probs, before)
    best = max(probs, key=probs.__getitem__)
    clear = probs[best] >= 0.5 and probs[best] - probs[before] >= 0.2
    assert chosen == (best if clear else before)
    assert spoken(probs, "") == next(iter(probs))


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


def told(
    language: Language, end: int, code: str, prob: float = 0.85, *, since: int = 0, **known
) -> Change | None:
    """Ask for a window up to `end`, and learn the language if it is asked for."""
    question = language.question(since, end)
    window = Window(since, end, np.zeros(0, np.float32), asks=(question,) if question else ())
    previous_prob = known.pop("previous_prob", prob if code == language.known else 0.1)
    heard = DetectedLanguage(code, prob, previous_prob)
    return language.learn(window, Hypothesis(language=code, answers=(heard,), **known))


def knowing(code: str, *ends: int) -> Language:
    """The language of a stream that was told the same at each of these frames."""
    language = Language()
    for end in ends:
        told(language, end, code)
    return language


def test_a_short_utterance_is_in_the_language_of_the_last_long_one():
    recognizer = Polyglot([{"de": 0.9, "en": 0.1}])
    finals = listen(utterances(15), recognizer)
    assert [final.language for final in finals] == ["de"]
    language = knowing("de", 120)
    language.begin(300)
    assert language.known == "de"
    assert language.question(300, 380) is None
    assert language.question(300, 400) == LanguageQuestion(300)
    told(language, 380, "en")
    assert language.known == "de"


def test_a_language_that_is_not_probable_is_asked_for_again():
    language = Language()
    told(language, 120, "ml", 0.3)
    assert (language.known, language.question(0, 140)) == ("", LanguageQuestion(0))
    told(language, 140, "es")
    assert (language.known, language.question(0, 160)) == ("es", None)


def test_after_a_long_pause_the_first_seconds_decide():
    language = Language()
    assert told(language, 100, "ja") is None
    language.begin(500)
    assert told(language, 575, "en") is None
    assert language.certain(575) == 0, "nothing is committed until then, nor in the silence before"
    assert told(language, 600, "en", 0.6) == Change("en")
    assert language.known == "en"


def test_another_language_twice_in_a_row_begins_within_the_utterance():
    language = knowing("ja", 100)
    assert language.certain(100) == 50
    assert told(language, 150, "ja") is None
    assert language.certain(175) == 100
    assert told(language, 200, "ja") is None
    assert told(language, 250, "en") is None
    assert told(language, 275, "en") is None, "not asked for so soon"
    assert told(language, 300, "en") == Change("en", (150, 230))
    assert language.known == "ja", "so the rest of the utterance is read"
    language.change(Change("en"))
    language.begin(190)
    assert (language.known, language.question(0, 230)) == ("en", None)


def test_it_has_begun_where_the_language_before_was_heard_no_more():
    language = knowing("ko", 100, 150)
    assert told(language, 200, "ko", 0.3) is None, "none is clear: it stays"
    change = told(language, 300, "en", 0.95, previous_prob=0.003)
    assert change == Change("en", (100, 180))


def test_one_that_excludes_the_language_before_needs_no_second_time():
    language = knowing("ja", 100, 150, 200)
    assert told(language, 250, "en", 0.95, previous_prob=0.01) is None
    language.begin(300, follows=True)
    assert told(language, 400, "en", 0.95, previous_prob=0.001) == Change("en"), "all of it"
    assert language.known == "en"


def test_a_first_look_that_comes_late_is_at_the_whole_utterance():
    """All audio was there at once, and its last two seconds were silence in part."""
    language = knowing("es", 100)
    language.begin(300, follows=True)
    assert language.question(300, 399) is None
    assert language.question(300, 700) == LanguageQuestion(300, decides=False)
    told(language, 700, "es")
    assert language.question(300, 760) == LanguageQuestion(660, decides=False)
    assert language.question(300, 1000) == LanguageQuestion(900, decides=False)


def test_it_is_still_detected_after_an_utterance_that_nobody_could_read():
    """It was taken for the answer of a model that knows one language, and never asked for again."""
    second = WORD * (1 + 15 + 13)
    third = second + WORD * (15 + 13)

    class Mumbled(Polyglot):
        def recognize(self, window: Window) -> Hypothesis:
            found = super().recognize(window)
            if not second - 50 < window.start < third - 50:
                return found
            heard = found.answer(DetectedLanguage)
            unsure = replace(heard, prob=None if heard.prob is None else 0.4)
            return replace(found, avg_logprob=-2.0, answers=(unsure,))

    recognizer = Mumbled([{"de": 0.9, "en": 0.1}])
    assert len(listen(utterances(15, 15, 15), recognizer)) == 2
    of_third = [window for window in recognizer.asked if window.start > third - 50]
    assert any(window.asked(LanguageQuestion) for window in of_third)


def test_a_short_utterance_is_listened_to_with_the_one_before():
    language = knowing("de", 100)
    language.begin(300, follows=True)
    assert language.question(300, 360) is None, "the window has too little to listen to"
    assert language.question(200, 360) == LanguageQuestion(260, decides=False)
    assert told(language, 360, "en", 0.95, previous_prob=0.001) == Change("en")


def test_a_rest_that_is_read_on_its_own_is_listened_to_at_once():
    """Italian behind Korean was lost: no two spans of it were probable enough, the rest was."""
    language = knowing("ko", 100, 150)
    told(language, 350, "it", 0.78, previous_prob=0.001)
    assert language.question(0, 374) is None, "not a second since"
    assert language.question(132, 374) == LanguageQuestion(132, decides=False)
    assert told(language, 374, "it", 0.99, since=132, previous_prob=0.001) == Change(
        "it", (100, 330)
    )


def test_spans_in_which_no_language_is_probable_may_lie_between_the_two():
    language = knowing("en", 100, 200)
    assert told(language, 300, "it", 0.9, previous_prob=0.06) is None
    assert told(language, 350, "en", 0.02) is None
    assert told(language, 400, "it", 0.65, previous_prob=0.02) is None
    assert told(language, 450, "it", 0.83, previous_prob=0.03) == Change("it", (150, 280))


@pytest.mark.parametrize("heard", [("en", "ja"), ("en", "ko"), ("ja", "en")])
def test_once_is_not_enough(heard):
    language = Language()
    told(language, 100, "ja", previous_prob=0.1)
    for n, code in enumerate(heard):
        assert told(language, 150 + 50 * n, code, previous_prob=0.1) is None


def test_nor_is_what_is_hardly_probable():
    language = knowing("ja", 100)
    for n in range(4):
        assert told(language, 150 + 50 * n, "en", 0.7) is None


def test_a_language_that_nobody_detects_is_certain():
    language = Language()
    assert language.certain(60) == 0
    language.learn(Window(0, 60, np.zeros(0, np.float32)), Hypothesis())
    assert (language.certain(60), language.question(0, 100)) == (60, None)
    assert Language(among=("de",)).certain(60) == 60


def test_a_client_may_name_other_languages_while_the_session_runs():
    language = knowing("en", 120)
    assert (language.expected, language.question(0, 230)) == (
        "en",
        LanguageQuestion(130, decides=False),
    )
    language.allow(("de",))
    assert (language.expected, language.question(0, 230)) == ("de", None)
    language.allow(("de", "fr"))
    assert (language.expected, language.question(0, 230)) == ("", LanguageQuestion(0))
    told(language, 240, "fr")
    language.allow(("fr", "en"))
    assert language.expected == "fr"
    told(language, 300, "en", 0.95, previous_prob=0.001)
    language.change(Change("en", (200, 260)))
    language.allow(("fr", "it"))
    language.begin(260)
    assert language.known == "fr"


def test_before_anything_is_known_every_window_listens():
    recognizer = Polyglot([{"en": 0.4, "de": 0.35}, {"de": 0.6, "en": 0.3}])
    listen(utterances(30), recognizer)
    questions = [window.asked(LanguageQuestion) for window in recognizer.asked]
    listened = [bool(each and each.decides) for each in questions]
    n_listened = listened.count(True)
    assert listened == [True] * n_listened + [False] * (len(listened) - n_listened)
    assert 2 <= n_listened < len(listened)
    ends = [w.end - recognizer.asked[0].start for w in recognizer.asked]
    assert all(end < 100 for end in ends[: n_listened - 1])
    assert ends[n_listened - 1] >= 100


@pytest.mark.parametrize("suspect", [Suspect.LOOP, Suspect.NO_SPEECH])
def test_what_is_suspect_decides_nothing(suspect):
    language = Language()
    told(language, 200, "de", suspect=suspect)
    assert language.question(0, 200) == LanguageQuestion(0)
    told(language, 225, "fr")
    assert language.known == "fr"


def test_words_are_not_lost_to_the_language():
    speech = utterances(3, 14)
    finals = listen(speech, Polyglot([{"de": 0.6, "en": 0.4}]))
    said = " ".join(final.text for final in finals).split()
    assert len(said) == 17


class Bilingual(ScriptedRecognizer):
    """Hears one language up to a frame, and another from there on."""

    def __init__(self, switch: int) -> None:
        super().__init__()
        self._switch = switch
        self.languages: dict[int, set[str]] = {}
        """In which languages each word was read."""

    def recognize(self, window: Window) -> Hypothesis:
        known, question = window.options.language, window.asked(LanguageQuestion)
        if question is None:
            return replace(super().recognize(window), language=known)
        middle = (max(question.since, window.start) + window.end) // 2
        code = "ja" if middle < self._switch else "en"
        heard = DetectedLanguage(code, 0.95, 0.95 if code == known else 0.01)
        language = code if question.decides else known
        return replace(super().recognize(window), language=language, answers=(heard,))


def language_of_words(
    switch: int, speech: list[bool], recognizer_type: type[Bilingual] = Bilingual
) -> dict[int, str]:
    session, recognizer = scripted_session(), recognizer_type(switch)
    events = fed(session, recognizer, scripted_audio(speech), flush=True)
    assert session.idle
    return {
        int(word.text[1:]): event.language
        for event in events
        if isinstance(event, Final)
        for word in event.words
    }


@given(st.integers(8, 60), st.integers(8, 60), st.integers(0, 100))
def test_both_languages_are_read_whatever_the_pause_between_them(n_before, n_after, pause):
    speech = [True] * (n_before * WORD) + [False] * pause + [True] * (n_after * WORD)
    switch = n_before * WORD + pause
    found = language_of_words(switch, [*speech, *[False] * 100])
    middles = range(WORD // 2, len(speech), WORD)
    assert list(found) == [n for n, middle in enumerate(middles) if speech[middle]], "all words"
    # Where the change is found is exact to within a second.
    for n, language in found.items():
        if abs(n * WORD - switch) > 60 and n_after * WORD > 250 and n_before * WORD > 150:
            assert language == ("ja" if n * WORD < switch else "en")


class Deaf(Bilingual):
    """In one language, it reads nothing of what is said in the other."""

    def recognize(self, window: Window) -> Hypothesis:
        plain = super().recognize(window)
        if plain.language != "ja":
            return plain
        words = tuple(word for word in plain.words if word.end <= self._switch)
        return replace(plain, words=words, tokens=tuple(t for word in words for t in word.tokens))


@pytest.mark.parametrize("n_before", range(12, 30))
def test_without_a_pause_the_change_is_behind_the_last_word_that_was_read(n_before):
    """The first words of the other language went to the utterance before, and were lost."""
    speech = [True] * ((n_before + 30) * WORD)
    found = language_of_words(n_before * WORD, [*speech, *[False] * 100], Deaf)
    assert found == {n: "ja" if n < n_before else "en" for n in range(n_before + 30)}


@pytest.mark.parametrize(
    ("probs", "n_sure"),
    [
        ((0.9, 0.9, 0.4, 0.4), 2),
        ((0.3, 0.9, 1.0, 0.4, 0.6), 3),  # the first follows what is committed
        ((0.9, 0.3, 0.9, 0.2), 3),
        ((0.9, 0.3, 0.3, 0.9), 1),
        ((0.9, 0.3, 0.6, 0.9), 1),  # its neighbour is not clear
        ((0.9, 0.3), 1),
        ((0.4, 0.6), 0),
        ((), 0),
    ],
)
def test_a_word_that_sounds_like_another_is_not_where_the_language_changes(probs, n_sure):
    """Japanese right before Korean was cut off at one such word, 1.4 s before its end."""
    words = [Word(" a", n, n + 1, prob) for n, prob in enumerate(probs)]
    assert surely_read(words) == words[:n_sure]


def test_the_language_may_change_behind_a_sentence():
    """Of English right behind German, "And so my fellow" was read as "Und so, my fellow"."""
    words = [Word(" genutzt.", 0, 1, 1.0), Word(" Und", 1, 2, 0.2), Word(" so", 2, 3, 1.0)]
    assert surely_read(words) == words[:1]
    assert surely_read(words[1:], behind=" genutzt.") == []
    assert surely_read(words[1:]) == words[1:]
