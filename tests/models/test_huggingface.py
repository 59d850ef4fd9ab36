"""Hugging Face's folders: the same model as in streamd's own, whatever variant they come in."""

import json
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from streamd.engines.onnx import build
from streamd.engines.reference import ReferenceEngine
from streamd.models.model import OUTPUT
from tests.support import folders, torch_file
from tests.support.checkpoints import (
    assert_same,
    checkpoint,
    damaged_copy,
    huggingface,
    load_damaged,
    network,
    read_model,
    refusal,
    transcribe,
)
from tests.support.decoders import run_pass

MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return huggingface.write(checkpoint("few"), tmp_path)


def change(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value != "gone"}))


def split(folder: Path) -> tuple[str, str]:
    """Spread the weights over two files with an index."""
    weights = load_file(folder / MODEL)
    (folder / MODEL).unlink()
    names = sorted(weights)
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    place = {name: shards[i % 2] for i, name in enumerate(names)}
    for shard in shards:
        part = {name: weights[name] for name in names if place[name] == shard}
        save_file(part, folder / shard)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": place}))
    return shards


@pytest.mark.parametrize("n_more", [1, 10, 102])
@pytest.mark.parametrize(
    ("shape", "last"), [("tiny", None), ("large-v3", None), ("tiny.en", 50362)]
)
def test_tokens_behind_openais_are_left_out(shape, last, n_more, tmp_path):
    """Fine-tunes add tokens, or pad the vocabulary."""
    folder = huggingface.write(checkpoint(shape), tmp_path)
    expected, weights = read_model(str(folder)), load_file(folder / MODEL)
    for name in ("model.decoder.embed_tokens.weight", "proj_out.weight"):
        if name in weights:
            more = np.full((n_more, weights[name].shape[1]), 9, weights[name].dtype)
            weights[name] = np.concatenate([weights[name], more])
    save_file(weights, folder / MODEL)
    change(folder / "config.json", vocab_size=expected.dims.n_vocab + n_more)
    change(folder / "generation_config.json", no_timestamps_token_id=last)
    assert_same(read_model(str(folder)), expected)


@pytest.mark.parametrize(
    ("form", "name"),
    [("gptq", "GPTQ"), ("awq", "AWQ"), ("bitsandbytes", "bitsandbytes"), ("a\nb", "a\\nb")],
)
def test_quantised_models_are_refused_by_what_quantised_them(folder, form, name):
    change(folder / "config.json", quantization_config={"quant_method": form, "bits": 4})
    assert f"quantised by {name}, which streamd does not read; get the" in refusal(folder)


def test_vocab_json_of_old_models(folder):
    expected = read_model(str(folder)).vocabulary
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.json").write_text(json.dumps(vocab | {"<|endoftext|>": len(vocab)}))
    (folder / "tokenizer.json").unlink()
    assert read_model(str(folder)).vocabulary == expected


def test_shards(folder):
    expected = read_model(str(folder))
    split(folder)
    assert_same(read_model(str(folder)), expected)


