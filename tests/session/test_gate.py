"""The gate: what opens it, what does not, what closes it."""

from collections.abc import Iterator
from itertools import islice, repeat

import numpy as np
import pytest

from streamd.engines.silero import Silero
from streamd.options import GateOptions
from streamd.session.gate import SILENCE_DB, Gate, VoiceDetector, WebRtcVad, any_sound, levels_db
from streamd.types import FRAME, SAMPLE_RATE


def noise(kind: str, seconds: int, db: float) -> np.ndarray:
    draw = np.random.default_rng(3)
    n = seconds * SAMPLE_RATE
    spectrum = np.fft.rfft(draw.standard_normal(n))
    tilt = {"white": 0.0, "pink": 0.5, "brown": 1.0}[kind]
    wave = np.fft.irfft(spectrum * np.maximum(np.arange(len(spectrum)), 20.0) ** -tilt, n)
    return (wave / wave.std() * 10 ** (db / 20)).astype(np.float32)


def syllables(seconds: int) -> np.ndarray:
    """A buzz that comes and goes five times a second, like a voice."""
    t = np.arange(seconds * SAMPLE_RATE) / SAMPLE_RATE
    buzz = sum(np.sin(2 * np.pi * 120 * k * t) / k for k in range(1, 20))
    return (0.1 * buzz * np.maximum(0, np.sin(2 * np.pi * 2.5 * t)) ** 2).astype(np.float32)


def deciding(decisions: Iterator[bool]) -> VoiceDetector:
    return lambda frames: list(islice(decisions, len(frames)))


def silences(gate: Gate, samples: np.ndarray) -> list[int]:
    return [heard.silence for heard in gate.feed(samples.reshape(-1, FRAME))]


def test_levels():
    frames = np.zeros((3, FRAME), np.float32)
    frames[1], frames[2] = 1.0, 0.1
    assert levels_db(frames) == pytest.approx([SILENCE_DB, 0.0, -20.0], abs=1e-4)


@pytest.mark.parametrize("db", [-50, -25, -16])
@pytest.mark.parametrize("kind", ["white", "pink", "brown"])
def test_steady_noise_never_opens_the_gate(kind, db):
    gate = Gate(WebRtcVad(), confirm=Silero())
    heard = gate.feed(noise(kind, 10, db).reshape(-1, FRAME))
    assert not any(each.silence == 0 or each.voice for each in heard)


def test_without_a_second_detector_webrtc_takes_noise_for_speech():
    gate = Gate(WebRtcVad())
    assert silences(gate, noise("white", 4, -25)).count(0) > 100


def test_digital_silence_and_hum_never_open_the_gate():
    t = np.arange(10 * SAMPLE_RATE) / SAMPLE_RATE
    hum = (0.1 * np.sin(2 * np.pi * 50 * t) + 0.02 * np.sin(2 * np.pi * 150 * t)).astype(np.float32)
    for sound in (hum, np.zeros_like(hum)):
        assert 0 not in silences(Gate(WebRtcVad(), confirm=Silero()), sound)


def test_a_voice_opens_the_gate_and_its_end_closes_it():
    still = np.full(SAMPLE_RATE, 1e-4, np.float32)
    seen = silences(Gate(WebRtcVad()), np.concatenate([still, syllables(2), still]))
    assert 0 not in seen[:50]
    assert seen[50:150].count(0) >= 50
    assert 0 not in seen[-35:]
    assert np.all(np.diff(seen[-30:]) == 1), "silence is counted from the last voiced frame"


def test_speech_in_noise_opens_the_gate_again_and_again():
    speech = np.concatenate([np.zeros(3 * SAMPLE_RATE, np.float32), syllables(2)] * 3)
    noisy = speech + noise("pink", 15, -40)
    seen = np.array(silences(Gate(WebRtcVad()), noisy)).reshape(3, 250) == 0
    assert (seen[:, 150:].sum(axis=1) > 60).all()
    assert (seen[:, 60:145].sum(axis=1) == 0).all()


@pytest.mark.parametrize("kind", ["white", "pink", "brown"])
def test_a_voice_without_high_tones_opens_the_gate_in_any_noise_at_10_db(kind):
    voice = syllables(2) * np.float32(0.3)
    hiss = noise(kind, 5, 20 * np.log10(voice.std()) - 10)
    hiss[SAMPLE_RATE * 2 : SAMPLE_RATE * 4] += voice
    seen = np.array(silences(Gate(WebRtcVad()), hiss)) == 0
    assert seen[:100].sum() == 0
    assert seen[105:200].mean() > 0.8


def test_too_quiet_is_not_speech():
    gate = Gate(any_sound, GateOptions(floor_db=-30.0))
    assert 0 not in silences(gate, syllables(2) * np.float32(0.01))


