"""Read and write ``growth.jsonl``: one measurement of a growing collection per line.

Each line has these fields:

    place                      ``folder`` (the embedded engine) or ``node`` (OpenSearch)
    documents                  size of the collection
    measure                    a key of ``UNITS``
    series                     what was measured, for example ``bm25, depth 100``
    value, unit                the figure
    date, commit, machine      the origin
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.origin import measured_here
from rerank.common.files import folder_lock, write_text

FILE = Path(__file__).parent / "growth.jsonl"
UNITS = {
    "ingest": "documents per processor second",
    "encoding": "documents per processor second",
    "disk": "bytes per document",
    "index build": "s of processor time",
    "memory": "MiB",
    "first query": "ms of processor time",
    "first query, wall": "ms",
    "next query": "ms of processor time",
    "next query, wall": "ms",
    "ratio": "times",
    "recall": "share",
}
"""Measure -> unit of its values."""


@dataclass(frozen=True)
class Measurement:
    """A figure and its origin. The fields are those of a line."""

    place: str
    documents: int
    measure: str
    series: str
    value: float
    unit: str
    date: str
    commit: str
    machine: str

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What was measured. A later measurement replaces an earlier one with the same key."""
        return self.place, self.measure, self.series, self.documents


def read_measurements(path: Path = FILE) -> list[Measurement]:
    """Return the measurements of a file; none if it does not exist."""
    if not path.exists():
        return []
    return [Measurement(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


@dataclass(frozen=True)
class Recorder:
    """Prints the measurements of one place and size, and adds them to a file.

    path: the file; None: only print.
    """

    place: str
    documents: int
    path: Path | None

    def add(self, measure: str, values: Mapping[str, float]) -> None:
        """Add the values of a measure: series -> value."""
        unit = UNITS[measure]
        origin = measured_here()
        for series, value in values.items():
            print(f"  {self.documents:,} {measure}, {series}: {value:,.4g} {unit}", flush=True)
            rounded = float(f"{value:.4g}")
            self._write(Measurement(self.place, self.documents, measure, series, rounded, unit, **origin))

    def _write(self, measurement: Measurement) -> None:
        """Write a measurement to the file, in the order of the keys. Several scripts can write at once."""
        if self.path is None:
            return
        with folder_lock(self.path.parent, "adding measurements", patience=60):
            measurements = {earlier.key: earlier for earlier in read_measurements(self.path)}
            measurements[measurement.key] = measurement
            lines = [json.dumps(asdict(measurements[key])) for key in sorted(measurements)]
            write_text(self.path, "\n".join(lines) + "\n")
