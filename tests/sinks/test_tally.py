"""What is said at the end of a file that was captioned live."""

from streamd.events import Partial
from streamd.sinks.tally import Tally
from tests.support.said import spoken


def partial(text: str, stable: int = 0) -> Partial:
    return Partial(seg=1, rev=1, start_ms=0, end_ms=1, text=text, stable=stable)


def counted(*events: object) -> Tally:
    tally = Tally(cpu_s=iter([1.0, 1.3]).__next__)
    for event in events:
        tally.write(event)
    tally.close()
    return tally


def test_words_that_are_replaced_count_and_marks_and_growth_do_not():
    tally = counted(
        partial("turn of"),
        partial("Turn on the", 4),
        partial("turn on the lamb and", 11),
        partial("turn on the"),  # the end of a guess is taken back
        spoken("Turn on the lamp.", word_ms=750),
    )
    assert (tally.n_words, tally.n_rewritten, tally.n_broken) == (4, 1, 0)
    assert tally.lines() == [
        "3 s of speech, 4 words, 10% of one core",
        "words rewritten while tentative: 1; changed once final: 0",
    ]


def test_a_committed_word_that_changed_would_be_told():
    tally = counted(partial("turn on the lamb", 16), spoken("Turn on the lamp."))
    assert tally.n_broken == 1
    assert tally.lines()[1].endswith("changed once final: 1")


def test_nothing_is_said_of_silence():
    assert counted(partial("so")).lines() == []
