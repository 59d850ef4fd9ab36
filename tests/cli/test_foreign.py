"""What other programs' options are called here, in the program and on paper."""

import re
from pathlib import Path

import pytest

from streamd.cli.arguments import FOREIGN, refuse_foreign
from streamd.config import OPTIONS
from streamd.errors import ConfigError

RECIPES = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
PAGE = RECIPES.partition("## Coming from")[2]
OURS = {"--set", *(flag for option in OPTIONS.values() for flag in option.every_flag)}
ROWS = [(program, *row) for program, rows in FOREIGN.items() for row in rows.items()]


@pytest.mark.parametrize(("program", "flags", "cure"), ROWS)
def test_each_flag_is_answered_with_what_there_is(program, flags, cure):
    for flag in flags.split():
        assert flag not in OURS
        with pytest.raises(ConfigError, match=re.escape(f"{flag} is {program}'s; streamd has")):
            refuse_foreign(["talk.flac", f"{flag}=x"])
    assert set(re.findall(r"--[a-z][a-z-]*", cure)) <= OURS


def test_what_the_page_calls_the_same_is_there():
    lines = [line for line in PAGE.splitlines() if "mean the same" in line]
    for line in lines:
        named = set(re.findall(r"`(--?[a-z][a-z-]*)`", line))
        assert len(named) >= 9
        assert named <= OURS
    assert len(lines) == len(FOREIGN)


def test_our_own_words_pass():
    refuse_foreign([*sorted(OURS), "talk.flac", "-", "-5"])
