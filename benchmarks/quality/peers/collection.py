"""Read a prepared folder, and write a run with its costs. All peers use this module.

It imports the standard library only; ``best`` also needs NumPy.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEPTH = 1000
TIMED, WARM = 300, 50
"""Number of test queries to measure latency, and number of warm-up queries."""

Run = dict[str, dict[str, float]]
"""Query id -> document id -> score."""


@dataclass(eq=False)
class Collection:
    """Documents (id -> title, text), queries (id -> text), judgments (split, query, document -> grade).

    languages: language of the documents, language of the queries.
    """

    folder: Path
    documents: dict[str, tuple[str, str]] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    qrels: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    languages: tuple[str, str] = ("english", "english")

    @classmethod
    def load(cls, folder: str | Path) -> Collection:
        """Read a folder that ``prepare.py`` wrote."""
        collection = cls(Path(folder))
        for document in _lines(collection.folder / "corpus.jsonl"):
            collection.documents[document["_id"]] = document.get("title") or "", document.get("text") or ""
        for query in _lines(collection.folder / "queries.jsonl"):
            collection.queries[query["_id"]] = query["text"]
        for split in ("train", "dev", "test"):
            judged = collection.qrels.setdefault(split, {})
            path = collection.folder / "qrels" / f"{split}.tsv"
            for line in path.read_text().splitlines()[1:] if path.exists() else ():
                query, document, grade = line.split("\t")
                judged.setdefault(query, {})[document] = int(grade)
        collection.languages = tuple(json.loads((collection.folder / "languages.json").read_text()))
        return collection

    @property
    def texts(self) -> list[str]:
        return ["\n".join(filter(None, title_and_text)) for title_and_text in self.documents.values()]

    @property
    def ids(self) -> list[str]:
        """Return the document ids, in the order of ``texts``."""
        return list(self.documents)

    def of(self, split: str) -> dict[str, str]:
        """Return query id -> text for one split."""
        return {query: self.queries[query] for query in self.qrels[split]}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all peers."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("folder", help="folder written by prepare.py")
    parser.add_argument(
        "--answer", action="store_true", help="measure latencies, by an earlier run's settings"
    )
    return parser


def settings_of(collection: Collection, peer: str) -> dict[str, Any]:
    """Return the settings of an earlier run, without its dev score."""
    settings: dict[str, Any] = json.loads((collection.folder / f"runs/{peer}.json").read_text())["settings"]
    return {name: value for name, value in settings.items() if name != "dev"}


def time_queries(collection: Collection, peer: str, search: Callable[[str], Any]) -> None:
    """Write p50 and p99 latency of the test queries to ``latencies.json``, after a warm-up."""
    texts = list(collection.of("test").values())[:TIMED]
    for text in texts[:WARM]:
        search(text)
    costs = Costs()
    costs.answer(dict(enumerate(texts)), search)  # type: ignore[arg-type]
    path = collection.folder / "latencies.json"
    latencies = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**latencies, peer: costs.percentiles()}, indent=1))
    print(peer, costs.percentiles(), flush=True)


def best(ids: list[str], scores: Any, depth: int = DEPTH) -> dict[str, float]:
    """Return the best documents with a score above 0."""
    import numpy as np

    scores = np.asarray(scores)
    order = np.argsort(-scores, kind="stable")[:depth]
    return {ids[i]: float(scores[i]) for i in order if scores[i] > 0}


@dataclass
class Costs:
    """Seconds of training and indexing, bytes of the index, MiB of a server, seconds per query."""

    training: float = 0.0
    indexing: float = 0.0
    bytes: int = 0
    memory: int = 0
    queries: list[float] = field(default_factory=list)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the CPU seconds of the block to ``training`` or ``indexing``."""
        begin = time.process_time()
        yield
        setattr(self, name, getattr(self, name) + time.process_time() - begin)

    def answer(self, queries: dict[str, str], search: Callable[[str], dict[str, float]]) -> Run:
        """Run the queries one after the other and return the run."""
        run: Run = {}
        for query, text in queries.items():
            begin = time.perf_counter()
            run[query] = search(text)
            self.queries.append(time.perf_counter() - begin)
        return run

    def percentiles(self) -> dict[str, float]:
        """Return p50 and p99 latency of the queries, in milliseconds."""
        spent = sorted(self.queries)
        last = len(spent) - 1
        return {f"p{share}_ms": round(1000 * spent[share * last // 100], 3) for share in (50, 99) if spent}


def write(collection: Collection, peer: str, run: Run, costs: Costs, **settings: object) -> None:
    """Write ``runs/PEER.json`` with the test run, costs and selected settings."""
    facts = {
        "training_s": round(costs.training, 2),
        "indexing_s": round(costs.indexing, 2),
        "index_bytes": costs.bytes,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 + costs.memory,
        "lines": user_lines(peer),
        "settings": settings,
    }
    folder = collection.folder / "runs"
    folder.mkdir(exist_ok=True)
    (folder / f"{peer}.json").write_text(json.dumps({"peer": peer, **facts, "run": run}))
    print(json.dumps({"peer": peer, **facts}), flush=True)


def user_lines(peer: str) -> int:
    """Count the lines between ``# user:`` and ``# end`` in the script and in the peers that it imports.

    If words follow ``# user:``, the block counts only for peers with one of these words in their name.
    """
    here = Path(sys.argv[0]).resolve().parent
    modules = {Path(getattr(module, "__file__", None) or "").resolve() for module in sys.modules.values()}
    count = 0
    for path in modules & {*here.glob("*.py")}:
        inside = False
        for line in path.read_text().splitlines():
            text = line.strip()
            if text.startswith("# user:"):
                words = text.removeprefix("# user:").split()
                inside = not words or any(word in peer for word in words)
            elif text == "# end":
                inside = False
            count += inside and bool(text) and not text.startswith("#")
    return count


def ndcg(run: Run, qrels: dict[str, dict[str, int]], cut: int = 10) -> float:
    """Return the mean nDCG at a cut, with linear gain. Peers tune on it."""
    from math import log2

    total = 0.0
    for query, grades in qrels.items():
        ranked = sorted(run.get(query, {}).items(), key=lambda item: (-item[1], item[0]))[:cut]
        gained = sum(grades.get(d, 0) / log2(i + 2) for i, (d, _) in enumerate(ranked))
        ideal = sorted((g for g in grades.values() if g > 0), reverse=True)[:cut]
        total += gained / sum(g / log2(i + 2) for i, g in enumerate(ideal)) if ideal else 0.0
    return total / len(qrels)
