"""Train, tune and evaluate stacks on a collection, over several seeds.

    python benchmarks/papers/effectiveness.py DATA/debian --lang it --seeds 3
    python benchmarks/papers/effectiveness.py DATA/debian --lang it --seeds 3 --head mlp
    python benchmarks/papers/effectiveness.py DATA/wikispeedia --seeds 3
    python benchmarks/papers/effectiveness.py DATA/cf --split-judgments 3 --seeds 3

The collection is in the BEIR layout with train, dev and test judgments. For each seed, the benchmark prints
nDCG without a cutoff of every stack: weighted and plain, at 50 to 1,000 candidates, with and without the
categories of the queries, and without the documents of grade 2 and above (grade 1 only). Then it prints the
means and standard deviations over the seeds.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from rerank.evaluation.measures import evaluate_runs
from rerank.formats import read_qrels, read_queries, read_run
from rerank.progress import Progress
from rerank.rankers.cnn.config import CnnConfig
from rerank.records import Qrels
from rerank.workflows.evaluate import evaluate
from rerank.workflows.ingest import ingest
from rerank.workflows.train import train
from rerank.workflows.tune import tune

STACKS = ("tfidf,text", "tfidf,meta", "tfidf,joint", "tfidf,text,meta", "text,meta")
"""Stacks to compare. The last one reranks without the score of the first stage."""
GRADE_ONE = "nDCG grade 1 only"
DEPTHS = (50, 100, 200, 500, 1000)
MODES = {"used": (False, True), "ignored and inferred": (True, True), "ignored": (True, False)}
"""Name -> (ignore the categories of the queries, infer missing categories from the first candidates)."""


class Say(Progress):
    def say(self, line: str) -> None:
        print(f"  {line}", flush=True)


def judgments(folder: Path, lang: str | None, parts: int | None) -> dict[str, Qrels]:
    """Train, dev and test judgments. With ``parts``, all judgments are split by query into three parts."""
    prefix = f"{lang}." if lang else ""
    files = {split: folder / "qrels" / f"{prefix}{split}.tsv" for split in ("train", "dev", "test")}
    if parts is None:
        return {split: read_qrels(str(path)) for split, path in files.items()}
    rows = [
        (q, d, grade)
        for path in files.values()
        if path.exists()
        for q, found in read_qrels(str(path)).items()
        for d, grade in found.items()
    ]
    ids = sorted({q for q, _, _ in rows})
    dealt = dict(zip(np.random.default_rng(0).permutation(ids).tolist(), range(len(ids))))
    chosen = {"train": {0}, "dev": {1}, "test": {2}}
    return {s: Qrels(row for row in rows if dealt[row[0]] % 3 in kept) for s, kept in chosen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lang", help="Language: suffix of corpus and query files, prefix of judgments.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--head", choices=["cosine", "mlp"], default=None)
    parser.add_argument("--preset", choices=["default", "paper"], default="default")
    parser.add_argument(
        "--split-judgments", type=int, metavar="3", help="Split all judgments into three parts."
    )
    parser.add_argument("--rankers", default="text,meta,joint")
    parser.add_argument("--json", type=Path, help="File for all figures.")
    options = parser.parse_args()
    suffix = f".{options.lang}" if options.lang else ""
    folder: Path = options.folder
    queries = read_queries(str(folder / f"queries{suffix}.jsonl.gz"))
    split = judgments(folder, options.lang, options.split_judgments)
    graph = folder / "categories.tsv"
    rankers = options.rankers.split(",")
    stacks = [s for s in STACKS if set(s.split(",")) <= {"tfidf", *rankers}]
    everything: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as home:
        begin = time.perf_counter()
        report = ingest(
            f"{home}/workspace",
            [str(folder / f"corpus{suffix}.jsonl.gz")],
            categories=str(graph) if graph.exists() else None,
        )
        workspace = report.workspace
        print(f"{report.documents} documents ingested in {time.perf_counter() - begin:.1f} s", flush=True)
        for seed in range(options.seeds):
            begin = time.perf_counter()
            config = CnnConfig.of(options.preset, head=options.head, seed=seed)
            trained = train(
                workspace,
                rankers,
                queries=queries,
                qrels=split["train"],
                dev_qrels=split["dev"],
                config=config,
                progress=Say(),
            )
            minutes = (time.perf_counter() - begin) / 60
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(f"seed {seed}: trained in {minutes:.1f} min, {peak:.2f} GiB at most", flush=True)
            for mode, (ignored, inferred) in MODES.items():
                for stack in stacks:
                    tuned = tune(
                        workspace,
                        stack,
                        queries=queries,
                        qrels=split["dev"],
                        ignore_categories=ignored,
                        infer=inferred,
                    ).tuned
                    print(
                        f"  dev {tuned.value:.4f} {tuned.combiner} ({tuned.combiner.normalization})",
                        flush=True,
                    )
                result = evaluate(
                    workspace,
                    [*stacks, *rankers],
                    queries=queries,
                    qrels=split["test"],
                    protocols=[f"retrieved:{n}" for n in (DEPTHS if not ignored else (1000,))],
                    save_run=f"{home}/runs",
                    ignore_categories=ignored,
                    infer=inferred,
                    seed=seed,
                )
                near = grade_one_only(result.runs, split["test"])
                p = {(c.protocol, c.stack): c for c in result.comparisons if c.measure == "nDCG"}
                versus = {
                    name: text_only(result.per_query["retrieved:1000"], name, seed)
                    for name in ("tfidf,joint", "tfidf,text,meta")
                    if name in stacks and "tfidf,text" in stacks
                }
                for row, grade_one in zip(result.results, near):
                    found = p.get((row.protocol, row.stack))
                    everything.append(
                        {
                            "seed": seed,
                            "categories": mode,
                            "protocol": row.protocol,
                            "stack": row.stack,
                            "weights": row.text,
                            "p": found.p_holm if found else None,
                            "p_over_text": versus.get(row.stack),
                            "minutes": minutes,
                            "epochs": {f.ranker.name: f.epoch for f in trained.rankers},
                            **row.measures,
                            GRADE_ONE: grade_one,
                        }
                    )
            if options.json:
                options.json.write_text(json.dumps(everything, indent=1))
    show(everything)


def grade_one_only(files: list[Path], qrels: Qrels) -> list[float]:
    """nDCG of each run without the documents of grade 2 and above. It shows if a stack finds related ones."""
    wanted = {query: {id for id, grade in qrels[query].items() if grade >= 2} for query in qrels}
    related = Qrels((q, d, grade) for q in qrels for d, grade in qrels[q].items() if grade < 2)
    runs = {
        str(file): {
            query: [id for id, _ in hits if id not in wanted.get(query, ())]
            for query, hits in read_run(file).items()
        }
        for file in files
    }
    evaluation = evaluate_runs(runs, related, ["nDCG"])
    return [evaluation.mean(str(file), "nDCG") for file in files]


def text_only(evaluation, name: str, seed: int) -> float:  # type: ignore[no-untyped-def]
    """p of a stack against tfidf,text. It shows if categories help in addition to words."""
    from rerank.evaluation.significance import randomization_test

    values = evaluation.values
    return randomization_test(values[name]["nDCG"] - values["tfidf,text"]["nDCG"], seed=seed)


def show(rows: list[dict[str, object]]) -> None:
    """Print means over seeds."""
    keys = list(dict.fromkeys((r["categories"], r["protocol"], r["stack"]) for r in rows))
    last = None
    for categories, protocol, stack in keys:
        found = [
            r for r in rows if (r["categories"], r["protocol"], r["stack"]) == (categories, protocol, stack)
        ]
        if (categories, protocol) != last:
            last = (categories, protocol)
            print(f"\n{protocol}, categories of the queries {categories}")
            header = ("nDCG", "grade 1 only", "nDCG@10", "RR", "worst p", "p over text")
            print(f"{'':34} {header[0]:>14}" + "".join(f" {name:>12}" for name in header[1:]))
        ndcg = [float(r["nDCG"]) for r in found]  # type: ignore[arg-type]
        spread = f"{statistics.mean(ndcg):.4f} ±{statistics.stdev(ndcg) if len(ndcg) > 1 else 0:.4f}"
        others = [statistics.mean(float(r[m]) for r in found) for m in (GRADE_ONE, "nDCG@10", "RR")]  # type: ignore[arg-type]
        worst = [
            max((float(r[k]) for r in found if r[k] is not None), default=None) for k in ("p", "p_over_text")
        ]  # type: ignore[arg-type]
        cells = [f"{value:.4f}" for value in others] + ["" if w is None else f"{w:.5f}" for w in worst]
        print(f"{stack:34} {spread:>14}" + "".join(f" {cell:>12}" for cell in cells))


if __name__ == "__main__":
    main()
