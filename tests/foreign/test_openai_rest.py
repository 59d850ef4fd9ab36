"""OpenAI's own SDK, unmodified, against the port: recordings, and errors of its own."""

import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.foreign.conftest import assert_same_words

RECORDING = Path(__file__).parents[1] / "speech" / "recording.flac"


@pytest.fixture(scope="module")
def recording():
    """A minute of real speech."""
    return RECORDING


@pytest.fixture(scope="module")
def transcribed(empty_store):
    """What `streamd transcribe` makes of it."""
    program = Path(sys.executable).with_name("streamd")
    command = (program, "transcribe", "--quiet", RECORDING)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def sdk(server):
    with openai.OpenAI(base_url=f"{server.http}/v1", api_key=server.token, max_retries=0) as client:
        yield client


def test_a_recording(sdk, recording, transcribed, came_back):
    got = sdk.audio.transcriptions.create(model="whisper-1", file=recording)
    same = assert_same_words(got.text, transcribed)
    came_back("openai", "a recording", same)
    assert got.usage.seconds == 64


def test_segments_and_words_with_times(sdk, recording, came_back):
    got = sdk.audio.transcriptions.create(
        model="whisper-1",
        file=recording,
        response_format="verbose_json",
        timestamp_granularities=["segment", "word"],
    )
    came_back(
        "openai",
        "a recording, verbose_json with words",
        f"{len(got.segments)} segments, {len(got.words)} words, language {got.language}",
    )
    assert "".join(word.word for word in got.words) == got.text.replace(" ", "")
    assert 63 < float(got.duration) < 65
    starts = [word.start for word in got.words]
    assert starts == sorted(starts)
    assert all(word.start <= word.end for word in got.words)
    assert all(segment.tokens and segment.avg_logprob < 0 for segment in got.segments)


def test_the_text_while_it_is_made(sdk, recording, transcribed, came_back):
    events = list(sdk.audio.transcriptions.create(model="x", file=recording, stream=True))
    *deltas, done = events
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert done.type == "transcript.text.done"
    assert "".join(event.delta for event in deltas) == done.text
    same = assert_same_words(done.text, transcribed)
    came_back(
        "openai", "a recording, stream=True", f"{len(deltas)} deltas, joining to the text; {same}"
    )


@pytest.mark.parametrize(
    ("shape", "begins"), [("srt", "1\n00:00:"), ("vtt", "WEBVTT\n"), ("text", "")]
)
def test_files(sdk, recording, came_back, shape, begins):
    got = sdk.audio.transcriptions.create(model="x", file=recording, response_format=shape)
    came_back("openai", f"a recording, {shape}", f"{len(got.splitlines())} lines")
    assert isinstance(got, str)
    assert got.startswith(begins)
    assert len(got) > 500


def test_the_models(sdk, came_back):
    names = [model.id for model in sdk.models.list()]
    came_back("openai", "models.list", ", ".join(names))
    assert names == ["tiny.en"]


def test_errors_are_the_sdks_own(sdk, recording, came_back):
    def raised(kind, fault, ask, **fields):
        with pytest.raises(kind) as caught:
            ask(model="x", **fields)
        came_back("openai", f"a bad request: {fault}", type(caught.value).__name__)
        assert caught.value.code in ("bad_form", "too_large") or fault == "token"
        return str(caught.value)

    transcriptions, translations = sdk.audio.transcriptions.create, sdk.audio.translations.create
    junk = ("talk.mp3", b"this is no sound" * 100)
    assert "talk.mp3" in raised(openai.BadRequestError, "no sound", transcriptions, file=junk)
    assert "knows en only" in raised(
        openai.BadRequestError, "language", transcriptions, file=recording, language="de"
    )
    assert "knows en only" in raised(
        openai.BadRequestError, "translation", translations, file=recording
    )
    stranger = sdk.with_options(api_key="wrong").audio.transcriptions.create
    assert "token is wrong" in raised(openai.AuthenticationError, "token", stranger, file=recording)
    large = ("large.wav", b"x" * (101 << 20))
    assert "at most 104857600 bytes" in raised(
        openai.APIStatusError, "too large", transcriptions, file=large
    )
