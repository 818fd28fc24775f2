"""Write the tables of the demo in README.md, docs/tutorials/demo.md and RESULTS.md.

    rerank demo --json >DEMO.json
    python benchmarks/quality/demo.py DEMO.json   # keeps the figures in demo.json; writes all tables
    python benchmarks/quality/demo.py --check     # exit code 1 if a table is outdated

The costs in README.md are from ``speed/hook.py --keep``.
The row of ``rerank auto`` comes from ``peers/results/demo.json``; its p is for nDCG@10 against ``bm25``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from table import RESULTS, filled, update

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).parent / "demo.json"
HOOK = Path(__file__).parents[1] / "speed" / "hook.json"
FIRST, TRAINED, FULL = "bm25", "bm25,text,meta", "bm25,text,meta,dense"
CASES = ("typed", "headings", "new")
"""Queries as people type them; with subject headings; about documents that no train query had."""
Cells = Mapping[str, Mapping[str, Any]]


def figures(report: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return stack -> case -> nDCG and p against BM25, from the output of ``rerank demo --json``."""
    kept: dict[str, dict[str, dict[str, Any]]] = {}
    parts = (report, report["with_headings"], report["new_documents"])
    for case, part in zip(CASES, parts):
        p = {one["stack"]: one["p_holm"] for one in part["comparisons"] if one["measure"] == "nDCG"}
        for row in part["results"]:
            value = {"nDCG": round(row["measures"]["nDCG"], 4), "p": p.get(row["stack"])}
            kept.setdefault(row["stack"], {})[case] = value
    return kept


def below(p: float) -> str:
    """Return ``p = 0.0123`` or ``p < 0.0001``."""
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.4f}"


def readme(found: Mapping[str, Cells], auto: Mapping[str, Any]) -> str:
    """Return the table of the README."""
    rows = {
        "BM25": (FIRST, "typed"),
        "rerank, trained on the judgments only": (TRAINED, "typed"),
        "rerank, also with a pretrained encoder (MiniLM)": (FULL, "typed"),
        "the same, queries with subject headings*": (FULL, "headings"),
    }
    lines = ["| bundled demo: 1,979 articles, 310 test queries as people type them | nDCG |", "| --- | --- |"]
    for title, (stack, case) in rows.items():
        cell = found[stack][case]
        p = "" if cell["p"] is None else f" ({below(cell['p'])})"
        lines.append(f"| {title} | {cell['nDCG']:.4f}{p} |")
    rows_of = {row["peer"]: row for row in auto["rows"]}
    p = rows_of["rerank-bm25"]["p"].get("rerank-auto")
    lines.append(
        "| `rerank auto` on the same files, queries as people type them |"
        f" {rows_of['rerank-auto']['nDCG']:.4f}{'' if p is None else f' ({below(p)})'} |"
    )
    return "\n".join(lines)


def on_new_documents(found: Mapping[str, Cells]) -> str:
    """Return the gains on documents that no train query had."""
    first, trained, full = (found[stack]["new"] for stack in (FIRST, TRAINED, FULL))
    gains = (cell["nDCG"] - first["nDCG"] for cell in (trained, full))
    without, with_encoder = (f"{gain:.4f}" for gain in gains)
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
    """Return the table of the tutorial."""
    upper = "an upper bound: the headings come from the relevant article"
    rows = (
        (f"`{FIRST}`", found[FIRST]["typed"], "the baseline: no reranking"),
        (f"`{TRAINED}`", found[TRAINED]["typed"], "the gain for users who only type words"),
        (f"`{FULL}`", found[FULL]["typed"], "also with MiniLM"),
        (f"`{FULL}`, with headings", found[FULL]["headings"], upper),
    )
    lines = ["| | nDCG | | |", "| --- | --- | --- | --- |"]
    for title, cell, note in rows:
        p = "" if cell["p"] is None else below(cell["p"])
        lines.append(f"| {title} | {cell['nDCG']:.4f} | {p} | {note} |")
    return "\n".join(lines)


def every(found: Mapping[str, Cells]) -> str:
    """Return the table with all stacks and cases."""
    lines = ["| | as typed | p | headings | p | new documents | p |", "|" + " --- |" * 7]
    for stack, cells in found.items():
        texts = []
        for case in CASES:
            cell = cells.get(case, {"nDCG": None, "p": None})
            texts.append("" if cell["nDCG"] is None else f"{cell['nDCG']:.4f}")
            texts.append("" if cell["p"] is None else below(cell["p"])[2:].removeprefix("= "))
        lines.append(f"| {stack} | {' | '.join(texts)} |")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Return path -> text of the three pages."""
    found = json.loads(KEPT.read_text())
    auto = json.loads((RESULTS / "demo.json").read_text())
    tables = {
        ROOT / "README.md": {
            "demo": readme(found, auto),
            "new": on_new_documents(found),
            "cost": cost(json.loads(HOOK.read_text())),
        },
        ROOT / "docs/tutorials/demo.md": {"demo": tutorial(found)},
        ROOT / "benchmarks/quality/RESULTS.md": {"demo": every(found)},
    }
    return {path: filled(path, parts) for path, parts in tables.items()}


def main() -> int:
    """Keep the figures of a demo, then write or compare the tables."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("report", nargs="?", type=Path, help="output of rerank demo --json")
    options.add_argument("--check", action="store_true", help="exit with 1 if a table is outdated")
    args = options.parse_args()
    if args.report:
        KEPT.write_text(json.dumps(figures(json.loads(args.report.read_text())), indent=1) + "\n")
    return update(pages(), "benchmarks/quality/demo.py", check=args.check)


if __name__ == "__main__":
    sys.exit(main())
