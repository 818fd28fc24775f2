"""Vectors of documents that move toward their nearest documents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from rerank.common import arrays
from rerank.common.batches import batched
from rerank.common.files import write_bytes
from rerank.documents.records import Document

if TYPE_CHECKING:
    from rerank.rankers.training.job import TrainingJob

FILE = "neighborhood.safetensors"
MOST_DOCUMENTS = 20_000
"""Largest number of documents that a ranker stores. Of a larger collection, it stores every n-th document."""
SAME = 0.999
"""Least cosine of two documents that count as the same one: a document is not its own neighbor."""
BLOCK = 256
"""Documents that are encoded, or compared with the stored ones, at once."""


class DocumentEncoder(Protocol):
    """The part of a ranker that encodes documents."""

    passages: int

    def encode_documents(self, documents: list[Document]) -> NDArray[np.int8]:
        """Return (n, F * E + 1) features."""


def encoded_means(
    ranker: DocumentEncoder, documents: Iterable[Document]
) -> Iterator[tuple[list[Document], NDArray[np.float32]]]:
    """Encode documents in batches, and yield each batch with the means of its passages, (n, E)."""
    for batch in batched(documents, BLOCK):
        yield batch, arrays.mean_of_passages(ranker.encode_documents(batch), ranker.passages)


@dataclass(frozen=True)
class Neighborhood:
    """Moves the vectors of a document toward the documents that are nearest to it.

    A document is about the subject of its neighbors, but can use other words. Tao et al. (2006) add the words
    of neighbors to a document, and here their vectors are added. The moved vectors are stored, so a query
    takes as long as without neighbors.

    vectors: (M, E) int8 mean vectors of the passages of M documents.

    >>> import numpy as np
    >>> neighborhood = Neighborhood(np.array([[127, 0], [0, 127]], np.int8))
    >>> features = np.array([[127, 0, 1]], np.int8)  # one passage, which is the first stored document
    >>> neighborhood.move(features, passages=1, count=1).round(3).tolist()
    [[[0.707, 0.707]]]
    """

    vectors: NDArray[np.int8]

    @classmethod
    def of(cls, ranker: DocumentEncoder, job: TrainingJob) -> Neighborhood:
        """Encode the documents of a training, at most MOST_DOCUMENTS, with a ranker without neighborhood."""
        engine = job.engine
        stride = max(1, math.ceil(len(engine) / MOST_DOCUMENTS))
        sample = islice(engine.documents(), 0, None, stride)
        vectors: list[NDArray[np.int8]] = []
        progress = job.progress.without_deadline()  # the ranker is trained, and must not get lost
        with progress.step("encode neighbors", math.ceil(len(engine) / stride), "doc") as advance:
            for batch, means in encoded_means(ranker, sample):
                with_text = means[means.any(axis=1)]
                vectors.append(np.rint(127 * with_text).astype(np.int8))
                advance(len(batch))
        return cls(np.concatenate(vectors))

    def save(self, folder: Path) -> None:
        """Write ``neighborhood.safetensors``."""
        from safetensors.numpy import save

        write_bytes(folder / FILE, save({"vectors": self.vectors}))

    @classmethod
    def load(cls, folder: Path) -> Neighborhood | None:
        """Read the file of :meth:`save`; None if it does not exist."""
        path = folder / FILE
        if not path.exists():
            return None
        return cls(arrays.map_arrays(path)["vectors"])

    @cached_property
    def _units(self) -> NDArray[np.float32]:
        return arrays.unit_rows(arrays.single_precision(self.vectors))

    def move(self, features: NDArray[np.int8], passages: int, count: int) -> NDArray[np.float32]:
        """Return the moved vectors of the passages of n documents, (n, F, E), of length 1.

        Each passage becomes the mean of itself and of the mean of the neighbors of its document. Zeros stay.

        features: (n, F * E + 1) int8. passages: F. count: number of neighbors of a document.
        """
        units = arrays.unit_passages(features, passages)
        means = arrays.unit_rows(units.mean(axis=1))
        neighbors = np.concatenate(list(self._neighbor_means(means, count)))
        is_passage = units.any(axis=2, keepdims=True)
        moved = (units + neighbors[:, None]) * is_passage
        return arrays.unit_rows(moved.reshape(-1, units.shape[2])).reshape(units.shape)

    def _neighbor_means(self, means: NDArray[np.float32], count: int) -> Iterator[NDArray[np.float32]]:
        """Yield the means of the ``count`` nearest documents, (BLOCK, E) at once; zeros if there are none.

        means: (n, E) of the documents, of length 1.
        """
        units = self._units
        count = min(count, len(units))
        if not count:  # no document of the training has text
            yield np.zeros_like(means)
            return
        for begin in range(0, len(means), BLOCK):
            cosines = means[begin : begin + BLOCK] @ units.T
            cosines[cosines > SAME] = -np.inf
            nearest = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
            is_other = np.isfinite(np.take_along_axis(cosines, nearest, axis=1))
            sums = np.einsum("nk,nke->ne", is_other.astype(np.float32), units[nearest])
            yield sums / np.maximum(is_other.sum(axis=1, keepdims=True), 1)
