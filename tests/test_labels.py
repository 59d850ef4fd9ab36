"""Who says what: names of speakers; turns and words are tested in tests/session/test_who.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.config.loading import of_options
from streamd.errors import ConfigError
from streamd.events import SpeakerName
from streamd.labels import MOST_NAME, name_from, name_of, renamed
from streamd.options import OutputOptions


@given(st.text())
def test_a_name_is_kept_as_one_line_or_refused(text):
    try:
        name = name_from(text)
    except ValueError:
        return
    assert name == name_from(name) == " ".join(text.split())
    assert len(name) <= MOST_NAME
    assert all(char.isprintable() or ord(char) > 0xFF for char in name)


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "a\u202eb", "\ud800", "a" * 101])
def test_what_commands_a_terminal_or_is_too_long_is_no_name(text):
    with pytest.raises(ValueError, match="a name"):
        name_from(text)


def test_joiners_that_names_need_stay():
    assert name_from(" \u0645\u06cc\u200c\u0646\u0627 ") == "\u0645\u06cc\u200c\u0646\u0627"


def test_the_newest_name_counts_and_without_one_there_is_the_number():
    names = OutputOptions(names=("1=Ana ,2=Bob, Jr.", "3=x")).called
    for speaker, name in ((1, "Ana Botín"), (3, "Zoë")):
        names = renamed(names, SpeakerName(speaker=speaker, name=name))
    called = [name_of(speaker, names) for speaker in (1, 2, 3, None)]
    assert called == ["Ana Botín", "Bob, Jr.", "Zoë", ""]
    assert name_of(2, renamed(names, SpeakerName(speaker=2, name=""))) == "Speaker 2"


@pytest.mark.parametrize("text", ["1=", "1=Ana,2=", "1=,2=Bob", "1= ,2=Bob", "1=Ana, 2= ,3=Zoë"])
def test_a_name_that_is_missing_is_refused(text):
    with pytest.raises(ConfigError, match="names"):
        of_options({"names": (text,)})
