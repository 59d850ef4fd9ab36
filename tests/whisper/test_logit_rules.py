"""Whatever the model thinks, the rules give Whisper's grammar."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.options import DecodingOptions
from streamd.whisper.logit_rules import Rules
from tests.support.decoders import (
    EOT,
    N_TEXT,
    N_VOCAB,
    NOSPEECH,
    SOT,
    TIMESTAMP_BEGIN,
    TOKENIZER,
)

BLANK = ord(" ")


def allowed(tokens, options=None, *, row=None, something_said=False, stop_margin=0.0) -> set[int]:
    options = replace(options or DecodingOptions(), stop_margin=stop_margin)
    rules = Rules(TOKENIZER, options, something_said=something_said)
    row = np.zeros(N_VOCAB, np.float32) if row is None else row
    before = row.copy()
    after = rules(row, tokens)
    np.testing.assert_array_equal(row, before)  # the caller's row is not touched
    kept = np.isfinite(after)
    np.testing.assert_array_equal(after[kept], before[kept])
    return set(np.flatnonzero(kept).tolist())


def test_something_must_be_said_first():
    anything = DecodingOptions(suppress_tokens=())
    assert not allowed([], anything) & {BLANK, EOT}
    assert {BLANK, EOT} <= allowed([ord("a")], anything)
    assert {BLANK, EOT} <= allowed([], anything, something_said=True)
    assert {BLANK, EOT} <= allowed([], replace(anything, suppress_blank=False))
    other = replace(anything, begin_suppress_tokens=(7, EOT))
    assert BLANK in allowed([], other)
    assert not allowed([], other) & {7, EOT}


def test_annotations_are_refused_and_ordinary_punctuation_is_not():
    refused = set(range(N_TEXT)) - allowed([1])
    assert {ord(c) for c in "#()*+/:;<=>@[]^_`{|}~"} <= refused
    assert not {ord(c) for c in ",.?!'-"} & refused
    assert not set(range(N_TEXT)) - allowed([1], DecodingOptions(suppress_tokens=()))
    assert set(range(N_TEXT)) - allowed([1], DecodingOptions(suppress_tokens=(7,))) == {7}


@pytest.mark.parametrize(("comma", "is_refused"), [(1.0, True), (-1.0, True), (-1.1, False)])
def test_a_full_stop_must_be_clearly_more_probable_than_a_comma(comma, is_refused):
    row = np.full(N_VOCAB, -5.0, np.float32)
    row[ord(",")], row[ord(".")] = comma, 1.0
    assert (ord(".") not in allowed([ord("a")], row=row, stop_margin=2.0)) == is_refused
    row[ord("a")] = 1.1  # what is more probable than both decides
    assert ord(".") in allowed([ord("a")], row=row, stop_margin=2.0)


def test_a_mark_that_joins_two_utterances_does_not_stand_alone():
    rules = Rules(TOKENIZER, DecodingOptions(stop_margin=0.0), continues=True)
    row = np.zeros(N_VOCAB, np.float32)
    mark, marks = ord(","), {ord(mark) for mark in ",.?!"}
    first = set(np.flatnonzero(np.isfinite(rules(row, []))).tolist())
    assert marks <= first
    assert EOT not in first
    second = set(np.flatnonzero(np.isfinite(rules(row, [mark]))).tolist())
    assert not second & {EOT, *marks}
    assert ord("a") in second
    assert {EOT, mark} <= set(np.flatnonzero(np.isfinite(rules(row, [ord("a")]))).tolist())


def test_only_text_is_written_unless_openai_s_rules_are_wanted():
    assert max(allowed([1])) == EOT
    openai = allowed([1], DecodingOptions(text_only=False))
    assert {SOT + 1, TIMESTAMP_BEGIN} <= openai
    assert not {SOT, NOSPEECH} & openai


@given(st.integers(0, 10**6))
def test_timestamps_come_in_pairs_and_never_go_back(seed):
    rng = np.random.default_rng(seed)
    options = DecodingOptions(timestamps=True, suppress_tokens=())
    rules = Rules(TOKENIZER, options)
    bias = rng.choice([-6.0, 0.0, 6.0])
    tokens: list[int] = []
    while len(tokens) < 40:
        row = rng.standard_normal(N_VOCAB).astype(np.float32)
        row[TIMESTAMP_BEGIN:] += bias
        token = int(rules(row, tokens).argmax())
        assert np.isfinite(rules(row, tokens)[token])
        if token == EOT:
            break
        tokens.append(token)
    stamps = [i for i, token in enumerate(tokens) if token >= TIMESTAMP_BEGIN]
    assert stamps[0] == 0
    assert tokens[0] <= TIMESTAMP_BEGIN + 50
    for earlier, later in pairwise(stamps):
        assert tokens[earlier] <= tokens[later]
        if later - earlier > 1:  # text between them: a segment, which has a length
            assert tokens[earlier] < tokens[later]
    runs = "".join("T" if token >= TIMESTAMP_BEGIN else "x" for token in tokens)
    inner = runs[1:].strip("T") if runs.endswith("T") else runs[1:]
    assert "TTT" not in runs
    assert all(len(run) == 2 for run in inner.replace("x", " ").split())


@pytest.mark.parametrize(("share", "expected"), [(0.49, False), (0.51, True)])
def test_timestamps_win_together(share, expected):
    """One text token has the rest; two timestamps have `share` of the probability."""
    row = np.full(N_VOCAB, -40.0, np.float32)
    row[ord("a")] = np.log(1 - share)
    row[TIMESTAMP_BEGIN + 10 : TIMESTAMP_BEGIN + 12] = np.log(share / 2)
    options = DecodingOptions(timestamps=True)
    only_timestamps = min(allowed([TIMESTAMP_BEGIN, ord("b")], options, row=row)) > EOT
    assert only_timestamps == expected
