"""Write the tables of the peers: measures, Holm-corrected p against rerank, and costs.

    python benchmarks/quality/peers/table.py OUT/cf [OUT/cacm ...] # measures runs; writes results/cf.json
    python benchmarks/quality/peers/table.py                         # writes all tables from results/
    python benchmarks/quality/peers/table.py --check                 # exit code 1 if they are outdated

p: paired randomization test of nDCG@10 on the test queries, corrected over the peers of a collection.
Latencies are read from ``OUT/cf/latencies.json``. The scripts write this file with ``--answer``.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.common.pages import ROOT, filled, markdown_table, page_options, update

RESULTS = Path(__file__).parent / "results"
FIGURES, COMPARISON = ROOT / "benchmarks/quality/RESULTS.md", ROOT / "docs/explanation/results.md"
LONGEST_LINE = 150
"""Characters of a line of prose."""
MEASURES = ("nDCG@10", "nDCG", "RR", "R@100")
OURS = ("rerank-hand", "rerank-auto")
COSTS = {
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "training_s": "training s",
    "indexing_s": "indexing s",
    "memory_mib": "MiB",
    "index_bytes": "index MB",
    "lines": "lines",
}
PEERS = {
    "rerank-hand": "rerank, stack by hand",
    "rerank-auto": "`rerank auto`",
    "lightgbm-ours": "LightGBM on the signals of `auto`",
    "bm25+encoder-tuned": "BM25 and the fine-tuned encoder (ranx)",
    "bm25+encoder": "BM25 and the encoder (ranx)",
    "opensearch-hybrid": "OpenSearch's hybrid query",
    "encoder-tuned-retrieve": "the fine-tuned encoder retrieves",
    "encoder-tuned-rerank": "the fine-tuned encoder reranks the best 100 of BM25",
    "encoder-retrieve": "the encoder retrieves",
    "encoder-rerank": "the encoder reranks the best 100 of BM25",
    "lambdamart": "LightGBM, classic features",
    "pyterrier-rm3": "PyTerrier, RM3",
    "bm25+static": "BM25 and wordllama (ranx)",
    "bm25-tuned": "tuned BM25 (bm25s)",
    "rerank-bm25": "`bm25` of rerank",
    "pyterrier-bm25": "PyTerrier, BM25",
    "bm25": "BM25 (bm25s)",
    "static": "static embeddings (wordllama)",
}
VARIANTS = ("rerank-bm25", "pyterrier-bm25", "bm25", "static", "encoder-tuned-rerank", "encoder-rerank")
"""Runs that are only in the tables per collection."""
Result = dict[str, Any]


def measured(folder: Path) -> Result:
    """Measure all runs of a folder. Every run is cut at the same depth."""
    import ir_measures
    import numpy as np
    from collection import DEPTH, Collection

    from rerank.evaluation.significance import holm, randomization_test

    collection = Collection.load(folder)
    qrels = collection.qrels["test"]
    position = {query: number for number, query in enumerate(qrels)}
    measures = [ir_measures.parse_measure(name) for name in MEASURES]
    path = folder / "latencies.json"
    latencies = json.loads(path.read_text()) if path.exists() else {}
    rows: list[Result] = []
    ndcg: dict[str, Any] = {}
    for file in sorted((folder / "runs").glob("*.json")):
        facts = json.loads(file.read_text())
        peer = facts["peer"]
        run = {query: cut(facts["run"].get(query, {}), DEPTH) for query in qrels}
        values = {measure: np.zeros(len(qrels)) for measure in measures}
        for metric in ir_measures.iter_calc(measures, qrels, run):
            values[metric.measure][position[metric.query_id]] = metric.value
        means = {str(measure): round(float(of_queries.mean()), 4) for measure, of_queries in values.items()}
        ndcg[peer] = values[measures[0]]
        costs = {key: facts[key] for key in COSTS if key in facts and not key.endswith("_ms")}
        row = {"peer": peer, **means, **costs, **latencies.get(peer, {}), "p": {}}
        rows.append({**row, "settings": facts["settings"]})
    others = [row for row in rows if row["peer"] not in OURS]
    for ours in [peer for peer in OURS if peer in ndcg]:
        tests = [randomization_test(ndcg[ours] - ndcg[row["peer"]]) for row in others]
        for row, p in zip(others, holm(tests)):
            row["p"][ours] = round(p, 5)
    sizes = {split: len(collection.qrels[split]) for split in ("train", "dev", "test")}
    encoder = next((row["settings"]["encoder"] for row in rows if "encoder" in row["settings"]), "none")
    size = {"documents": len(collection.ids), "queries": sizes}
    return {"collection": folder.name, "encoder": encoder, **size, "rows": rows}


def cut(scores: dict[str, float], depth: int) -> dict[str, float]:
    """Return the best documents. Equal scores are ordered by document id."""
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:depth])


def by_collection(result: Result) -> str:
    """Return the table of a collection as Markdown, sorted by nDCG@10."""
    rows = sorted(result["rows"], key=lambda row: -row["nDCG@10"])
    ours = [peer for peer in OURS if any(row["peer"] == peer for row in rows)]
    costs = [key for key in COSTS if any(row.get(key) for row in rows)]
    sizes = result["queries"]
    head = [
        f"{result['collection']}: {result['documents']:,} documents, {sizes['test']:,} test queries,"
        f" encoder {result['encoder']}",
        "nDCG@10",
        *(f"p, {'by hand' if peer == 'rerank-hand' else '`auto`'}" for peer in ours),
        *MEASURES[1:],
        *(COSTS[key] for key in costs),
    ]
    lines: list[list[str]] = []
    for row in rows:
        ps = [f"{row['p'][peer]:.4f}" if peer in row["p"] else "" for peer in ours]
        first, *rest = (f"{row[name]:.4f}" for name in MEASURES)
        lines.append([PEERS[row["peer"]], first, *ps, *rest, *(_cost(key, row.get(key)) for key in costs)])
    return markdown_table(head, lines)


def _cost(key: str, value: float | None) -> str:
    if not value:
        return ""
    if key == "index_bytes":
        return f"{value / 1e6:.1f}"
    return f"{value:,.1f}" if key.endswith("_ms") else f"{value:,.0f}"


def summary(results: list[Result]) -> str:
    """Return a Markdown table of nDCG@10: one row per peer, one column per collection."""
    head = ["nDCG@10", *(result["collection"] for result in results)]
    lines = [["encoder", *(result["encoder"] for result in results)]]
    of = {(result["collection"], row["peer"]): row for result in results for row in result["rows"]}
    for peer, title in PEERS.items():
        if peer in VARIANTS:
            continue
        rows = [of.get((result["collection"], peer)) for result in results]
        if any(rows):
            lines.append([title, *(_marked(row) for row in rows)])
    return markdown_table(head, lines)


def _marked(row: dict[str, Any] | None) -> str:
    """Return nDCG@10. ``*``: differs significantly from rerank-hand. ``†``: from rerank-auto."""
    if row is None:
        return ""
    marks = [mark for mark, ours in zip(("\\*", "†"), OURS) if row["p"].get(ours, 1.0) < 0.05]
    return f"{row['nDCG@10']:.4f}{''.join(marks)}"


def better(results: list[Result]) -> str:
    """Return an item per peer, with its gains above rerank-auto, or above rerank-hand if that is missing."""
    above: dict[str, list[str]] = {}
    for result in results:
        rows = {row["peer"]: row for row in result["rows"]}
        ours = next((rows[peer] for peer in reversed(OURS) if peer in rows), None)
        for peer, row in rows.items() if ours else ():
            gains = [f"{name} +{row[name] - ours[name]:.4f}" for name in MEASURES if row[name] > ours[name]]
            if gains and peer not in OURS:
                if gains[0].startswith(f"{MEASURES[0]} "):
                    gains[0] += f" (p {row['p'][ours['peer']]:.4f})"
                above.setdefault(peer, []).append(f"{result['collection']} {', '.join(gains)}")
    items = [f"- {title}: {'; '.join(above[peer])}" for peer, title in PEERS.items() if peer in above]
    wrapped = [textwrap.fill(item, LONGEST_LINE, subsequent_indent="  ") for item in items]
    return "\n".join(wrapped) or "- No peer is above rerank in any measure."


def costs(results: list[Result]) -> str:
    """Return the sentences about costs of auto and BM25."""
    rows = [row for result in results for row in result["rows"]]
    auto, bm25 = ([row for row in rows if row["peer"] == peer] for peer in ("rerank-auto", "rerank-bm25"))
    minutes = [row["training_s"] / 60 for row in auto]
    memory = max(row["memory_mib"] for row in auto) / 1024
    auto_ms, bm25_ms = (_span([row["p50_ms"] for row in of if "p50_ms" in row]) for of in (auto, bm25))
    return (
        f"`rerank auto` trains for {_span(minutes)} processor minutes and takes up to {memory:.1f} GiB of"
        f" memory. A query of its stack takes {auto_ms} ms; `bm25` takes {bm25_ms} ms."
    )


def _span(values: list[float]) -> str:
    """Return the smallest and the largest value as whole numbers, or one number if they are equal."""
    smallest = f"{min(values):.0f}"
    largest = f"{max(values):.0f}"
    return smallest if smallest == largest else f"{smallest} to {largest}"


def pages() -> dict[Path, str]:
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    tables = "\n\n".join(map(by_collection, results))
    parts = {"peers": summary(results), "better": better(results), "costs": costs(results)}
    return {FIGURES: filled(FIGURES, {"peers": tables}), COMPARISON: filled(COMPARISON, parts)}


def main() -> int:
    options = page_options(__doc__)
    options.add_argument("folders", nargs="*", type=Path, help="prepared folders with runs to measure")
    args = options.parse_args()
    RESULTS.mkdir(exist_ok=True)
    for folder in args.folders:
        result = measured(folder)
        text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
        (RESULTS / f"{result['collection']}.json").write_text(text, "utf-8")
        print(by_collection(result))
    return update(pages(), "benchmarks/quality/peers/table.py", check=args.check)


if __name__ == "__main__":
    sys.exit(main())
