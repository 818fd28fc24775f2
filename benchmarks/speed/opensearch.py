"""Compare the speed and size of the OpenSearch engine with direct calls of the client, on one node.

    python benchmarks/speed/opensearch.py CORPUS.jsonl[.gz] QUERIES.jsonl[.gz] [--lang en] [--url URL]

Without --url the script starts a node (tools/opensearch_node.py; needs Java and Maven). The
sides take turns in every round.

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
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from opensearchpy import OpenSearch
from opensearchpy.helpers import parallel_bulk

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rerank.index_templates import index_body

from benchmarks.common.timing import seconds_of
from rerank.documents.records import Document
from rerank.engines.base import Encoder, WriteOptions
from rerank.engines.opensearch import OpenSearchEngine, Settings
from rerank.engines.opensearch.layout import Layout
from rerank.engines.search_request import SearchRequest
from rerank.formats import read_corpus, read_queries

WIDTH = 128
RANKERS = 5


def encoder(number: int) -> Encoder:
    def encode(documents: Sequence[Document]) -> np.ndarray:
        rng = np.random.default_rng(number)
        return rng.standard_normal((len(documents), WIDTH)).astype(np.float16)

    return Encoder(f"ranker{number}", "v1", encode)


class Bench:
    def __init__(self, url: str, corpus: str, lang: str, folder: Path) -> None:
        self.client = OpenSearch(url, timeout=300)
        self.url, self.corpus, self.lang, self.folder = url, corpus, lang, folder

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
        settings = Settings((self.url,), name, replicas=0)
        engine = OpenSearchEngine.create(settings, self.folder / name, self.lang)
        engine.write(read_corpus(self.corpus), options=WriteOptions(encoders))
        return engine

    def size(self, name: str) -> int:
        # OpenSearch keeps updated documents for replicas until the next background sync. The first merge
        # after it drops them. Adding and deleting a document makes sure that there is a merge.
        self.client.indices.flush(index=name, params={"force": "true"})
        time.sleep(40)
        self.client.index(index=name, id="-", body={}, params={"refresh": "true"})
        self.client.delete(index=name, id="-", params={"refresh": "true"})
        self.client.indices.flush(index=name, params={"force": "true"})
        self.client.indices.forcemerge(index=name, params={"max_num_segments": 1, "timeout": 600})
        self.client.indices.refresh(index=name)
        stats = self.client.indices.stats(index=name, metric="store")
        return int(stats["_all"]["primaries"]["store"]["size_in_bytes"])


def ingest(bench: Bench, rounds: int, documents: int) -> None:
    times: dict[str, list[float]] = {"direct": [], "engine": [], "engine, 2 rankers": []}
    for _ in range(rounds):
        times["direct"].append(seconds_of(lambda: bench.direct_ingest("bench-direct")))
        times["engine"].append(seconds_of(lambda: bench.engine_ingest("bench-plain")))
        times["engine, 2 rankers"].append(
            seconds_of(lambda: bench.engine_ingest("bench-two", [encoder(0), encoder(1)]))
        )
    base = statistics.median(times["direct"])
    print(f"\ningest of {documents:,} documents, median of {rounds} rounds")
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        print(
            f"  {name:20} {middle:7.2f} s  {documents / middle:8,.0f} documents/s  rate x {base / middle:.2f}"
        )


def encode(bench: Bench, documents: int) -> OpenSearchEngine:
    engine = bench.engine_ingest("bench-features")
    text = sum(
        len(json.dumps(Layout().to_source(d), ensure_ascii=False).encode()) for d in engine.documents()
    )
    plain = bench.size("bench-features")
    print(f"\nfeatures of {RANKERS} rankers, {WIDTH} half-precision numbers each")
    seconds = seconds_of(lambda: engine.write_features([encoder(0)]))
    print(f"  written after ingest, 1 ranker     {documents / seconds:8,.0f} documents/s")
    seconds = seconds_of(lambda: engine.write_features([encoder(i) for i in range(1, RANKERS)]))
    print(f"  written after ingest, 4 in one go  {documents / seconds:8,.0f} documents/s")
    full = bench.size("bench-features")
    print(f"  documents as JSON {text / documents:7.0f} bytes/document")
    print(f"  index without     {plain / documents:7.0f} bytes/document ({plain / text:.2f} x the JSON)")
    print(f"  index with        {full / documents:7.0f} bytes/document ({full / text:.2f} x the JSON)")
    one = (full - plain) / documents / RANKERS
    print(f"  one ranker        {one:7.0f} bytes/document ({WIDTH * 2} raw)")
    return engine


def search(bench: Bench, engine: OpenSearchEngine, texts: Sequence[str], rounds: int) -> None:
    def direct(text: str, depth: int, index: str, source: bool = False) -> object:
        body = {"query": {"match": {"content": {"query": text}}}, "size": depth, "_source": source}
        return bench.client.search(index=index, body=body)

    def five(text: str, depth: int) -> object:
        versions = {f"ranker{i}": "v1" for i in range(RANKERS)}
        return engine.find(SearchRequest(text, first_stage="bm25", depth=depth, features=versions))

    sides: dict[str, Callable[[str, int], object]] = {
        "direct, ids": lambda text, depth: direct(text, depth, "bench-features"),
        "direct, documents": lambda text, depth: direct(text, depth, "bench-features", True),
        "engine, ids": lambda text, depth: engine.find(SearchRequest(text, first_stage="bm25", depth=depth)),
        "engine, 5 rankers": five,
    }
    for depth in (100, 1000):
        times: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds + 1):
            for text in texts:
                for name, side in sides.items():
                    seconds = seconds_of(lambda: side(text, depth))  # noqa: B023
                    if number:  # the first round warms up
                        times[name].append(seconds)
        base = statistics.median(times["direct, ids"])
        print(f"\nsearch, depth {depth}, {len(texts)} queries x {rounds}")
        for name, seconds in times.items():
            p50, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]
            print(f"  {name:20} p50 {1000 * p50:6.2f} ms  p99 {1000 * p99:6.2f} ms  p50 x {p50 / base:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus")
    parser.add_argument("queries")
    parser.add_argument("--lang", default="en")
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=200, help="Number of queries. Default: 200.")
    parser.add_argument("--only", choices=["ingest", "size", "search"])
    options = parser.parse_args()
    texts = [query.text for query in read_queries(options.queries)][: options.count]
    documents = sum(1 for _ in read_corpus(options.corpus))
    with ExitStack() as stack:
        url = options.url
        if url is None:
            from tools.opensearch_node import running

            url = stack.enter_context(running(heap="2g", java=())).url
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(url, options.corpus, options.lang, folder)
        if options.only in (None, "ingest"):
            ingest(bench, options.rounds, documents)
        if options.only != "ingest":
            engine = encode(bench, documents)
            if options.only != "size":
                search(bench, engine, texts, options.rounds)
        bench.client.indices.delete(index="bench-*")


if __name__ == "__main__":
    main()
