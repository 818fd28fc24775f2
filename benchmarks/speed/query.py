"""Measure the costs of scoring 1,000 candidates and of encoding documents.

    python benchmarks/speed/query.py DATA/debian --lang it

Rankers have real sizes and the vocabulary of the collection, with random weights. The costs do not depend
on learned weights. Scoring runs on one core, with the features in memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before NumPy is imported: one core

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.collection import Collection
from benchmarks.common.timing import seconds_of
from benchmarks.common.vectors import feature_size
from rerank.documents.records import Query
from rerank.documents.text import words
from rerank.rankers.cnn.ranker import PARTS, CnnRanker
from rerank.rankers.cnn.towers import Vocabulary
from rerank.scoring.pipeline import Pipeline
from rerank.stack.stack import Stack
from rerank.workflows.encode import encode
from rerank.workspace.workspace import Workspace

STAGES = ("engine", "encode", "score")
STACK = "tfidf*0.35 + text*0.40 + meta*0.25"


def random_ranker(name: str, preset: str, head: str | None, vocabularies: dict[str, list[str]]) -> CnnRanker:
    """Return a ranker with the sizes of a preset and random weights."""
    from rerank.rankers.cnn.config import CnnConfig
    from rerank.rankers.cnn.embeddings import LONGEST, Embedding
    from rerank.rankers.cnn.network import TorchRanker, TorchTower

    config = CnnConfig.of(preset, head=head)
    rng = np.random.default_rng(0)
    sizes = {"text": config.word_size, "meta": config.category_size}
    embeddings = {}
    for part in PARTS[name]:
        names = vocabularies[part]
        vectors = rng.normal(size=(len(names) + 1, sizes[part])).astype(np.float32) / 10
        counts = np.ones(len(names), dtype=np.int64)
        embeddings[part] = Embedding(Vocabulary(part, names, LONGEST[part]), vectors, counts)
    sides = ("query", "document")
    towers = {side: [TorchTower(embeddings[part], config) for part in PARTS[name]] for side in sides}
    network = TorchRanker(towers, config).numpy()
    return CnnRanker(name=name, version=f"{preset}-{head}-random", networks=[network])


def scoring(workspace: Workspace, queries: list[Query], vocabularies: dict[str, list[str]]) -> None:
    """Print the time of each stage, for the stack of each preset."""
    print(f"\nscoring 1,000 candidates with {STACK}: p50 over {len(queries)} queries, one core, ms")
    header = (*STAGES, "bytes/doc", "docs/s")
    print(f"{'':22}" + "".join(f" {name:>9}" for name in header))
    for preset, head in (("default", "cosine"), ("default", "mlp"), ("paper", "mlp")):
        label = f"{preset}, head {head}"
        rankers = {name: random_ranker(name, preset, head, vocabularies) for name in ("text", "meta")}
        for ranker in rankers.values():
            workspace.install(ranker)
        rate = len(workspace.engine) / seconds_of(partial(encode, workspace))
        pipeline = Pipeline(workspace.engine, rankers)
        stack = Stack.parse(STACK)
        answers = [pipeline.answer(query, stack) for query in queries]
        full = [answer for answer in answers if len(answer.ranking) == stack.depth] or answers
        medians = [1000 * float(np.median([answer.seconds[stage] for answer in full])) for stage in STAGES]
        size = sum(feature_size(ranker) for ranker in rankers.values())
        times = "".join(f" {milliseconds:9.2f}" for milliseconds in medians)
        print(f"{label:22}{times} {size:9d} {rate:9.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lang")
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    collection = Collection(options.folder, options.lang)
    queries = collection.queries()[: options.queries]
    with tempfile.TemporaryDirectory() as home:
        workspace = collection.ingest(f"{home}/w")
        vocabularies: dict[str, dict[str, None]] = {"text": {}, "meta": {}}
        for document in workspace.engine.documents():
            vocabularies["text"] |= dict.fromkeys(words(document.content))
            vocabularies["meta"] |= dict.fromkeys(document.categories)
        scoring(workspace, queries, {part: list(names) for part, names in vocabularies.items()})


if __name__ == "__main__":
    main()
