"""Interface of rankers: features per document and a vector per query."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import are_finite, map_arrays
from rerank.common.errors import WorkspaceError
from rerank.common.files import parse_json, write_bytes, write_text
from rerank.documents.categories import CategoryNames
from rerank.documents.records import Document, Query


class Ranker(ABC):
    """One learned signal: it stores features of each document, and scores them for the vector of a query.

    Encoding and scoring queries must not import torch, which takes seconds to load.

    family: the name of its family in ``rerank.rankers.registry``.
    name: how stacks, commands and JSON call it.
    variant: its kind within the family; by default its name.
    version: a hash of everything that determines its output. Features of another version are not scored.
    bounds: the lowest and the highest possible score.
    uses_text: whether the query's text and language change the score.
    uses_categories: whether the query's categories change the score.
    categories: the categories that it knows; None if it knows all.
    retrieves: whether it can search. The score must depend only on the inner product of query and features,
        or with several vectors on their cosine, and must rise with it.
    passages: the maximum number of vectors per document; 0 for a single vector.

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
        """Return the features of n documents, (n, width). All calls return the same dtype and width."""

    @abstractmethod
    def encode_query(self, query: Query) -> NDArray[np.float32]:
        """Return the vector of a query, (E,), which :meth:`score` compares with the features of documents."""

    @abstractmethod
    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """Return the (n,) scores of documents.

        query:    (E,) vector of :meth:`encode_query`.
        features: (n, width) of :meth:`encode_documents`.
        """

    def valid(self, features: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which of n stored features can be scored, (n,) bool. The others count as missing.

        Stored features are also written by other programs. Numbers must be finite, and a number of passages
        must be in its range.
        """
        if not features.shape[1]:
            return np.ones(len(features), np.bool_)
        valid = are_finite(features)
        if self.passages:
            counts = features[:, -1]
            valid &= (counts >= 0) & (counts <= self.passages)
        return valid

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write everything that :meth:`load` needs into a new folder, as safetensors and JSON."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Ranker:
        """Read the files of :meth:`save`, without unpickling.

        Errors of damaged files may be of any kind; ``load_ranker`` reports them to the user.
        """


def check_width(ranker: Ranker, features: NDArray[Any], numbers: int) -> None:
    """Raise WorkspaceError if (n, width) features do not have this number of numbers per document."""
    if features.shape[1:] != (numbers,):
        raise WorkspaceError(
            f"the stored {ranker.name} features have {features.shape[-1]} numbers, not {numbers};"
            f" train {ranker.name} again"
        )


def write_record(ranker: Ranker, folder: Path, **record: object) -> None:
    """Write ``ranker.json``: family, variant, name and version of a ranker, and further values."""
    identity = {name: getattr(ranker, name) for name in ("family", "variant", "name", "version")}
    write_text(folder / "ranker.json", json.dumps(identity | record, ensure_ascii=False, indent=2) + "\n")


def content_hash(settings: object, arrays: Iterable[NDArray[Any]]) -> str:
    """Return 16 hexadecimal digits that identify settings, which must be JSON, and the bytes of arrays."""
    digest = hashlib.sha256(json.dumps(settings).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


@dataclass(kw_only=True, repr=False)
class ArrayRanker(Ranker):
    """A ranker whose files are arrays, vocabularies and a record of its other values.

    A subclass is a dataclass that implements :meth:`content` and :meth:`fields_of`; saving and loading follow
    from them.

    version: by default a hash of everything that determines its output.
    trained: how it was fitted, a JSON object that is only stored.
    """

    name: str
    version: str = ""
    variant: str = ""
    trained: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.variant = self.variant or self.name
        if not self.version:
            arrays, vocabularies, values = self.content()
            self.version = content_hash([self.variant, vocabularies, values, list(arrays)], arrays.values())

    @abstractmethod
    def content(self) -> tuple[dict[str, NDArray[Any]], dict[str, list[str] | str], dict[str, Any]]:
        """Return everything that determines the ranker's output.

        The arrays are stored in ``model.safetensors``, the vocabularies in ``vocabularies.json``, and the
        other values, which must be JSON, in ``ranker.json``. The version of the ranker is a hash of all
        three, in this order. :meth:`fields_of` is the inverse.
        """

    @classmethod
    @abstractmethod
    def fields_of(
        cls, arrays: Mapping[str, NDArray[Any]], vocabularies: dict[str, Any], record: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the fields of the class, by name, from what :meth:`content` returned.

        record: the content of ``ranker.json``, which has further values.
        A mapping that does not fit raises ValueError, KeyError or TypeError, which ``load_ranker`` reports.
        """

    def save(self, folder: Path) -> None:
        """Write what :meth:`content` returns: ``ranker.json``, vocabularies and arrays."""
        from safetensors.numpy import save

        folder.mkdir(parents=True, exist_ok=True)
        arrays, vocabularies, record = self.content()
        data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        write_bytes(folder / "model.safetensors", data)
        write_text(folder / "vocabularies.json", json.dumps(vocabularies, ensure_ascii=False))
        write_record(self, folder, **record, trained=dict(self.trained))

    @classmethod
    def load(cls, folder: Path) -> ArrayRanker:
        """Read the files of :meth:`save`. The arrays are mapped into memory, which processes share."""
        record = parse_json((folder / "ranker.json").read_text("utf-8"))
        vocabularies = parse_json((folder / "vocabularies.json").read_text("utf-8"))
        common = {name: record[name] for name in ("name", "version", "variant", "trained")}
        fields = cls.fields_of(map_arrays(folder / "model.safetensors"), vocabularies, record)
        return cls(**common, **fields)


def strip_prefix(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names start with a prefix, by the rest of the name."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
