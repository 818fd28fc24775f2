"""Frames of pandas, and data sets with the interface of ``ir_datasets``. Neither package is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from rerank.common.errors import UsageError
from rerank.common.values import first_in
from rerank.formats.tables import normalize_column

DOCUMENTS = "docs"
QUERIES = "queries"
JUDGMENTS = "qrels"


def is_frame(values: object) -> bool:
    """Return whether a value is a table with named columns, such as a frame of pandas."""
    return hasattr(values, "columns") and callable(getattr(values, "to_dict", None))


def is_data_set(values: object) -> bool:
    """Return whether a value iterates documents, queries or judgments as ``ir_datasets`` does."""
    return any(hasattr(values, f"{kind}_iter") for kind in (DOCUMENTS, QUERIES, JUDGMENTS))


def is_tabular(values: object) -> bool:
    """Return whether :func:`read_frame` can read a value."""
    return is_frame(values) or is_data_set(values)


def read_frame(values: Any, kind: str, columns: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a frame, or the records of a data set, one by one.

    kind: DOCUMENTS, QUERIES or JUDGMENTS. columns: field -> names of its column; other columns keep theirs.

    Raises UsageError for a data set without such records, and for a missing column of the first field.
    """
    rows = _frame_rows(values) if is_frame(values) else _data_set_rows(values, kind)
    fields_of = cache(partial(_fields_of_columns, kind=kind, columns=columns))
    for row in rows:
        fields = fields_of(tuple(row))
        yield {fields.get(column, column): value for column, value in row.items()}


def _frame_rows(frame: Any) -> Iterator[dict[str, Any]]:
    columns = list(map(str, frame.columns))
    for values in frame.itertuples(index=False, name=None):
        yield dict(zip(columns, values))


def _data_set_rows(data_set: Any, kind: str) -> Iterator[dict[str, Any]]:
    iterate = getattr(data_set, f"{kind}_iter", None)
    if iterate is None:
        raise UsageError(f"{kind}: the data set has no {kind}_iter; give one that has {kind}")
    for record in iterate():
        row = dict(record._asdict())
        if kind != JUDGMENTS and "text" not in row and hasattr(record, "default_text"):
            row["text"] = record.default_text()
        yield row


def _fields_of_columns(
    names: Sequence[str], kind: str, columns: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return column -> field for the columns of records. Raises UsageError without the first field."""
    fields: dict[str, str] = {}
    for field, aliases in columns.items():
        column = _column_of_field(field, aliases, names)
        if column is not None:
            fields[column] = field
    required = next(iter(columns))
    if required not in fields.values():
        raise UsageError(
            f"{kind}: no column {required}, {', '.join(columns[required][:3])}; the columns are"
            f" {', '.join(names)}"
        )
    return fields


def _column_of_field(field: str, aliases: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the column with the name of the field, else the one with the first alias that a column has."""
    if field in names:
        return field
    normalized_names = list(map(normalize_column, names))
    alias = first_in((field, *aliases), normalized_names)
    if alias is None:
        return None
    return names[normalized_names.index(alias)]
