import json
from functools import cache
from pathlib import Path

import jsonschema
import msgspec
import pysubs2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.make import RESULTS
from docs.make import document_schema as made_schema
from streamd.events import Details, TimedWord, Token
from streamd.options import CueLayout
from tests.support.said import GAP, SPEECH, final, spoken, written

ROOT = Path(__file__).parents[2]


def timed(text, start_ms, end_ms, prob=0.5):
    return TimedWord(text=text, start_ms=start_ms, end_ms=end_ms, prob=prob, final=True)


HEARD = final(
    "naïve 東京 yes",
    start_ms=30_000,
    end_ms=32_000,
    words=(
        timed("naïve", 30_100, 30_500),
        timed("東京", 30_600, 31_000),
        timed("yes", 31_100, 31_500),
    ),
    details=Details(
        seek_ms=29_960,
        tokens=(
            Token(id=50364, text="<|0.00|>", prob=0.9),
            Token(id=1, text=" na", prob=0.8),
            Token(id=2, text="ï", prob=0.7),
            Token(id=3, text="ve", prob=0.6),
            Token(id=4, text=" 東", prob=0.5),
            Token(id=5, text="", prob=0.4),  # of the same character
            Token(id=6, text="京", prob=0.5),
            Token(id=7, text=" yes", prob=0.4),
            Token(id=50464, text="<|2.00|>", prob=0.9),
        ),
        temperature=0.2,
        compression_ratio=1.5,
    ),
)


def test_json_is_openai_whispers_result():
    result = json.loads(written("json", HEARD, GAP, spoken("Over there.", start_ms=40_000, seq=2)))
    assert list(result) == ["segments", "text", "language"]
    assert result["text"] == " naïve 東京 yes Over there."
    assert result["language"] == "en"
    first, second = result["segments"]
    assert first == {
        "id": 0,
        "seek": 2996,
        "start": 30.0,
        "end": 32.0,
        "text": " naïve 東京 yes",
        "tokens": [50364, 1, 2, 3, 4, 5, 6, 7, 50464],
        "temperature": 0.2,
        "avg_logprob": 0.0,
        "compression_ratio": 1.5,
        "no_speech_prob": 0.0,
        "words": [
            {"word": " naïve", "start": 30.1, "end": 30.5, "probability": 0.5},
            {"word": " 東京", "start": 30.6, "end": 31.0, "probability": 0.5},
            {"word": " yes", "start": 31.1, "end": 31.5, "probability": 0.5},
        ],
    }
    assert (second["id"], second["seek"], second["tokens"]) == (1, 4000, [])
    assert [word["word"] for word in second["words"]] == [" Over", " there."]


def test_what_a_model_does_not_tell_is_not_made_up():
    words = (TimedWord(text="yes", start_ms=0, end_ms=500, final=True, shares_time=True),)
    heard = final("yes", end_ms=500, words=words, avg_logprob=None, no_speech_prob=None)
    document = json.loads(written("json", heard))
    jsonschema.validate(document, made_schema("json"))
    (segment,) = document["segments"]
    assert segment["words"] == [{"word": " yes", "start": 0.0, "end": 0.5, "shares_time": True}]
    assert segment["avg_logprob"] is segment["no_speech_prob"] is None
    assert '<bdi lang="en" dir="auto">yes</bdi>' in written("html", heard)
    assert "<c." not in written("vtt", heard, layout=CueLayout(confidence=True)).partition("-->")[2]


def test_json_full_is_whisper_cpps_with_openai_whispers_names_for_the_rest():
    result = json.loads(written("json-full", HEARD, GAP))
    assert result["result"] == {"language": "en"}
    gap = {"offsets": {"from": 3_723_004, "to": 3_724_244}, "why": "paused"}
    assert result["gaps"] == [gap]
    (segment,) = result["transcription"]
    assert segment["timestamps"] == {"from": "00:00:30,000", "to": "00:00:32,000"}
    assert segment["offsets"] == {"from": 30_000, "to": 32_000}
    assert (segment["seek"], segment["temperature"], segment["language"]) == (2996, 0.2, "en")
    assert segment["tokens"][1] == {
        "text": " na",
        "timestamps": {"from": "00:00:30,100", "to": "00:00:30,500"},
        "offsets": {"from": 30_100, "to": 30_500},
        "id": 1,
        "p": 0.8,
    }
    starts = [token["offsets"]["from"] for token in segment["tokens"]]
    naive, tokyo, yes = [30_100] * 3, [30_600] * 2, [31_100]
    assert starts == [29_960, *naive, *tokyo, *yes, 31_960]
    tokyo_of_model = [(token["id"], token["p"], token["text"]) for token in segment["tokens"][4:6]]
    assert tokyo_of_model == [(4, 0.5, " 東"), (6, 0.5, "京")]


def test_languages_without_blanks_are_joined_without():
    events = [spoken("東京", seq=1, language="ja"), spoken("です", seq=2, language="ja")]
    result = json.loads(written("json", *events))
    assert result["text"] == "東京です"
    assert result["segments"][0]["words"][0]["word"] == "東京"


def test_a_translation_has_blanks_whatever_was_spoken():
    events = [spoken("good", seq=1, language="ja"), spoken("morning", seq=2, language="ja")]
    assert json.loads(written("json", *events))["text"] == " good morning"


def test_a_reader_of_openai_whispers_results_takes_it():
    finals = spoken(SPEECH), spoken("Over there.", start_ms=40_000, seq=2)
    subtitles = pysubs2.load_from_whisper(json.loads(written("json", *finals)))
    assert [(line.start, line.plaintext) for line in subtitles] == [
        (0, SPEECH),
        (40_000, "Over there."),
    ]


words = st.lists(
    st.tuples(st.text(min_size=1, max_size=8), st.integers(0, 2000), st.floats(0, 1)), max_size=6
)
tokens = st.lists(
    st.builds(Token, id=st.integers(0, 51865), text=st.text(max_size=6), prob=st.floats(0, 1)),
    max_size=8,
)


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(made_schema(name))


@pytest.mark.parametrize("name", RESULTS)
@given(said=st.lists(st.tuples(words, tokens), max_size=3))
def test_any_transcript_matches_the_schema_and_has_all_that_was_said(name, said):
    events = []
    for i, (spoken_words, of_model) in enumerate(said, 1):
        timed_words = tuple(
            timed(text.strip(), ms, ms + 10, prob) for text, ms, prob in spoken_words
        )
        text = " ".join(word.text for word in timed_words).strip()
        details = Details(seek_ms=0, tokens=tuple(of_model), temperature=0.0, compression_ratio=1.0)
        events.append(final(text, end_ms=5000, words=timed_words, details=details, seq=i))
    document = written(name, GAP, *events)
    validator(name).validate(json.loads(document))
    result = msgspec.json.decode(document, type=RESULTS[name])
    segments = result.segments if name == "json" else result.transcription
    events = [event for event in events if event.text]
    assert [len(segment.words) for segment in segments] == [len(event.words) for event in events]
    assert [len(segment.tokens) for segment in segments] == [
        sum(1 for token in event.details.tokens if token.text or name == "json") for event in events
    ]
    assert result.text == "".join(segment.text for segment in segments)


@pytest.mark.parametrize("name", RESULTS)
def test_the_schema_in_the_docs_is_the_programs(name):
    page = json.loads((ROOT / "docs" / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert page == made_schema(name), "run: make docs"
    jsonschema.Draft202012Validator.check_schema(page)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"segments": [{}], "transcription": [{}]}, page)
