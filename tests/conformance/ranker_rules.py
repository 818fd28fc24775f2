"""Rules for fitted rankers."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import feature_width, passage_cosines
from rerank.documents.records import Document, Query
from rerank.rankers.base import Ranker
from tests.conformance.rules import Rules, run, same, true

DOCUMENTS = (
    Document("title", title="A sorted list"),
    Document("text", text="Search trees and lists, balanced"),
    Document("empty"),
    Document("categories", categories=("computing::search", "trees")),
    Document("all", "Trees", "A tree is a graph", ("graphs",), ("title", "nowhere"), "en", {"year": 1999}),
    Document("long", text="tree list graph " * 400),
    Document("other", title="Die Katze 猫 😀", text="\x00 \n ?!", lang="de"),
)
QUERIES = (
    Query("words", "sorted trees"),
    Query("both", "search a graph", ("computing::search",)),
    Query("categories", "", ("graphs",)),
    Query("empty", ""),
    Query("other", "猫 😀 \x00"),
)
RULES = Rules()

_TOLERANCE = 1e-3  # of the largest score, for batches of other sizes


@dataclass
class Checked:
    """A ranker under test."""

    ranker: Ranker
    documents: Sequence[Document]
    queries: Sequence[Query]
    other: Ranker | None
    without: Sequence[str]

    @property
    def features(self) -> NDArray[Any]:
        """Features of all documents, read-only."""
        features = self.ranker.encode_documents(self.documents)
        features.flags.writeable = False
        return features

    def close(self, found: NDArray[Any], wanted: NDArray[Any], what: str) -> None:
        """Raise AssertionError unless scores are nearly equal."""
        room = _TOLERANCE * max(float(np.abs(wanted).max(initial=0)), 1e-3)
        true(
            np.allclose(found, wanted, rtol=0, atol=room), f"{what}: {found.tolist()}, not {wanted.tolist()}"
        )


@RULES
def its_names_and_bounds_are_valid(on: Checked) -> None:
    """Family, name and version are valid in stacks and fields; bounds are finite and ascending."""
    ranker = on.ranker
    for about in ("family", "name", "version"):
        text = getattr(ranker, about, "")
        true(isinstance(text, str) and text, f"{about} is {text!r}")
        true(
            not set(text) & set(" ,*+:@/\\"),
            f"{about} {text!r} has one of the characters space , * + : @ / \\",
        )
    low, high = ranker.bounds
    true(np.isfinite([low, high]).all() and low < high, f"bounds are {ranker.bounds}")


@RULES
def features_have_one_shape(on: Checked) -> None:
    """``encode_documents`` returns (n, width) numbers of one dtype and width."""
    features = on.features
    true(features.ndim == 2 and len(features) == len(on.documents), f"the shape is {features.shape}")
    true(features.shape[1] > 0, "the width is 0")
    true(features.dtype.kind in "iuf", f"the dtype is {features.dtype}")
    true(np.isfinite(features.astype(np.float64)).all(), "not all numbers are finite")
    for document in on.documents:
        alone = on.ranker.encode_documents([document])
        same(
            (alone.dtype, alone.shape),
            (features.dtype, (1, features.shape[1])),
            f"dtype and shape of {document.id!r}",
        )


@RULES
def a_query_is_a_vector(on: Checked) -> None:
    """``encode_query`` returns vectors of one dtype and shape."""
    shape = on.ranker.encode_query(on.queries[0]).shape
    for query in on.queries:
        vector = on.ranker.encode_query(query)
        same((vector.dtype, vector.shape), (np.float32, shape), f"dtype and shape of {query.id!r}")
        same(vector.ndim, 1, "its number of axes")
        true(np.isfinite(vector).all(), f"not all numbers of {query.id!r} are finite")


@RULES
def scores_are_within_the_bounds(on: Checked) -> None:
    """``score`` returns (n,) finite float64 within ``bounds``; features are unchanged."""
    features, (low, high) = on.features, on.ranker.bounds
    for query in on.queries:
        scores = on.ranker.score(on.ranker.encode_query(query), features)
        same((scores.dtype, scores.shape), (np.float64, (len(features),)), "dtype and shape")
        true(np.isfinite(scores).all(), f"not all scores of {query.id!r} are finite")
        true(
            (scores >= low).all() and (scores <= high).all(), f"{scores.tolist()} are not in {low} to {high}"
        )
        if features.dtype == np.float16:  # the hook converts them before
            singles = features.astype(np.float32)
            singles.flags.writeable = False
            same(on.ranker.score(on.ranker.encode_query(query), singles), scores, "the scores of float32")
    same(on.ranker.score(on.ranker.encode_query(on.queries[0]), features[:0]).shape, (0,), "of no documents")


@RULES
def results_are_deterministic(on: Checked) -> None:
    """Encoding twice gives the same numbers."""
    same(on.ranker.encode_documents(on.documents), on.features, "the features of a second call")
    for query in on.queries:
        same(on.ranker.encode_query(query), on.ranker.encode_query(query), "a second call's vector")


@RULES
def results_do_not_depend_on_the_batch(on: Checked) -> None:
    """Scores are independent of the batch."""
    ranker, features = on.ranker, on.features
    backwards = ranker.encode_documents(on.documents[::-1])[::-1]
    alone = np.concatenate([ranker.encode_documents([document]) for document in on.documents])
    for query in on.queries:
        vector = ranker.encode_query(query)
        wanted = ranker.score(vector, features)
        on.close(ranker.score(vector, backwards), wanted, "encoded in another order")
        on.close(ranker.score(vector, alone), wanted, "encoded one by one")
        on.close(ranker.score(vector, features[::-1])[::-1], wanted, "scored in another order")
        one = [ranker.score(vector, features[i : i + 1]) for i in range(len(features))]
        on.close(np.concatenate(one), wanted, "scored one by one")


@RULES
def it_reads_only_declared_inputs(on: Checked) -> None:
    """Categories without ``uses_categories``, text without ``uses_text`` do not change the query's vector."""
    for query in on.queries:
        text = query.text if on.ranker.uses_text else ""
        bare = Query(query.id, text, query.categories if on.ranker.uses_categories else ())
        same(on.ranker.encode_query(query), on.ranker.encode_query(bare), f"the vector of {query.id!r}")


