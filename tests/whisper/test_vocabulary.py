"""Expected phrases in the search: they win where the sound allows it, and nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.options import DecodingOptions
from streamd.whisper.decode import Context, slots_needed
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.vocabulary import (
    Expected,
    Node,
    Phrase,
    Vocabularies,
    Vocabulary,
    forms,
    line_of,
    parse,
)
from tests.support.decoders import EOT, GREEDY, N_VOCAB, TOKENIZER, hashed, outcome, run, vocabulary

FREE = replace(GREEDY, loops=False)
BEAMS = replace(FREE, beam_size=4)


def phrases(*texts: str, weight: float = 1.0) -> Vocabulary:
    return Vocabulary(TOKENIZER, [Phrase(text, weight) for text in texts])


def heard(*ways: tuple[str, float]):
    """Predictions of a sound that may be read in these ways, each this improbable, in nats.

    What a way costs is paid where it parts from the others.
    """

    def cost(beginning: bytes) -> float:
        costs = [c for text, c in ways if f"{text}\0".encode().startswith(beginning)]
        return min(costs, default=60.0)

    def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        said = bytes(token for token in context[2:] if token < 256)
        logits = np.full(N_VOCAB, -60.0)
        for letter in range(1, 256):
            logits[letter] = cost(said) - cost(said + bytes([letter]))
        logits[EOT] = cost(said) - cost(said + b"\0")
        return logits, np.zeros((1, 400))

    return predict


def said(predict, vocabulary: Vocabulary | None, options: DecodingOptions = FREE) -> str:
    context = Context(30, vocabulary=vocabulary)
    return TOKENIZER.decode(run(predict, context, options).tokens)


searches = pytest.mark.parametrize("options", [FREE, BEAMS], ids=["greedy", "beams"])


@searches
def test_a_phrase_wins_where_it_is_nearly_as_probable(options):
    predict = heard((" the jet stream", 0.0), (" the JetStream", 1.5))
    assert said(predict, None, options) == " the jet stream"
    assert said(predict, phrases("JetStream"), options) == " the JetStream"


@searches
def test_no_phrase_appears_that_the_sound_does_not_allow(options):
    predict = heard((" a jet", 0.0), (" a Jed", 50.0))
    assert said(predict, phrases("Jed"), options) == " a jet"


@searches
def test_what_a_phrase_was_worth_is_taken_back_where_it_breaks_off(options):
    # " Bot" is nearly as probable as " bow", but what follows is not "ín".
    predict = heard((" a bow tie", 0.0), (" a Bottie", 1.0), (" a Botin", 58.0))
    assert said(predict, phrases("Botin"), options) == " a bow tie"


@searches
def test_a_word_that_only_begins_like_a_phrase_gains_nothing(options):
    predict = heard((" adopt", 0.0), (" Adapt", 1.0))
    assert said(predict, phrases("Ada"), options) == " adopt"


@searches
def test_a_plural_gains_no_more_than_the_phrase(options):
    listed = phrases("graft")
    assert (
        said(heard((" hard graft", 0.0), (" hard grafts", 1.0)), listed, options) == " hard graft"
    )
    assert said(heard((" crafts", 0.0), (" grafts", 1.5)), listed, options) == " grafts"


def test_a_second_phrase_is_tried_if_the_first_breaks_off():
    predict = heard((" tea", 0.0), (" Bow", 2.5), (" Key", 1.0), (" Bo", 59.0))
    assert said(predict, phrases("Bow", "Kemble")) == " Bow"


def test_the_phrase_may_have_begun_in_the_committed_text():
    predict = heard((" Jet stream", 0.0), (" JetStream", 3.5))
    begun = tuple(b" Jet")
    for found, listed in ((" stream", None), ("Stream", phrases("JetStream"))):
        for context in (Context(30, prefix=begun), Context(30, before=begun)):
            decoded = run(predict, replace(context, vocabulary=listed))
            assert TOKENIZER.decode(decoded.tokens) == found


def test_its_confidence_is_the_models_own():
    predict = heard((" jet", 0.0), (" Jed", 2.5))
    decoded = run(predict, Context(30, vocabulary=phrases("Jed")))
    assert TOKENIZER.decode(decoded.tokens) == " Jed"
    assert decoded.token_probs[1] == pytest.approx(np.exp(-2.5) / (1 + np.exp(-2.5)), rel=1e-3)


texts = st.lists(st.integers(1, 255), max_size=6)


@given(st.integers(0, 10**6), texts, texts, st.sampled_from([1, 3]), st.sampled_from([0.0, 5.0]))
def test_phrases_without_worth_change_nothing(seed, prefix, draft, beam_size, eot_bias):
    predict = hashed(seed, eot_bias=eot_bias)
    options = replace(FREE, beam_size=beam_size)
    context = Context(12, prefix=tuple(prefix), draft=tuple(draft))
    worthless = replace(context, vocabulary=phrases("abc", "b", weight=0.0))
    assert outcome(run(predict, worthless, options)) == outcome(run(predict, context, options))
    assert Vocabularies(TOKENIZER).of("") is None


@given(st.integers(0, 10**6), texts)
def test_samples_expect_no_phrases(seed, prefix):
    predict, sampling = hashed(seed), replace(FREE, best_of=3, temperatures=(0.7,))

    def sampled(listed: Vocabulary | None) -> tuple:
        context = Context(12, prefix=tuple(prefix), vocabulary=listed)
        rng = np.random.default_rng(1)
        return outcome(run(predict, context, sampling, temperature=0.7, rng=rng))

    assert sampled(phrases(*"abcdefgh", weight=9.0)) == sampled(None)


@given(st.data(), st.integers(0, 10**6), texts)
def test_a_draft_changes_nothing_beside_phrases(data, seed, prefix):
    predict, letters = hashed(seed, eot_bias=3.0), st.text("abcde", min_size=1, max_size=3)
    listed = phrases(*data.draw(st.lists(letters, min_size=1, max_size=20)), weight=2.0)
    context = Context(15, prefix=tuple(prefix), vocabulary=listed)
    plain = run(predict, context, FREE)
    rest = data.draw(texts)
    draft = (*plain.tokens[: data.draw(st.integers(0, len(plain.tokens)))], *rest)
    assert outcome(run(predict, replace(context, draft=draft), FREE)) == outcome(plain)


@pytest.mark.parametrize(
    ("phrase", "written"),
    [
        ("JetStream", [" JetStream", " JetStreams"]),
        ("quay", [" quay", " Quay", " quays", " Quays"]),
        ("Emily", [" Emily", " Emilies"]),
        ("box", [" box", " Box"]),  # too short for a plural
        ("Dr.  Nguyen-Smith", [" Dr. Nguyen-Smith", " Dr. Nguyen-Smiths"]),
        ("K8s", [" K8s"]),
        ("東京", [" 東京", "東京"]),
    ],
)
def test_how_a_phrase_may_be_written(phrase, written):
    assert forms(phrase) == written


def test_a_list_has_a_phrase_a_line():
    text = "# names\nAna \t Botín\n\n  JetStream : 1.5\nRatio 4:3\n_\na\x1b\nlate:99\r\n"
    assert parse(text) == [
        Phrase("Ana Botín"),
        Phrase("JetStream", 1.5),
        Phrase("Ratio 4", 3.0),
        Phrase("late:99"),
    ]


def test_lists_stay_compiled():
    lists = Vocabularies(TOKENIZER)
    compiled = [lists.of(f"Ada {n}") for n in range(64)]
    assert [lists.of(f"Ada {n}") for n in range(64)] == compiled
    lists.of("Ada")
    assert lists.of("Ada 0") is not compiled[0]


@given(st.text(), st.lists(st.text()))
def test_the_line_of_a_phrase_is_read_as_that_phrase(text, others):
    """Wherever it stands in a list; or it is refused."""
    try:
        line = line_of(text)
    except ValueError:
        return
    assert parse(line) == [Phrase(" ".join(text.split()))]
    every = "\n".join([*others, line, *others])
    assert parse(every) == [*parse("\n".join(others)), *parse(line), *parse("\n".join(others))]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Ana\u2028Botín", "Ana Botín"),
        ("good\u2028_", "good _"),
        (" x\x85y\x0bz ", "x y z"),
        ("x:9", "x:9:1"),
        ("Ratio 4:3", "Ratio 4:3:1"),
        (":5", ":5"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",) * 2,
    ],
)
def test_what_a_phrase_becomes_in_a_list(text, line):
    assert line_of(text) == line


@pytest.mark.parametrize("text", ["", " ", "_", "# Ada", "\x1b[31mred", "a\0b", "\ud800a", "--:3"])
def test_what_is_no_phrase_has_no_line(text):
    with pytest.raises(ValueError, match=r"\S"):
        line_of(text)


FEW = st.lists(
    st.builds(
        Phrase, st.text("abcA", min_size=1, max_size=4), st.sampled_from([0.0, 0.5, 1.0, 3.0])
    ),
    max_size=6,
)


def values(vocabulary: Vocabulary, node: Node, row: np.ndarray) -> tuple:
    """All that the search learns of a node."""
    return (
        node.worth,
        node.whole,
        node.kept,
        vocabulary.best_next(row, node),
        vocabulary.only_next(node, 3),
    )


@given(FEW, FEW, st.lists(st.sampled_from(b" abcAs"), max_size=12), st.integers(0, 10**6))
def test_two_lists_count_as_one(own, known, tokens, seed):
    apart = Vocabulary(TOKENIZER, own, beside=Vocabulary(TOKENIZER, known))
    joint = Vocabulary(TOKENIZER, [*own, *known])
    row = np.random.default_rng(seed).normal(size=N_VOCAB).astype(np.float32)
    row[tokens[::3]] = -np.inf  # what the rules refuse
    assert (apart.longest, set(apart.spelled)) == (joint.longest, set(joint.spelled))
    for n in range(len(tokens) + 1):
        said = tokens[:n]
        nodes, others = apart.after(said), joint.after(said)
        every = zip([apart.root, *nodes], [joint.root, *others], strict=True)
        for node, other in every:
            assert values(apart, node, row) == values(joint, other, row)
        np.testing.assert_array_equal(apart.boosted(row, nodes), joint.boosted(row, others))
        assert Expected(apart, ()).open(said) == nodes


@given(FEW, FEW, st.integers(0, 10**6), texts, st.sampled_from([1, 3]))
def test_a_search_with_two_lists_finds_what_it_finds_with_one(own, known, seed, prefix, beam_size):
    predict, options = hashed(seed, eot_bias=3.0), replace(FREE, beam_size=beam_size)
    apart = Vocabulary(TOKENIZER, own, beside=Vocabulary(TOKENIZER, known))
    joint = Vocabulary(TOKENIZER, [*own, *known])
    found = [
        outcome(run(predict, Context(15, prefix=tuple(prefix), vocabulary=each), options))
        for each in (apart, joint)
    ]
    assert found[0] == found[1]


class CountingTokenizer(Tokenizer):
    """Counts the texts that it encodes."""

    n_encoded = 0

    def encode_each(self, texts):
        self.n_encoded += len(texts)
        return super().encode_each(texts)


def test_a_list_of_a_session_costs_only_its_own_phrases():
    tokenizer = CountingTokenizer(vocabulary(), N_VOCAB, multilingual=False)
    known = Vocabularies(tokenizer).of("\n".join(f"Name{n}" for n in range(1000)))
    lists = Vocabularies(tokenizer, known)
    n_known = tokenizer.n_encoded
    assert n_known > 1000
    for n in range(20):
        listed = lists.of(f"Ada{n}")
        assert listed is not None
        assert {"Name7", f"Ada{n}"} <= set(listed.spelled)
    assert tokenizer.n_encoded - n_known == 20 * len(forms("Ada1"))


def test_a_long_phrase_takes_no_more_room_than_a_text_may_have():
    context = Context(20, vocabulary=phrases("a" * 4000))
    n_more = slots_needed(context, options=FREE, n_text_ctx=448)
    assert n_more < 2 * 448
