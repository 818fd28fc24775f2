"""Compare lengths and numbers of passages of an encoder that is not trained, with and without bm25.

    python benchmarks/passages.py OUT/cf WORKSPACE [--passages 256x1,64x8] [--most 150]

``peers/prepare.py`` writes OUT. The script makes WORKSPACE and trains one ranker for each pair of tokens per
passage and passages. At most ``--most`` dev and test queries are used.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rerank import Workspace, evaluate, ingest, train, tune
from rerank.formats import read_qrels, read_queries
from rerank.records import Qrels

MEASURES = ["nDCG@10", "nDCG"]


def first_queries(path: Path, most: int) -> Qrels:
    """Return the judgments of the first queries."""
    qrels = read_qrels(path)
    return Qrels((query, id, grade) for query in sorted(qrels)[:most] for id, grade in qrels[query].items())


def main() -> None:
    """Print the measures of each ranker on test, and of its stack with bm25, tuned on dev."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("workspace", type=Path)
    options.add_argument("--passages", default="256x1,64x8", help="tokens x passages. Default: %(default)s")
    options.add_argument("--most", type=int, default=150)
    args = options.parse_args()
    if not Workspace.exists(args.workspace):
        ingest(args.workspace, args.folder / "corpus.jsonl")
    workspace = Workspace.open(args.workspace)
    queries = read_queries(args.folder / "queries.jsonl")
    dev, test = (first_queries(args.folder / f"qrels/{split}.tsv", args.most) for split in ("dev", "test"))
    for passages in args.passages.split(","):
        name, (tokens, most) = f"dense{passages}", map(int, passages.split("x"))
        if name not in workspace.trained():
            begin = time.process_time()
            config = {"untrained": True, "passage_tokens": tokens, "passages": most}
            train(workspace, "dense", as_name=name, config=config)
            print(f"{name}: {time.process_time() - begin:.0f} s of processor time")
        tuned = tune(workspace, f"bm25,{name}", queries=queries, qrels=dev, retrieve=["bm25", name])
        alone = evaluate(
            workspace,
            [name],
            queries=queries,
            qrels=test,
            measures=MEASURES,
            baseline="bm25",
            first_stage="bm25",
        )
        stack = evaluate(
            workspace, [f"bm25,{name}"], queries=queries, qrels=test, measures=MEASURES, baseline="bm25"
        )
        for row in (*alone.results, *stack.results[1:]):
            values = ", ".join(f"{measure} {value:.4f}" for measure, value in row.measures.items())
            print(f"{row.stack}: {values}")
        print(f"{tuned.stack}")


if __name__ == "__main__":
    main()
