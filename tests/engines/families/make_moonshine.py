"""Trains a Moonshine Streaming of tiny dimensions to say four clips, and writes moonshine.gguf.

    uv pip install torch transformers gguf soundfile
    python -m tests.engines.families.make_moonshine

Any part of a clip from its beginning gives the words that have ended in it, with any silence before
and behind it, so that the model can be captioned live. It is trained on until the library captions
all clips to their exact text. transformers' classes are the architecture,
and the names in the file those of transcribe.cpp's converter. The clips are under the MIT and BSD
licences, CC0, and in the public domain (tests/golden/README.md, tests/speech/README.md).
"""

import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import soundfile
import torch
from gguf import GGMLQuantizationType
from transformers import MoonshineStreamingConfig, MoonshineStreamingForConditionalGeneration

from streamd.engines.families import Family, FamilyRecognizer
from tests.engines.families.test_library import captions
from tests.support import gguf_models, recorded

RATE = 16_000
SAID = {
    "lamp": "Would .8 you 1 please 1.38 turn 1.58 on 1.8 the 1.95 living 2.15 room 2.32 lamp? 2.54",
    "cards": "Eight .48 of .7 spades, 1.3 four 1.58 of 1.8 clubs, 2.25 seven 2.68 of 2.9 "
    "hearts. 3.1",
    "arctic_a0245": "Out .66 of .8 his 1.04 1800, 1.8 he 2.44 laid 2.62 aside 3.14 1600 3.9 "
    "each 4.4 year. 4.7",
    "sense_0880": "He .72 was 1.0 not 1.5 an 1.68 ill 1.94 disposed 2.42 young 2.74 man. 3.1",
}
"""The words of each clip, and when each has ended in seconds (of word times by tiny.en)."""
DIMENSIONS = gguf_models.Moonshine(
    encoder=64, decoder=64, layers=2, heads=4, head_dim=16, n_vocab=64, positions=1024
)
FIRST, LATER, MOST_ROUNDS = (400, 4e-3), (150, 1.5e-3), 8
"""Training steps of the first and the later rounds, each with all clips, and the highest rate."""
PART = 0.7
"""The share of clips of which only a part is heard."""


@cache
def clips() -> dict[str, tuple[np.ndarray, list[str], list[float]]]:
    """The sound of each clip, its words and their ends."""
    found = {}
    for name, said in SAID.items():
        path = recorded.ROOT / f"tests/golden/{name}.flac"
        is_file = path.exists()
        sound = soundfile.read(path, dtype="float32")[0] if is_file else recorded.samples(name)
        words = said.split()
        found[name] = (sound, words[::2], [float(end) for end in words[1::2]])
    return found


@cache
def vocabulary() -> list[str]:
    """The tokens: the specials, and a word each."""
    words = dict.fromkeys(word for _, words, _ in clips().values() for word in words)
    tokens = ["<unk>", "<s>", "</s>", *(f"▁{word}" for word in words)]
    return tokens + [f"<unused{n}>" for n in range(DIMENSIONS.n_vocab - len(tokens))]


def model() -> MoonshineStreamingForConditionalGeneration:
    d = DIMENSIONS
    shape = {
        "num_hidden_layers": d.layers,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.heads,
        "head_dim": d.head_dim,
    }
    encoder = {
        **shape,
        "model_type": "moonshine_streaming_encoder",
        "hidden_size": d.encoder,
        "intermediate_size": 4 * d.encoder,
        "sliding_windows": [[16, 4]] * d.layers,
    }
    return MoonshineStreamingForConditionalGeneration(
        MoonshineStreamingConfig(
            **shape,
            encoder_config=encoder,
            vocab_size=d.n_vocab,
            hidden_size=d.decoder,
            intermediate_size=4 * d.decoder,
            max_position_embeddings=d.positions,
            decoder_start_token_id=1,
            attn_implementation="eager",
        )
    )


