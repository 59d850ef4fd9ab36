"""Write the model's files from a training state: ``export.py STATE SHARDS OUT [--with STATE ...]``.

The weights are the running average, rounded to float16, under openai-whisper's names; of several
states, the mean. ``--unknown 0.78`` makes the embedding of ``...`` that much shorter: strange
voices are taken for strange words less often, and strange words for known ones more often. The
heads for word times are chosen on the development speaker. OUT may be the folder of the model
itself.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path

import numpy as np
import sets
import torch
from clips import load_shard
from decode import Decoder, tightened, word_times
from model import HEADS, LAYERS, build, load_weights
from numpy.random import default_rng
from safetensors.torch import save_file
from tokens import Tokens
from vocabulary import UNKNOWN

SHORTEST_CONTEXT = 192  # the shortest that was trained
STYLE = 'lower case, words separated by blanks, no full stop; "..." = speech outside the vocabulary'


def choose_heads(decoder: Decoder, shards: Path, most: int = 4) -> tuple[list[list[int]], float]:
    """Find the heads whose word times are best on the development speaker; and the error in s."""
    clips = [
        c for c in load_shard(shards / "real-moonshine_alnum") if c.voice.endswith("petewarden")
    ]
    digits = [c for c in clips if c.kind == "digit"]
    said = sets.strings(default_rng(7), digits, 30, (4, 8), (0.05, 0.5))
    maps = [decoder.attention(x.samples, x.text.split()) for x in said]

    def error(heads: tuple[int, ...]) -> float:
        wrong = [
            abs(np.array(tightened(word_times(weights, heads, lengths), x.samples)) - x.times)
            for (weights, lengths), x in zip(maps, said, strict=True)
        ]
        return float(np.concatenate(wrong).mean())

    ranked = sorted(range(LAYERS * HEADS), key=lambda head: error((head,)))[:6]
    tried = [some for k in range(1, most + 1) for some in combinations(ranked, k)]
    best = min(tried, key=error)
    return [[head // HEADS, head % HEADS] for head in best], error(best)


def mean(states: list[Path]) -> dict[str, torch.Tensor]:
    """Average the weights of trainings, each of which went on from another."""
    every = [load_weights(state) for state in states]
    return {name: torch.stack([one[name] for one in every]).mean(0) for name in every[0]}


def _known(path: Path) -> dict[str, object]:
    """Read what the model's configuration says besides, such as its notice."""
    known: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
    return known


def main() -> None:
    """Choose the heads and write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state", type=Path)
    parser.add_argument("shards", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--with", dest="others", type=Path, nargs="+", default=[])
    parser.add_argument("--unknown", type=float, default=1.0, metavar="FACTOR")
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokens = Tokens(args.model / "vocab.tiktoken")
    network = build(tokens)
    network.load_state_dict(mean([args.state, *args.others]), strict=False)
    with torch.no_grad():
        network.decoder.token_embedding.weight[tokens.encode(f" {UNKNOWN}")] *= args.unknown
    names = [name for name, _ in network.named_parameters()]
    weights = {
        name: network.state_dict()[name] for name in [*names, "encoder.positional_embedding"]
    }
    half = {name: w.half().contiguous() for name, w in weights.items()}
    network.load_state_dict({name: w.float() for name, w in half.items()}, strict=False)
    heads, error = choose_heads(Decoder(network, tokens), args.shards)
    print(f"alignment heads {heads}: mean error {1000 * error:.0f} ms on the development speaker")
    args.out.mkdir(parents=True, exist_ok=True)
    save_file(half, args.out / "model.safetensors")
    config = {
        **_known(args.model / "config.json"),
        "dims": vars(network.dims),
        "n_text_tokens": tokens.eot,
        "specials": {
            "eot": tokens.eot,
            "sot": tokens.sot,
            "translate": tokens.translate,
            "transcribe": tokens.transcribe,
            "startoflm": tokens.sot_lm,
            "startofprev": tokens.previous,
            "nospeech": tokens.no_speech,
            "notimestamps": tokens.no_times,
            "timestamp_begin": tokens.time0,
        },
        "language": "en",
        "text_style": STYLE,
        "min_audio_ctx": SHORTEST_CONTEXT,
        "alignment_heads": heads,
    }
    (args.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main()
