"""Which id means what, and characters that are not complete yet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import ConfigError, ModelError
from streamd.whisper.tokenizer import LANGUAGES, Tokenizer
from tests.support.decoders import N_VOCAB, vocabulary

ENGLISH = Tokenizer(vocabulary(), N_VOCAB, multilingual=False)


def test_layouts_of_the_published_models():
    # large-v3 has one language more; everything behind it moves up by one
    v2 = Tokenizer(vocabulary(), 256 + 1608, multilingual=True, language="de", task="translate")
    v3 = Tokenizer(vocabulary(), 256 + 1609, multilingual=True, language="yue")
    assert v2.sot_sequence == (257, 257 + 3, 357)
    assert v3.sot_sequence == (257, 257 + 100, 359)
    assert (v2.timestamp_begin, v3.timestamp_begin) == (363, 364)
    assert v2.n_vocab - v2.timestamp_begin == v3.n_vocab - v3.timestamp_begin == 1501
    assert len(LANGUAGES) == 100


def test_a_model_of_one_language_has_a_short_start():
    assert ENGLISH.sot_sequence == ENGLISH.sot_sequence_for("fr") == (257,)


def test_impossible_choices_name_the_possible_ones():
    with pytest.raises(ConfigError, match=r"unknown language 'yue'; the model knows en zh de"):
        Tokenizer(vocabulary(), 256 + 1608, multilingual=True, language="yue")
    with pytest.raises(ConfigError, match="unknown task 'sing'; use transcribe or translate"):
        Tokenizer(vocabulary(), N_VOCAB, multilingual=True, task="sing")
    with pytest.raises(ModelError, match="not a Whisper vocabulary"):
        Tokenizer(vocabulary(), 2000, multilingual=True)


@given(st.text(), st.integers(0, 4))
def test_whole_cuts_only_an_unfinished_character(text, n_missing):
    data = text.encode()
    tokens = list(data[: len(data) - n_missing])
    kept = ENGLISH.whole(tokens)
    decoded = ENGLISH.decode(kept)
    assert "\ufffd" not in decoded.replace("\ufffd" if "\ufffd" in text else "", "")
    assert text.startswith(decoded)
    assert len(tokens) - len(kept) <= 3


def test_whole_keeps_bytes_that_will_never_be_a_character():
    assert ENGLISH.whole([0x61, 0xFF]) == (0x61, 0xFF)
    assert ENGLISH.decode([0x61, 0xFF]) == "a\ufffd"


@given(st.lists(st.integers(0, 255)), st.sampled_from(["en", "ja"]))
def test_words_hold_all_tokens_in_order(tokens, language):
    words = ENGLISH.split_words(tokens, language)
    assert [token for _, ids in words for token in ids] == tokens


def test_special_tokens_are_no_text():
    assert ENGLISH.decode([104, ENGLISH.eot, 105, ENGLISH.timestamp_begin + 7]) == "hi"
    assert ENGLISH.encode("<|endoftext|>") == list(b"<|endoftext|>")


def test_tokenizers_of_one_vocabulary_share_its_tables():
    again = Tokenizer(vocabulary(), N_VOCAB, multilingual=False)
    assert again._encoding is ENGLISH._encoding  # tiktoken's take 13 MB each
    last = max(vocabulary().values())
    swapped = vocabulary() | {b"a": last, bytes([last]): ord("a")}
    other = Tokenizer(swapped, N_VOCAB, multilingual=False)
    assert (other.encode("ab"), again.encode("ab")) == ([last, 98], [97, 98])
    gap = {text: rank + (rank == last) for text, rank in vocabulary().items()}
    assert Tokenizer(gap, N_VOCAB, multilingual=False)._encoding is not ENGLISH._encoding
