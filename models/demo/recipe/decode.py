"""Greedy decoding of many sounds at once, and word times from cross-attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from clips import RATE_HZ, Samples
from compose import FRAME
from features import log_mel, mel_power
from model import encode
from tokens import Tokens
from torch import Tensor
from whisper.model import Whisper, disable_sdpa
from whisper.timing import dtw, median_filter

SHORTEST, LONGEST, STEP = 192, 1500, 64
TEXT_LIMIT = 120


@dataclass(frozen=True)
class Decoded:
    """What was read, how likely it is that nobody spoke, and the mean log-probability."""

    text: str
    no_speech: float
    mean_logprob: float


def context_for(samples: int, *, room_s: float = 0.6) -> int:
    """Encoder context that a sound needs: its length and some room, in steps of 64."""
    wanted = (samples / RATE_HZ + room_s) * RATE_HZ / FRAME
    return int(min(LONGEST, max(SHORTEST, np.ceil(wanted / STEP) * STEP)))


def features(sounds: Sequence[Samples], context: int) -> Tensor:
    """Log-mel of sounds, padded with silence or cut to the context."""
    padded = np.zeros((len(sounds), context * FRAME), np.float32)
    for row, x in zip(padded, sounds, strict=True):
        row[: len(x)] = x[: len(row)]
    return log_mel(mel_power(torch.from_numpy(padded)))


class Decoder:
    """Decodes with one model."""

    def __init__(self, model: Whisper, tokens: Tokens) -> None:
        self.model, self.tokens = model.eval(), tokens
        self._never = torch.zeros(tokens.count, dtype=torch.bool)
        self._never[tokens.sot : tokens.time0] = True

    @torch.no_grad()
    def __call__(
        self,
        sounds: Sequence[Samples],
        *,
        context: int | None = None,
        times: bool = False,
        prompt: str = "",
        batch: int = 24,
    ) -> list[Decoded]:
        """Read sounds; ``context`` is fixed or as short as each batch allows.

        ``prompt`` is what is said to have been written before.
        """
        order = np.argsort([len(x) for x in sounds], kind="stable")
        out: dict[int, Decoded] = {}
        for start in range(0, len(order), batch):
            some = [int(i) for i in order[start : start + batch]]
            width = context or context_for(max(len(sounds[i]) for i in some))
            mel = features([sounds[i] for i in some], width)
            out.update(zip(some, self._read(mel, times=times, prompt=prompt), strict=True))
        return [out[i] for i in range(len(sounds))]

    def _read(self, mel: Tensor, *, times: bool, prompt: str) -> list[Decoded]:
        t, audio = self.tokens, encode(self.model, mel)
        before = [t.previous, *t.encode(f" {prompt}")] if prompt else []
        start = [*before, t.sot] if times else [*before, t.sot, t.no_times]
        sequence = torch.tensor([start] * len(mel))
        kept, hooks = self.model.install_kv_cache_hooks()
        logits = self.model.decoder(sequence, audio, kv_cache=kept)
        no_speech = logits[:, len(before)].softmax(-1)[:, t.no_speech]
        total, length = torch.zeros(len(mel)), torch.zeros(len(mel))
        ended = torch.zeros(len(mel), dtype=torch.bool)
        for _ in range(TEXT_LIMIT):
            log_p = self._allowed(
                logits[:, -1], sequence[:, len(start) :], times=times
            ).log_softmax(-1)
            best, token = log_p.max(-1)
            token[ended] = t.eot
            total += torch.where(ended, 0.0, best)
            length += (~ended).float()
            sequence = torch.cat([sequence, token[:, None]], 1)
            ended |= token == t.eot
            if ended.all():
                break
            logits = self.model.decoder(sequence[:, -1:], audio, kv_cache=kept)
        for hook in hooks:
            hook.remove()
        mean = total / length
        return [
            Decoded(t.decode(row[len(start) :]).strip(), float(no_speech[b]), float(mean[b]))
            for b, row in enumerate(sequence.tolist())
        ]

    def _allowed(self, logits: Tensor, said: Tensor, *, times: bool) -> Tensor:
        """Whisper's rules for time tokens: pairs, growing, and first when they are likelier."""
        logits = logits.masked_fill(self._never, -torch.inf)
        first, eot = self.tokens.time0, self.tokens.eot
        if not times:
            logits[:, first:] = -torch.inf
            return logits
        for row, ids in zip(logits, said.tolist(), strict=True):
            stamps = [i for i in ids if i >= first]
            if not ids:
                row[:first] = -torch.inf
                row[first + 51 :] = -torch.inf
                continue
            opened = ids[-1] >= first
            if opened and (len(ids) < 2 or ids[-2] >= first):
                row[first:] = -torch.inf
            elif opened:
                row[:eot] = -torch.inf
            row[first : max(stamps) + (0 if opened else 1)] = -torch.inf
            log_p = row.log_softmax(-1)
            if log_p[first:].logsumexp(0) > log_p[:first].max():
                row[:first] = -torch.inf
        return logits

    @torch.no_grad()
    def attention(self, x: Samples, words: list[str]) -> tuple[Tensor, list[int]]:
        """Cross-attention of all heads (layer * heads + head, token, position) for known words.

        Normalised as openai-whisper's ``find_alignment`` does; and the number of tokens per word.
        """
        t, context = self.tokens, context_for(len(x))
        ids = [t.encode(" " + word) for word in words]
        sequence = torch.tensor([[t.sot, t.no_times, *(i for some in ids for i in some), t.eot]])
        maps: list[Tensor] = []
        hooks = [
            block.cross_attn.register_forward_hook(lambda _m, _i, out: maps.append(out[1][0]))
            for block in self.model.decoder.blocks
        ]
        with disable_sdpa():
            self.model.decoder(sequence, encode(self.model, features([x], context)))
        for hook in hooks:
            hook.remove()
        weights = torch.cat(maps)[:, :, : int(np.ceil(len(x) / FRAME))].softmax(-1)
        deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
        weights = median_filter((weights - mean) / (deviation + 1e-9), 7)
        return weights[:, 1:-1], [len(some) for some in ids]


def word_times(
    weights: Tensor, heads: Sequence[int], lengths: list[int]
) -> list[tuple[float, float]]:
    """Begin and end of each word in seconds, by dynamic time warping over the mean of the heads."""
    token, position = dtw(-weights[list(heads)].mean(0).double())
    jumps = np.pad(np.diff(token), (1, 0), constant_values=1).astype(bool)
    starts = np.append(position[jumps], position[-1] + 1) * FRAME / RATE_HZ
    borders = np.cumsum([0, *lengths])
    return [(float(starts[a]), float(starts[b])) for a, b in pairwise(borders)]


def tightened(
    times: Sequence[tuple[float, float]], x: Samples, quiet: float = 0.05
) -> list[tuple[float, float]]:
    """Move times inwards over frames 26 dB below the word's loudest one, as streamd does."""
    loudness = np.sqrt(np.square(x[: len(x) // FRAME * FRAME].reshape(-1, FRAME)).mean(axis=1))
    out = []
    for begin, end in times:
        first, last = (round(t * RATE_HZ / FRAME) for t in (begin, end))
        span = loudness[first:last]
        loud = np.flatnonzero(span > quiet * span.max(initial=0.0))
        if len(loud):
            first, last = first + int(loud[0]), first + int(loud[-1]) + 1
        out.append((first * FRAME / RATE_HZ, last * FRAME / RATE_HZ))
    return out
