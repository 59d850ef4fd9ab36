"""Tokens by their ids, and ids by the tokens."""

from hypothesis import given
from hypothesis import strategies as st

from streamd.models.text_tokens import TextTokens, unpacked

TOKENS = st.lists(st.binary(max_size=3), unique=True)


@given(TOKENS, st.lists(st.binary(max_size=3)))
def test_it_is_a_list_and_a_dict(tokens, others):
    found = TextTokens(tokens)
    ids = {token: i for i, token in enumerate(tokens)}
    assert list(found) == tokens == [found[i] for i in range(len(found))]
    assert found.longest == max(map(len, tokens), default=0)
    pieces = [*others, *tokens, *others]
    assert found.among(pieces) == {piece: ids[piece] for piece in pieces if piece in ids}
    assert [found.find(piece) for piece in pieces] == [ids.get(piece) for piece in pieces]


@given(TOKENS)
def test_packed_tokens_are_the_same(tokens):
    found = TextTokens(tokens)
    again = unpacked(found.packed())
    assert again == found
    assert hash(again) == hash(found)
    assert again != TextTokens([*tokens, b"another"])