def batch(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sounds, which of their samples count, and the tokens of what is said in them."""
    tokens, sounds, texts = vocabulary(), [], []
    for sound, words, ends in clips().values():
        first = ends[0] - 0.45  # the voice begins after that; what is before may be cut off
        cut = rng.uniform(0, first)
        until = len(sound) / RATE if rng.random() > PART else rng.uniform(first, ends[-1] + 0.6)
        part = sound[int(cut * RATE) : int(until * RATE)] * rng.uniform(0.7, 1.3)
        silences = [np.zeros(int(rng.uniform(0, 0.8) * RATE), np.float32) for _ in range(2)]
        heard = np.concatenate([silences[0], part, silences[1]])
        heard += rng.standard_normal(len(heard)).astype(np.float32) * 10 ** rng.uniform(-5, -3)
        sounds.append(heard[: len(heard) // 80 * 80].astype(np.float32))
        n = sum(end < until - 0.05 for end in ends)
        texts.append([1, *(tokens.index(f"▁{word}") for word in words[:n]), 2])
    longest, most = max(map(len, sounds)), max(map(len, texts))
    padded = np.stack([np.pad(each, (0, longest - len(each))) for each in sounds])
    mask = np.stack([np.arange(longest) < len(each) for each in sounds])
    ids = np.array([[*each, *[-100] * (most - len(each))] for each in texts])
    return torch.tensor(padded), torch.tensor(mask).long(), torch.tensor(ids)


def train(
    net: MoonshineStreamingForConditionalGeneration,
    rng: np.random.Generator,
    steps: int,
    rate: float,
) -> None:
    begin = time.process_time()
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.1)
    for step in range(1, steps + 1):
        sounds, mask, ids = batch(rng)
        logits = net(
            input_values=sounds, attention_mask=mask, decoder_input_ids=ids[:, :-1].clamp(min=0)
        ).logits
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(
                f"{step}: loss {loss.item():.3f}, {time.process_time() - begin:.0f} s", flush=True
            )


NAMES = {
    "model.encoder.embedder.": "enc.embedder.",
    "model.encoder.final_norm.gamma": "enc.final_norm.weight",
    "model.decoder.pos_emb.": "adapter.pos_emb.",
    "model.decoder.embed_tokens.": "dec.token_embd.",
    "model.decoder.norm.": "dec.final_norm.",
    "proj_out.": "dec.lm_head.",
    "model.encoder.layers.": "enc.blocks.",
    "model.decoder.layers.": "dec.blocks.",
    ".mlp.": ".ffn.",
    "_proj.": ".",
    ".o.": ".out.",
    ".encoder_attn.": ".cross_attn.",
}
"""Parts of transformers' names, and what stands for each in the file, in this order."""
NORMS = {
    "enc": {
        "input_layernorm.gamma": "norm_attn.weight",
        "post_attention_layernorm.gamma": "norm_ffn.weight",
    },
    "dec": {
        "input_layernorm": "norm_self",
        "post_attention_layernorm": "norm_cross",
        "final_layernorm": "norm_ffn",
    },
}


def stored(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """A tensor's name in the file, and the tensor; the encoder's gains are stored less one."""
    array = array + 1.0 if name.endswith("gamma") else array
    for old, new in NAMES.items():
        name = name.replace(old, new)
    for old, new in NORMS[name[:3]].items() if name[:3] in NORMS else ():
        name = name.replace(old, new)
    if name.startswith("enc.blocks"):
        name = name.replace("self_attn.", "attn.")
    return name, array.reshape(array.shape or (1,))


def half(name: str, weights: np.ndarray) -> tuple[np.ndarray, GGMLQuantizationType]:
    """A matrix as it stands in the file."""
    return weights.astype(np.float16), GGMLQuantizationType.F16


def write(net: MoonshineStreamingForConditionalGeneration, path: Path) -> None:
    file = gguf_models.moonshine(DIMENSIONS)
    file.metadata["tokenizer.ggml.tokens"] = vocabulary()
    file.metadata["stt.moonshine_streaming.encoder.sliding_windows"] = [16, 4] * DIMENSIONS.layers
    weights = {name: each.detach().numpy() for name, each in net.named_parameters()}
    file.replaced = dict(stored(*each) for each in weights.items())
    if missing := set(file.shapes) ^ set(file.replaced):
        raise ValueError(f"tensors do not match: {sorted(missing)}")
    file.write(path, half)


def wrong(path: Path) -> dict[str, str]:
    """What the library captions otherwise than it was said."""
    recognizer = FamilyRecognizer(Family(path, threads=1))
    texts = {
        name: " ".join(each.text for each in captions(recognizer, sound) if each.is_final)
        for name, (sound, _, _) in clips().items()
    }
    return {name: text for name, text in texts.items() if text != " ".join(clips()[name][1])}


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    made, rng = model(), np.random.default_rng(0)
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("moonshine.gguf")
    train(made, rng, *FIRST)
    for _ in range(MOST_ROUNDS):
        train(made, rng, *LATER)
        write(made, out)
        if not (mistakes := wrong(out)):
            sys.exit()
        print(f"trained on, because of {mistakes}", flush=True)
    sys.exit("some clips are wrong; look at the training")
