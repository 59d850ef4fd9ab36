"""A checkpoint is the same model, and says the same, in whatever format it was saved."""

from dataclasses import replace

import pytest
from engine.checkpoints import (
    SHAPES,
    assert_same,
    checkpoint,
    ggml,
    huggingface,
    transcribe,
    write_openai,
)

from streamd.engine.store import load_model

FOREIGN = {"hf": huggingface.write, "ggml": ggml.write, "openai": write_openai}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_checkpoint_is_the_same_model(shape, tmp_path):
    own = checkpoint(shape)
    expected = transcribe(own)
    assert len(expected.tokens) > 1
    upper_half = range(own.dims.n_text_layer // 2, own.dims.n_text_layer)
    for kind, write in FOREIGN.items():
        path = write(own, tmp_path)
        found = load_model(str(path))
        assert_same(found, own)
        assert found.name == path.stem
        assert (found.alignment_heads == own.alignment_heads) is (
            kind == "hf" or {layer for layer, _ in own.alignment_heads} == set(upper_half)
        ), "only Hugging Face's format can name them"
        heard = transcribe(replace(found, alignment_heads=own.alignment_heads))
        assert heard.tokens == expected.tokens
        assert heard.words == expected.words
