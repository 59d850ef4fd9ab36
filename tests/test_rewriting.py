"""What is meant by what was said: replacements, spoken commands, and what partials may promise."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.daemon import phrases
from streamd.errors import ConfigError
from streamd.events import Final, Partial, TimedWord
from streamd.rewriting import Rewriter, built_in, read_rules
from tests.support.said import partial

OWN = r"""
jason => JSON
colour => color
um =>
[en]
/(\w+) dot org/ => \1.org
/f\w*ck/ => f…
[de]
Jason => Jason
[ja]
改行 => \n
"""


def words_of(texts, n_final=99):
    return tuple(
        TimedWord(text=text, start_ms=i * 100, end_ms=i * 100 + 90, prob=0.5, final=i < n_final)
        for i, text in enumerate(texts)
    )


def final(text, language="en", words=None):
    words = words_of(text.split() if words is None else words)
    return Final(seg=1, start_ms=0, end_ms=9000, text=text, language=language, words=words)


def meant(text, *, language="en", rules=(OWN,), words=None):
    return Rewriter(read_rules([built_in(), *rules])).rewritten(final(text, language, words), "")


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("I like tea, period. New line. And then", "I like tea.\nAnd then"),
        ("One, new paragraph. Two", "One\n\nTwo"),
        ("Do you, comma. Really question mark", "Do you, really?"),
        ("I said, comma. I did", "I said, I did"),
        ("Well. Hyphen. Known dash so", "Well-Known – so"),
        ("Open quote. Hello close quote. He said.", "“Hello” He said."),
        ("Write to example dot com. Now", "Write to example.com. Now"),
        ("All caps hello, caps on one. Two caps off three", "HELLO, ONE. TWO three"),
        ("I like tea. I hate coffee, scratch that. Or not", "I like tea. Or not"),
        ("It was red, period, scratch that, it was green, period.", "It was green."),
        ("It was late, I hate coffee, scratch that, we were tired", "We were tired"),
        ("Dear Ann, comma, new line, thank you.", "Dear Ann,\nThank you."),
        ("My list, colon, new line, hyphen, eggs.", "My list:\n-eggs."),
        ("Really, question mark, exclamation mark", "Really?!"),
        ("I know, scratch that, yes.", "Yes."),
        ("Scratch that. Yes.", "Scratch that. Yes."),
        ("The literal new line, a literal one", "The new line, a literal one"),
        ("Colour is Jason's, Jason.", "Color is Jason's, JSON."),
        ("It is, um. Mozilla dot org, fuck.", "It is. Mozilla.org, f…."),
    ],
)
def test_what_is_said_becomes_what_is_meant(said, written):
    assert meant(said).text == written


def test_rules_of_a_language_hold_for_it_alone_and_replace_earlier_ones():
    assert meant("Jason, Punkt. Neue Zeile", language="de").text == "Jason.\n"
    assert meant("Punkt Jason", language="en").text == "Punkt JSON"
    assert (
        meant("今日改行明日", language="ja", words=["今日", "改", "行", "明日"]).text
        == "今日\n明日"
    )
    assert meant("tea period", rules=["period => period"]).text == "tea period"


def test_words_keep_their_places_and_times():
    written = meant("Mozilla dot org comma. So")
    assert [(w.text, w.start_ms, w.end_ms, w.prob) for w in written.words] == [
        ("Mozilla.org,", 0, 290, 0.5),
        ("so", 400, 490, 0.5),
    ]
    assert meant("new line now", words=[]).text == "\nNow"  # a recording without word times


def test_capitals_go_on_in_the_next_final_and_in_partials():
    rewriter = Rewriter(read_rules([built_in()]))
    assert rewriter.rewritten(final("So, caps on."), "").text == "So,"
    text = "not yet"
    partial = Partial(seg=2, rev=1, start_ms=0, end_ms=1, text=text, stable=3, words=())
    assert rewriter.rewritten(partial, "en").text == "NOT YET"
    assert rewriter.rewritten(final("this caps off that"), "").text == "THIS that"


PHRASES = r"""
new line => \n
new line item => entry
line => row
dot com => .com
a b => c
/a+ b+ c/ => d
b =>
literal => {literal}
comma => ,
caps => {caps}
"""
SAYABLE = ["new", "line", "item", "dot", "com", "a", "b", "c", "literal", "comma", "caps", "x"]
SAID = st.lists(st.sampled_from(SAYABLE))
MARK = st.sampled_from(["", "", ",", ".", "?"])


@given(SAID, st.data())
def test_a_committed_word_of_a_partial_never_changes(said, data):
    """Whatever comes after it; marks and capitals may, as without rules."""
    rules = read_rules([PHRASES])

    def drawn(words):
        marks = [data.draw(MARK) for _ in words]
        cased = [data.draw(st.sampled_from([w, w.title()])) for w in words]
        return [w + mark for w, mark in zip(cased, marks, strict=True)]

    def letters(text):
        return "".join(filter(str.isalnum, text.casefold()))

    complete = letters(Rewriter(rules).rewritten(final(" ".join(drawn(said))), "").text)
    n = data.draw(st.integers(0, len(said)))
    texts = drawn(said[:n])
    guess = drawn(data.draw(SAID))
    words, stable = words_of([*texts, *guess], n), len(" ".join(texts))
    guessed = partial(" ".join([*texts, *guess]), end_ms=1, stable=stable, words=words)
    shown = Rewriter(rules).rewritten(guessed, "en")
    settled = shown.text[: shown.stable]
    assert complete.startswith(letters(settled))
    final_words = [word.text for word in shown.words if word.final]
    assert letters("".join(final_words)) == letters(settled)
    if n == len(said) == len(texts) and not guess and not {"new", "a", "literal"} & set(said):
        assert letters(shown.text).startswith(complete)  # and they do become committed


def test_words_that_may_be_taken_back_are_not_committed():
    rewriter = Rewriter(read_rules([built_in()]))
    partial = Partial(seg=1, rev=1, start_ms=0, end_ms=1, text="I like tea", stable=6)
    assert rewriter.rewritten(partial, "en").stable == 0
    assert rewriter.rewritten(partial, "nl").stable == 6


def test_an_expression_without_end_is_left_out(caplog):
    slow = "/(a|aa)+$b/ => c\n/x+/ => y"
    rewriter, said = Rewriter(read_rules([slow])), "a" * 100 + " xx"
    began_s = time.process_time()
    assert [rewriter.rewritten(final(said), "").text for _ in range(20)] == ["a" * 100 + " y"] * 20
    assert time.process_time() - began_s < 1  # the first of the 40 took 0.1 s
    assert caplog.messages == ["--replace: /(a|aa)+$b/ takes too long: it is left out"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("jason JSON", "line 2: write: words => replacement"),
        ("=> JSON", "line 2: write: words"),
        ("[xx]", r"line 2: \[xx\] is no language"),
        ("/(a/ => b", "line 2: missing"),
        ("/a => b", "line 2: a regular expression ends with a slash"),
        (r"/a/ => \1", "line 2: invalid group reference"),
        (r"/a/ => \g<name>", "line 2: unknown group"),
        ("a => {shout}", "line 2: {shout} is none of {capital}, "),
        ("... => .", "line 2: a phrase needs a letter"),
    ],
)
def test_a_line_that_is_no_rule_is_named(line, problem, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text(f"# mine\n{line}\n")
    with pytest.raises(ConfigError, match=rf"--replace {file}, {problem}"):
        phrases.read_replacements([phrases.COMMANDS, str(file)])
    with pytest.raises(ConfigError, match=r"--replace /no/file: cannot read it"):
        phrases.read_replacements(["/no/file"])
