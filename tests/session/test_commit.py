"""The commit rules on hand-made hypotheses."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from streamd.events import Final
from streamd.options import AgreementOptions
from streamd.session.commit import AlignAtt, CommitPolicy, LocalAgreement, normalised
from streamd.types import Hypothesis, Window, Word
from tests.support.fakes import WORD, ScriptedRecognizer, played, scripted_audio, scripted_session


def commit(policy: CommitPolicy, words: Sequence[Word], *, now: int, silence: int) -> int:
    """As a session does that commits what the policy proposes."""
    n = policy.propose(words, now=now, silence=silence)
    policy.committed(n)
    return n


def words(text: str, *, start: int = 0, prob: float = 0.9, each: int = 20) -> list[Word]:
    return [
        Word(f" {word}", start + i * each, start + (i + 1) * each, prob)
        for i, word in enumerate(text.split())
    ]


def test_words_agree_whatever_their_case_and_punctuation():
    assert normalised(" And,") == normalised("and") == "and"
    assert normalised(" don't") == "dont"
    assert normalised(" ...") == "..."


def test_what_two_hypotheses_begin_with_is_committed():
    policy = LocalAgreement()
    assert commit(policy, words("and so my"), now=100, silence=0) == 0
    assert commit(policy, words("and so my fellow"), now=125, silence=0) == 3
    assert commit(policy, words("Americans ask", start=60), now=150, silence=0) == 0


def test_the_last_word_waits_while_somebody_speaks():
    policy = LocalAgreement()
    commit(policy, words("and so"), now=100, silence=0)
    assert commit(policy, words("and so"), now=125, silence=0) == 1


def test_a_second_look_at_almost_the_same_audio_confirms_nothing():
    policy = LocalAgreement(AgreementOptions(min_progress=15))
    commit(policy, words("and so my"), now=100, silence=0)
    assert commit(policy, words("and so my"), now=110, silence=0) == 0
    assert commit(policy, words("and so my"), now=126, silence=0) == 2


def test_an_improbable_word_waits_until_more_audio_would_not_help():
    policy = LocalAgreement(AgreementOptions(doubtful_prob=0.7, doubtful_age=75))
    heard = [*words("and so"), *words("mike", start=40, prob=0.6), *words("said it", start=60)]
    commit(policy, heard, now=105, silence=0)
    assert commit(policy, heard, now=130, silence=0) == 2
    assert commit(policy, heard[2:], now=134, silence=0) == 0
    assert commit(policy, heard[2:], now=155, silence=0) == 2


def test_three_must_agree_if_asked_to():
    policy = LocalAgreement(AgreementOptions(agree=3))
    assert commit(policy, words("a b c"), now=100, silence=0) == 0
    assert commit(policy, words("a b c"), now=125, silence=0) == 0
    assert commit(policy, words("a b d"), now=150, silence=0) == 2


def test_after_silence_everything_is_committed():
    assert commit(LocalAgreement(), words("and so"), now=60, silence=15) == 2
    assert commit(LocalAgreement(), words("and so"), now=60, silence=5) == 0


def test_after_silence_a_doubtful_word_waits_all_the_same():
    policy = LocalAgreement(AgreementOptions(doubtful_prob=0.7, doubtful_age=75))
    heard = [*words("i"), *words("bet", start=20, prob=0.4), *words("she", start=40)]
    assert commit(policy, heard, now=80, silence=15) == 1
    assert commit(policy, heard[1:], now=130, silence=0) == 1


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=6), max_size=12))
def test_committed_words_are_what_all_hypotheses_since_agree_on(hypotheses):
    """Feed the recognizer's view (uncommitted words only) as the session does."""
    policy, committed, before = LocalAgreement(AgreementOptions(min_progress=0)), [], None
    for i, names in enumerate(hypotheses):
        new = words(" ".join(names))
        n = commit(policy, new, now=1000 + 100 * i, silence=0)
        if n:
            assert before is not None
            assert before[:n] == names[:n]
        committed += names[:n]
        before = names[n:]


def test_align_att_commits_what_ends_well_before_the_edge():
    policy = AlignAtt()
    assert commit(policy, words("and so my fellow"), now=80, silence=0) == 2
    assert commit(policy, words("my fellow", start=40), now=200, silence=0) == 1
    assert commit(policy, words("fellow", start=60), now=200, silence=14) == 0
    assert commit(policy, words("fellow", start=60), now=200, silence=15) == 1


def test_align_att_ignores_a_hypothesis_that_jumps_back():
    policy = AlignAtt()
    assert commit(policy, words("late word", start=900), now=1000, silence=0) == 1
    assert commit(policy, words("early word again", start=100), now=1000, silence=0) == 0


def test_align_att_notices_in_a_session_that_the_decoder_jumps_back():
    """Words are moved behind those that are committed before the rule sees them."""

    class JumpsBack(ScriptedRecognizer):
        def recognize(self, window: Window) -> Hypothesis:
            hypothesis = super().recognize(window)
            if window.last or window.end < 400 or not window.prefix:
                return hypothesis
            wrong = (Word(f" wrong{n}", 30 + 5 * n, 35 + 5 * n, 0.9, (1000 + n,)) for n in range(8))
            return replace(hypothesis, words=tuple(wrong))

    speech = [False] * 24 + [True] * (40 * WORD) + [False] * 150
    session = scripted_session(policy=AlignAtt())
    events, _ = played(session, JumpsBack(), scripted_audio(speech), [1])
    assert not any("wrong" in event.text for event in events if isinstance(event, Final))
