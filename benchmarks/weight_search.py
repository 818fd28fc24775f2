"""Compare the search for weights with the complete grid: value and time.

    python benchmarks/weight_search.py WORKSPACE QUERIES QRELS --stack bm25,tfidf,text,meta

Prints the dev measure of the best setting of each, and the processor seconds.
"""

from __future__ import annotations

import argparse
import time

from rerank import Workspace
from rerank.combiners import tune as tuning
from rerank.evaluation.protocols import Protocol
from rerank.formats import read_qrels, read_queries
from rerank.search.build_table import TableRequest, score_table


def main() -> None:
    """Compare both searches for each case of the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("workspace")
    options.add_argument("queries")
    options.add_argument("qrels")
    options.add_argument("--stack", required=True)
    options.add_argument("--measure", default="nDCG@10")
    given = options.parse_args()
    signals, qrels = given.stack.split(","), read_qrels(given.qrels)
    request = TableRequest(
        queries=[query for query in read_queries(given.queries) if query.id in qrels],
        qrels=qrels,
        signals=signals,
        first_stage=signals[0],
        protocol=Protocol("retrieved", 1000),
        every_case=True,
    )
    table, _ = score_table(Workspace.open(given.workspace).pipeline(signals), request)
    for case in dict.fromkeys(table.cases):
        rows = table.of(case)
        judged = {"signals": signals, "first_stage": signals[0], "measure": given.measure, "cut": 1000}
        print(f"{case}: {len(rows)} queries, {rows.counts.mean():.0f} candidates, {len(signals)} signals")
        for name, work in (("search", 0), ("complete", 10**15)):
            tuning.FULL, tuning.WORK = 0, work
            begin = time.process_time()
            found = tuning.tune(rows, qrels, **judged)
            seconds = time.process_time() - begin
            print(
                f"  {name}: {found.value:.4f}, {found.combiner}, {found.settings:,} settings, {seconds:.1f} s"
            )


if __name__ == "__main__":
    main()
