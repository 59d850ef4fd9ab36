"""Makes openai-whisper draw with numbers that anybody can draw."""

import numpy as np
import torch
from torch.distributions import Categorical


def fix_chance(seed: int) -> None:
    """From now on openai-whisper samples with numpy's numbers, one for each row of each step."""
    rng = np.random.default_rng(seed)

    def sample(distribution: Categorical) -> torch.Tensor:
        logits = distribution.logits.double().numpy()
        tokens = []
        for row, luck in zip(logits, rng.random(len(logits)), strict=True):
            shares = np.exp(row - row.max()).cumsum()
            tokens.append(int(np.searchsorted(shares, luck * shares[-1], side="right")))
        return torch.tensor(tokens)

    Categorical.sample = sample
