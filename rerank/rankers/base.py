"""Interface of rankers: features per document and a vector per query."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import map_arrays
from rerank.categories import CategoryNames
from rerank.errors import RerankError, WorkspaceError
from rerank.files import parse_json, trouble, write_bytes, write_text
from rerank.records import Document, Query


class Ranker(ABC):
    """One learned signal. Queries need NumPy, not torch.

    family:  its family in ``rerank.rankers.registry``.
    name:    name in stacks, commands and JSON.
    variant: kind within the family. Default: its name.
    version: hash of everything that decides its output.
    bounds:  lowest and highest score.
    uses_text: whether the query's text and language matter.
    uses_categories: whether the query's categories matter.
    categories: known categories; None: any.
    retrieves: whether it can search: the score depends only on the inner product (with several vectors, the
        cosine) and rises with it.
    passages: maximum vectors per document; 0: a single vector.

    >>> import numpy as np
    >>> class Length(Ranker):
    ...     family, name, version, bounds = "length", "length", "1", (0.0, 1.0)
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

    family: ClassVar[str]
    variant: str = ""
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
        """Features of n documents: (n, width), always the same dtype and width."""

    @abstractmethod
    def encode_query(self, query: Query) -> NDArray[np.float32]:
        """Vector of a query."""

    @abstractmethod
    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """Scores of n documents: (n,)."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write safetensors and JSON into a new folder."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Ranker:
        """Read the files of :meth:`save` without unpickling."""


def unreadable(folder: Path, error: BaseException) -> RerankError:
    """Error for a damaged or unreadable ranker."""
    return trouble(error, folder) or WorkspaceError(
        f"{folder}: the ranker cannot be read ({error}); train it again with `rerank train`"
    )


def write_model(
    ranker: Ranker,
    folder: Path,
    arrays: Mapping[str, NDArray[Any]],
    vocabularies: Mapping[str, list[str] | str],
    **record: Any,
) -> None:
    """Write ``ranker.json``, ``vocabularies.json`` and ``model.safetensors``."""
    from safetensors.numpy import save

    folder.mkdir(parents=True, exist_ok=True)
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    write_bytes(folder / "model.safetensors", data)
    write_text(folder / "vocabularies.json", json.dumps(vocabularies, ensure_ascii=False))
    write_record(ranker, folder, **record)


def write_record(ranker: Ranker, folder: Path, **record: Any) -> None:
    """Write ``ranker.json``."""
    identity = {name: getattr(ranker, name) for name in ("family", "variant", "name", "version")}
    write_text(folder / "ranker.json", json.dumps(identity | record, ensure_ascii=False, indent=2) + "\n")


@contextmanager
def read_model(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any], Mapping[str, NDArray[Any]]]]:
    """Give record, vocabularies and memory-mapped arrays of :func:`write_model`.

    Raises WorkspaceError if they are damaged, also for errors of the block.
    """
    try:
        record = parse_json((folder / "ranker.json").read_text("utf-8"))
        vocabularies = parse_json((folder / "vocabularies.json").read_text("utf-8"))
        yield record, vocabularies, map_arrays(folder / "model.safetensors")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(folder, error) from error
