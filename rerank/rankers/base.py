"""What a ranker is: a fitted producer of one signal, with a document side and a query side.

Two-tower: ``encode_documents`` runs at ingest and its result is stored beside the document as the
ranker's *features*; ``encode_query`` runs once per query; ``score`` is the cheap interaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.categories import CategoryNames
from rerank.records import Document, Query


class Ranker(ABC):
    """One learned signal. Nothing in this interface imports torch: a ranker answers with NumPy alone.

    name:    the signal's name in stacks, on the command line and in JSON.
    kind:    the family that loads it (see ``rerank.rankers.registry``).
    role:    which of its family's rankers it is; "": its name says so.
    version: hash of everything that decides its output; features carry it.
    bounds:  the range a score can have.
    uses_text: whether a query's text and language change the score.
    uses_categories: whether a query's categories change the score (and are worth inferring).
    categories: the categories that it was trained with; None: it accepts any.
    retrieves: whether the score grows with the inner product of the query's vector and the stored feature,
        and nothing else: then the best documents of a collection can be found by it. Of a ranker with
        several vectors a document, with their cosines: found are the documents with the nearest vectors.
    passages: how many vectors a feature holds at most (see ``rerank.arrays``); 0: it is one.

    One of your own is a subclass of a dozen lines:

    >>> import numpy as np
    >>> class Length(Ranker):
    ...     kind, name, version, bounds = "length", "length", "1", (0.0, 1.0)
    ...
    ...     def encode_documents(self, documents):
    ...         return np.array([[len(d.content)] for d in documents], dtype=np.float32)
    ...
    ...     def encode_query(self, query):
    ...         return np.zeros(1, dtype=np.float32)
    ...
    ...     def score(self, query, features):
    ...         return 1 / (1 + features[:, 0].astype(np.float64))
    ...
    ...     def save(self, folder):
    ...         folder.mkdir(parents=True)
    ...
    ...     @classmethod
    ...     def load(cls, folder):
    ...         return cls()
    >>> ranker = Length()
    >>> features = ranker.encode_documents([Document("d", text="abc")])
    >>> ranker.score(ranker.encode_query(Query("q", "any")), features)
    array([0.25])
    """

    kind: ClassVar[str]
    role: str = ""
    name: str
    version: str
    bounds: tuple[float, float]
    uses_text: bool = True
    uses_categories: bool = False
    categories: CategoryNames | None = None
    retrieves: bool = False
    passages: int = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, version {self.version!r})"

    @abstractmethod
    def encode_documents(self, documents: Sequence[Document]) -> NDArray[Any]:
        """Document side: (n, width), always the same dtype and width."""

    @abstractmethod
    def encode_query(self, query: Query) -> NDArray[np.float32]:
        """Query side: one vector."""

    @abstractmethod
    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """Interaction: (n,) scores of n documents from their features."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write safetensors + JSON into a new folder."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Ranker:
        """Read what :meth:`save` wrote. Never unpickles anything."""
