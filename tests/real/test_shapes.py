"""The arithmetic at the true shapes: ONNX Runtime and MLX beside the reference, random weights.

Five seconds of speech, and 48 tokens that every engine is given. The reference agrees with
openai-whisper by golden files, and is compared with transformers here where that is installed
(``pip install torch transformers``). ``STREAMD_TEST_SIZES`` names the sizes; the largest ones take
more minutes and memory than two cores should be asked for without a word: in float32 large-v3 has
6 GB of weights, and ONNX Runtime packs them once more.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from streamd.engines import onnx
from streamd.engines.reference import ReferenceEngine
from streamd.models.model import Model
from streamd.models.store import load_model
from streamd.whisper.engine import Engine, run_in_order
from streamd.whisper.mel import log_mel
from tests.golden import load
from tests.real import shapes
from tests.support.checkpoints import network

MODELS = os.environ.get("STREAMD_TEST_MODELS", "")
ASKED = os.environ.get("STREAMD_TEST_SIZES", "small,large-v3-turbo").split(",")
ENGINES = ("float32", "int8", "mlx")
TOLERANCE = {"float32": 1e-5, "mlx": 1e-4, "int8": 0.06}
"""Relative error (rms) of logits: turbo had 7.5e-7 in float32 and 2.6 % in int8 beside
transformers."""
FURTHEST = 4
"""How far behind the most probable token another one may be that is taken for it, in errors (rms)
of the logits; random weights make them flat: with medium in int8, 18 of 48 tokens are others."""
N_CTX, N_TOKENS = 300, 48

pytestmark = [
    pytest.mark.skipif(not MODELS, reason="make test-real runs it"),
    pytest.mark.timeout(3600),
]


def engine(name: str, model: Model) -> Engine:
    heads = model.alignment_heads
    if name == "mlx":
        pytest.importorskip("mlx.core")
        from streamd.engines.mlx.arithmetic import Arithmetic
        from streamd.engines.mlx.mlx_engine import MlxEngine

        exact = Arithmetic("float32")
        return MlxEngine(
            network(model.dims, model.weights, alignment_heads=heads), arithmetic=exact
        )
    if name == "reference":
        return ReferenceEngine(network(model.dims, model.weights, alignment_heads=heads))
    return onnx.build(network(model.dims, model.weights, alignment_heads=heads), precision=name)


def given(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Log-mel and tokens."""
    mel = log_mel(load.samples("lamp", 1500)[: 250 * 320], model.dims.n_mels)
    return mel, np.random.default_rng(1).integers(0, len(model.vocabulary), N_TOKENS)


def computed(engine: Engine, model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Logits and alignment of the tokens, which come in passes of a draft and of one."""
    mel, tokens = given(model)
    decoder = engine.decoder(engine.encode(mel, audio_ctx=N_CTX), 448)
    found = []
    for begin, end in ((0, 32), (32, 47), (47, 48)):
        found.append(run_in_order(decoder, tokens[begin:end], begin))
    logits, alignment = zip(*found, strict=True)
    return np.concatenate(logits), np.concatenate(alignment)


def by_transformers(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """The same logits, and the weights of attention by alignment heads, (k, n_heads, n_ctx)."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    whisper = transformers.WhisperForConditionalGeneration.from_pretrained(
        Path(MODELS) / "shapes" / model.name, dtype=torch.float32, attn_implementation="eager"
    )
    encoder = whisper.model.encoder  # cut to the context of the others
    encoder.config.max_source_positions = encoder.max_source_positions = N_CTX
    positions = encoder.embed_positions.weight[:N_CTX]
    encoder.embed_positions = torch.nn.Embedding.from_pretrained(positions)
    mel, tokens = given(model)
    silence = np.repeat(mel[:, -1:], 2 * N_CTX - mel.shape[1], axis=1)
    with torch.no_grad():
        found = whisper(
            torch.tensor(np.concatenate([mel, silence], axis=1)[None]),
            decoder_input_ids=torch.tensor(tokens[None]),
            output_attentions=True,
        )
    heads = [found.cross_attentions[layer][0, head] for layer, head in model.alignment_heads]
    return found.logits[0].numpy(), torch.stack(heads, dim=1).numpy()


@pytest.fixture(scope="module", params=shapes.SIZES)
def expected(request) -> tuple[Model, np.ndarray, np.ndarray]:
    """A model, and what the reference computes."""
    if request.param not in ASKED:
        pytest.skip(f"takes minutes: STREAMD_TEST_SIZES={request.param}")
    model = load_model(str(shapes.write(request.param, Path(MODELS) / "shapes" / request.param)))
    return model, *computed(engine("reference", model), model)


@pytest.mark.parametrize("name", ENGINES)
def test_logits_alignment_and_tokens_are_those_of_the_reference(expected, name):
    model, logits, alignment = expected
    found, aligned = computed(engine(name, model), model)
    off = np.sqrt(np.square(found - logits).mean())
    error = off / np.sqrt(np.square(logits).mean())
    assert error < TOLERANCE[name]
    taken = np.take_along_axis(logits, found.argmax(-1)[:, None], axis=-1)[:, 0]
    assert (logits.max(-1) - taken).max() <= FURTHEST * off
    apart = np.sqrt(np.square(aligned - alignment).mean() / np.square(alignment).mean())
    assert apart < TOLERANCE[name]
    print(f"{model.name} {name}: logits {error:.2e}, alignment {apart:.2e}")


def test_the_reference_computes_what_transformers_does(expected):
    model, logits, alignment = expected
    theirs, weights = by_transformers(model)
    assert (theirs.argmax(-1) == logits.argmax(-1)).all()
    ours = np.exp(alignment - alignment.max(-1, keepdims=True))
    ours /= ours.sum(-1, keepdims=True)
    for found, exact in ((logits, theirs), (ours, weights)):
        error = np.sqrt(np.square(found - exact).mean() / np.square(exact).mean())
        assert error < TOLERANCE["float32"]
        print(f"{model.name}, reference beside transformers: {error:.2e}")
