import pytest

from streamd.language import BINDING, LANGUAGE_CODES, LANGUAGES, UNFINISHED, ends_sentence

ENDINGS = [
    "It is done.",
    "Is it?",
    "Stop!",
    "Really?!",
    "So do I.",
    'He said "stop."',
    "He said “stop.”",
    "«Non.»",
    "Er sagte: „Halt.“",
    "(done.)",
    "(done). ",
    "Number 3.",
    "At 5 p.m.",
    "It is 3.5.",
    "The answer is no.",
    "It is spelled J-O-H-N.",
    "Wait...?",
    "今天是星期五。",
    "本当！",
    "谁？",
    "「はい。」",
    "هل أنت هنا؟",
    "یہ ہے۔",
    "यह है।",
    ".",
    "He joined the U.S. Army.",
]
GOING_ON = [
    "",
    "It is",
    "It is,",
    "Namely:",
    "3.5",
    "$1.000",
    "streamd.py",
    "There came Dr.",
    "there came mr.",
    '"Mrs.',
    "in St.",
    "Main St.",
    "George W.",
    "J. R. R.",
    "J.R.R.",
    "Владимир В.",
    "the U.S.",
    "the C.I.",
    "the United States (U.S.)",
    "fruit, e.g.",
    "Wait...",
    "Wait…",
    "Wait. . .",
    '"Wait..."',
    "等等。。。",
    '"stop"',
]


@pytest.mark.parametrize("text", ENDINGS)
def test_a_sentence_ends_with_its_mark_and_what_closes_it(text):
    assert ends_sentence(text)


@pytest.mark.parametrize("text", GOING_ON)
def test_no_sentence_ends_where_more_follows(text):
    assert not ends_sentence(text)


def test_no_sentence_ends_within_a_name():
    words = "He joined the U.S. Army with St. John and George W. Bush at 3.5 miles."
    assert [word for word in words.split() if ends_sentence(word)] == ["miles."]


def test_each_code_is_a_language_once():
    assert len(LANGUAGES) == len(set(LANGUAGES)) == 100
    assert {LANGUAGE_CODES["german"], LANGUAGE_CODES["deutsch"]} == {"de"}


def test_what_is_unfinished_binds():
    assert UNFINISHED < BINDING
