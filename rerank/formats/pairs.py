"""Pairs of texts or documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from rerank.common.errors import InputError
from rerank.common.values import items_not_in
from rerank.documents.records import LabeledPair
from rerank.documents.text import count_of
from rerank.formats.lines import read_json_lines
from rerank.formats.opening import Source, name_of
from rerank.formats.tables import read_rows

FindIds = Callable[[Iterable[str]], Collection[str]]
"""Returns the existing ones of some ids."""

_LAYOUT = 'write each line as {"query": "...", "document": "..."}'
_TEXTS_AS_TSV = "write each line as query, tab, document"
_TSV = re.compile(r"\.tsv(\.\w+)?$", re.IGNORECASE)
_LAYOUTS = {
    True: ("write each line as id, tab, id, tab, 1 or 0", 3),
    False: ("write each line as id, tab, id", 2),
}
"""Whether all lines have a label -> their layout, and the number of required cells."""
_LABELS = {"1": True, "0": False}
_HEADER = ("a", "b", "related")


class _Texts(Struct):
    query: str
    document: str


def read_pairs(source: Source) -> list[tuple[str, str]]:
    """Read pairs of texts: JSON lines with ``query`` and ``document``, or a TSV file with these columns.

    A name with the ending ``.tsv``, also in ``.tsv.gz``, means TSV with or without a header.

    Raises InputError (``FILE:LINE: ...``), also for an empty text or no pairs.

    >>> path = folder / "pairs.jsonl"
    >>> _ = path.write_text('{"query": "the cat", "document": "die Katze"}\\n')
    >>> read_pairs(path)
    [('the cat', 'die Katze')]
    """
    if _TSV.search(name_of(source)):
        rows = read_rows(source, ("query", "document"), _TEXTS_AS_TSV)
        pairs = [_texts(location, {}, _Texts(*cells)) for location, cells in rows]
    else:
        pairs = list(read_json_lines(source, _Texts, _texts))
    if not pairs:
        raise InputError(f"{name_of(source)}: no pairs; {_LAYOUT}")
    return pairs


def _texts(location: str, _: object, pair: _Texts) -> tuple[str, str]:
    """Return the two texts of a pair. Raises InputError for an empty one."""
    for side in ("query", "document"):
        if not getattr(pair, side).strip():
            raise InputError(f"{location}: {side} is empty; give both texts or remove the pair")
    return pair.query, pair.document


def read_labeled_pairs(source: Source, find_ids: FindIds | None = None) -> list[LabeledPair]:
    """Read labeled pairs of documents in file order.

        a <tab> b <tab> related                  with or without this header

    Labels are 1 (related) and 0. Repeated pairs in the same order, and pairs
    of equal ids, are skipped.

    find_ids: returns the existing ones of some ids; the others raise an error.

    Raises InputError (``FILE:LINE: ...``), also for unknown ids, contradicting labels, no pairs or one label.

    >>> path = folder / "pairs.tsv"
    >>> _ = path.write_text("a\\tb\\trelated\\nd1\\td2\\t1\\nd1\\td3\\t0\\n")
    >>> [tuple(pair) for pair in read_labeled_pairs(path)]
    [('d1', 'd2', True), ('d1', 'd3', False)]
    """
    first_line_of: dict[tuple[str, str], _Line] = {}
    for line in _read(source, find_ids, labels=True):
        if line.first == line.second:
            if not line.related:
                raise InputError(
                    f"{line.location}: document {line.first!r} is labeled as unrelated to itself; remove the"
                    " line"
                )
            continue
        earlier = first_line_of.setdefault((line.first, line.second), line)
        if earlier.related != line.related:
            raise InputError(
                f"{line.location}: the pair of {line.first!r} and {line.second!r} was labeled"
                f" {int(bool(earlier.related))} on line {earlier.location.rpartition(':')[2]}, now"
                f" {int(bool(line.related))}; keep one of the two"
            )
    pairs = [LabeledPair(line.first, line.second, bool(line.related)) for line in first_line_of.values()]
    labels = {pair.related for pair in pairs}
    if len(labels) < 2:
        label, missing_label = ("related", "unrelated") if True in labels else ("unrelated", "related")
        raise InputError(
            f"{name_of(source)}: {count_of(len(pairs), 'pair')}, and all {label}; add {missing_label} pairs"
        )
    return pairs


def read_unlabeled_pairs(
    source: Source, find_ids: FindIds | None = None
) -> list[tuple[str, str, bool | None]]:
    """Read pairs of documents like :func:`read_labeled_pairs`, with optional labels.

    >>> path = folder / "pairs.tsv"
    >>> _ = path.write_text("d1\\td2\\nd1\\td3\\n")
    >>> read_unlabeled_pairs(path)
    [('d1', 'd2', None), ('d1', 'd3', None)]
    """
    lines = _read(source, find_ids, labels=False)
    return [(line.first, line.second, line.related) for line in lines]


class _Line(NamedTuple):
    """A line of a file of pairs: its FILE:LINE, two ids and the label, if it has one."""

    location: str
    first: str
    second: str
    related: bool | None


def _read(source: Source, find_ids: FindIds | None, *, labels: bool) -> list[_Line]:
    """Return the lines of a file. labels: every line needs a label."""
    layout, min_cells = _LAYOUTS[labels]
    lines: list[_Line] = []
    for location, cells in read_rows(source, _HEADER, layout, min_cells=min_cells):
        related = _read_label(cells, location, layout)
        lines.append(_Line(location, cells[0], cells[1], related))
    if not lines:
        raise InputError(f"{name_of(source)}: no pairs; {layout}")
    if find_ids is not None:
        _check_ids(lines, find_ids)
    return lines


def _read_label(cells: Sequence[str], location: str, layout: str) -> bool | None:
    """Return whether the label of a line means that its documents are related; None without a label.

    Raises InputError for an unknown label.
    """
    if len(cells) < 3:
        return None
    label = cells[2]
    if label not in _LABELS:
        raise InputError(f"{location}: the label {label[:40]!r} is neither 1 (related) nor 0; {layout}")
    return _LABELS[label]


def _check_ids(lines: Sequence[_Line], find_ids: FindIds) -> None:
    """Raise InputError with the first id that does not exist."""
    locations: dict[str, str] = {}
    for line in lines:
        locations.setdefault(line.first, line.location)
        locations.setdefault(line.second, line.location)
    existing = find_ids(locations)
    unknown = items_not_in(locations, existing)
    if unknown:
        first_id = unknown[0]
        total = ""
        if len(unknown) > 1:
            total = f" ({len(unknown)} unknown ids in the file)"
        raise InputError(
            f"{locations[first_id]}: unknown document {first_id!r}{total}; ingest it, or remove the pair"
        )
