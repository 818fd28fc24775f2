"""Measure the time to make the page of an evaluation of 1,000 queries, and its size.

    python benchmarks/report_page.py DATA/wikispeedia [--queries 1000]

Prints the processor times of the page and of the evaluation. The evaluation keeps all data that the page
shows. The stack has two lexical signals with given weights, so that no training or tuning is needed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from rerank import Qrels, Workspace, evaluate, ingest, read_qrels, read_queries
from rerank.report_page.page import evaluation_page

STACK = "tfidf*0.5 + bm25*0.5"


def main() -> None:
    """Run the evaluation, make the page and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--queries", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ingest(Path(folder) / "ws", [asked.data / "corpus.jsonl.gz"])
        workspace = Workspace.open(Path(folder) / "ws")
        queries = read_queries(asked.data / "queries.jsonl.gz")
        judged = read_qrels(asked.data / "qrels" / "train.tsv")
        some = sorted(query for query in judged if judged.relevant(query))[: asked.queries]
        qrels = Qrels((query, d, grade) for query in some for d, grade in judged[query].items())
        begin = time.process_time()
        report = evaluate(workspace, [STACK], queries=queries, qrels=qrels, keep=10)
        measured = time.process_time()
        page = evaluation_page(workspace, report, queries, "train.tsv")
        done = time.process_time()
    print(
        f"{report.queries} queries: evaluation {measured - begin:.1f} s, page {done - measured:.1f} s of"
        f" processor time, {len(page.encode()) / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main()