@pytest.mark.parametrize("share", [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
@pytest.mark.parametrize("attack", [5, 10, 30])
def test_one_frame_fewer_than_opens_the_gate_keeps_it_open(share, attack):
    options = GateOptions(attack=attack, open_share=share)
    assert max(1, options.opens - 1) == options.stays_open < max(2, options.opens)
    assert options.opens - 1 < share * attack <= options.opens


def test_the_gate_closes_whatever_its_length():
    decisions = iter([True, False, True, False])
    gate = Gate(deciding(decisions), GateOptions(attack=1, floor_db=-200.0))
    assert silences(gate, np.zeros(4 * FRAME, np.float32)) == [0, 1, 0, 1]


def test_open_and_close_shares_are_two_thresholds():
    pattern = [True] * 6 + [False, True] * 10 + [False] * 12
    frames = iter(pattern)
    gate = Gate(deciding(frames), GateOptions(floor_db=-200.0))
    seen = silences(gate, np.zeros(len(pattern) * FRAME, np.float32))
    assert seen[:5] == [1, 1, 1, 1, 1], "five of ten frames are not enough"
    assert seen[5:26] == [0] * 21, "half of the frames keep it open"
    assert seen[-1] == 12, "from the last voiced frame"


def test_the_start_of_a_word_is_doubtful():
    pattern = iter([False] * 10 + [True] * 6)
    gate = Gate(deciding(pattern), GateOptions(floor_db=-200.0))
    doubtful = []
    for _ in range(16):
        gate.feed(np.zeros((1, FRAME), np.float32))
        doubtful.append(gate.doubtful)
    assert doubtful == [False] * 12 + [True] * 3 + [False]


def test_a_second_detector_opens_the_gate_later_and_says_by_how_much():
    first, second = [True] * 40, [False] * 15 + [True] * 25
    frames = iter(first)
    gate = Gate(deciding(frames), GateOptions(floor_db=-200.0), confirm=lambda *_: second)
    heard = gate.feed(np.zeros((len(first), FRAME), np.float32))
    seen, late = [each.silence for each in heard], [each.late for each in heard]
    assert seen.index(0) == 15 + 5
    assert late[4:7] == [0, 1, 2], "from the frame where the first would have opened it"
    assert late[20] == 16
    assert max(late) == 30, "there is a limit"


def test_a_second_detector_counts_only_where_the_first_hears_something():
    gate = Gate(deciding(repeat(False)), confirm=lambda frames, _: [True] * len(frames))
    assert 0 not in silences(gate, np.ones(100 * FRAME, np.float32))


def test_a_click_is_no_voice():
    """Bursts of 5 to 50 ms, as of a mouse, a key or a door; agents would fall silent."""
    rng = np.random.default_rng(1)
    sound = rng.normal(0, 1e-3, 10 * SAMPLE_RATE)
    for n in range(10):
        length = 80 * (n + 1)
        sound[n * SAMPLE_RATE :][:length] += rng.normal(0, 0.3, length)
    gate = Gate(WebRtcVad(), confirm=Silero())
    assert 0 not in silences(gate, sound.astype(np.float32))


@pytest.mark.parametrize(
    ("n_voiced", "voice", "is_open"),
    [
        (3, [], []),
        (5, range(3, 12), []),  # until only two of the last ten frames are voiced
        (20, range(3, 27), range(5, 25)),
    ],
)
def test_a_voice_is_told_two_frames_before_the_gate_opens_and_after_it_closes(
    n_voiced, voice, is_open
):
    decisions = iter([True] * n_voiced + [False] * 40)
    gate = Gate(deciding(decisions), GateOptions(floor_db=-200))
    heard = gate.feed(np.zeros((n_voiced + 40, FRAME), np.float32))
    assert [i for i, each in enumerate(heard) if each.voice] == list(voice)
    assert [i for i, each in enumerate(heard) if each.silence == 0] == list(is_open)


def spoken(db: float) -> np.ndarray:
    """Two seconds of a voice, all frames of which have this level."""
    buzz = syllables(2).reshape(-1, FRAME)[:1].repeat(100, axis=0)
    return buzz / np.sqrt((buzz**2).mean()) * np.float32(10 ** (db / 20))


@pytest.mark.parametrize(
    ("loud_db", "seconds_since", "quiet_db", "heard"),
    [
        (None, 0, -70.0, True),  # a microphone that is turned down
        (None, 0, -82.0, False),
        (-15.0, 0, -70.0, False),  # the pauses of a microphone that is not
        (-15.0, 0, -58.0, True),
        (-35.0, 0, -70.0, True),
        (-15.0, 16, -70.0, True),  # that was somebody else, or something that fell
    ],
)
def test_the_floor_is_lower_where_nobody_has_spoken_louder(loud_db, seconds_since, quiet_db, heard):
    gate = Gate(lambda frames: [bool(frame.any()) for frame in frames])
    if loud_db is not None:
        gate.feed(spoken(loud_db))
    gate.feed(np.zeros((50 * seconds_since + 20, FRAME), np.float32))
    assert (gate.feed(spoken(quiet_db))[-1].silence == 0) == heard


def test_a_loud_noise_does_not_raise_the_floor():
    gate = Gate(lambda frames: [bool(np.abs(frame).max() < 0.1) for frame in frames])
    gate.feed(noise("white", 1, -10).reshape(-1, FRAME))
    assert gate.feed(spoken(-70.0))[-1].silence == 0
