"""How well the scores of ``/v1/rerank`` select the relevant document, and separate lists with an answer.

    python -m benchmarks.quality.relevance WORKSPACE QUERIES QRELS --stack bm25,text

For each test query, one relevant document and N - 1 random ones are sent. ``first`` is the share of queries
whose relevant document gets the first place, by the stack and by each of its signals. ``answer`` is the AUC
of the best score: N documents with a relevant one against N without.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from rerank.formats import read_qrels, read_queries
from rerank.records import Document
from rerank.service.context import RequestContext
from rerank.service.endpoints import rerank
from rerank.service.schemas import RerankBody
from rerank.service.settings import Settings
from rerank.service.snapshot import Snapshot
from rerank.tuning.calibrate import area_under_curve

SIZES = (2, 5, 10, 30)


def scores_of(snapshot: Snapshot, query: str, documents: list[Document], stack: str) -> list[float]:
    """Return the relevance score of each document, in the order of the documents."""
    objects = [{"title": document.title, "text": document.text} for document in documents]
    body = RerankBody(query=query, documents=objects, stack=stack)
    answer = rerank(snapshot, body, RequestContext(time.monotonic() + 600, 1000))
    scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
    return [scores[index] for index in range(len(documents))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workspace")
    parser.add_argument("queries")
    parser.add_argument("qrels")
    parser.add_argument("--stack", default="bm25,text")
    parser.add_argument("--most", type=int, default=300, help="Number of queries.")
    args = parser.parse_args()
    snapshot = Snapshot(Settings(folder=args.workspace))
    documents = {document.id: document for document in snapshot.workspace.engine.documents()}
    qrels = read_qrels(args.qrels)
    texts = {query.id: query.text for query in read_queries(args.queries)}
    queries = [query for query in sorted(qrels) if {*qrels.relevant(query)} & documents.keys()][: args.most]
    random = np.random.default_rng(0)
    ids = sorted(documents)
    stacks = [args.stack, *args.stack.split(",")]
    print(f"{len(queries)} queries")
    for size in SIZES:
        first = dict.fromkeys(stacks, 0)
        with_answer: dict[str, list[float]] = {stack: [] for stack in stacks}
        without: dict[str, list[float]] = {stack: [] for stack in stacks}
        for query in queries:
            relevant = qrels.relevant(query)
            answer = random.choice(sorted({*relevant} & documents.keys()))
            others = [id for id in random.permutation(ids)[: 2 * size + 20] if id not in relevant]
            position = int(random.integers(size))
            sent = [documents[id] for id in others[: size - 1]]
            sent.insert(position, documents[answer])
            control = [documents[id] for id in others[size : 2 * size]]
            for stack in stacks:
                scores = scores_of(snapshot, texts[query], sent, stack)
                first[stack] += int(np.argmax(scores)) == position
                with_answer[stack].append(max(scores))
                without[stack].append(max(scores_of(snapshot, texts[query], control, stack)))
        for stack in stacks:
            auc = area_under_curve(np.array(with_answer[stack]), np.array(without[stack]))
            print(
                f"N {size:3}  {stack:20} first {first[stack] / len(queries):.3f}  answer {auc:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
