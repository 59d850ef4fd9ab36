"""Packages of the networks that tell voices and ends of turns, against those that ship."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import soundfile
from onnxruntime import InferenceSession

from streamd.engines import voices
from streamd.engines.smart_turn import heard, smart_turn
from streamd.types import FRAME, SAMPLE_RATE
from streamd.whisper.mel import log_mel
from tests.coreml.interpreter import Interpreter
from tests.coreml.interpreter.saved import read_program
from tests.coreml.lint import lint
from tests.coreml.other_models import (
    N_BANKS,
    ROOT,
    held,
    norms,
    save_embedding,
    save_turns,
    unrounded,
)
from tests.support import recorded

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(1200)]

_LINES = ROOT / "../shared/data/conversations"
_N_LINES = 40
_VOICE = 3 * SAMPLE_RATE // 2
"""Samples of a voice that a live stream embeds at most."""


def speech() -> list[np.ndarray]:
    """What each of the speakers of the demo recording says, and some of the lines, if any."""
    marks = json.loads(recorded.RECORDING.with_suffix(".json").read_text())["clips"]
    whole = recorded.whole()
    sounds = [whole[mark["start_ms"] * 16 : mark["end_ms"] * 16] for mark in marks]
    if (lines := _LINES / "lines.jsonl").exists():
        rows = [json.loads(line) for line in lines.read_text().splitlines()]
        rows = [row for row in rows if row["seconds"] > 2][:: len(rows) // _N_LINES]
        sounds += [soundfile.read(_LINES / row["path"], dtype="float32")[0] for row in rows]
    return [sound[: len(sound) // FRAME * FRAME] for sound in sounds if len(sound) > _VOICE]


def rules(package) -> set[tuple[str, str]]:
    """The rules that a package breaks, and where it does first."""
    return {(each.rule, each.where.split()[0]) for each in lint(read_program(package))}


# -- voices ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedding(tmp_path_factory):
    """The network in float32, and its package."""
    model = unrounded("community-1/embedding.onnx")
    return model, save_embedding(model, tmp_path_factory.mktemp("embedding"))


def voice(sound: np.ndarray) -> np.ndarray:
    """The banks of a voice, less their mean."""
    banks = voices.filter_banks(sound[:_VOICE])
    return banks - banks.mean(0)


def run_package(interpreter: Interpreter, banks: np.ndarray, *, half: bool) -> np.ndarray:
    """What the network makes of (1, n, 80) banks, (1, 2560, n / 8)."""
    n, x = banks.shape[1], np.zeros((1, 1, 80, N_BANKS), np.float32)
    x[0, 0, :, :n] = banks[0].T
    mask = (np.arange(N_BANKS) < n).astype(np.float32)[None, None, None]
    found = interpreter.run("main", {"x": x, "mask": mask}, half=half)["y"]
    return found.reshape(1, -1, N_BANKS // 8)[..., : -(-n // 8)]


@pytest.mark.parametrize("n", [N_BANKS, 148, 51])
def test_a_package_of_the_embedding_computes_the_same(embedding, n):
    model, package = embedding
    banks = voices.filter_banks(recorded.samples("jfk"))[None, 40 : 40 + n].astype(np.float32)
    banks -= banks.mean(1)
    (wanted,) = held(model).run(None, {"fbank": banks})
    found = run_package(Interpreter(package), banks, half=False)
    assert np.linalg.norm(found - wanted) < 1e-5 * np.linalg.norm(wanted)


def test_the_embedding_keeps_the_neural_engines_rules(embedding):
    assert rules(embedding[1]) == {("64 bytes", "output")}, "the last axis has 20 numbers"


def test_a_voice_in_half_precision_is_the_same_voice(embedding, monkeypatch, table):
    model, package = embedding
    session, interpreter = InferenceSession(model.SerializeToString()), Interpreter(package)
    ships = voices._run

    def vectors(run: Callable[[np.ndarray], np.ndarray] | None) -> np.ndarray:
        def instead(name: str, values: np.ndarray) -> np.ndarray:
            return run(values) if run and name == "embedding" else ships(name, values)

        monkeypatch.setattr(voices, "_run", instead)
        every = np.ones((1, _VOICE // FRAME), np.bool_)
        return np.concatenate([voices.listen(voice(sound))(every) for sound in speech()])

    exact = vectors(lambda banks: session.run(None, {"fbank": banks})[0])
    half = vectors(lambda banks: run_package(interpreter, banks, half=True))
    in_8_bits = vectors(None)
    for name, other in (("package, half", half), ("ships, 8 bits", in_8_bits)):
        cosines = (exact * other).sum(1)
        cells = (f"least {cosines.min():.4f}", f"median {np.median(cosines):.4f}")
        table("9. voices: cosine with float32", name, f"{len(exact)} voices", *cells)
    assert (exact * half).sum(1).min() > (exact * in_8_bits).sum(1).min()
    assert (exact * half).sum(1).min() > 0.99


# -- turns ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    """smart-turn in float32, and its package; norms are scaled by the sounds of the demo."""
    model = unrounded("smart-turn/smart-turn-v3.2.onnx")
    sounds = [recorded.samples(clip) for clip in ("jfk", "arctic_a0245")]
    scales = norms(model, [mel(sound[:n]) for sound in sounds for n in (40_000, len(sound))])
    return model, save_turns(model, scales, tmp_path_factory.mktemp("turns"))


def mel(sound: np.ndarray) -> np.ndarray:
    return log_mel(heard(sound))


def sigmoid(x: np.ndarray) -> float:
    return 1 / (1 + np.exp(-float(x.ravel()[0])))


def test_a_package_of_smart_turn_computes_the_same(turns):
    model, package = turns
    session, interpreter = held(model), Interpreter(package)
    for n in (35_200, 83_200, 174_400):  # "And so", "ask not", all of it
        x = mel(recorded.samples("jfk")[:n])
        wanted = session.run(None, {"input_features": x[None]})[0].item()
        found = sigmoid(interpreter.run("main", {"x": x[None, :, None]})["y"])
        assert found == pytest.approx(wanted, abs=3e-4)


def test_smart_turn_has_one_operation_of_which_no_rule_speaks(turns):
    assert rules(turns[1]) == {("64 bytes", "output"), ("operations", "tanh")}


def test_turns_in_half_precision_end_where_they_do(turns, table):
    model, package = turns
    session, interpreter = InferenceSession(model.SerializeToString()), Interpreter(package)
    exact, half, ships = [], [], []
    for sound in speech():
        for part in (sound, sound[: len(sound) * 2 // 3]):
            x = mel(part)
            exact.append(session.run(None, {"input_features": x[None]})[0].item())
            half.append(sigmoid(interpreter.run("main", {"x": x[None, :, None]}, half=True)["y"]))
            ships.append(smart_turn(part))
    for name, other in (("package, half", half), ("ships", ships)):
        off = np.abs(np.subtract(exact, other))
        same = np.sum((np.array(exact) > 0.5) == (np.array(other) > 0.5))
        cells = (f"most {off.max():.4f}", f"median {np.median(off):.4f}", f"{same} decided alike")
        table("9. ends of turns: probability off float32", name, f"{len(exact)} cuts", *cells)
    np.testing.assert_allclose(half, exact, rtol=0, atol=0.02)
    np.testing.assert_allclose(ships, exact, rtol=0, atol=1e-4)
