"""Compare the speed and size of the OpenSearch engine with direct calls of the client, on one node.

    python benchmarks/speed/opensearch.py CORPUS.jsonl[.gz] QUERIES.jsonl[.gz] [--lang en]

The script starts a node (tools/opensearch_node.py; needs Java and Maven). The sides take turns in every
round.

- ``direct`` ingest: ``parallel_bulk`` of opensearch-py with its defaults, from the same file, into an index
  with the same mapping, and a refresh.
- ``direct`` search: ``search`` of opensearch-py with the same match query, ``_source: false`` and the depth
  as size. It returns ids and scores.
- engine search: returns ids, scores and the features of the rankers, decoded into arrays. Each ranker has
  128 half-precision numbers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice, product
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
from opensearchpy import OpenSearch
from opensearchpy.helpers import parallel_bulk

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rerank.index_templates import index_body

from benchmarks.common.index import index_size
from benchmarks.common.timing import seconds_of
from rerank.documents.records import Document
from rerank.engines.base import Encoder, WriteOptions
from rerank.engines.opensearch import OpenSearchEngine, Settings
from rerank.engines.opensearch.layout import Layout
from rerank.engines.search_request import SearchRequest
from rerank.formats import read_corpus, read_queries
from tools.opensearch_node import Node, running

WIDTH = 128
RANKERS = 5


def encoder(number: int) -> Encoder:
    """Return an encoder of random numbers."""

    def encode(documents: Sequence[Document]) -> np.ndarray:
        rng = np.random.default_rng(number)
        return rng.standard_normal((len(documents), WIDTH)).astype(np.float16)

    return Encoder(f"ranker{number}", "v1", encode)


class Bench:
    def __init__(self, node: Node, corpus: str, lang: str, folder: Path) -> None:
        self.node, self.corpus, self.lang, self.folder = node, corpus, lang, folder
        self.client = OpenSearch(node.url, timeout=300)

    def remove(self, name: str) -> None:
        self.client.indices.delete(index=f"{name},{name}-*", ignore_unavailable=True)

    def direct_ingest(self, name: str) -> None:
        self.remove(name)
        body = index_body(self.lang, shards=1, replicas=0)
        body["settings"]["index"]["refresh_interval"] = "-1"
        self.client.indices.create(index=name, body=body)
        layout = Layout()

        def actions() -> Iterator[dict[str, Any]]:
            for document in read_corpus(self.corpus):
                yield {"_index": name, "_id": document.id, "_source": layout.to_source(document)}

        for done, item in parallel_bulk(self.client, actions()):
            assert done, item
        self.client.indices.refresh(index=name)

    def engine_ingest(self, name: str, encoders: Sequence[Encoder] = ()) -> OpenSearchEngine:
        self.remove(name)
        shutil.rmtree(self.folder / name, ignore_errors=True)
        settings = Settings((self.node.url,), name, replicas=0)
        engine = OpenSearchEngine.create(settings, self.folder / name, self.lang)
        engine.write(read_corpus(self.corpus), options=WriteOptions(encoders))
        return engine


def ingest(bench: Bench, rounds: int, documents: int) -> None:
    sides: dict[str, Callable[[], object]] = {
        "direct": lambda: bench.direct_ingest("bench-direct"),
        "engine": lambda: bench.engine_ingest("bench-plain"),
        "engine, 2 rankers": lambda: bench.engine_ingest("bench-two", [encoder(0), encoder(1)]),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _, (name, side) in product(range(rounds), sides.items()):
        times[name].append(seconds_of(side))
    base = median(times["direct"])
    print(f"\ningest of {documents:,} documents, median of {rounds} rounds")
    for name, seconds in times.items():
        middle = median(seconds)
        rate = documents / middle
        print(f"  {name:20} {middle:7.2f} s  {rate:8,.0f} documents/s  rate x {base / middle:.2f}")


def encode(bench: Bench, documents: int) -> OpenSearchEngine:
    """Write features after an ingest. Print the rates and the sizes of the index."""
    name = "bench-features"
    engine = bench.engine_ingest(name)
    sources = map(Layout().to_source, engine.documents())
    text = sum(len(json.dumps(source, ensure_ascii=False).encode()) for source in sources)
    plain = index_size(bench.node, name)
    print(f"\nfeatures of {RANKERS} rankers, {WIDTH} half-precision numbers each")
    for task, numbers in (("1 ranker", range(1)), ("4 in one go", range(1, RANKERS))):
        seconds = seconds_of(partial(engine.write_features, [encoder(number) for number in numbers]))
        print(f"  written after ingest, {task:11} {documents / seconds:8,.0f} documents/s")
    full = index_size(bench.node, name)
    print(f"  documents as JSON {text / documents:7.0f} bytes/document")
    print(f"  index without     {plain / documents:7.0f} bytes/document ({plain / text:.2f} x the JSON)")
    print(f"  index with        {full / documents:7.0f} bytes/document ({full / text:.2f} x the JSON)")
    of_ranker = (full - plain) / documents / RANKERS
    print(f"  one ranker        {of_ranker:7.0f} bytes/document ({WIDTH * 2} raw)")
    return engine


def search(bench: Bench, engine: OpenSearchEngine, texts: Sequence[str], rounds: int) -> None:
    versions = {f"ranker{number}": "v1" for number in range(RANKERS)}

    def direct(text: str, depth: int) -> object:
        body = {"query": {"match": {"content": {"query": text}}}, "size": depth, "_source": False}
        return bench.client.search(index="bench-features", body=body)

    def by_engine(text: str, depth: int) -> object:
        return engine.find(SearchRequest(text, first_stage="bm25", depth=depth, features=versions))

    sides: dict[str, Callable[[str, int], object]] = {"direct": direct, "engine, 5 rankers": by_engine}
    for depth in (100, 1000):
        times: dict[str, list[float]] = {name: [] for name in sides}
        for number, text, (name, side) in product(range(rounds + 1), texts, sides.items()):
            seconds = seconds_of(partial(side, text, depth))
            if number:  # the first round warms up
                times[name].append(1000 * seconds)
        base = median(times["direct"])
        print(f"\nsearch, depth {depth}, {len(texts)} queries x {rounds}")
        for name, milliseconds in times.items():
            p50, p99 = median(milliseconds), quantiles(milliseconds, n=100)[98]
            print(f"  {name:20} p50 {p50:6.2f} ms  p99 {p99:6.2f} ms  p50 x {p50 / base:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("queries")
    parser.add_argument("--lang", default="en")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=200, help="Number of queries. Default: 200.")
    options = parser.parse_args()
    texts = [query.text for query in islice(read_queries(options.queries), options.count)]
    documents = sum(1 for _ in read_corpus(options.corpus))
    with ExitStack() as stack:
        node = stack.enter_context(running(heap="2g", java=()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(node, options.corpus, options.lang, folder)
        ingest(bench, options.rounds, documents)
        engine = encode(bench, documents)
        search(bench, engine, texts, options.rounds)


if __name__ == "__main__":
    main()