def test_weights_without_the_prefix_of_the_whole(folder):
    expected = read_model(str(folder))
    weights = {n.removeprefix("model."): w for n, w in load_file(folder / MODEL).items()}
    save_file(weights, folder / MODEL)
    assert_same(read_model(str(folder)), expected)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_types_of_weights(folder, dtype):
    weights = {name: values.astype(dtype) for name, values in load_file(folder / MODEL).items()}
    save_file(weights, folder / MODEL)
    found = read_model(str(folder)).weights["decoder.ln.bias"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(
        found, weights["model.decoder.layer_norm.bias"].astype(np.float32)
    )


def test_a_tied_output_that_was_saved_is_not_read_twice(folder):
    weights = load_file(folder / MODEL)
    save_file(weights | {"proj_out.weight": weights["model.decoder.embed_tokens.weight"]},
              folder / MODEL)  # fmt: skip
    assert OUTPUT not in read_model(str(folder)).weights


def test_an_output_of_its_own(folder):
    tied = read_model(str(folder))
    weights = load_file(folder / MODEL)
    output = weights["model.decoder.embed_tokens.weight"][::-1].copy()
    save_file(weights | {"proj_out.weight": output}, folder / MODEL)
    change(folder / "config.json", tie_word_embeddings=False)
    model = read_model(str(folder))
    np.testing.assert_array_equal(model.weights[OUTPUT], output.astype(np.float32))
    mel = np.random.default_rng(0).standard_normal((80, 256), dtype=np.float32)
    logits = []
    for kind in (ReferenceEngine, build):
        for each in (model, tied):
            engine = kind(network(each.dims, each.weights, alignment_heads=each.alignment_heads))
            decoder = engine.decoder(engine.encode(mel, audio_ctx=128), 1)
            zero, one = np.zeros(1, np.int64), np.ones((1, 1), np.bool_)
            logits.append(run_pass(decoder, zero + 7, zero, zero, one, zero)[0])
    own, usual, own_onnx, usual_onnx = logits
    np.testing.assert_allclose(own[:, ::-1], usual, atol=1e-4)
    np.testing.assert_allclose(own_onnx, own, atol=1e-4)
    np.testing.assert_allclose(usual_onnx, usual, atol=1e-4)


@pytest.mark.parametrize("heads", ["gone", None, [], [[7, 0], [10, 17]]])
def test_heads_of_nobody_or_of_a_teacher(folder, heads):
    change(folder / "generation_config.json", alignment_heads=heads)
    assert read_model(str(folder)).alignment_heads == ((1, 0), (1, 1)), "the upper half"


def test_what_is_suppressed(folder):
    n_text, path = 300, folder / "generation_config.json"
    change(path, suppress_tokens=[7, 1, -1, n_text, 10**9], begin_suppress_tokens=[5, n_text])
    model = read_model(str(folder))
    assert model.suppress_tokens == (1, 7)
    assert model.begin_suppress_tokens == (5, n_text)
    change(path, suppress_tokens="gone", begin_suppress_tokens=None)
    model = read_model(str(folder))
    assert model.suppress_tokens is None
    assert model.begin_suppress_tokens is None


def test_old_models_have_no_generation_config(folder):
    (folder / "generation_config.json").unlink()
    model = read_model(str(folder))
    assert model.language == "en"
    assert transcribe(model).tokens


# -- torch's weights ------------------------------------------------------------------------------

TORCH, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def test_torch_s_weights_are_read_where_there_are_no_others(folder):
    expected = read_model(str(folder))
    weights = load_file(folder / MODEL)
    tied = weights | {"proj_out.weight": weights["model.decoder.embed_tokens.weight"]}
    folders.torch_weights(folder / TORCH, {name: w[:0] for name, w in weights.items()})
    assert_same(read_model(str(folder)), expected)
    (folder / MODEL).unlink()
    assert "has a tensor that reaches beyond" in refusal(folder)
    folders.torch_weights(folder / TORCH, tied)
    assert_same(read_model(str(folder)), expected)


def test_torch_s_shards(folder):
    expected = read_model(str(folder))
    weights = load_file(folder / MODEL)
    (folder / MODEL).unlink()
    names = sorted(weights)
    places = {}
    for i, part in enumerate((names[:20], names[20:])):
        file = f"pytorch_model-0000{i + 1}-of-00002.bin"
        folders.torch_weights(folder / file, {name: weights[name] for name in part})
        places |= dict.fromkeys(part, file)
    (folder / TORCH_INDEX).write_text(json.dumps({"weight_map": places}))
    assert_same(read_model(str(folder)), expected)
    (folder / file).unlink()
    assert f"{file}: no such file" in refusal(folder)
    (folder / TORCH_INDEX).write_text('{"weight_map": {"x": "../x.bin"}}')
    assert "is no part of a model" in refusal(folder)


class Bomb:
    def __reduce__(self):
        return print, ("boom",)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (pickle.dumps({"x": Bomb()}, 2), "wants to call __builtin__ print"),
        (pickle.dumps({"x": 1}, 2), "holds more than weights"),
        (pickle.dumps([], 2), "holds more than weights"),
        (pickle.dumps({}, 2), "dimensions and weights do not match"),
        (b"", "no end"),
    ],
)
def test_torch_s_weights_run_no_code(content, expected, folder, capsys):
    (folder / MODEL).unlink()
    torch_file.write_zip(folder / TORCH, content, [])
    assert expected in refusal(folder)
    assert not capsys.readouterr().out


def test_damaged_copies_of_torch_s_weights(folder):
    weights = load_file(folder / MODEL)
    (folder / MODEL).unlink()
    path = folders.torch_weights(folder / TORCH, weights)
    whole = path.read_bytes()
    for n_bytes in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:n_bytes])
        assert f"{TORCH}: damaged" in refusal(folder)
    path.write_bytes(torch_file.pickle_of_old_torch() + whole)
    assert "torch before 1.6" in refusal(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"d_model": -1},
        {"d_model": 2**40},
        {"decoder_layers": 10**6},
        {"encoder_ffn_dim": 7},
        {"activation_function": "relu"},
        {"scale_embedding": True},
        {"vocab_size": "many"},
        {"num_mel_bins": "gone"},
    ],
)
def test_other_architectures(folder, changes):
    change(folder / "config.json", **changes)
    assert "config.json" in refusal(folder)


def test_models_of_another_kind_are_named(folder):
    (folder / "config.json").write_text('{"model_type": "wav2vec2"}')
    assert refusal(folder).endswith("a model of type 'wav2vec2'; streamd reads only whisper")


def test_a_vocabulary_of_another_model(folder):
    change(folder / "config.json", vocab_size=60_000)
    assert str(folder) in refusal(folder)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/passwd.safetensors",
        "sub/model.safetensors",
        "..\\secret.safetensors",
        "..",
        "",
        "a\nb.safetensors",
        "a\0b.safetensors",
        "pytorch_model.bin",
    ],
)
def test_an_index_does_not_lead_out_of_the_folder(folder, name):
    split(folder)
    (folder.parent / "secret.safetensors").write_bytes(b"")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"x": name}}))
    assert "is no part of a model" in refusal(folder)


def test_a_part_that_is_missing_is_named(folder):
    first, _ = split(folder)
    (folder / first).unlink()
    assert first in refusal(folder)


def test_an_index_of_nothing(folder):
    split(folder)
    (folder / INDEX).write_text('{"weight_map": {}}')
    assert INDEX in refusal(folder)


def test_a_token_in_letters_that_stand_for_no_byte(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    vocab["\u4e2d"] = vocab.pop(next(token for token in vocab if len(token) > 1))
    path.write_text(json.dumps(content))
    assert "stands for no byte" in refusal(folder)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_copies_are_whole_models_or_refused(data, folder):
    """There are no checksums: a wrong weight or token goes unnoticed, anything else does not."""
    name = data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
    whole = (folder / name).read_bytes()
    damaged = damaged_copy(data, whole, st.integers(0, min(3000, len(whole) - 1)))
    expected = checkpoint("few")
    model = load_damaged(folder, folder / name, damaged)
    if model is None:
        return
    assert {name: values.shape for name, values in model.weights.items()} == {
        name: values.shape for name, values in expected.weights.items()
    }
    assert len(model.vocabulary) == len(expected.vocabulary)
