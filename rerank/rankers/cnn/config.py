"""Options of the CNN rankers."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from rerank.common.config import Count, Natural, Options, Positive, option, refuse_ineffective
from rerank.common.errors import UsageError
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
"""Kuwa et al. 2020, section 5.1."""


class CnnConfig(Options, frozen=True):
    """Options of the convolutional rankers ``text``, ``meta`` and ``joint`` (Kuwa et al. 2020).

    The preset ``paper`` has the settings of section 5.1.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}, "paper": PAPER}

    head: Annotated[Literal["cosine", "mlp"], option("How query and document vectors give a score.")] = (
        "cosine"
    )
    width: Annotated[
        Count, option("Words in a convolution window (h); for categories it is 1.", only=_TEXT)
    ] = 1
    filters: Annotated[Count, option("Number of filters of each convolution (m).")] = 64
    vector_size: Annotated[Count, option("Length of a stored vector, with --head cosine.")] = 128
    hidden: Annotated[
        tuple[Count, ...],
        option("Sizes of the layers, with --head mlp; a stored vector has the first size."),
    ] = (400, 400)
    word_size: Annotated[Count, option("Length of a word vector.", only=_TEXT)] = 100
    category_size: Annotated[Count, option("Length of a category vector.", only=_META)] = 30
    word_epochs: Annotated[
        Count | None, option("Epochs of word2vec; none: fewer for more text.", only=_TEXT)
    ] = None
    walks: Annotated[Count, option("Number of walks of DeepWalk from each category.", only=_META)] = 10
    importance: Annotated[
        bool, option("Weight windows by the smooth inverse frequency of their words.", only=_TEXT)
    ] = True
    mean: Annotated[bool, option("Append the mean of the embeddings to the pooled filters.")] = True
    tune_embeddings: Annotated[bool, option("Also train word and category vectors.")] = True
    dropout: Annotated[float, option("Dropout rate.", ge=0, lt=1)] = 0.2
    networks: Annotated[
        Annotated[int, Meta(ge=1, le=16)],
        option("Networks with different random seeds, whose scores are averaged; only with --head cosine."),
    ] = 1
    epochs: Annotated[Count, option("Maximum number of epochs.")] = 12
    epoch_by: Annotated[
        Literal["weighted", "pool-random"],
        option("Dev NDCG that selects the epoch: with the first stage's score, or among random documents."),
    ] = "weighted"
    patience: Annotated[Count, option("Epochs without gain on dev that end the training.")] = 3
    batch: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        option("Examples in a batch; none: a sixteenth of an epoch, 64 to 512."),
    ] = None
    negatives: Annotated[Count, option("Irrelevant documents for each relevant one.")] = 1
    sampling: Annotated[Negatives, option("Source of irrelevant documents.")] = "mixed"
    rate: Annotated[Positive, option("Learning rate.")] = 2e-3
    seed: Annotated[Natural, option("Random seed.")] = 0

    @classmethod
    def derived_defaults(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the defaults that depend on the head: option -> value. The MLP needs other ones."""
        return MLP if values.get("head") == "mlp" else {}

    def validate(self, set_names: Set[str] = frozenset(), *, with_judgments: bool = False) -> None:
        super().validate(set_names, with_judgments=with_judgments)
        unused_size = "hidden" if self.head == "cosine" else "vector_size"
        refuse_ineffective([unused_size], set_names, f"--head {self.head}")
        if self.head == "mlp" and self.networks > 1:
            raise UsageError(f"--networks {self.networks} needs --head cosine; leave --networks out")
