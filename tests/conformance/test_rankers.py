"""Our rankers follow the rules, an engine with five methods too, and each fault is detected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.documents.records import Document, Query
from rerank.engines.base import Encoder, Engine, WriteResult
from rerank.engines.local import LocalEngine
from rerank.engines.search_request import SearchRequest
from rerank.rankers.base import Ranker
from rerank.rankers.cnn.ranker import PARTS
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.encoder.transformer import TextEncoder
from tests.conformance.engine_rules import FEATURE_RULES, RULES, lengths
from tests.conformance.ranker_rules import DOCUMENTS, QUERIES, check_ranker
from tests.conformance.rules import run
from tests.conformance.vector_rules import RULES as VECTOR_RULES
from tests.support.rankers import cnn, projection


@pytest.mark.parametrize("head", ["cosine", "mlp"])
@pytest.mark.parametrize("name", PARTS)
def test_cnn_rankers_pass_the_suite(name: str, head: str) -> None:
    # A process per family is enough: it loads the ranker without these packages.
    without = ("torch", "gensim") if (name, head) == ("joint", "mlp") else ()
    one, other = (cnn(name, f"v{seed}", seed, head) for seed in range(2))
    check_ranker(one, other=other, without=without)


@pytest.mark.parametrize("name", ["lsi", "cllsi", "opca", "cca", "s2net"])
def test_projections_pass_the_suite(name: str) -> None:
    without = ("torch", "scipy", "sklearn") if name == "cca" else ()
    check_ranker(projection(name), other=projection(name, 1), without=without)


def test_dense_rankers_pass_the_suite(tiny: str) -> None:
    encoder = TextEncoder.load(tiny, longest=16)
    ranker = DenseRanker(name="dense", source=encoder, passages=4)
    words = [f"w{i}" for i in range(40)]
    documents = [Document(str(n), text=" ".join(words[n : n + 3 * n])) for n in range(12)]
    queries = [Query("some", "w3 w14 w15"), Query("other", "w2 unheard"), Query("empty", "")]
    other = DenseRanker(name="dense", source=encoder, passages=8)
    check_ranker(ranker, documents=[*documents, *DOCUMENTS], queries=queries, other=other)


class Length(Ranker):
    """Score: the inner product of two counts."""

    family, name, version, bounds, retrieves = "length", "length", "1", (0.0, 1e6), True

    def encode_documents(self, documents: Any) -> Any:
        return np.array([[len(d.title), len(d.text)] for d in documents], np.float32)

    def encode_query(self, query: Query) -> Any:
        return np.array([len(query.text), 1], np.float32)

    def score(self, query: Any, features: Any) -> Any:
        return features.astype(np.float64) @ query

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "ranker.json").write_text('{"family": "length"}')

    @classmethod
    def load(cls, folder: Path) -> Length:
        return cls()


def test_a_correct_ranker_passes_the_suite() -> None:
    check_ranker(Length(), without=())


def faulty_ranker(**changes: Any) -> Ranker:
    return type("Faulty", (Length,), changes)()  # type: ignore[no-any-return]


OF_LENGTH = Length()
NOW = iter(range(10**9))
FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "no version": ("its_names_and_bounds_are_valid", {"version": ""}),
    "a colon in the name": ("its_names_and_bounds_are_valid", {"name": "a:b"}),
    "no bounds": ("its_names_and_bounds_are_valid", {"bounds": (0.0, np.inf)}),
    "a width that varies": (
        "features_have_one_shape",
        {"encode_documents": lambda self, some: np.ones((len(some), 1 + (len(some) > 1)), np.float32)},
    ),
    "texts that must be there": (
        "features_have_one_shape",
        {"encode_documents": lambda self, some: np.array([[1 / np.float64(len(d.text))] for d in some])},
    ),
    "a query of another dtype": (
        "a_query_is_a_vector",
        {"encode_query": lambda self, query: np.zeros(2, np.float64)},
    ),
    "bounds that are too narrow": ("scores_are_within_the_bounds", {"bounds": (0.0, 1.0)}),
    "scores of another dtype": (
        "scores_are_within_the_bounds",
        {"score": lambda self, query, features: features @ query},
    ),
    "chance": (
        "results_are_deterministic",
        {"encode_query": lambda self, query: np.array([next(NOW), 1], np.float32)},
    ),
    "a look at the neighbors": (
        "results_do_not_depend_on_the_batch",
        {"encode_documents": lambda self, some: OF_LENGTH.encode_documents(some) * len(some)},
    ),
    "categories after all": (
        "it_reads_only_declared_inputs",
        {"encode_query": lambda self, query: np.array([len(query.categories), 1], np.float32)},
    ),
    "a score other than a product": (
        "retrieval_equals_inner_products",
        {"score": lambda self, query, features: 1e6 - features.astype(np.float64) @ query},
    ),
    "a version that is drawn": (
        "a_loaded_ranker_equals_the_saved_one",
        {"version": property(lambda self: f"{next(NOW)}")},
    ),
    "another family in the file": ("a_loaded_ranker_equals_the_saved_one", {"family": "width"}),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_fault_of_a_ranker_is_detected(fault: str) -> None:
    rule, changes = FAULTS[fault]
    with pytest.raises(AssertionError, match=f"^{rule}: "):
        check_ranker(faulty_ranker(**changes))


def test_equal_versions_of_different_weights_are_detected() -> None:
    with pytest.raises(AssertionError, match=r"^another_output_has_another_version: .* version 'v1'"):
        check_ranker(cnn(), other=cnn(seed=1), without=())


def test_imports_during_loading_are_detected() -> None:
    """No other code imports the module ``wave``."""
    with pytest.raises(
        AssertionError, match=r"^a_loaded_ranker_equals_the_saved_one: .* import is \['numpy'\], not \[\]"
    ):
        check_ranker(Length(), without=("numpy", "wave"))


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], LocalEngine]:
    numbers = iter(range(1000))
    return lambda: LocalEngine.create(tmp_path / f"engine{next(numbers)}", lang="en")


BROKEN: dict[str, tuple[str, Any]] = {
    "an_empty_engine_has_no_documents": ("write", lambda *given, **options: WriteResult(1, 0, 0)),
    "added_documents_are_stored": (
        "get",
        lambda engine, ids: [d and replace(d, links=()) for d in LocalEngine.get(engine, ids)],
    ),
    "existing_ids_are_updated": ("ids", lambda engine: ["a"]),
    "results_are_sorted": (
        "search",
        lambda engine, requests: (
            replace(one, scores=one.scores[::-1]) for one in LocalEngine.search(engine, requests)
        ),
    ),
    "features_are_returned": ("missing_features", lambda engine, name, version: 1),
    "invalid_retrievers_are_refused-one": ("count_missing_vectors", lambda engine, name, version: 0),
}


def passed_on(name: str) -> Any:
    """Return a method that calls the inner engine, which writes no features together with documents."""

    def method(self: FiveMethods, *positional: Any, **options: Any) -> Any:
        return getattr(self.inner, name)(*positional, **options)

    return method


class FiveMethods(Engine):
    """An engine that overrides only the required methods."""

    write, search, score, get, documents = map(passed_on, ("write", "search", "score", "get", "documents"))

    def __init__(self, inner: LocalEngine) -> None:
        self.inner = inner


def test_an_engine_with_the_required_methods_passes_the_suite(make: Callable[[], LocalEngine]) -> None:
    for rule in RULES.values():
        run(rule, FiveMethods(make()))
    engine = FiveMethods(make())
    engine.write([Document("wolf", text="a grey wolf"), Document("fox", text="a red fox")])
    assert engine.write_features([Encoder("length", "v1", lengths)]) == {"length": 0}
    assert engine.missing_features("length", "v1") == 2
    assert engine.count_missing_vectors("length", "v1") is None
    actual = engine.find(SearchRequest("wolf", "bm25", features={"length": "v1"}))
    assert actual.missing["length"].all()


@pytest.mark.parametrize("rule", BROKEN)
def test_a_fault_of_an_engine_is_detected(rule: str, make: Callable[[], LocalEngine]) -> None:
    engine = make()
    engine.__class__ = type("Faulty", (LocalEngine,), dict([BROKEN[rule]]))
    with pytest.raises(AssertionError, match=f"^{rule}: "):
        run({**RULES, **FEATURE_RULES, **VECTOR_RULES}[rule], engine)


def test_example_documents_and_queries_include_empty_fields() -> None:
    assert {bool(d.text) for d in DOCUMENTS} == {bool(d.categories) for d in DOCUMENTS} == {True, False}
    assert {bool(q.text) for q in QUERIES} == {bool(q.categories) for q in QUERIES} == {True, False}
