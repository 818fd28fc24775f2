"""Settings of the CNN rankers, and how they are registered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from rerank.config import Count, Natural, Options, Positive, build, option
from rerank.rankers.cnn.sampling import Negatives

_TEXT = ("text", "joint")
_META = ("meta", "joint")


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


class CnnConfig(Options, frozen=True):
    """Settings of ``text``, ``meta`` and ``joint``; ``implied`` has what follows from the head."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "paper": PAPER}

    head: Annotated[Literal["cosine", "mlp"], option("how two sides become a score")] = "cosine"
    width: Annotated[
        Count, option("words in a convolution window (h); categories always have 1", only=_TEXT)
    ] = 1
    filters: Annotated[Count, option("of each convolution (m)")] = 64
    vector_size: Annotated[Count, option("cosine: numbers in a vector, which are what is stored")] = 128
    hidden: Annotated[
        tuple[Count, ...],
        option("mlp: sizes of the layers; numbers of the first are what is stored"),
    ] = (400, 400)
    word_size: Annotated[Count, option("numbers in a word vector", only=_TEXT)] = 100
    category_size: Annotated[Count, option("numbers in a category vector", only=_META)] = 30
    word_epochs: Annotated[Count | None, option("of word2vec; none: by the size of the data", only=_TEXT)] = (
        None
    )
    walks: Annotated[Count, option("of DeepWalk, from each category", only=_META)] = 10
    importance: Annotated[
        bool, option("pool windows by the smooth inverse frequency of their words, not equally", only=_TEXT)
    ] = True
    mean: Annotated[bool, option("append the mean of the vectors to the pooled filters")] = True
    tune_embeddings: Annotated[bool, option("train word and category vectors too")] = True
    dropout: Annotated[float, option("share of the numbers that is dropped while training", ge=0, lt=1)] = 0.2
    epochs: Annotated[Count, option("at most this many")] = 12
    epoch_by: Annotated[
        Literal["weighted", "alone", "pool-random"],
        option(
            "dev NDCG that chooses the epoch: with the first stage's score, the ranker's alone, or that among"
            " random documents"
        ),
    ] = "weighted"
    patience: Annotated[Count, option("epochs without a better dev measure that end the training")] = 3
    batch: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        option("examples in a batch; none: a sixteenth of an epoch's, from 64 to 512"),
    ] = None
    negatives: Annotated[Count, option("irrelevant documents for each relevant one")] = 1
    sampling: Annotated[Negatives, option("where irrelevant documents come from")] = "mixed"
    rate: Annotated[Positive, option("learning rate")] = 2e-3
    seed: Annotated[Natural, option("of everything random")] = 0

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options that follow from the head, unless they are given."""
        return MLP if values.get("head") == "mlp" else {}

    def unread(self) -> Mapping[str, str]:
        """Options without effect -> the option that is the reason."""
        name = "hidden" if self.head == "cosine" else "vector_size"
        return {name: f"--head {self.head}"}


def cnn_config(preset: str = "default", head: str | None = None, **given: Any) -> CnnConfig:
    """Return the settings of a preset, with changes.

    >>> cnn_config("paper").hidden, cnn_config(head="mlp").batch, cnn_config().head
    ((1600, 1600, 1600, 1600), 256, 'cosine')
    """
    return build(CnnConfig, {**({"head": head} if head else {}), **given}, preset)
