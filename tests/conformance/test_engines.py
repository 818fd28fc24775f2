"""All engines follow the rules for words, features and vectors.

To test another engine, add a function to ENGINES or VECTORS that creates an empty engine.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rerank.engines.base import Engine
from rerank.engines.local import LocalEngine
from rerank.engines.opensearch import OpenSearchEngine, Settings
from tests.conformance import vector_rules
from tests.conformance.engine_rules import FEATURE_RULES, RULES
from tests.conformance.rules import run

Make = Callable[[Path, pytest.FixtureRequest], Iterator[Engine]]


def local(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = LocalEngine.create(folder / "engine", lang="en")
    yield engine
    engine.close()


def opensearch(kind: str, shards: int, search_type: str = "query_then_fetch") -> Make:
    def make(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
        node = request.getfixturevalue(kind)
        name = f"conformance-{secrets.token_hex(4)}"
        settings = Settings((node.url,), name, replicas=0, shards=shards, search_type=search_type)
        engine = OpenSearchEngine.create(settings, folder / "engine", "en")
        yield engine
        engine.close()
        node.request("DELETE", f"/{name}-*")

    return make


def without_graph(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Yield an index from before the cluster had the plugin, so that search uses a script."""
    for engine in opensearch("knn_node", 1)(folder, request):
        assert isinstance(engine, OpenSearchEngine)
        node = request.getfixturevalue("knn_node")
        (name,) = engine.index.indices()
        made = node.request("GET", f"/{name}")[name]
        index = made["settings"]["index"]
        unwanted = ("creation_date", "uuid", "version", "provided_name")
        for key in [key for key in index if key.startswith("knn") or key in unwanted]:
            del index[key]
        node.request("DELETE", f"/{name}")
        node.request("PUT", f"/{name}", made)
        yield engine


# With several shards, only global statistics give all documents of a test the same idf.
GLOBAL: Any = (3, "dfs_query_then_fetch")
ENGINES: dict[str, Make] = {
    "local": local,
    "opensearch, 3 shards": opensearch("node", *GLOBAL),
}
VECTORS: dict[str, Make] = {
    "local": local,
    "opensearch, 3 shards": opensearch("knn_node", *GLOBAL),
    "opensearch, no graph": without_graph,
}


def kinds(makes: dict[str, Make]) -> list[Any]:
    """Return parameters: names of engines, marked with the group of their node (``tests/conftest.py``)."""
    group = pytest.mark.xdist_group("node" if makes is ENGINES else "ml")
    return [kind if kind == "local" else pytest.param(kind, marks=group) for kind in makes]


@pytest.mark.parametrize("rule", [*RULES, *FEATURE_RULES])
@pytest.mark.parametrize("kind", kinds(ENGINES))
def test_engines_search_words(kind: str, rule: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for engine in ENGINES[kind](tmp_path, request):
        run({**RULES, **FEATURE_RULES}[rule], engine)


@pytest.mark.parametrize("rule", vector_rules.RULES)
@pytest.mark.parametrize("kind", kinds(VECTORS))
def test_engines_search_vectors(kind: str, rule: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind != "local" and rule.startswith(vector_rules.TIES):
        pytest.skip("a graph may return any of several equal documents")
    for engine in VECTORS[kind](tmp_path, request):
        run(vector_rules.RULES[rule], engine)
