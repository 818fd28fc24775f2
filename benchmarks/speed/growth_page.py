"""Write the figure and the tables of growing collections into the docs, from ``growth.jsonl``.

python benchmarks/speed/growth_page.py            # after growth.py --keep and growth_node.py --keep
python benchmarks/speed/growth_page.py --check    # exit code 1 if a page or the figure is outdated
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2])]

from growth_figure import draw
from growth_results import Measurement, read_measurements

from benchmarks.common.pages import ROOT, filled, markdown_table, page_options, update

FIGURE = ROOT / "docs" / "img" / "growth.svg"
FIRST_STAGE = ROOT / "docs" / "guides" / "first-stage.md"
OPERATE = ROOT / "docs" / "guides" / "operate.md"
Column = tuple[str, Sequence[tuple[str, str]]]
"""A title, and the measures and series whose values are in a cell."""

TEXT_COLUMNS: Sequence[Column] = (
    ("ingest, documents per processor second", [("ingest", "bm25 and tfidf")]),
    ("bytes per document", [("disk", "documents and text index")]),
    ("first query", [("first query", "bm25")]),
    ("next queries, BM25", [("next query", "bm25, depth 100"), ("next query", "bm25, depth 1000")]),
    ("next queries, tf-idf", [("next query", "tfidf, depth 100"), ("next query", "tfidf, depth 1000")]),
    ("memory, MiB", [("memory", "bm25 queries"), ("memory", "tfidf queries")]),
)
UNION_COLUMNS: Sequence[Column] = (
    ("bytes per vector, with index", [("disk", "vectors of lsi")]),
    ("build of the index, s", [("index build", "lsi")]),
    ("BM25 only", [("next query", "stack, depth 100"), ("next query", "stack, depth 1000")]),
    ("union", [("next query", "union, depth 100"), ("next query", "union, depth 1000")]),
    ("ratio", [("ratio", "union, depth 100"), ("ratio", "union, depth 1000")]),
    ("recall", [("recall", "lsi:100")]),
    ("memory, MiB", [("memory", "union queries")]),
)
NODE_COLUMNS: Sequence[Column] = (
    ("ingest, client and node", [("ingest", "client"), ("ingest", "node")]),
    ("bytes per document", [("disk", "index with features")]),
    ("first search, plain and hooked", [("first query", "plain"), ("first query", "hooked, depth 100")]),
    ("plain search", [("next query", "plain")]),
    ("hooked", [("next query", "hooked, depth 100"), ("next query", "hooked, depth 1000")]),
    ("service", [("next query", "service, depth 100"), ("next query", "service, depth 1000")]),
    ("latency, times plain", [("ratio", "hooked, depth 100"), ("ratio", "hooked, depth 1000")]),
    ("memory of node and service, MiB", [("memory", "node"), ("memory", "service")]),
)


def shown(measure: str, value: float) -> str:
    """Return a value with the digits that a reader needs."""
    if measure == "recall":
        return f"{value:.3f}"
    if measure == "ratio":
        return f"{value:.2f}"
    if measure == "ingest":
        return f"{round(value, -2):,.0f}"
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def table(measurements: Sequence[Measurement], place: str, columns: Sequence[Column]) -> str:
    """Return a table with a row per size of the collection."""
    values = {measurement.key: measurement.value for measurement in measurements}
    sizes = sorted({measurement.documents for measurement in measurements if measurement.place == place})
    rows: list[list[str]] = []
    for size in sizes:
        cells = [f"{size:,}"]
        for _, names in columns:
            figures = [(measure, values.get((place, measure, series, size))) for measure, series in names]
            cells.append(", ".join(shown(measure, value) for measure, value in figures if value is not None))
        rows.append(cells)
    return markdown_table(["documents", *(title for title, _ in columns)], rows)


def main() -> int:
    args = page_options(__doc__).parse_args()
    measurements = read_measurements()
    folder_parts = {
        "growth": table(measurements, "folder", TEXT_COLUMNS),
        "growth-union": table(measurements, "folder", UNION_COLUMNS),
    }
    texts = {
        FIGURE: draw(measurements),
        FIRST_STAGE: filled(FIRST_STAGE, folder_parts),
        OPERATE: filled(OPERATE, {"growth-node": table(measurements, "node", NODE_COLUMNS)}),
    }
    return update(texts, "benchmarks/speed/growth_page.py", check=args.check)


if __name__ == "__main__":
    sys.exit(main())
