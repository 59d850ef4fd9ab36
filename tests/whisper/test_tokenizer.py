"""Which id means what, and characters that are not complete yet."""

import tracemalloc
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from streamd.errors import ConfigError, ModelError
from streamd.language import LANGUAGES
from streamd.models.model import openai_vocabulary
from streamd.whisper.tokenizer import _GPT2_PATTERN, Tokenizer
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
    assert ENGLISH.encode("<|endoftext|>") == tuple(b"<|endoftext|>")


@cache
def as_tiktoken_has_it(n_vocab: int) -> tuple[Tokenizer, tiktoken.Encoding]:
    tokens = openai_vocabulary(Path("x"), n_vocab)
    ranks = {token: i for i, token in enumerate(tokens)}
    whole = tiktoken.Encoding(
        "whole", pat_str=_GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    return Tokenizer(tokens, n_vocab, multilingual=n_vocab > 51_864), whole


WORDS = ("Unbelievably", "it's", "", "1.5", "café", "客観", "\n", "♪♪", "\udc80", "I'll", "—")
TEXTS = st.lists(st.one_of(st.sampled_from(WORDS), st.text()), max_size=12).map(" ".join)


@pytest.mark.parametrize("n_vocab", [51_864, 51_865])
@given(st.lists(TEXTS, max_size=4))
def test_few_of_the_tokens_encode_as_all_of_them(n_vocab, texts):
    tokenizer, whole = as_tiktoken_has_it(n_vocab)
    expected = [tuple(whole.encode_ordinary(text)) for text in texts]
    assert tokenizer.encode_each(texts) == expected
    assert [tokenizer.encode(text) for text in texts] == expected  # from now on it knows them
    for tokens in expected:
        assert tokenizer.decode(tokens) == whole.decode(tokens)


@pytest.mark.parametrize("text", [" many words" * 2000, "客観" * 500, "x" * 70_000])
def test_long_texts_are_encoded_as_short_ones(text):
    tokenizer, whole = as_tiktoken_has_it(51_865)
    assert list(tokenizer.encode(text)) == whole.encode_ordinary(text)


def test_little_is_kept_of_what_was_encoded():
    tokenizer = Tokenizer(vocabulary(), N_VOCAB, multilingual=False)
    tracemalloc.start()
    try:
        for i in range(200):
            tokenizer.encode(f"{i:4} " * 400)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 3_000_000  # all of it would be 6.8 MB


def test_a_text_of_long_letters_takes_little_memory():
    tokenizer, whole = as_tiktoken_has_it(51_865)
    text = "".join(map(chr, np.random.default_rng(0).integers(0x4E00, 0x9FFF, 313)))
    tracemalloc.start()
    try:
        found = tokenizer.encode(text)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(found) == whole.encode_ordinary(text)
    assert most < 20_000_000  # pieces of any length would be 184 MB
