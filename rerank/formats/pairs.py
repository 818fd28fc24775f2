"""Pairs of texts or documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from msgspec import Struct

from rerank.errors import InputError
from rerank.formats.lines import read_json_lines
from rerank.formats.opening import Source, name_of
from rerank.formats.tables import read_rows
from rerank.records import LabeledPair
from rerank.text import count_of

Known = Callable[[Iterable[str]], Collection[str]]

_LAYOUT = 'write each line as {"query": "...", "document": "..."}'
_LABELED = "write each line as id, tab, id, tab, 1 or 0"
_UNLABELED = "write each line as id, tab, id"
_LABELS = {"1": True, "0": False}
_HEADER = ("a", "b", "related")


class _Texts(Struct):
    query: str
    document: str


def read_pairs(source: Source) -> list[tuple[str, str]]:
    """Read pairs of texts: JSON lines with ``query`` and ``document``.

    Raises InputError (``FILE:LINE: ...``), also for an empty text or no pairs.

    >>> path = folder / "pairs.jsonl"
    >>> _ = path.write_text('{"query": "the cat", "document": "die Katze"}\\n')
    >>> read_pairs(path)
    [('the cat', 'die Katze')]
    """

    def build(where: str, _: object, pair: _Texts) -> tuple[str, str]:
        for side in ("query", "document"):
            if not getattr(pair, side).strip():
                raise InputError(f"{where}: {side} is empty; give both texts or remove the pair")
        return pair.query, pair.document

    pairs = list(read_json_lines(source, _Texts, build))
    if not pairs:
        raise InputError(f"{name_of(source)}: no pairs; {_LAYOUT}")
    return pairs


def read_labeled_pairs(source: Source, known: Known | None = None) -> list[LabeledPair]:
    """Read labeled pairs of documents in file order.

        a <tab> b <tab> related                  with or without this header

    Labels are 1 (related) and 0. Repeated pairs in the same order, and pairs
    of equal ids, are skipped.

    known: returns the existing ids among given ids.

    Raises InputError (``FILE:LINE: ...``), also for unknown ids, contradicting labels, no pairs or one label.

    >>> path = folder / "pairs.tsv"
    >>> _ = path.write_text("a\\tb\\trelated\\nd1\\td2\\t1\\nd1\\td3\\t0\\n")
    >>> [tuple(pair) for pair in read_labeled_pairs(path)]
    [('d1', 'd2', True), ('d1', 'd3', False)]
    """
    labels: dict[tuple[str, str], tuple[str, bool]] = {}
    for where, a, b, related in _read(source, known, labels=True):
        assert related is not None
        if a == b:
            if not related:
                raise InputError(
                    f"{where}: document {a!r} is labeled as unrelated to itself; remove the line"
                )
            continue
        first, label = labels.setdefault((a, b), (where, related))
        if label != related:
            raise InputError(
                f"{where}: the pair of {a!r} and {b!r} was labeled {int(label)} on line"
                f" {first.rpartition(':')[2]}, now {int(related)}; keep one of the two"
            )
    pairs = [LabeledPair(a, b, related) for (a, b), (_, related) in labels.items()]
    if len({pair.related for pair in pairs}) < 2:
        one, other = ("related", "unrelated")[:: 1 if pairs and pairs[0].related else -1]
        raise InputError(
            f"{name_of(source)}: {count_of(len(pairs), 'pair')}, and all {one}; add {other} pairs"
        )
    return pairs


def read_unlabeled_pairs(source: Source, known: Known | None = None) -> list[tuple[str, str, bool | None]]:
    """Read pairs of documents like :func:`read_labeled_pairs`, with optional labels.

    >>> path = folder / "pairs.tsv"
    >>> _ = path.write_text("d1\\td2\\nd1\\td3\\n")
    >>> read_unlabeled_pairs(path)
    [('d1', 'd2', None), ('d1', 'd3', None)]
    """
    return [(a, b, related) for _, a, b, related in _read(source, known, labels=False)]


def _read(source: Source, known: Known | None, *, labels: bool) -> list[tuple[str, str, str, bool | None]]:
    """Return FILE:LINE, ids and label of each pair."""
    layout = _LABELED if labels else _UNLABELED
    lines: list[tuple[str, str, str, bool | None]] = []
    places: dict[str, str] = {}
    for where, (a, b, *rest) in read_rows(source, _HEADER, layout, least=3 if labels else 2):
        if rest and rest[0] not in _LABELS:
            raise InputError(f"{where}: the label {rest[0][:40]!r} is neither 1 (related) nor 0; {layout}")
        lines.append((where, a, b, _LABELS[rest[0]] if rest else None))
        places.setdefault(a, where)
        places.setdefault(b, where)
    if not lines:
        raise InputError(f"{name_of(source)}: no pairs; {layout}")
    existing = places if known is None else known(places)
    unknown = [one for one in places if one not in existing]
    if unknown:
        more = f" ({len(unknown)} unknown ids in the file)" if len(unknown) > 1 else ""
        raise InputError(
            f"{places[unknown[0]]}: there is no document {unknown[0]!r}{more}; ingest it, or remove the pair"
        )
    return lines
