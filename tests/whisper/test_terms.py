"""Names and rare words of a text are found, and common words are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.whisper.terms import MOST_CHARACTERS, MOST_TERMS, risk, terms
from streamd.whisper.vocabulary import Phrase, line_of, parse
from tests.support.checkpoints import openai_tokenizer


def found(text, n_vocab=51_864):
    return {term.text: term for term in terms(text, openai_tokenizer(n_vocab))}


def test_names_of_several_words_are_phrases_and_their_rare_words_count_alone():
    text = "Yesterday the head of the bank, Ana Botín, met Ursula von der Leyen in Zarautz."
    names = found(text)
    assert {"Ana Botín", "Botín", "Ursula von der Leyen", "Leyen", "Zarautz"} <= set(names)
    assert not {"Yesterday", "bank", "Ana", "head"} & set(names)
    assert all(term.is_name for term in names.values())


def test_no_contraction_is_part_of_a_name():
    names = found("Hello, I'm Joe Almaxaquottl. We've Sir Almaxaquottl O'Brien here, too.")
    assert "Joe Almaxaquottl" in names
    assert "Sir Almaxaquottl O'Brien" in names
    assert not {name for name in names if "I'm" in name or "We've" in name}


def test_a_name_may_begin_a_sentence():
    assert "Ana Botín" in found("Ana Botín spoke first. The rest of us only listened to her.")
    assert "The Botín" not in found("The Botín family owns a bank. We visited the family.")


def test_a_name_ends_where_a_sentence_begins_though_nothing_says_so():
    """The text of a PDF has no end of a heading."""
    names = found("Words of Søren Kierkegaard The Kubernetes cluster of New Zealandia is here.")
    assert {"Søren Kierkegaard", "New Zealandia"} <= set(names)
    assert not {name for name in names if "The" in name}


def test_rare_words_are_found_as_they_are_written_inside_sentences():
    text = "Mitochondria make ATP. In each cell, mitochondria divide; cytochromes are in them."
    words = found(text)
    assert set(words) == {"mitochondria", "cytochromes"}
    assert words["mitochondria"].count == 2
    assert words["mitochondria"].why == "a rare word, 2 times"


def test_items_of_a_list_keep_their_capitals():
    words = found("Zaphod Beeblebrox\nMagrathea\nkubelet\n")
    assert set(words) == {"Zaphod Beeblebrox", "Zaphod", "Beeblebrox", "Magrathea", "kubelet"}


def test_a_title_names_nobody():
    text = "How Wonderful Quokkas Sleep Under Every Blackberry Bush\nMost of them sleep well.\n"
    assert not {each for each in found(text) if " " in each}


def test_what_comes_more_often_comes_first():
    text = "The kubelet talks. A kubelet listens. One kubelet is idle. There is an etcd, too."
    assert [term.text for term in terms(text, openai_tokenizer())][:1] == ["kubelet"]


def test_capitals_tell_nothing_where_every_noun_has_one():
    text = "Die Katze schläft auf dem Tisch, und der Hund liegt unter dem Stuhl im Garten. " * 30
    text += "Das Wort Bundesverfassungsgericht steht neben der Zeitung. "
    words = found(text, 51_865)
    assert "Bundesverfassungsgericht" in words
    assert not any(term.is_name or " " in term.text for term in words.values())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "See https://example.com/Zarautz/index.html or mail botin@zarautz.example for more.",
        "def some_function_name(other_variable_name): return MAX_RETRY_COUNT",
        "We don't, they've, it's and I'm; well-known and up-to-date things are common.",
        "The people in this house have a good time, and everybody knows what to do.",
    ],
)
def test_addresses_identifiers_and_common_words_are_none(text):
    assert found(text) == {}


def test_a_long_text_has_a_bounded_list():
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    text = " ".join(f"{a}{b}xq{a}" for a in syllables for b in syllables)
    kept = terms(text, openai_tokenizer())
    assert len(kept) <= MOST_TERMS
    assert sum(len(term.text) + 1 for term in kept) <= MOST_CHARACTERS
    assert len(kept) > 200


@pytest.mark.parametrize("piece", ["a", "'", "x@", "/", "a-", "a.", "A b ", "xq ", ". ", "a\n"])
def test_no_text_takes_the_square_of_its_length(piece):
    assert len(terms(piece * 200_000, openai_tokenizer())) <= 1


@given(text=st.text(max_size=400))
def test_each_term_is_a_phrase_that_is_not_risky(text):
    for term in terms(text, openai_tokenizer()):
        assert parse(line_of(term.text)) == [Phrase(term.text)]
        assert "," not in term.text
        assert "\n" not in term.text
        assert not risk(term.text, openai_tokenizer())
        assert term.count > 0