@RULES
def retrieval_equals_inner_products(on: Checked) -> None:
    """If it ``retrieves``, the score grows with the inner product; for passages, with the cosine.

    An empty query's vector is 0 or has length 1.
    """
    ranker, features = on.ranker, on.features
    if not ranker.retrieves:
        return
    for query in on.queries:
        vector = ranker.encode_query(query)
        same(features.shape[1], feature_width(ranker.passages, len(vector)), "the features' width")
        scores, some = ranker.score(vector, features), np.arange(len(features))
        if ranker.passages:
            length = float(np.linalg.norm(vector))
            true(length == 0 or abs(length - 1) < 1e-3, f"the vector of {query.id!r} has length {length}")
            counts = features[:, -1]
            true(((counts >= 0) & (counts <= ranker.passages)).all(), f"{counts.tolist()} passages")
            products = passage_cosines(vector.astype(np.float64), features, ranker.passages).max(axis=1)
            some = np.flatnonzero((counts == 1) & (products > 0))
        else:
            products = features.astype(np.float64) @ vector.astype(np.float64)
        ranked = scores[some[np.argsort(products[some], kind="stable")]]
        room = _TOLERANCE * (ranker.bounds[1] - ranker.bounds[0])
        true((np.diff(ranked) >= -room).all(), f"by products the scores are {ranked.tolist()}: not in order")


