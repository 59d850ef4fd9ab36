"""From examples to batches of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from clips import RATE_HZ, Clip, Run
from compose import FRAME, Composer, Example
from tokens import Tokens
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

_PHONES = (
    "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V "
    "W Y Z ZH"
).split()
PHONE_IDS = {phone: i for i, phone in enumerate(_PHONES, 1)}  # 0 is CTC's blank
CONTEXTS = {192: 8, 256: 8, 320: 12, 384: 24, 512: 22, 768: 16, 1024: 5, 1500: 5}
LONGEST_TEXT = 220
_SLACK = 2  # positions on both sides of a word that its attention may use


@dataclass
class Batch:
    """Tensors of one update. ``words`` lists (row of the batch, decoder position, begin, end)."""

    samples: Tensor
    heard: list[int]
    inputs: Tensor
    targets: Tensor  # -1 where nothing is to be learnt
    phones: list[list[int]]
    words: Tensor


def written(
    tokens: Tokens, e: Example, *, times: bool
) -> tuple[list[int], list[int], list[tuple[int, Run]]]:
    """Token sequence of an example: inputs, targets, and which target stands for which run."""
    start = [tokens.sot]
    if not e.runs:  # the target is "no speech", but decoding goes on to an empty text
        first = tokens.time0 if times else tokens.no_times
        return [tokens.sot, first], [tokens.no_speech, tokens.eot], []
    if e.prompt:
        start = [tokens.previous, *tokens.encode(" " + " ".join(e.prompt))[-64:], tokens.sot]
    body, spans = [] if times else [tokens.no_times], list[tuple[int, Run]]()
    for group in _groups(e.runs) if times else [e.runs]:
        if times:
            body.append(tokens.time0 + round(max(0, group[0].begin) / FRAME))
        for run in group:
            ids = tokens.encode(" " + run.text)
            spans += [(len(start) + len(body) + i - 1, run) for i in range(len(ids))]
            body += ids
        if times:
            body.append(tokens.time0 + round(group[-1].end / FRAME))
    sequence = [*start, *body, tokens.eot]
    targets = [-1] * (len(start) - 1) + sequence[len(start) :]
    return sequence[:-1], targets, spans


def _groups(runs: list[Run]) -> list[list[Run]]:
    """Segments for the timestamp tokens: a new one after 0.6 s of pause or 6 s of speech."""
    groups: list[list[Run]] = []
    for run in runs:
        near = groups and run.begin - groups[-1][-1].end < 0.6 * RATE_HZ
        if near and run.begin - groups[-1][0].begin < 6 * RATE_HZ:
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def collate(tokens: Tokens, examples: list[Example], times: list[bool]) -> Batch:
    """Put examples of one context length together."""
    rows = [written(tokens, e, times=t) for e, t in zip(examples, times, strict=True)]
    longest = max(len(inputs) for inputs, _, _ in rows)
    inputs = torch.full((len(rows), longest), tokens.eot)
    targets = torch.full((len(rows), longest), -1)
    words = []
    for b, (given, wanted, spans) in enumerate(rows):
        inputs[b, : len(given)] = torch.tensor(given)
        targets[b, : len(wanted)] = torch.tensor(wanted)
        for position, run in spans:
            begin = max(0, run.begin // FRAME - _SLACK)
            words.append((b, position, begin, max(begin + 1, run.end // FRAME + _SLACK + 1)))
    return Batch(
        samples=torch.from_numpy(np.stack([e.samples for e in examples])),
        heard=[e.heard for e in examples],
        inputs=inputs,
        targets=targets,
        phones=[[PHONE_IDS[p] for run in e.runs for p in run.phones] for e in examples],
        words=torch.tensor(words, dtype=torch.long).reshape(-1, 4),
    )


class Stream(IterableDataset[Batch]):
    """An endless stream of batches, about ``positions`` encoder positions in each.

    Streams with the same ``rhythm`` give batches of the same contexts, so that the processes of a
    training, which wait for each other at each update, have as much to do.
    """

    def __init__(
        self, clips: list[Clip], tokens: Tokens, *, seed: int, rhythm: int, positions: int
    ) -> None:
        self._clips, self._tokens, self._positions = clips, tokens, positions
        self._seed, self._rhythm = seed, rhythm

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        loader = worker.id if worker else 0
        composer = Composer(self._clips, self._seed + 104_729 * loader)
        r, rhythm = composer.r, np.random.default_rng([self._rhythm, loader])
        weights = np.array(list(CONTEXTS.values()), float)
        while True:
            context = int(rhythm.choice(list(CONTEXTS), p=weights / weights.sum()))
            examples: list[Example] = []
            while len(examples) < max(2, self._positions // context):
                e = composer.example(context)
                if sum(len(run.text) + 1 for run in e.runs) < 5 * LONGEST_TEXT and len(e.runs) < 90:
                    examples.append(e)
            batch = collate(self._tokens, examples, list(r.random(len(examples)) < 0.5))
            self._misread(r, batch)
            yield batch

    def _misread(self, r: np.random.Generator, batch: Batch) -> None:
        """Give the decoder some wrong words to go on from, as it will have in use.

        It must know where it was in the sound from where it looked, not from the text alone: that
        is what keeps repeated words apart and ends loops.
        """
        wrong = r.random(batch.inputs.shape) < 0.1 * (r.random((len(batch.inputs), 1)) < 0.4)
        is_text = (batch.inputs < self._tokens.eot) & (batch.targets >= 0)
        known = torch.unique(batch.inputs[is_text])
        if len(known):
            other = known[torch.from_numpy(r.integers(len(known), size=batch.inputs.shape))]
            batch.inputs = torch.where(torch.from_numpy(wrong) & is_text, other, batch.inputs)
