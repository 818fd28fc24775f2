"""nDCG@10 and nDCG of both first stages, with and without the stop words of the queries.

    python benchmarks/stop_words.py DATA/cacm [DATA/cf ...]
    python benchmarks/stop_words.py DATA/debian --lang it --queries 1500

The script evaluates all judged queries, without training. A query in an undetermined language (``und``)
keeps its stop words.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from rerank import Qrels, Workspace, evaluate
from rerank.formats import read_corpus, read_qrels, read_queries


def main() -> None:
    """Print one line per collection, first stage and way."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folders", type=Path, nargs="+")
    options.add_argument("--lang", default="en", help="Language of the documents. Default: en.")
    options.add_argument("--queries", type=int, default=0, help="Maximum number of queries. Default: all.")
    args = options.parse_args()
    for folder in args.folders:
        middle, prefix = ("", "") if args.lang == "en" else (f".{args.lang}", f"{args.lang}.")
        judged: dict[str, dict[str, int]] = {}
        for path in sorted((folder / "qrels").glob(f"{prefix}*.tsv")):
            judged.update({query: dict(grades) for query, grades in read_qrels(path).items()})
        some = Qrels({query: judged[query] for query in sorted(judged)[: args.queries or None]})
        queries = read_queries(folder / f"queries{middle}.jsonl.gz")
        with tempfile.TemporaryDirectory() as scratch:
            workspace = Workspace.create(f"{scratch}/workspace", lang=args.lang)
            workspace.engine.write(read_corpus(folder / f"corpus{middle}.jsonl.gz"))
            for way, asked in (
                ("without", queries),
                ("with", [replace(query, lang="und") for query in queries]),
            ):
                measures = ["nDCG@10", "nDCG"]
                report = evaluate(
                    workspace, ["bm25"], baseline="tfidf", queries=asked, qrels=some, measures=measures
                )
                for row in report.results:
                    values = ", ".join(f"{name} {row.measures[name]:.4f}" for name in measures)
                    print(f"{folder.name}{middle}, {row.stack}, {way} stop words: {values}", flush=True)


if __name__ == "__main__":
    main()