@RULES
def a_loaded_ranker_equals_the_saved_one(on: Checked) -> None:
    """Loading keeps version, bounds, features and scores, and imports no module of ``without``."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "ranker"
        on.ranker.save(folder)
        same(json.loads((folder / "ranker.json").read_text("utf-8"))["family"], on.ranker.family, "family")
        loaded = type(on.ranker).load(folder)
        reads = ("uses_text", "uses_categories")
        for about in ("family", "name", "version", "bounds", *reads, "retrieves", "passages"):
            found, wanted = getattr(loaded, about), getattr(on.ranker, about)
            same(found if about != "bounds" else tuple(found), wanted, about)
        features = on.features
        again = loaded.encode_documents(on.documents)
        same((again.dtype, again.shape), (features.dtype, features.shape), "dtype and shape of the features")
        for query in on.queries:
            wanted = on.ranker.score(on.ranker.encode_query(query), features)
            on.close(loaded.score(loaded.encode_query(query), again), wanted, f"the scores of {query.id!r}")
        if on.without and _importable(type(on.ranker)):
            _score_elsewhere(type(on.ranker), folder, features, on.queries[0], on.without)


@RULES
def another_output_has_another_version(on: Checked) -> None:
    """Rankers with different outputs have different versions."""
    if on.other is not None:
        true(on.other.version != on.ranker.version, f"both have version {on.ranker.version!r}")


def _importable(kind: type[Ranker]) -> bool:
    if kind.__module__ == "__main__":
        return False
    return getattr(importlib.import_module(kind.__module__), kind.__qualname__, None) is kind


def _score_elsewhere(
    kind: type[Ranker], folder: Path, features: NDArray[Any], query: Query, without: Sequence[str]
) -> None:
    np.save(folder.parent / "features.npy", features)
    code = f"""
import sys
from pathlib import Path
import numpy as np
from rerank.documents.records import Query
from {kind.__module__} import {kind.__qualname__} as kind
ranker = kind.load(Path(sys.argv[1]))
ranker.score(ranker.encode_query(Query("q", sys.argv[2])), np.load(sys.argv[3]))
print(*sorted(set({list(without)!r}) & set(sys.modules)))
"""
    given = [str(folder), query.text, str(folder.parent / "features.npy")]
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, check=False)
    true(done.returncode == 0, f"in another process it fails: {done.stderr.strip()[-300:]}")
    same(done.stdout.split(), [], "what loading and scoring import")


def check_ranker(
    ranker: Ranker,
    *,
    documents: Sequence[Document] = DOCUMENTS,
    queries: Sequence[Query] = QUERIES,
    other: Ranker | None = None,
    without: Sequence[str] = ("torch",),
) -> None:
    """Check a fitted ranker by the contract of :class:`rerank.Ranker`.

    documents, queries: test data with known words.
    other: a ranker of the family with other weights and another version.
    without: modules that loading and scoring must not import.

    Raises AssertionError for the first broken rule.

    >>> class Year(Ranker):
    ...     family, name, version, bounds = "year", "year", "1", (0.0, 3000.0)
    ...     def encode_documents(self, documents):
    ...         return np.array([[d.extra.get("year", 0)] for d in documents], dtype=np.float32)
    ...     def encode_query(self, query):
    ...         return np.zeros(1, dtype=np.float32)
    ...     def score(self, query, features):
    ...         return features[:, 0].astype(np.float64)
    ...     def save(self, folder):
    ...         folder.mkdir(parents=True, exist_ok=True)
    ...         (folder / "ranker.json").write_text(json.dumps({"family": self.family}))
    ...     @classmethod
    ...     def load(cls, folder):
    ...         return cls()
    >>> check_ranker(Year())  # silent: it keeps every rule
    >>> Year.bounds = (0.0, 1.0)
    >>> check_ranker(Year())
    Traceback (most recent call last):
    AssertionError: scores_are_within_the_bounds: ``score`` returns (n,) finite float64 within ``bounds``; ...
    """
    on = Checked(ranker, documents, queries, other, without)
    for check in RULES.values():
        run(check, on)
