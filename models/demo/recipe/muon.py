"""Muon: momentum that is orthogonalised before the step, for the matrices inside the blocks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter


class Muon:
    """Updates 2-D parameters; the work is shared between the processes of a training."""

    def __init__(self, parameters: list[Parameter], rank: int, processes: int) -> None:
        self.parameters, self._rank, self._processes = parameters, rank, processes
        self.momentum = [torch.zeros_like(p) for p in parameters]
        self._groups: dict[tuple[int, int], list[int]] = {}
        for i, p in enumerate(parameters):
            self._groups.setdefault((min(p.shape), max(p.shape)), []).append(i)

    def load(self, momentum: list[Tensor]) -> None:
        """Go on with a saved momentum."""
        for mine, saved in zip(self.momentum, momentum, strict=True):
            mine.copy_(saved)

    @torch.no_grad()
    def step(self, rate: float, *, decay: float, keep: float = 0.95) -> None:
        """Move each matrix by an orthogonal step of its Nesterov momentum."""
        for indices in self._groups.values():
            updates = []
            for i in indices:
                gradient = self.parameters[i].grad
                self.momentum[i].lerp_(gradient, 1 - keep)
                update = gradient.lerp(self.momentum[i], keep)
                updates.append(update if update.shape[0] <= update.shape[1] else update.T)
            stacked = torch.stack(updates)
            begin, end = (len(indices) * (self._rank + k) // self._processes for k in (0, 1))
            steps = torch.zeros_like(stacked)
            steps[begin:end] = _orthogonal(stacked[begin:end])
            if self._processes > 1:
                dist.all_reduce(steps)
            for i, step in zip(indices, steps, strict=True):
                p = self.parameters[i]
                tall = p.shape[0] > p.shape[1]
                size = max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                p.mul_(1 - rate * decay).add_(step.T if tall else step, alpha=-rate * size)


def _orthogonal(x: Tensor) -> Tensor:
    """Newton-Schulz iteration towards the nearest orthogonal matrices of a stack."""
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * (gram @ gram)) @ x
    return x.float()
