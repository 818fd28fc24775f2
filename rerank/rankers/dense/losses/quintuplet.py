"""The paper's loss: structure and semantics together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rerank.errors import setting_hint
from rerank.rankers.dense.losses.base import Loss, Sum
from rerank.rankers.dense.losses.semantics import Semantics
from rerank.rankers.dense.losses.structure import ConstantMargin, Structure
from rerank.settings import group, setting, values_of


@dataclass(frozen=True)
class FixedMargin(Sum):
    """L = (1 - gamma) L_phi + gamma L_psi (Raman et al. 2021, equation 5), with one margin for all levels.

    gamma 0 is structure alone, 1 semantics alone.
    """

    gamma: float = setting(0.5, "weight of the semantic half", low=0, high=1)
    structural: ConstantMargin = group(ConstantMargin)
    semantic: Semantics = group(Semantics)

    @property
    def parts(self) -> Mapping[str, tuple[float, Loss]]:
        """The two halves."""
        return {"structural": (1 - self.gamma, self.structural), "semantic": (self.gamma, self.semantic)}

    def unread(self) -> dict[str, str]:
        """Settings of a half that has no weight."""
        without = [loss for weight, loss in self.parts.values() if not weight]
        return {
            name: setting_hint("gamma", f"{self.gamma:g}") for loss in without for name in values_of(loss)
        }


@dataclass(frozen=True)
class Quintuplet(FixedMargin):
    """The same with a margin that shrinks with the level."""

    structural: Structure = group(Structure)
