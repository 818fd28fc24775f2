"""The paper's loss: classifier, components and momentum together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rerank.errors import setting_hint
from rerank.rankers.concept.losses.classifier import Classifier
from rerank.rankers.concept.losses.components import Components
from rerank.rankers.concept.losses.momentum import Momentum
from rerank.rankers.dense.losses import Loss, Sum
from rerank.settings import group, setting, values_of


@dataclass(frozen=True)
class GraphComponent(Sum):
    """L = L_CRE + beta (L_GC-NCE + L_MoCo) (Ma et al. 2023, equation 7); each a mean, where the paper
    adds up, so that beta does not depend on the batch.

    beta 0 is the classifier alone, to the bit.
    """

    beta: float = setting(0.1, "weight of components and momentum", low=0)
    gc_nce: bool = setting(True, "contrast texts with components")
    moco: bool = setting(True, "contrast texts with each other, by a momentum encoder")
    classifier: Classifier = group(Classifier)
    components: Components = group(Components)
    following: Momentum = group(Momentum)

    @property
    def parts(self) -> Mapping[str, tuple[float, Loss]]:
        """The three losses."""
        return {
            "classifier": (1.0, self.classifier),
            "components": (self.beta * self.gc_nce, self.components),
            "momentum": (self.beta * self.moco, self.following),
        }

    def unread(self) -> dict[str, str]:
        """Settings of losses that have no weight."""
        found: dict[str, str] = {}
        for switch, loss in (("gc_nce", self.components), ("moco", self.following)):
            if not getattr(self, switch) or not self.beta:
                why = setting_hint("beta", 0) if not self.beta else setting_hint(switch, "false")
                found |= dict.fromkeys(values_of(loss), why)
        return found
