"""What it is worth to let projections retrieve: candidates by tf-idf, and by tf-idf and projections together.

    python benchmarks/union.py WORKSPACE DATA/debian --lang de --stack tfidf,s2net --retrieve s2net

Each retriever gives its 1,000 best documents; every signal is computed for the union. Weights and
normalisation are tuned on dev over the same candidates. Prints NDCG without cut-off, the share of the
relevant documents that are among the candidates, by retriever, and the time of a query.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from effectiveness import judgements

from rerank.engines.base import Engine
from rerank.experiments import evaluate, tune
from rerank.formats import read_queries
from rerank.order import rank
from rerank.rankers.base import Ranker
from rerank.records import Candidates, Query
from rerank.workspace import Workspace


class Union:
    """An engine whose searches also return what rankers with cosine scores find among all documents."""

    def __init__(self, engine: Engine, rankers: Sequence[Ranker], depth: int) -> None:
        self.engine, self.rankers, self.depth = engine, rankers, depth
        versions = {ranker.name: ranker.version for ranker in rankers}
        everything = engine.select("", engine.ids(), first_stage="tfidf", features=versions)
        self.every = everything.ids
        self.features = {name: everything.features[name].astype(np.float32) for name in versions}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def __len__(self) -> int:
        return len(self.engine)

    def state(self) -> str:
        return f"{self.engine.state()} {[ranker.version for ranker in self.rankers]} {self.depth}"

    def found(self, text: str, ranker: Ranker) -> list[str]:
        """The ids of the best documents by one ranker."""
        scores = self.features[ranker.name] @ ranker.encode_query(Query("", text))
        best = np.argpartition(-scores, min(self.depth, len(scores) - 1))[: self.depth]
        ids = [self.every[i] for i in best.tolist()]
        return [ids[i] for i in rank(ids, scores[best])]

    def search(
        self, text: str, *, first_stage: str, depth: int, features: Mapping[str, str] | None = None
    ) -> Candidates:
        first = self.engine.search(text, first_stage=first_stage, depth=min(depth, self.depth))
        ids = dict.fromkeys(first.ids)
        if depth >= self.depth:  # not where a few are asked for to vote for categories
            for ranker in self.rankers:
                ids.update(dict.fromkeys(self.found(text, ranker)))
        return self.engine.select(text, list(ids), first_stage=first_stage, features=features)

    def search_many(self, texts: Sequence[str], **options: Any) -> Iterator[Candidates]:
        return (self.search(text, **options) for text in texts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workspace")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lang")
    parser.add_argument("--stack", default="tfidf,s2net")
    parser.add_argument("--retrieve", default="s2net", help="rankers that retrieve beside tf-idf")
    parser.add_argument("--depth", type=int, default=1000, help="of each retriever")
    options = parser.parse_args()
    suffix = f".{options.lang}" if options.lang else ""
    queries = read_queries(str(options.folder / f"queries{suffix}.jsonl.gz"))
    split = judgements(options.folder, options.lang, None)
    workspace = Workspace.open(options.workspace)
    rankers = [workspace.ranker(name) for name in options.retrieve.split(",")]
    engine = workspace.engine
    union = Union(engine, rankers, options.depth)

    by_id = {query.id: query for query in queries}
    recall: dict[str, list[float]] = {}
    for id in sorted(split["test"]):
        relevant = set(split["test"].relevant(id))
        if not relevant:
            continue
        found = {"tfidf": set(engine.search(by_id[id].text, first_stage="tfidf", depth=options.depth).ids)}
        found |= {ranker.name: set(union.found(by_id[id].text, ranker)) for ranker in rankers}
        found["union"] = set().union(*found.values())
        for name, ids in found.items():
            recall.setdefault(name, []).append(len(ids & relevant) / len(relevant))
    print("candidate recall:", *(f"{name} {np.mean(values):.4f}" for name, values in recall.items()))

    signals = tuple(options.stack.split(","))
    for label, used in (("tfidf", engine), ("union", union)):
        workspace._engine = used  # type: ignore[assignment]
        path = Path(options.workspace) / "stacks" / f"benchmark-{label}.json"
        count = options.depth * (len(rankers) + 1 if used is union else 1)
        found_weights = tune(workspace, options.stack, queries, split["dev"], depth=count, out=path)
        protocol = f"retrieved:{count}"
        stack = found_weights.tuned.stack
        result = evaluate(
            workspace, [str(path)], "tfidf", queries, split["test"], protocols=[protocol], measures=["nDCG"]
        )
        (shown,) = [row for row in result.results if row.label != "tfidf"]
        pipeline = workspace.pipeline(signals)
        spent = []
        for id in sorted(split["test"])[:200]:
            begin = time.perf_counter()
            pipeline.answer(by_id[id], stack)
            spent.append(1000 * (time.perf_counter() - begin))
        dev = found_weights.tuned.value
        print(f"candidates by {label}: dev {dev:.4f} test NDCG {shown.measures['nDCG']:.4f}", end=" ")
        print(f"{stack} ({stack.normalisation}); query p50 {np.median(spent):.1f} ms", flush=True)


if __name__ == "__main__":
    main()
