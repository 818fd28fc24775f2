"""Vectors of quintuplets for examples by hand."""

from __future__ import annotations

from types import SimpleNamespace

import torch


def vectors(level=1, dtype=torch.float64, **changes):
    found = {
        "anchor": [[0.0, 0.0], [0.0, 1.2]],
        "positive": [[3.0, 4.0], [0.0, 1.2]],
        "negative": [[0.0, 6.0], [0.0, 1.2]],
        "corrupted": [[1.0, 0.0], [0.0, 1.2]],
        **changes,
    }
    tensors = {name: torch.tensor(value, dtype=dtype, requires_grad=True) for name, value in found.items()}
    eye = torch.eye(2, dtype=torch.bool)
    near = torch.tensor([[True, False], [True, True]])  # the second row has no semantic negative
    return SimpleNamespace(**tensors, level=torch.tensor([level, 0]), near=near, near_positive=eye)
