"""The demo model: openai-whisper's own network, small, with first weights that train well."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokens import Tokens
from torch import Tensor, nn
from torch.nn import functional
from whisper.model import ModelDimensions, Whisper, sinusoids

WIDTH, HEADS, LAYERS = 192, 3, 4


def build(tokens: Tokens) -> Whisper:
    """Make the network with fresh weights."""
    model = Whisper(
        ModelDimensions(
            n_mels=80, n_audio_ctx=1500, n_audio_state=WIDTH, n_audio_head=HEADS,
            n_audio_layer=LAYERS, n_vocab=tokens.count, n_text_ctx=448, n_text_state=WIDTH,
            n_text_head=HEADS, n_text_layer=LAYERS,
        )
    )  # fmt: skip
    with torch.no_grad():
        _initialise(model, tokens)
    return model


def _initialise(model: Whisper, tokens: Tokens) -> None:
    """Scale the first weights: with torch's own ones, the positions drown what is heard."""
    embedding = torch.randn(tokens.count, WIDTH) * 0.05
    times = tokens.count - tokens.time0
    embedding[tokens.time0 :] = sinusoids(times, WIDTH) * 0.06 + torch.randn(WIDTH) * 0.05
    model.decoder.token_embedding.weight.copy_(embedding)
    nn.init.normal_(model.decoder.positional_embedding, 0, 0.01)
    for layer, gain in ((model.encoder.conv1, 1.4), (model.encoder.conv2, 2.2)):
        nn.init.normal_(layer.weight, 0, gain / math.sqrt(layer.weight[0].numel()))
        nn.init.zeros_(layer.bias)
    for name, p in model.named_parameters():
        if name.endswith(("out.weight", "mlp.2.weight")):
            nn.init.normal_(p, 0, 0.02 / math.sqrt(LAYERS))
        elif "blocks" in name and name.endswith("weight") and p.dim() == 2:
            nn.init.xavier_uniform_(p)


def encode(model: Whisper, mel: Tensor) -> Tensor:
    """Run the encoder on a context of any length; openai-whisper's own insists on 30 s."""
    encoder = model.encoder
    x = functional.gelu(encoder.conv2(functional.gelu(encoder.conv1(mel)))).transpose(1, 2)
    x = x + encoder.positional_embedding[: x.shape[1]]
    for block in encoder.blocks:
        x = block(x)
    return encoder.ln_post(x)


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read exported weights, or the running average of a training state, as float32."""
    if path.suffix == ".safetensors":
        return {name: w.float() for name, w in load_file(path).items()}
    state = torch.load(path, map_location="cpu")
    return {**state["model"], **state["ema"]}
