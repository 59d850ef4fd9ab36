"""What an utterance's windows hold of the one before, and how a text that ends early goes on."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from streamd.events import Event, Final, Unclear
from streamd.options import EndpointOptions, SessionOptions
from streamd.session.commit import LocalAgreement
from streamd.session.session import LEFT_OUT, Session
from streamd.session.text import UNMARKED
from streamd.types import Encoded, Hypothesis, MarksAnswer, MarksQuestion, Suspect, Window, Word
from tests.support.fakes import WORD, ScriptedRecognizer, fed, scripted_audio, scripted_session


def given_words(window: Window) -> tuple[Word, ...]:
    """The words whose marks the window asks for."""
    question = window.asked(MarksQuestion)
    return question.words if question else ()


def listen(
    speech: list[bool],
    recognize: Callable[[Window], Hypothesis],
    endpoint: EndpointOptions | None = None,
    policy: LocalAgreement | None = None,
    options: SessionOptions | None = None,
) -> tuple[list[str], list[Window]]:
    """The texts of the finals, and the windows."""
    session = scripted_session(options, endpoint, policy)
    windows: list[Window] = []
    events = fed(session, recognize, scripted_audio(speech), windows, flush=True)
    return [event.text for event in events if isinstance(event, Final)], windows


def spoken(*numbers_and_pauses: tuple[int, int]) -> list[bool]:
    """So many words, so many frames of silence, from the first frame on."""
    speech: list[bool] = []
    for n_words, pause in numbers_and_pauses:
        speech += [True] * n_words * WORD + [False] * pause
    return speech


SHORT, LONG = 3 * WORD, 12 * WORD


def test_after_a_short_pause_the_decoder_gets_the_end_of_the_utterance_before():
    texts, windows = listen(
        spoken((30, SHORT), (10, LONG)),
        ScriptedRecognizer().recognize,
        options=SessionOptions(length=180),
    )
    first, second = (len(text.split()) for text in texts)
    assert (first, second) == (30, 10)
    of_second = [window for window in windows if window.end > 33 * WORD]
    kept = of_second[0].before
    assert kept == tuple(range(30 - len(kept), 30))
    assert 180 <= len(kept) * WORD < 180 + 2 * WORD, "3.6 seconds of words"
    assert of_second[0].start <= kept[0] * WORD, "and their audio"
    assert not any(window.before for window in windows if window.end < 33 * WORD)


def marked(mark: str, joint: str | None) -> Callable[[Window], Hypothesis]:
    """Ends the first ten words with a mark, and writes its own there when it reads on."""
    honest = ScriptedRecognizer()

    def recognize(window: Window) -> Hypothesis:
        found = honest.recognize(window)
        words = [
            replace(word, text=f"{word.text}{mark}", tokens=(9, 99), n_mark=1)
            if word.tokens == (9,)
            else word
            for word in found.words
        ]
        if window.before and not window.prefix and words and joint:
            words.insert(0, replace(words[0], text=joint, tokens=(98,), end=words[0].start))
        return replace(found, words=tuple(words))

    return recognize


@pytest.mark.parametrize(
    ("mark", "joint", "begins"),
    [(".", ",", "W13"), (",", ",", "w13"), (",", None, "w13"), (".", None, "W13")],
)
def test_the_decoder_may_choose_another_mark_between_two_utterances(mark, joint, begins):
    speech, endpoint = spoken((10, SHORT), (10, LONG)), EndpointOptions(unfinished=20)
    texts, windows = listen(speech, marked(mark, joint), endpoint)
    first, second = texts
    assert first.endswith(f"w9{mark}")
    assert second.startswith(f"{begins} w14"), "the mark was shown; a full stop needs a capital"
    of_second = [window for window in windows if window.before]
    undecided = [window.before for window in of_second if not window.prefix]
    assert undecided
    assert all(before[-1] == 9 for before in undecided), "without the mark"
    decided = [window.before for window in of_second if window.prefix]
    assert decided[0][-1] == (98 if joint else 9), "with the one that it chose"


def test_after_a_long_pause_it_does_not():
    _, windows = listen(spoken((30, LONG), (10, LONG)), ScriptedRecognizer().recognize)
    assert not any(window.before for window in windows)
    assert all(window.start >= 33 * WORD for window in windows if window.end > 37 * WORD)


@pytest.mark.parametrize(("n_words", "begins_anew"), [(70, False), (90, True)])
def test_what_was_said_for_20_s_leaves_too_little_of_a_window_for_what_follows(
    n_words, begins_anew
):
    said = spoken((n_words, SHORT), (10, LONG))
    options = SessionOptions(length=1_400)
    _, windows = listen(said, ScriptedRecognizer().recognize, options=options)
    first = next(window for window in windows if window.end > n_words * WORD + SHORT)
    assert (first.start >= n_words * WORD) is begins_anew
    assert (not first.before) is begins_anew


def test_words_are_not_lost_where_the_decoder_ends_after_the_text_that_it_got():
    honest = ScriptedRecognizer()
    unread = []

    def ends_at_once(window: Window) -> Hypothesis:
        if window.before or window.prefix:
            unread.append(window)
            return Hypothesis()
        return honest.recognize(window)

    texts, _ = listen(spoken((30, SHORT), (30, LONG)), ends_at_once)
    assert unread
    first, second = ([int(word.strip("w")) for word in text.split()] for text in texts)
    # What is shorter than a second and a half, six words, may be noise.
    assert first[:24] == list(range(24))
    assert second[:24] == list(range(33, 57))


def test_a_guess_does_not_end_the_window():
    """What follows is read behind the words that are known, not on its own."""
    honest = ScriptedRecognizer()

    def guesses(window: Window) -> Hypothesis:
        if 300 <= window.end < 400 and not window.last:
            return Hypothesis(suspect=Suspect.NO_SPEECH)
        return honest.recognize(window)

    texts, windows = listen(spoken((50, LONG)), guesses)
    assert {window.start for window in windows} == {0}
    assert texts == [" ".join(f"w{n}" for n in range(50))]


def test_marks_are_decided_although_nobody_pauses():
    honest = ScriptedRecognizer()

    def ends_sentences(window: Window) -> Hypothesis:
        found = honest.recognize(window)
        ended = [replace(word, text=f" w{word.tokens[0]}.") for word in given_words(window)]
        return found.answered(MarksAnswer(tuple(ended)))

    _, windows = listen(spoken((60, LONG)), ends_sentences)
    *asked, last = [given_words(window) for window in windows if window.asked(MarksQuestion)]
    assert [len(words) >= UNMARKED * n for n, words in enumerate(asked, 1)] == [True] * 3
    assert given_words(windows[-1]) == last
    ended = [[word.text.endswith(".") for word in words] for words in asked]
    assert not any(ended[0])
    assert all(ended[1][: len(ended[0])])
    assert not any(ended[1][len(ended[0]) :])


def test_a_window_says_where_text_ends_too_early():
    """Behind that frame, its last second and a half of voice begins."""
    speech = [*spoken((6, 3), (30, LONG))]
    _, windows = listen(speech, ScriptedRecognizer().recognize)
    told = {window.end: window.retry.text_until for window in windows if window.start == 0}
    assert speech.index(False) == 72
    assert told[50] is None
    assert told[100] == 100 - LEFT_OUT - 3, "without the three silent frames"
    assert told[200] == 200 - LEFT_OUT


def test_words_are_not_lost_where_the_last_hypothesis_ends_early():
    honest = ScriptedRecognizer()

    def ends_early(window: Window) -> Hypothesis:
        found = honest.recognize(window)
        words = found.words[:3] if window.last else found.words
        return Hypothesis(words=words, tokens=tuple(t for word in words for t in word.tokens))

    texts, windows = listen(spoken((40, LONG)), ends_early, options=SessionOptions(step=0))
    (numbers,) = ([int(word.strip("w")) for word in text.split()] for text in texts)
    assert numbers[:34] == list(range(34))
    assert sum(window.last for window in windows) > 1


def test_a_translation_ends_in_its_pause_though_it_is_improbable():
    honest = ScriptedRecognizer()

    def improbable(window: Window) -> Hypothesis:
        return replace(honest.recognize(window), avg_logprob=-2.0)

    options = SessionOptions(task="translate")
    texts, _ = listen(spoken((10, 60), (10, LONG)), improbable, options=options)
    assert len(texts) == 2


def test_what_no_temperature_made_probable_is_not_transcribed_on_its_own():
    """The decoder did not end early: there is nothing to be read in the audio."""
    honest = ScriptedRecognizer()

    def finds_nothing_in_the_end(window: Window) -> Hypothesis:
        if window.last:
            return Hypothesis(suspect=Suspect.NO_SPEECH, temperature=1.0)
        return honest.recognize(window)

    texts, windows = listen(spoken((40, LONG)), finds_nothing_in_the_end)
    assert 0 < len(texts[0].split()) < 40, "what was committed"
    assert sum(window.last for window in windows) == 1


def test_what_was_a_guess_is_not_forced_on_the_utterance_after_it():
    honest = ScriptedRecognizer()

    def guesses_first(window: Window) -> Hypothesis:
        found = honest.recognize(window)
        return replace(found, avg_logprob=-1.1) if window.end < 33 * WORD else found

    _, windows = listen(spoken((30, SHORT), (10, LONG)), guesses_first)
    assert any(window.end > 33 * WORD for window in windows)
    assert not any(window.before for window in windows)


@pytest.mark.parametrize(("logprob", "n_words"), [(-1.1, 0), (-0.9, 10)])
def test_nor_on_one_that_another_process_transcribes(logprob, n_words):
    session, recognizer = scripted_session(SessionOptions(step=0)), ScriptedRecognizer()
    audio = scripted_audio(spoken((10, LONG)))
    fed(session, lambda w: replace(recognizer.recognize(w), avg_logprob=logprob), audio)
    assert session.idle
    assert len(session.resume_state.words) == n_words


def test_what_was_computed_for_a_window_is_given_back_with_the_next_one():
    recognizer = ScriptedRecognizer()

    def recognize(window: Window) -> Hypothesis:
        known = Encoded(window.start, window.end, object())
        return replace(recognizer.recognize(window), encoded=known)

    _, windows = listen(spoken((30, SHORT), (300, 2000), (3, LONG)), recognize)
    longer = [(a, b) for a, b in pairwise(windows) if b.start == a.start]
    for before, window in longer:
        assert window.encoded is not None
        assert (window.encoded.start, window.encoded.end) == (before.start, before.end)
    assert len(longer) > 100
    assert windows[0].encoded is None
    assert next(w for w in windows if w.start > 333 * WORD).encoded is None, "not kept in silence"


@pytest.mark.parametrize("mark", ["", "。"])
def test_what_is_not_read_behind_other_words_is_read_on_its_own(mark):
    """A final of one full stop stood for a sentence in another language."""
    honest = ScriptedRecognizer()

    def reads_only_without_context(window: Window) -> Hypothesis:
        if not window.before:
            return honest.recognize(window)
        words = (Word(mark, window.prefix_end, window.end, 0.9, (0,)),) if mark else ()
        return Hypothesis(words=words, temperature=0.4)

    texts, windows = listen(spoken((10, SHORT), (5, LONG)), reads_only_without_context)
    assert [len(text.split()) for text in texts] == [10, 5]
    assert any(window.before for window in windows)


def heard(session: Session, hypothesis: Hypothesis, speech: list[bool]) -> list[Event]:
    """The events of a session to which the recognizer says the same of each window."""

    def recognize(window: Window) -> Hypothesis:
        times = {"start": window.prefix_end, "end": window.end}
        return replace(hypothesis, words=tuple(replace(w, **times) for w in hypothesis.words))

    return fed(session, recognize, scripted_audio(speech))


@pytest.mark.parametrize(("prob", "n_told"), [(0.9, 2), (0.7, 0)])
def test_a_short_voice_without_words_is_told_if_it_is_surely_one(prob, n_told):
    """The second one, behind a pause of a second, does not belong to the first."""
    session = scripted_session(speech_prob=prob)
    speech = [False] * 50 + [True] * 20 + [False] * 50 + [True] * 20 + [False] * 60
    events = heard(session, Hypothesis(), speech)
    unclear = [event for event in events if isinstance(event, Unclear)]
    assert len(unclear) == n_told
    assert all(event.end_ms - event.start_ms < 1100 for event in unclear)


@pytest.mark.parametrize(
    ("n_voiced", "prob", "no_speech_prob", "n_finals"),
    [(20, 0.9, 0.3, 1), (60, 0.9, 0.3, 0), (20, 0.7, 0.3, 0), (20, 0.0, 0.3, 0), (20, 0.9, 0.6, 0)],
)
def test_an_improbable_word_is_final_if_it_is_short_and_surely_speech(
    n_voiced, prob, no_speech_prob, n_finals
):
    """Of a word alone the decoder is never sure: no text comes before it."""
    session = scripted_session(speech_prob=prob)
    guess = Hypothesis(
        words=(Word(" seven", 0, 1, 0.3, (7,)),),
        tokens=(7,),
        avg_logprob=-0.9,
        no_speech_prob=no_speech_prob,
    )
    events = heard(session, guess, [False] * 1000 + [True] * n_voiced + [False] * 150)
    finals = [event for event in events if isinstance(event, Final)]
    assert [final.text for final in finals] == ["seven"] * n_finals


def test_a_voice_without_words_is_told():
    audio = scripted_audio([False] * 50 + [True] * 100 + [False] * 200 + [True] * 40)
    events = fed(scripted_session(), lambda _: Hypothesis(), audio, flush=True)
    (unclear,) = [event for event in events if isinstance(event, Unclear)]
    assert 500 <= unclear.start_ms <= 1000
    assert 3000 <= unclear.end_ms <= 3400
    assert not any(isinstance(event, Final) for event in events)
