"""The loss of CCHT (Ding et al.): texts cited together are nearer than others, by a margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rerank.rankers.dense.losses.structure import ConstantMargin
from rerank.settings import setting


@dataclass(frozen=True)
class CoCitation(ConstantMargin):
    """max(|v_q - v_q+| - |v_q - v_q-| + m, 0), on triplets of a co-citation network.

    The paper does not give m; SPECTER, which it follows, has 1.
    """

    implies: ClassVar[dict[str, str]] = {"positives": "triplets"}

    structural_margin: float = setting(1.0, "of the triplets", low=0)
