"""openai-whisper's checkpoint: ``whisper.load_model("model.pt")`` reads it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from vocabulary import Whole, half


def write(model: Whole, out: Path) -> Path:
    """Write ``out``/model.pt."""
    path = out / "model.pt"
    state = {name: torch.from_numpy(half(array)) for name, array in model.weights.items()}
    torch.save({"dims": asdict(model.dims), "model_state_dict": state}, path)
    return path
