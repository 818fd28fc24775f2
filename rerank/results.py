"""What an action returns: a report, which is a dataclass, a JSON object and, where it is a table, rows.

Actions (``ingest``, ``attach``, ``encode``, ``train``, ``tune``, ``evaluate``) are of one shape: a workspace,
what to act on, everything else by keyword, and a report back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


@dataclass
class Report:
    """Base of what actions return. Its JSON, which has the fields of its ``repr``, is what ``--json`` prints.

    A report that is a table has ``rows()``: dictionaries of equal keys, which ``pandas.DataFrame`` takes.

    >>> @dataclass
    ... class Counted(Report):
    ...     words: tuple[str, ...]
    >>> Counted(("a", "b")).to_json()
    {'words': ['a', 'b']}
    """

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON's values: every field under its name."""
        return _fields(self)


def plain(value: Any) -> Any:
    """Return a value in JSON's: of an object what its ``to_json`` says, a dataclass's fields, a path's text.

    >>> plain({"sizes": (1, 2)})
    {'sizes': [1, 2]}
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
    return value.tolist() if hasattr(value, "tolist") else value  # arrays and their numbers


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.repr}
