"""Train the demo model: ``train.py CLIPS STATE [--minutes M] [--from WEIGHTS] ...``; see README.md.

STATE is written every few minutes and gone on from when it exists, so the same command resumes.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from batches import PHONE_IDS, Batch, Stream
from clips import load_clips
from features import Augment
from losses import Guide, phone_loss, text_loss
from model import build, encode, load_weights
from muon import Muon
from tokens import Tokens
from torch import Tensor, nn
from torch.utils.data import DataLoader
from whisper.model import MultiHeadAttention

SAVE_EVERY_S, REPORT_EVERY = 180, 50


@dataclass
class Progress:
    """Where a training is: everything that resuming needs besides the tensors."""

    step: int = 0
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)

    def fraction(self, args: argparse.Namespace) -> float:
        """Share of the training that is done, by updates or by time, whichever is ahead."""
        return max(self.step / args.updates, self.seconds / 60 / args.minutes)


class Trainer:
    """The model with its optimisers; one per process."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self.args, self.rank, self.device = args, rank, torch.device(args.device)
        self.tokens = Tokens(args.model / "vocab.tiktoken")
        torch.manual_seed(args.seed)
        self.model = build(self.tokens).to(self.device).train()
        self.phone_head = nn.Linear(self.model.dims.n_audio_state, len(PHONE_IDS) + 1).to(
            self.device
        )
        self.progress = Progress()
        self.guide = Guide(self.model)
        if args.start and not args.state.exists():
            self.model.load_state_dict(load_weights(args.start), strict=False)
        inner = [p for n, p in self.model.named_parameters() if p.dim() == 2 and "blocks" in n]
        chosen = {id(p) for p in inner}
        self.parameters = [*self.model.parameters(), *self.phone_head.parameters()]
        other = [p for p in self.parameters if id(p) not in chosen]
        self.muon = Muon(inner, rank, args.processes)
        self.adam = torch.optim.AdamW(
            [
                {"params": [p for p in other if p.dim() > 1], "weight_decay": 0.05},
                {"params": [p for p in other if p.dim() <= 1], "weight_decay": 0.0},
            ],
            betas=(0.9, 0.98),
        )
        self.average = {k: v.detach().clone() for k, v in self.model.named_parameters()}
        if args.state.exists():
            self._resume()
        self.augment = Augment(np.random.default_rng(args.seed + 31 * rank + self.progress.step))

    def _resume(self) -> None:
        state = torch.load(self.args.state, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.average = {k: v.to(self.device) for k, v in state["ema"].items()}
        self.phone_head.load_state_dict(state["phone_head"])
        self.adam.load_state_dict(state["adam"])
        self.muon.load(state["muon"])
        self.progress = Progress(state["step"], state["seconds"])

    def save(self) -> None:
        """Write the state in one move."""
        state = {
            "model": self.model.state_dict(),
            "ema": self.average,
            "phone_head": self.phone_head.state_dict(),
            "adam": self.adam.state_dict(),
            "muon": self.muon.momentum,
            "dims": vars(self.model.dims),
            "step": self.progress.step,
            "seconds": self.progress.seconds,
        }
        partial = self.args.state.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.args.state)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Weighted sum of the text, phone and attention losses; and what to report."""
        mel = self.augment(batch.samples.to(self.device), batch.heard)
        inputs, targets = batch.inputs.to(self.device), batch.targets.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            audio = encode(self.model, mel)
            logits = self.model.decoder(inputs, audio)
            # a fresh phone head must not shake a trained encoder
            fresh = self.progress.step < self.args.warmup
            phone_logits = self.phone_head(audio.detach() if fresh else audio)
        text = text_loss(logits, targets, self.tokens)
        phone = phone_loss(phone_logits.float().log_softmax(-1), batch.phones)
        guide = self.guide.loss(batch.words.to(self.device))
        is_text = (targets >= 0) & (targets < self.tokens.time0)
        right = (logits.argmax(-1) == targets)[is_text].float().mean()
        seen = {"text": text, "phone": phone, "guide": guide, "right": right}
        total = text + self.args.phone * phone + self.args.guide * guide
        return total, {name: value.item() for name, value in seen.items()}

    def update(self, batch: Batch, fraction: float) -> None:
        """One step of the optimisers at the rate that the schedule gives."""
        args, step = self.args, self.progress.step
        loss, seen = self.loss(batch)
        self.adam.zero_grad(set_to_none=False)
        for p in self.muon.parameters:
            p.grad = None
        loss.backward()
        self._share_gradients()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        flat, warm = args.flat, min(1, (step + 1) / args.warmup)
        fall = max(0.0, (fraction - flat) / (1 - flat))
        rate = warm * max(0.01, 0.5 * (1 + math.cos(math.pi * fall)))
        for group in self.adam.param_groups:
            group["lr"] = args.adam_rate * rate
        self.adam.step()
        self.muon.step(args.muon_rate * rate, decay=0.01)
        self.progress.step += 1
        keep = min(0.998, 1 - 1 / (self.progress.step / 20 + 1))
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                self.average[name].lerp_(p, 1 - keep)
        sums = self.progress.sums
        new = {"updates": 1.0, "rate": rate, "audio_s": batch.samples.numel() / 16000}
        for name, value in (seen | new).items():
            sums[name] = sums.get(name, 0.0) + value

    def _share_gradients(self) -> None:
        if self.args.processes == 1:
            return
        for p in self.parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        dist.all_reduce(flat)
        pieces = (flat / self.args.processes).split([p.numel() for p in self.parameters])
        for p, piece in zip(self.parameters, pieces, strict=True):
            p.grad = piece.view_as(p)

    def report(self, wall_s: float) -> None:
        """Print the means since the last report."""
        sums, n = self.progress.sums, self.progress.sums["updates"]
        means = "  ".join(
            f"{k} {sums[k] / n:.3f}" for k in ("text", "phone", "guide", "right", "rate")
        )
        speed = self.args.processes * sums["audio_s"] / wall_s
        print(
            f"{self.progress.seconds / 60:6.1f} min  step {self.progress.step}  {means}  "
            f"{speed:.0f} x real time",
            flush=True,
        )
        sums.clear()


def train(rank: int, args: argparse.Namespace, meeting: str) -> None:
    """Run one process of the training."""
    torch.set_num_threads(1 if args.device == "cpu" else os.cpu_count() or 1)
    MultiHeadAttention.use_sdpa = args.device != "cpu"  # slower on CPU for short contexts
    if args.processes > 1:
        dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=args.processes)
    trainer = Trainer(args, rank)
    progress = trainer.progress
    rhythm = args.seed + progress.step
    stream = Stream(
        load_clips(args.clips),
        trainer.tokens,
        seed=rhythm + 7919 * rank,
        rhythm=rhythm,
        positions=args.positions,
    )
    batches = iter(DataLoader(stream, batch_size=None, num_workers=args.loaders))
    saved = reported = last = time.monotonic()
    while True:
        done = torch.tensor([progress.fraction(args)], dtype=torch.float64)
        if args.processes > 1:
            dist.broadcast(done, 0)
        if float(done) >= 1:
            break
        trainer.update(next(batches), float(done))
        now = time.monotonic()
        progress.seconds += now - last
        last = now
        if rank == 0 and progress.step % REPORT_EVERY == 0:
            trainer.report(now - reported)
            reported = now
        if rank == 0 and now - saved > SAVE_EVERY_S:
            trainer.save()
            saved = now
    if rank == 0:
        trainer.save()
        print("done", progress.step, flush=True)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("clips", type=Path, help="folder of the shards")
    add("state", type=Path, help="training state, written and resumed")
    add("--model", type=Path, default=Path(__file__).parents[1], help="folder with vocab.tiktoken")
    add("--from", dest="start", type=Path, help="weights to start from (.safetensors or .pt)")
    add("--updates", type=int, default=20_000)
    add("--minutes", type=float, default=240.0, help="stop earlier at this much training time")
    add("--flat", type=float, default=0.3, help="share of the training before the rate falls")
    add("--adam-rate", type=float, default=1.6e-3)
    add("--muon-rate", type=float, default=0.012)
    add("--warmup", type=int, default=150)
    add("--phone", type=float, default=0.3, help="weight of the phone loss")
    add("--guide", type=float, default=0.5, help="weight of the attention loss")
    add("--positions", type=int, default=2600, help="encoder positions per process and update")
    add("--processes", type=int, default=2)
    add("--loaders", type=int, default=0, help="processes that compose examples (for a GPU)")
    add("--device", default="cpu")
    add("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Start the processes of the training."""
    args = arguments()
    args.state.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if args.processes == 1:
            train(0, args, "")
        else:
            torch.multiprocessing.spawn(train, (args, f"{folder}/meet"), args.processes)


if __name__ == "__main__":
    main()
