"""Write the tables of the demo in README.md, docs/install.md and RESULTS.md.

    rerank demo --json >DEMO.json
    python benchmarks/quality/demo.py DEMO.json   # keeps the figures in demo.json; writes all tables
    python benchmarks/quality/demo.py --check     # exit code 1 if a table is outdated

The costs in README.md are from ``speed/hook.py --keep``.
The tables of collections in README.md are from ``peers/results``. p is for nDCG@10 against ``rerank auto``,
with Holm's correction for all peers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent / "peers"), str(Path(__file__).resolve().parents[2])]

from table import RESULTS

from benchmarks.common.pages import ROOT, filled, markdown_table, page_options, update

KEPT = Path(__file__).parent / "demo.json"
HOOK = Path(__file__).parents[1] / "speed" / "hook.json"
MINILM = Path(__file__).parent / "minilm.json"
"""nDCG@10 of ``rerank auto`` with MiniLM, of 29 November 2026."""
FIRST, TRAINED, FULL = "bm25", "bm25,text,meta", "bm25,text,meta,dense"
CASES = ("typed", "short", "headings", "new")
"""Summaries; short queries; summaries with subject headings; about documents that no train query had."""
MEASURE = "nDCG@10"
HEADS = (MEASURE, "recall@100", "p", "preparation", "bytes per document", "ms per query", "memory")
FUSIONS = {
    "opensearch-hybrid": "OpenSearch's hybrid query with the same encoder",
    "bm25+encoder": "BM25 and the same encoder, weighted (ranx)",
}
"""Peers that add BM25 and an untrained encoder, with weights tuned on dev."""
Cells = Mapping[str, Mapping[str, Any]]


def figures(report: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return stack -> case -> nDCG@10, R@100 and p against BM25, from ``rerank demo --json``."""
    figures_by_stack: dict[str, dict[str, dict[str, Any]]] = {}
    parts = (report, report["short"], report["with_headings"], report["new_documents"])
    for case, part in zip(CASES, parts):
        p = {row["stack"]: row["p_holm"] for row in part["comparisons"] if row["measure"] == MEASURE}
        for row in part["results"]:
            values = {name: round(row["measures"][name], 4) for name in (MEASURE, "R@100")}
            figures_by_stack.setdefault(row["stack"], {})[case] = {**values, "p": p.get(row["stack"])}
    return figures_by_stack


def p_cell(p: float | None) -> str:
    """Return ``0.0123``, ``< 0.0001``, or no text without a test."""
    if p is None:
        return ""
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def readme(results: Mapping[str, Any]) -> str:
    """Return the table of the README, from the comparison with other programs on the demo."""
    rows = {row["peer"]: row for row in results["rows"]}
    strongest = max(FUSIONS, key=lambda peer: rows[peer][MEASURE])
    titles = {"rerank-bm25": "BM25", strongest: FUSIONS[strongest], "rerank-auto": "`rerank auto FOLDER`"}
    counts = f"{results['documents']:,} articles, {results['queries']['test']} summaries as queries"
    lines: list[list[str]] = []
    for peer, title in titles.items():
        row = rows[peer]
        costs = ["", "", f"{row['p50_ms']:.0f}", ""]  # the rest of BM25 was measured with all rankers only
        if peer != "rerank-bm25":
            minutes = (row["training_s"] + row.get("indexing_s", 0)) / 60
            size = row["index_bytes"] / results["documents"]
            costs = [f"{minutes:.0f} min", f"{size:,.0f}", costs[2], f"{row['memory_mib']:,} MiB"]
        measures = [f"{row[MEASURE]:.4f}", f"{row['R@100']:.4f}"]
        lines.append([title, *measures, p_cell(row["p"].get("rerank-auto")), *costs])
    return markdown_table([f"bundled demo: {counts}", *HEADS], lines)


