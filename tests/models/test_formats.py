"""A checkpoint is the same model, and says the same, in whatever format it was saved."""

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from streamd.models.model import Model
from tests.support import folders
from tests.support.checkpoints import (
    SHAPES,
    assert_same,
    checkpoint,
    ggml,
    huggingface,
    read_model,
    transcribe,
    write_openai,
)


def write_ct2(model: Model, out: Path) -> Path:
    """CTranslate2's folder."""
    heads = [list(head) for head in model.alignment_heads]
    tokens = list(model.vocabulary)
    return folders.ct2(out / "ct2", model.dims, model.weights, tokens, heads=heads)


def write_torch(model: Model, out: Path) -> Path:
    """Hugging Face's folder with torch's weights."""
    (out / "torch").mkdir()
    folder = huggingface.write(model, out / "torch")
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    folders.torch_weights(folder / "pytorch_model.bin", stored)
    return folder


FOREIGN = {
    "hf": huggingface.write,
    "ggml": ggml.write,
    "openai": write_openai,
    "ct2": write_ct2,
    "torch": write_torch,
}
NAME_HEADS = {"hf", "ct2", "torch"}


def test_the_same_checkpoint_has_the_same_text(tmp_path):
    own = checkpoint("tiny")
    expected = transcribe(own)
    assert len(expected.tokens) > 1
    found = read_model(str(ggml.write(own, tmp_path)))
    heard = transcribe(replace(found, alignment_heads=own.alignment_heads))
    assert heard.tokens == expected.tokens
    assert heard.words == expected.words


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_checkpoint_is_the_same_model(shape, tmp_path):
    own = checkpoint(shape)
    upper_half = range(own.dims.n_text_layer // 2, own.dims.n_text_layer)
    for kind, write in FOREIGN.items():
        path = write(own, tmp_path)
        found = read_model(str(path))
        assert_same(found, own)
        assert found.name == path.stem
        assert (found.alignment_heads == own.alignment_heads) is (
            kind in NAME_HEADS or {layer for layer, _ in own.alignment_heads} == set(upper_half)
        ), "only some formats can name them"
