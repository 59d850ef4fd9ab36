"""The clips that ship with streamd, and what openai-whisper reads in them."""

import json

import numpy as np

from streamd.engines.golden_clips import clips, read_by_whisper
from streamd.engines.prepared import open_in_memory
from streamd.models.store import load_model
from streamd.options import DecodingOptions
from streamd.system.disk import asset
from streamd.types import FRAME
from streamd.whisper.decode import Context, slots_needed
from streamd.whisper.mel import log_mel
from streamd.whisper.tokenizer import Tokenizer
from tests.support.decoders import decode


def test_openai_whisper_reads_the_same_with_the_bundled_weights():
    tiny = load_model("tiny.en")
    engine = open_in_memory(tiny, threads=1, precision="float32").engine
    words = Tokenizer(tiny.vocabulary, tiny.dims.n_vocab, multilingual=False)
    options, context = DecodingOptions(), Context(max_tokens=100)
    n_slots = slots_needed(context, options=options, n_text_ctx=tiny.dims.n_text_ctx)
    read = {}
    for clip in clips():
        sound = np.pad(clip.samples, (0, 1500 * FRAME - len(clip.samples)))
        features = engine.encode(log_mel(sound, tiny.dims.n_mels))
        decoder = engine.decoder(features, n_slots)
        found = decode(decoder, words, options=options, context=context)
        read[clip.name] = words.decode(found.tokens).strip()
    assert read == read_by_whisper(asset("tiny.en"))
    assert set(read) == set(json.loads((asset("golden") / "clips.json").read_text()))


def test_of_other_weights_nobody_knows_what_openai_whisper_reads(tmp_path):
    assert read_by_whisper(tmp_path) == {}
    (tmp_path / "model.safetensors").write_bytes(b"others")
    assert read_by_whisper(tmp_path) == {}


def test_the_clips_are_speech_of_a_few_seconds():
    assert [clip.name for clip in clips()] == ["lamp", "cards", "digits"]
    for clip in clips():
        assert 1 < len(clip.samples) / 16_000 < 15
        assert clip.text
        assert np.abs(clip.samples).max() > 0.05
