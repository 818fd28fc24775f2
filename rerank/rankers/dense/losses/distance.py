"""Euclidean distance with a gradient everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

FLOOR = 1e-12
"""Least squared distance: the root has no gradient at 0."""


def distance(a: Tensor, b: Tensor) -> Tensor:
    """delta(a, b) = sqrt(max(|a - b|^2, FLOOR)): (..., E), (..., E) -> (...).

    >>> import torch
    >>> distance(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])).item()
    5.0
    """
    return (a - b).square().sum(dim=-1).clamp_min(FLOOR).sqrt()


def hinge(near: Tensor, far: Tensor, margin: Tensor | float) -> Tensor:
    """max(near - far + margin, 0): (B,) each -> (B,).

    >>> import torch
    >>> hinge(torch.tensor([5.0, 1.0]), torch.tensor([6.0, 6.0]), 2.0).tolist()
    [1.0, 0.0]
    """
    return (near - far + margin).relu()


def mean_of(losses: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid rows: (B,) each -> a number; 0 without valid rows.

    >>> import torch
    >>> mean_of(torch.tensor([1.0, 5.0]), torch.tensor([True, False])).item()
    1.0
    """
    return (losses * valid).sum() / valid.sum().clamp_min(1)
