"""Results of actions."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from typing import Any

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

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "__repr__" not in vars(cls):  # the dataclass would add one with all values
            cls.__repr__ = Report.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        rows = self.rows()
        if rows:
            texts = {place for place, value in enumerate(rows[0].values()) if isinstance(value, str)}
            return table(
                list(rows[0]), [list(map(cell, row.values())) for row in rows[:MOST_ROWS]], left=texts
            )
        values = ((field.name, getattr(self, field.name)) for field in fields(self) if field.repr)
        return f"{type(self).__name__}({', '.join(f'{name}={repr(value)[:200]}' for name, value in values)})"

    def _repr_html_(self) -> str | None:
        rows = self.rows()
        return html_table(rows) if rows else None

    def rows(self) -> list[dict[str, Any]]:
        """Return table rows with equal keys."""
        return []

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return _fields(self)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int] = frozenset({0})
) -> str:
    """Return a text table; ``left``: left-aligned columns."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with equal keys as an HTML table.

    >>> html_table([{"word": "<fox>", "letters": 3}])
    '<table><tr><th>word</th><th>letters</th></tr><tr><td>&lt;fox&gt;</td><td>3</td></tr></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell(value))}</td>' for value in row.values())}</tr>"
        for row in rows[:MOST_ROWS]
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def cell(value: Any) -> str:
    """Return a value for a table."""
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def plain(value: Any) -> Any:
    """Return a value as JSON. Numbers that JSON does not have, such as infinity, become None.

    >>> plain({"sizes": (1, 2), "limit": math.inf})
    {'sizes': [1, 2], 'limit': None}
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # arrays and their numbers
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.repr}
