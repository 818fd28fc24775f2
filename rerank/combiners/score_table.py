"""The score table for tuning, and its file."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError, UsageError, WorkspaceError
from rerank.files import parse_json, write_bytes

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_FORMAT = 2
# Errors from reading a truncated file, another file, or other fields.
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    TrainingError,
    zipfile.BadZipFile,
)


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Scores of Q queries' candidates by S signals.

    signals:      S names.
    query_ids:    Q ids.
    document_ids: ascending ids per query.
    scores:       (Q, C, S) float64 raw scores, padded with NaN.
    counts:       (Q,) candidates, can be 0.
    cases:        (Q,) category cases (``rerank.combiners.base.CASES``); a query can have several.
    key:          identifies the inputs.
    """

    signals: tuple[str, ...]
    query_ids: tuple[str, ...]
    document_ids: tuple[tuple[str, ...], ...]
    scores: Array
    counts: Integers
    key: str = ""
    cases: tuple[str, ...] = ()

    @classmethod
    def build(
        cls,
        signals: Sequence[str],
        rows: Iterable[tuple[str, Sequence[str], NDArray[Any]]],
        *,
        key: str = "",
        cases: Sequence[str] = (),
    ) -> ScoreTable:
        """Build from (query id, n document ids, (n, S) raw scores), documents in any order.

        cases: one per row, read last.

        Raises ValueError for duplicates or wrong shapes, TrainingError for non-finite scores.

        >>> rows = [("q1", ["b", "a"], np.array([[2.0, 0.1], [1.0, 0.3]]))]
        >>> table = ScoreTable.build(["bm25", "text"], rows)
        >>> table.document_ids, table.scores[0].tolist()
        ((('a', 'b'),), [[1.0, 0.3], [2.0, 0.1]])
        """
        queries: list[str] = []
        ids: list[tuple[str, ...]] = []
        blocks: list[Array] = []
        for query, documents, raw in rows:
            block = np.asarray(raw, dtype=np.float64)
            if block.size == 0 and not documents:
                block = block.reshape(0, len(signals))
            if block.shape != (len(documents), len(signals)):
                raise ValueError(
                    f"query {query!r}: scores must be ({len(documents)}, {len(signals)}), not {block.shape}"
                )
            wrong = ~np.isfinite(block)
            if wrong.any():
                name = signals[int(wrong.any(axis=0).argmax())]
                raise TrainingError(
                    f"signal {name} gave query {query!r} a score that is not finite; "
                    f"train {name} again or leave it out"
                )
            if len(set(documents)) < len(documents):
                raise ValueError(f"query {query!r}: a document occurs twice among its candidates")
            order = sorted(range(len(documents)), key=documents.__getitem__)
            queries.append(query)
            ids.append(tuple(documents[position] for position in order))
            blocks.append(block[order])
        if len(set(zip(queries, cases) if cases else queries)) < len(queries):
            raise ValueError("a query occurs twice")
        counts = np.array([len(block) for block in blocks], dtype=np.int64)
        scores = np.full((len(blocks), int(counts.max(initial=0)), len(signals)), np.nan)
        for query_index, block in enumerate(blocks):
            scores[query_index, : len(block)] = block
        return cls(tuple(signals), tuple(queries), tuple(ids), scores, counts, key, tuple(cases))

    def __len__(self) -> int:
        return len(self.query_ids)

    def of(self, case: str) -> ScoreTable:
        """Return the rows of one case."""
        rows = [row for row, found in enumerate(self.cases) if found == case]
        return ScoreTable(
            self.signals,
            tuple(self.query_ids[row] for row in rows),
            tuple(self.document_ids[row] for row in rows),
            self.scores[rows],
            self.counts[rows],
            self.key,
            (case,) * len(rows),
        )

    def only(self, signals: Sequence[str]) -> ScoreTable:
        """Return the table with these signals, in this order. Raises UsageError for an unknown one."""
        for name in signals:
            if name not in self.signals:
                raise UsageError(f"signal {name} was not scored; there are {', '.join(self.signals)}")
        columns = [self.signals.index(name) for name in signals]
        return ScoreTable(
            tuple(signals),
            self.query_ids,
            self.document_ids,
            self.scores[:, :, columns],
            self.counts,
            self.key,
            self.cases,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as npz, atomically, without pickle."""
        names = {
            "rerank_scores": _FORMAT,
            "signals": self.signals,
            "query_ids": self.query_ids,
            "document_ids": self.document_ids,
            "key": self.key,
            "cases": self.cases,
        }
        filled = [self.scores[index, :count] for index, count in enumerate(self.counts.tolist())]
        buffer = io.BytesIO()
        np.savez(
            buffer,
            names=np.frombuffer(json.dumps(names, ensure_ascii=False).encode("utf-8"), dtype=np.uint8),
            counts=self.counts,
            scores=np.concatenate([np.empty((0, len(self.signals))), *filled]),
        )
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ScoreTable:
        """Read a saved table. Raises WorkspaceError if it is missing or damaged."""
        name = os.fspath(path)
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                names = parse_json(arrays["names"].tobytes())
                counts, flat = arrays["counts"], arrays["scores"]
            if names["rerank_scores"] != _FORMAT:
                raise ValueError(f"format {names['rerank_scores']}, not {_FORMAT}")
            ends = np.cumsum(counts).tolist()
            blocks = [flat[end - count : end] for end, count in zip(ends, counts.tolist())]
            rows = list(zip(names["query_ids"], names["document_ids"], blocks, strict=True))
            return cls.build(names["signals"], rows, key=names["key"], cases=names["cases"])
        except FileNotFoundError as error:
            raise WorkspaceError(f"{name}: no such score table; compute it again") from error
        except _DAMAGED as error:
            raise WorkspaceError(f"{name}: not a usable score table ({error}); delete it") from error
