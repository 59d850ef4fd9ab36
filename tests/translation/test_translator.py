import pytest

from streamd.errors import EngineError, ModelError
from streamd.translation.protection import STAND_INS, keeping
from streamd.translation.translator import Translator, parts
from tests.support.translating import shouting


def translated(text: str, source: str, target: str, *directions: str) -> str:
    translator, _ = shouting(*directions)
    return translator.translate(text, source=source, target=target).result()


def test_a_direct_model_is_preferred():
    assert translated("Hi.", "en", "pt", "en-pt") == "pt:HI."
    assert translated("Hi.", "es", "pt", "es-en", "en-pt", "es-pt") == "pt:HI."


def test_between_other_languages_it_goes_through_english():
    assert translated("Hola.", "es", "pt", "es-en", "en-pt") == "pt:EN:HOLA."


def test_the_same_language_and_what_has_no_letters_stay():
    assert translated("Hi.", "pt", "pt") == "Hi."
    assert translated("90210", "en", "pt", "en-pt") == "90210"


@pytest.mark.parametrize(
    ("source", "target", "needed"),
    [
        ("en", "pt", ["translate:en-pt"]),
        ("pt", "en", ["translate:pt-en"]),
        ("es", "pt", ["translate:es-en", "translate:en-pt"]),
    ],
)
def test_a_missing_model_is_named(source, target, needed):
    with pytest.raises(ModelError) as caught:
        translated("Hi.", source, target, "en-de")
    assert [each for each in needed if f"streamd models get {each}" in str(caught.value)] == needed


def test_the_same_text_is_translated_once():
    translator, seen = shouting("en-pt")
    both = [translator.translate("Hi.", source="en", target="pt") for _ in range(2)]
    assert [each.result() for each in both] == ["pt:HI.", "pt:HI."]
    assert seen == ["Hi."]


def test_a_model_that_fails_fails_its_text_only():
    translator, _ = shouting("en-pt")
    with pytest.raises(EngineError):
        translator.translate("panic", source="en", target="pt").result()
    assert translator.translate("Hi.", source="en", target="pt").result() == "pt:HI."


def test_a_bug_fails_its_text_only_with_an_error_that_ends_no_program():
    def with_bug(source, target):
        raise KeyError("bug")

    translator = Translator(with_bug, [("en", "pt")])
    with pytest.raises(EngineError):
        translator.translate("Hi.", source="en", target="pt").result()


def test_sentences_are_translated_one_by_one():
    assert parts('He said "No." Mr. Smith left. Why? 好。好吗？') == [
        'He said "No."',
        "Mr. Smith left.",
        "Why?",
        "好。",
        "好吗？",
    ]


def test_a_full_stop_inside_a_word_ends_nothing():
    assert parts("It costs $45.50 at node.js, e.g. today.") == [
        "It costs $45.50 at node.js, e.g. today."
    ]


def test_a_sentence_that_is_too_long_is_cut_at_its_pauses():
    clause = " ".join(["word"] * 20) + ","
    long = " ".join([clause] * 8)
    cut = parts(long)
    assert " ".join(cut) == long
    assert max(len(each.split()) for each in cut) <= 60


def test_a_sentence_that_grows_is_cut_where_it_was_before():
    """So that what readers have of its beginning stays."""
    words = [f"w{n}," if n % 7 == 6 else f"w{n}" for n in range(120)]
    for n in range(1, 120):
        before, after = parts(" ".join(words[:n])), parts(" ".join(words[: n + 1]))
        assert after[: len(before) - 1] == before[:-1]


def respelling(text: str) -> str:
    """A model that knows a book by another name, and copies what it does not know."""
    return text.replace("Open Door", "Porta Aberta").replace("We read", "Lemos")


def test_a_name_that_the_model_translates_is_kept():
    assert keeping(respelling, "We read Open Door.", ()) == "Lemos Porta Aberta."
    assert keeping(respelling, "We read Open Door.", ["Open Door"]) == "Lemos Open Door."


def test_a_name_is_kept_only_where_it_is_the_whole_word_and_has_a_capital_or_a_digit():
    assert keeping(respelling, "We read Open Doors.", ["Open Door"]) == "Lemos Porta Abertas."
    assert keeping(str.upper, "a sepsis", ["sepsis"]) == "A SEPSIS"


def test_if_the_stand_in_is_lost_the_first_translation_counts():
    def losing(text: str) -> str:
        return respelling(text).replace(STAND_INS[0], "Fulano")

    assert keeping(losing, "We read Open Door.", ["Open Door"]) == "Lemos Porta Aberta."
