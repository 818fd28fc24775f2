"""Settings of the CNN rankers, and how they are registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rerank.errors import setting_hint
from rerank.rankers.cnn.sampling import Negatives
from rerank.rankers.training.registry import Training
from rerank.settings import setting

_TEXT = ("text", "joint")
_META = ("meta", "joint")


@dataclass(frozen=True)
class CnnConfig:
    """Settings of ``text``, ``meta`` and ``joint``; ``implied`` has what follows from the head."""

    head: Literal["cosine", "mlp"] = setting("cosine", "how two sides become a score", common=True)
    width: int = setting(
        1, "words in a convolution window (h); categories always have 1", low=1, only=_TEXT, common=True
    )
    filters: int = setting(64, "of each convolution (m)", low=1, common=True)
    vector_size: int = setting(128, "cosine: numbers in a vector, which are what is stored", low=1)
    hidden: tuple[int, ...] = setting(
        (400, 400), "mlp: sizes of the layers; numbers of the first are what is stored", low=1, common=True
    )
    word_size: int = setting(100, "numbers in a word vector", low=1, only=_TEXT)
    category_size: int = setting(30, "numbers in a category vector", low=1, only=_META)
    word_epochs: int | None = setting(None, "of word2vec; none: by the size of the data", low=1, only=_TEXT)
    walks: int = setting(10, "of DeepWalk, from each category", low=1, only=_META)
    importance: bool = setting(
        True, "pool windows by the smooth inverse frequency of their words, not equally", only=_TEXT
    )
    mean: bool = setting(True, "append the mean of the vectors to the pooled filters")
    tune_embeddings: bool = setting(True, "train word and category vectors too", common=True)
    dropout: float = setting(0.2, "share of the numbers that is dropped while training", low=0, below=1)
    epochs: int = setting(12, "at most this many", low=1, common=True)
    epoch_by: Literal["weighted", "alone", "pool-random"] = setting(
        "weighted",
        "dev NDCG that chooses the epoch: with the first stage's score, the ranker's alone, or that among"
        " random documents",
    )
    patience: int = setting(3, "epochs without a better dev measure that end the training", low=1)
    batch: int | None = setting(
        None, "examples in a batch; none: a sixteenth of an epoch's, from 64 to 512", low=2, common=True
    )
    negatives: int = setting(1, "irrelevant documents for each relevant one", low=1, common=True)
    sampling: Negatives = setting("mixed", "where irrelevant documents come from", common=True)
    rate: float = setting(2e-3, "learning rate", above=0, common=True)
    seed: int = setting(0, "of everything random", low=0, common=True)

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """What follows from the head, where nothing else is said."""
        return MLP if values.get("head") == "mlp" else {}

    def unread(self) -> Mapping[str, str]:
        """Options without effect -> the option that is the reason."""
        name = "hidden" if self.head == "cosine" else "vector_size"
        return {name: setting_hint("head", self.head)}


MLP: dict[str, Any] = {
    "width": 4,
    "importance": False,
    "mean": False,
    "tune_embeddings": False,
    "dropout": 0.5,
    "batch": 256,
    "negatives": 4,
    "rate": 1e-3,
}
PAPER: dict[str, Any] = {
    **MLP,
    "head": "mlp",
    "filters": 256,
    "hidden": (1600,) * 4,
    "epochs": 20,
    "epoch_by": "pool-random",
    "patience": 20,
    "sampling": "random",
    "walks": 1,
}
"""Kuwa et al. 2020, section 5.1: window 4, fixed embeddings of 100 and 30 numbers, an MLP of 4 layers of
1,600 with dropout 0.5, 4 random irrelevant documents for each relevant one, the best of 20 epochs among
random documents of the dev queries."""

TRAINING = Training(
    learns_from=("judgements",),
    config=CnnConfig,
    fitter="rerank.rankers.cnn.fit:trainer",
    presets={"default": {}, "paper": PAPER},
    resumes=("text", "meta", "joint"),
)


def cnn_config(preset: str = "default", head: str | None = None, **given: Any) -> CnnConfig:
    """Return the settings of a preset, with changes.

    >>> cnn_config("paper").hidden, cnn_config(head="mlp").batch, cnn_config().head
    ((1600, 1600, 1600, 1600), 256, 'cosine')
    """
    config: CnnConfig = TRAINING.configure({**({"head": head} if head else {}), **given}, preset)
    return config