def all_collections(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the README with nDCG@10 on all collections of the comparison."""
    titles = {
        "rerank-bm25": "BM25",
        "bm25+encoder": "BM25 and the encoder, weighted (ranx)",
        "opensearch-hybrid": "OpenSearch's hybrid query",
        "rerank-auto": "`rerank auto FOLDER`",
    }
    names = [result["collection"] for result in results]
    queries = [f"{result['queries']['test']:,}" for result in results]
    lines = [["test queries", *queries]]
    for peer, title in titles.items():
        rows = [row for result in results for row in result["rows"] if row["peer"] == peer]
        lines.append([title, *(f"{row[MEASURE]:.4f}" for row in rows)])
    minilm_values = json.loads(MINILM.read_text("utf-8"))["auto"]
    with_other_encoder = [result["encoder"] != "MiniLM" for result in results]
    cells = [f"{minilm_values[name]:.4f}" if other else "" for name, other in zip(names, with_other_encoder)]
    lines.append(["`rerank auto FOLDER` with MiniLM", *cells])
    return markdown_table([MEASURE, *names], lines)


def on_new_documents(found: Mapping[str, Cells]) -> str:
    """Return the gains on documents that no train query had."""
    first, trained, full = (found[stack]["new"] for stack in (FIRST, TRAINED, FULL))
    without, with_encoder = (f"{cell[MEASURE] - first[MEASURE]:.4f}" for cell in (trained, full))
    return f"the gain without the encoder is {without}, p = {trained['p']:.2f}; with it {with_encoder}"


def cost(hook: Mapping[str, Mapping[str, float]]) -> str:
    """Return bytes per document, and the time that the hook adds."""
    size, times = hook["bytes"], hook["p50 ms"]
    added = times["hook, depth 100"] - times["plain, 10 hits"]
    return (
        f"{size['text'] + size['meta']} bytes per document for the two default models, {size['dense']} more"
        f" for the encoder; {added:.1f} ms added to a search for 10 hits through the OpenSearch plugin"
    )


def tutorial(found: Mapping[str, Cells]) -> str:
    notes = ("the baseline: no reranking", "trained on the judgments only", "also with MiniLM")
    lines = [f"| | {MEASURE} | | |", "| --- | --- | --- | --- |"]
    for stack, note in zip((FIRST, TRAINED, FULL), notes):
        cell = found[stack]["typed"]
        p = p_cell(cell["p"])
        p_text = p and (f"p {p}" if p.startswith("<") else f"p = {p}")
        lines.append(f"| `{stack}` | {cell[MEASURE]:.4f} | {p_text} | {note} |")
    return "\n".join(lines)


def every(found: Mapping[str, Cells]) -> str:
    """Return the table with all stacks and cases."""
    lines = ["| | summaries | p | short queries | p | headings | p | new documents | p |", "|" + " --- |" * 9]
    for stack, cells in found.items():
        texts = []
        for case in CASES:
            cell = cells.get(case)
            texts += [f"{cell[MEASURE]:.4f}", p_cell(cell["p"])] if cell else ["", ""]
        lines.append(f"| {stack} | {' | '.join(texts)} |")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    found = json.loads(KEPT.read_text())
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    on_demo = next(result for result in results if result["collection"] == "demo")
    tables = {
        ROOT / "README.md": {
            "demo": readme(on_demo),
            "collections": all_collections(results),
            "new": on_new_documents(found),
            "cost": cost(json.loads(HOOK.read_text())),
        },
        ROOT / "docs/install.md": {"demo": tutorial(found)},
        ROOT / "benchmarks/quality/RESULTS.md": {"demo": every(found)},
    }
    return {path: filled(path, parts) for path, parts in tables.items()}


def main() -> int:
    options = page_options(__doc__)
    options.add_argument("report", nargs="?", type=Path, help="output of rerank demo --json")
    args = options.parse_args()
    if args.report:
        KEPT.write_text(json.dumps(figures(json.loads(args.report.read_text())), indent=1) + "\n")
    return update(pages(), "benchmarks/quality/demo.py", check=args.check)


if __name__ == "__main__":
    sys.exit(main())
