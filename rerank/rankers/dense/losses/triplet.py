"""A plain triplet of linked and unlinked documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rerank.rankers.dense.losses.structure import ConstantMargin


@dataclass(frozen=True)
class Triplet(ConstantMargin):
    """One margin, and pairs drawn without levels unless told otherwise."""

    implies: ClassVar[dict[str, str]] = {"positives": "row"}
