"""Silero VAD as the second opinion: what it takes for speech, and that it does not go deaf."""

import numpy as np
import pytest

import noises
from streamd.engines.silero import silero
from streamd.engines.silero.silero import HighPass, Silero
from streamd.session.gate import Gate, WebRtcVad
from streamd.session.session import REACH, SHORT_PAUSE
from streamd.types import FRAME, SAMPLE_RATE
from tests.support import recorded


def open_share(sound: np.ndarray, gate: Gate) -> float:
    heard = gate.feed(framed(sound))
    return sum(each.silence == 0 for each in heard) / len(heard)


def framed(sound: np.ndarray) -> np.ndarray:
    return sound[: len(sound) // FRAME * FRAME].astype(np.float32).reshape(-1, FRAME)


def confirmed(frames: np.ndarray, second: Silero | None = None) -> list[float]:
    return (second or Silero())(frames, [True] * len(frames))


@pytest.fixture(scope="module")
def music() -> np.ndarray:
    return noises.music(6 * SAMPLE_RATE, np.random.default_rng(2))


@pytest.fixture(scope="module")
def swell() -> np.ndarray:
    n = 6 * SAMPLE_RATE
    swelling = 1 + 0.8 * np.sin(2 * np.pi * 1.3 * np.arange(n) / SAMPLE_RATE)
    return 0.03 * np.random.default_rng(3).standard_normal(n) * swelling


@pytest.mark.parametrize("sound", ["music", "swell"])
def test_what_webrtc_takes_for_speech_does_not_open_the_gate(sound, request):
    samples = request.getfixturevalue(sound)
    assert open_share(samples, Gate(WebRtcVad(1))) > 0.8
    assert open_share(samples, Gate(WebRtcVad(1), confirm=Silero())) == 0


def test_speech_opens_the_gate_but_not_the_pauses_in_it():
    speech = recorded.three_sentences()
    alone = open_share(speech, Gate(WebRtcVad(1)))
    assert open_share(speech, Gate(WebRtcVad(1), confirm=Silero())) > 0.75 * alone


@pytest.mark.parametrize("before", ["music", "swell", "rumble"])
def test_no_sound_makes_it_deaf_for_the_speech_after_it(before, request):
    speech = recorded.samples()
    rng = np.random.default_rng(4)
    if before == "rumble":
        slow = np.cumsum(rng.standard_normal(len(speech) + 10 * SAMPLE_RATE))
        slow -= np.convolve(slow, np.ones(801) / 801, "same")
        sound = 0.1 * slow / slow.std()
        sound[-len(speech) :] += speech
    else:
        sound = np.concatenate([request.getfixturevalue(before), speech])
    said = confirmed(framed(sound))
    wanted = sum(confirmed(recorded.frames(speech)))
    assert sum(said[-len(speech) // FRAME :]) > 0.9 * wanted


def test_a_stream_after_a_pause_sounds_as_at_its_beginning():
    """However long it has run before: otherwise captions would depend on hours past."""
    speech, pause = recorded.samples(), np.zeros(3 * SAMPLE_RATE, np.float32)
    second, rounds = Silero(), []
    for _ in range(3):
        rounds.append(confirmed(recorded.frames(speech), second))
        silent = recorded.frames(pause)
        assert not any(second(silent, [False] * len(silent))[-40:])
    assert sum(rounds[0]) > 50
    assert rounds[1] == rounds[2]


def test_it_does_not_run_while_the_first_detector_hears_nothing(monkeypatch):
    monkeypatch.setattr(silero, "_model", lambda: pytest.fail("the model ran"))
    assert not any(Silero()(np.zeros((500, FRAME), np.float32), [False] * 500))


def test_streams_do_not_hear_each_other(music):
    speech = recorded.frames(recorded.samples())
    mixed, other = Silero(), Silero()
    noise = music[: speech.size].astype(np.float32)
    found = []
    for frame, sound in zip(speech, np.resize(noise, speech.shape), strict=True):
        found += confirmed(frame[None], mixed)
        confirmed(sound[None], other)
    assert found == pytest.approx(confirmed(speech), abs=1e-5)


@pytest.mark.parametrize("n_frames", [1, 5, 1000])
def test_pieces_of_any_length_are_heard_alike(n_frames, music):
    """It wakes, speaks, is reset after music without speech, and wakes again."""
    speech = recorded.frames(recorded.three_sentences())
    sound = np.concatenate([speech, framed(music), np.zeros((150, FRAME), np.float32), speech])
    likely = [bool(np.abs(frame).max() > 1e-3) for frame in sound]
    second, found = Silero(), []
    for at in range(0, len(sound), n_frames):
        found += second(sound[at : at + n_frames], likely[at : at + n_frames])
    assert found == pytest.approx(Silero()(sound, likely), abs=1e-5)
    assert found[: len(speech)] == pytest.approx(found[-len(speech) :], abs=1e-5)
    assert 50 < sum(found) < sum(likely)


def test_the_network_computes_what_that_of_silero_vad_does():
    """Its own file (6.2.3, SHA-256 9ccdacc4...) gave these probabilities of the same chunks."""
    expected = [
        *(0.0101, 0.0119, 0.0066, 0.0057, 0.0073, 0.0074, 0.0063, 0.0058, 0.0045, 0.0218),
        *(0.0301, 0.0187, 0.0181, 0.0422, 0.7078, 0.9797, 0.9819, 0.9995, 0.9998, 0.9999),
    ]
    chunks = recorded.samples()[: 512 * len(expected)].reshape(-1, 512)
    before = np.concatenate([np.zeros((1, 64), np.float32), chunks[:-1, -64:]])
    given = np.concatenate([before, chunks], axis=1)
    state = np.zeros((1, 1, 128), np.float32)
    model = silero._model()
    probs, *_ = model.run(None, {"input": given, "h": state, "c": state})
    np.testing.assert_allclose(probs, expected, atol=1e-4)


def test_the_filter_is_the_formula():
    samples = np.random.default_rng(5).standard_normal(8 * 512).astype(np.float32)
    found, a = HighPass(samples[0]), np.exp(-2 * np.pi * 80 / SAMPLE_RATE)
    expected, last_x = samples.astype(np.float64), float(samples[0])
    for _ in range(2):
        y, filtered = 0.0, []
        for x in expected:
            y = a * (y + x - last_x)
            last_x = x
            filtered.append(y)
        expected, last_x = np.array(filtered), 0.0
    chunks = samples.reshape(-1, 512)
    filtered = np.concatenate([found(chunks[:1]), found(chunks[1:4]), found(chunks[4:])])
    np.testing.assert_allclose(filtered.reshape(-1), expected, atol=1e-6)


@pytest.mark.parametrize("after_s", [25, 32])
def test_a_gate_that_heard_the_last_20_s_decides_as_one_that_heard_all(after_s):
    """What a session is fed again elsewhere warms the gate up: there is no state to carry."""
    heard = SHORT_PAUSE + REACH
    frames, at = recorded.frames(recorded.whole()), after_s * 50
    first, second = (Gate(WebRtcVad(1), confirm=Silero()) for _ in range(2))
    opened = [each.silence == 0 for each in first.feed(frames)]
    again = [each.silence == 0 for each in second.feed(frames[at - heard :])][heard:]
    differ = sum(one != other for one, other in zip(opened[at:], again, strict=True))
    assert any(again)
    assert differ <= len(again) / 50
