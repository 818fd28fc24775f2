"""Compare the speed and size of the local engine with direct calls of tantivy.

    python benchmarks/speed/engine.py CORPUS.jsonl[.gz] QUERIES.jsonl[.gz] [--lang en] [--rounds 3]

Both sides read the same file with the same JSON parser, index the same text with the same analyzer and
answer the same queries. They take turns, so that other load affects both equally. A time is the best of
``--rounds``; other figures are medians over the queries. A ``direct`` search builds the query from the
terms of the analyzer and searches with the limit. It then reads one column of each hit:

- ``hits``: scores and tantivy's addresses
- ``rows``: a fast integer field
- ``ids``: the id in a stored field

``bm25, rows`` is the engine without ids: rows and scores, including all ties at the cutoff.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tantivy

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.timing import seconds_of
from rerank.documents.records import Document
from rerank.documents.text import analyzer
from rerank.engines.base import SearchRequest
from rerank.engines.local import LocalEngine


def lines(path: Path) -> Iterator[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def content(line: dict[str, Any]) -> str:
    return "\n".join(filter(None, (line.get("title"), line.get("text"))))


def records(path: Path) -> Iterator[Document]:
    for line in lines(path):
        yield Document(
            line.pop("_id"),
            line.pop("title", ""),
            line.pop("text", ""),
            tuple(line.pop("categories", ())),
            tuple(line.pop("links", ())),
            line.pop("lang", None),
            line,
        )


class Direct:
    """A plain tantivy index with the same field and the same analyzer.

    stored_id: store also the ids. stored_text: store also the texts, so that the index can return documents
    as the engine does.
    """

    def __init__(self, folder: Path, lang: str, *, stored_id: bool, stored_text: bool = False) -> None:
        builder = tantivy.SchemaBuilder().add_unsigned_field("row", indexed=True, fast=True)
        builder = builder.add_text_field(
            "content", stored=stored_text, tokenizer_name="content", index_option="freq"
        )
        if stored_id:
            builder = builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
        self.stored_id = stored_id
        self.schema = builder.build()
        folder.mkdir()
        self.index = tantivy.Index(self.schema, str(folder))
        self.analyzer = analyzer(lang)
        self.index.register_tokenizer("content", self.analyzer)

    def ingest(self, corpus: Path) -> int:
        writer = self.index.writer(64_000_000, 1)  # the settings of the engine
        row = 0
        for row, line in enumerate(lines(corpus), 1):
            document = tantivy.Document()
            document.add_unsigned("row", row)
            document.add_text("content", content(line))
            if self.stored_id:
                document.add_text("id", line["_id"])
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
        self.index.reload()
        self.searcher = self.index.searcher()
        return row

    def search(self, text: str, depth: int, want: str) -> object:
        terms = dict.fromkeys(self.analyzer.analyze(text))
        clauses = [
            (
                tantivy.Occur.Should,
                tantivy.Query.term_query(self.schema, "content", term, index_option="freq"),
            )
            for term in terms
        ]
        query = tantivy.Query.boolean_query(clauses)
        hits = self.searcher.search(query, limit=depth, count=False).hits
        if want == "rows":
            return self.searcher.fast_field_values("row", [address for _, address in hits])
        if want == "ids":
            return [self.searcher.doc(address)["id"] for _, address in hits]
        return hits


def ingest(corpus: Path, lang: str, rounds: int, folder: Path) -> tuple[LocalEngine, Direct]:
    times: dict[str, list[float]] = {"direct": [], "keeping": [], "engine": []}
    for i in range(rounds):
        direct = Direct(folder / f"direct{i}", lang, stored_id=False)
        times["direct"].append(seconds_of(lambda: direct.ingest(corpus)))  # noqa: B023
        keeping = Direct(folder / f"keeping{i}", lang, stored_id=True, stored_text=True)
        times["keeping"].append(seconds_of(lambda: keeping.ingest(corpus)))  # noqa: B023
        engine = LocalEngine.create(folder / f"engine{i}", lang=lang)
        times["engine"].append(seconds_of(lambda: engine.write(records(corpus))))  # noqa: B023
    documents = len(engine)
    direct_time, keep_time, engine_time = (min(found) for found in times.values())
    ratios = sorted(d / e for d, e in zip(times["direct"], times["engine"]))
    kept = sorted(d / e for d, e in zip(times["keeping"], times["engine"]))
    print(f"documents                       {documents:>10,}")
    print(f"ingest, tantivy alone           {documents / direct_time:>10,.0f} documents/s")
    print(f"ingest, tantivy keeping texts   {documents / keep_time:>10,.0f} documents/s")
    print(f"ingest, engine, with tf-idf     {documents / engine_time:>10,.0f} documents/s")
    print(f"engine / tantivy alone          {statistics.median(ratios):>10.2f} median of {rounds} rounds")
    print(f"engine / tantivy keeping texts  {statistics.median(kept):>10.2f} median of {rounds} rounds")
    for name in ("documents.db", "index", "tfidf", "*"):
        files = [
            f
            for path in (engine.folder / "data-0").glob(name)
            for f in ([path] if path.is_file() else path.rglob("*"))
        ]
        size = sum(file.stat().st_size for file in files if file.is_file())
        print(f"bytes per document, {name:<12}{size / documents:>10,.0f}")
    size = sum(len(json.dumps(line, ensure_ascii=False).encode()) for line in lines(corpus))
    print(f"bytes per document, input       {size / documents:>10,.0f}")
    stored = Direct(folder / "stored", lang, stored_id=True)
    stored.ingest(corpus)
    return engine, stored


def first_stage(engine: LocalEngine, direct: Direct, texts: list[str]) -> None:
    for depth in (10, 1000):
        sides: dict[str, Callable[[str], object]] = {
            "tantivy, hits": lambda text, depth=depth: direct.search(text, depth, "hits"),
            "tantivy, rows": lambda text, depth=depth: direct.search(text, depth, "rows"),
            "tantivy, ids": lambda text, depth=depth: direct.search(text, depth, "ids"),
            "bm25": lambda text, depth=depth: engine.find(
                SearchRequest(text, first_stage="bm25", depth=depth)
            ),
            "tfidf": lambda text, depth=depth: engine.find(
                SearchRequest(text, first_stage="tfidf", depth=depth)
            ),
        }
        times: dict[str, list[float]] = {name: [] for name in sides}
        for text in texts:
            for name, side in sides.items():
                times[name].append(seconds_of(lambda: side(text)))  # noqa: B023
        median = {name: statistics.median(values) * 1000 for name, values in times.items()}
        for name, value in median.items():
            ninth = statistics.quantiles(times[name], n=10)[-1] * 1000
            print(f"first stage at {depth:>4}, {name:<14} p50 {value:7.3f} ms   p90 {ninth:7.3f} ms")
        for ours, theirs in (
            ("bm25", "tantivy, hits"),
            ("bm25", "tantivy, ids"),
        ):
            print(f"first stage at {depth:>4}, {ours} / {theirs}: {median[ours] / median[theirs]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--lang", default="en")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=1000, help="Number of queries. Default: 1000.")
    options = parser.parse_args()
    texts = [line["text"] for line, _ in zip(lines(options.queries), range(options.limit))]
    with tempfile.TemporaryDirectory() as folder:
        engine, direct = ingest(options.corpus, options.lang, options.rounds, Path(folder))
        first_stage(engine, direct, texts)


if __name__ == "__main__":
    main()
