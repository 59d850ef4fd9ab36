"""What the training minimises: errors of text, of phones, and of attention."""

from __future__ import annotations

import math

import torch
from tokens import Tokens
from torch import Tensor
from torch.nn import functional
from whisper.model import MultiHeadAttention, Whisper

GUIDED_LAYERS, GUIDED_HEADS = (2, 3), 2  # the first heads of these layers are told where words are


class Guide:
    """Collects the log attention of the guided heads during one forward pass."""

    def __init__(self, model: Whisper) -> None:
        self.maps: list[Tensor] = []
        for layer in GUIDED_LAYERS:
            model.decoder.blocks[layer].cross_attn.register_forward_hook(self._collect)

    def _collect(self, module: MultiHeadAttention, inputs: tuple[Tensor, ...], _: object) -> None:
        if not module.training:
            return
        width = module.query.out_features // module.n_head * GUIDED_HEADS
        shape = (GUIDED_HEADS, width // GUIDED_HEADS)
        q = functional.linear(inputs[0], module.query.weight[:width], module.query.bias[:width])
        k = functional.linear(inputs[1], module.key.weight[:width])
        q, k = (z.unflatten(-1, shape).transpose(1, 2) for z in (q, k))
        self.maps.append((q @ k.transpose(-1, -2)).float().div(math.sqrt(shape[1])).log_softmax(-1))

    def loss(self, words: Tensor) -> Tensor:
        """Mean of -log(attention inside the word) over the words (b, row, begin, end)."""
        maps, self.maps = self.maps, []
        if not len(words):
            return maps[0].sum() * 0
        b, row, begin, end = words.unbind(1)
        position = torch.arange(maps[0].shape[-1], device=words.device)
        outside = (position < begin[:, None]) | (position >= end[:, None])
        inside = [m[b, :, row].masked_fill(outside[:, None], -1e4).logsumexp(-1) for m in maps]
        return -torch.stack(inside).clamp(min=-20).mean()


def text_loss(logits: Tensor, targets: Tensor, tokens: Tokens) -> Tensor:
    """Cross-entropy with smoothing; the neighbours of a time token share its target."""
    log_p = logits.float().log_softmax(-1)
    learnt, target = targets >= 0, targets.clamp(min=0)
    nll = -log_p.gather(-1, target[..., None])[..., 0]
    is_time = (targets >= tokens.time0) & learnt
    near = torch.zeros_like(nll)
    for shift, share in ((-2, 0.06), (-1, 0.14), (1, 0.14), (2, 0.06)):
        shifted = (target + shift).clamp(tokens.time0, tokens.count - 1)
        near = near - share * log_p.gather(-1, shifted[..., None])[..., 0]
    nll = torch.where(is_time, 0.6 * nll + near, nll)
    weight = learnt.float() * torch.where(is_time, 0.5, 1.0)
    return ((0.97 * nll - 0.03 * log_p.mean(-1)) * weight).sum() / weight.sum()


def phone_loss(log_p: Tensor, phones: list[list[int]]) -> Tensor:
    """CTC over the phones of the examples that have any: keeps the encoder in time."""
    rows = [b for b, some in enumerate(phones) if some]
    if not rows:
        return log_p.sum() * 0
    lengths = torch.tensor([len(phones[b]) for b in rows])
    flat = torch.tensor([p for b in rows for p in phones[b]], device=log_p.device)
    times = torch.full((len(rows),), log_p.shape[1])
    return functional.ctc_loss(
        log_p[rows].transpose(0, 1), flat, times, lengths, zero_infinity=True
    )
