"""Weights between the untrained ones and the last ones."""

from __future__ import annotations

from torch import Tensor

SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
"""Of the way from the untrained weights to the last ones, that are tried at the end."""


def between(start: dict[str, Tensor], end: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """Weights on the straight line between two states of a model: start + share (end - start).

    A fine-tuned encoder has learned the collection and lost some of what it knew; between the two it often is
    better than either (Wortsman et al. 2022, WiSE-FT).

    >>> import torch
    >>> between({"w": torch.zeros(2)}, {"w": torch.ones(2)}, 0.25)["w"].tolist()
    [0.25, 0.25]
    """
    return {
        name: one + share * (end[name] - one) if one.is_floating_point() else end[name]
        for name, one in start.items()
    }
