"""The base of all reports, and tables for the terminal and for notebooks."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rerank.common.errors import NotInstalledError
from rerank.common.values import is_list

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST_ROWS = 50
"""Rows that a table shows at most."""


@dataclass
class Report:
    """Base of results. ``--json`` prints its fields; notebooks show ``rows()``.

    >>> @dataclass
    ... class Counted(Report):
    ...     words: tuple[str, ...]
    ...     def rows(self):
    ...         return [{"word": word, "letters": len(word)} for word in self.words]
    >>> Counted(("fox", "wolf")).to_json()
    {'words': ['fox', 'wolf']}
    >>> Counted(("fox", "wolf"))
    word  letters
    ----  -------
    fox         3
    wolf        4
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__repr__" not in vars(cls):  # the dataclass would add one with all values
            cls.__repr__ = Report.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        rows = self.rows()
        if rows:
            return _text_table(rows)
        values = [f"{name}={repr(value)[:200]}" for name, value in _shown_fields(self).items()]
        return f"{type(self).__name__}({', '.join(values)})"

    def _repr_html_(self) -> str | None:
        rows = self.rows()
        if not rows:
            return None
        return html_table(rows)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the report's table, all with the same keys. Empty if the report has no table."""
        return []

    def to_frame(self) -> Any:
        """Return the rows as a frame of pandas. Raises NotInstalledError without pandas."""
        return frame_of(self.rows())

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the report in the types of JSON, as ``--json`` prints them."""
        values: dict[str, Any] = to_json_value(_shown_fields(self))
        return values


def frame_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Any:
    """Return rows as a frame of pandas. Raises NotInstalledError without pandas."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise NotInstalledError("pandas", "a frame") from error
    return pandas.DataFrame(rows, columns=columns)


def _text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the first rows as aligned text. Columns of texts are left-aligned."""
    cells = [list(map(cell, row.values())) for row in rows[:MOST_ROWS]]
    text_columns = {column for column, value in enumerate(rows[0].values()) if isinstance(value, str)}
    return table(list(rows[0]), cells, left_aligned=text_columns)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, left_aligned: Collection[int] = frozenset({0})
) -> str:
    """Return a table as text, with a line under the header.

    rows:         the cells of each row, as many as the header has.
    left_aligned: positions of the columns of texts. Other columns, such as numbers, end at the right.

    >>> print(table(["", "nDCG"], [["bm25", "0.5"], ["text", "0.25"]]))
          nDCG
    ----  ----
    bm25   0.5
    text  0.25
    """
    columns: list[list[str]] = []
    for position, (name, *cells) in enumerate(zip(header, *rows)):
        width = max(map(len, (name, *cells)))
        alignment = "<" if position in left_aligned else ">"
        columns.append([f"{text:{alignment}{width}}" for text in (name, "-" * width, *cells)])
    lines = map("  ".join, zip(*columns))
    return "\n".join(map(str.rstrip, lines))


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with equal keys as an HTML table.

    >>> html_table([{"word": "<fox>", "letters": 3}])
    '<table><tr><th>word</th><th>letters</th></tr><tr><td>&lt;fox&gt;</td><td>3</td></tr></table>'
    """
    lines = [_html_row("th", rows[0])]
    for row in rows[:MOST_ROWS]:
        lines.append(_html_row("td", map(cell, row.values())))
    return f"<table>{''.join(lines)}</table>"


def _html_row(tag: str, texts: Iterable[str]) -> str:
    cells = [f"<{tag}>{escape(text)}</{tag}>" for text in texts]
    return f"<tr>{''.join(cells)}</tr>"


def cell(value: object) -> str:
    """Return the text of a value in a table; numbers have four decimals."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    return str(value)


def to_json_value(value: object) -> Any:
    """Return a value of a report in the types of JSON: dict, list, str, int, float, bool and None.

    Objects with ``to_json`` and dataclasses become dicts, arrays become lists, and paths become texts.
    Numbers that JSON does not have, such as infinity, become None.

    >>> to_json_value({"sizes": (1, 2), "limit": math.inf})
    {'sizes': [1, 2], 'limit': None}
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        value = _shown_fields(value)
    if isinstance(value, Mapping):
        return {key: to_json_value(item) for key, item in value.items()}
    if is_list(value):
        return list(map(to_json_value, value))
    return _scalar_as_json(value)


def _scalar_as_json(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # arrays and their numbers
        return to_json_value(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _shown_fields(value: DataclassInstance | type[DataclassInstance]) -> dict[str, Any]:
    """Return name -> value of the fields that the representation of a dataclass shows."""
    shown_fields = filter(attrgetter("repr"), fields(value))
    return {field.name: getattr(value, field.name) for field in shown_fields}
