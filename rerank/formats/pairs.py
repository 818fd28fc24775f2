"""Pairs: texts that belong together, and documents that are labeled as related or not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from rerank.errors import InputError
from rerank.files import parse_json, write_text
from rerank.formats.lines import Source, decode, name_of, read_lines
from rerank.records import LabeledPair
from rerank.text import plural

_LAYOUT = 'write each line as {"query": "...", "document": "..."}'
_LABELED = 'write each line as id, tab, id, tab, 1 or 0, or as {"a": id, "b": id, "related": 1}'
_UNLABELED = 'write each line as id, tab, id, or as {"a": id, "b": id}'
_LABELS = {"1": True, "0": False}
_HEADER = ("a", "b", "related")


def read_pairs(source: Source) -> list[tuple[str, str]]:
    """Read JSON lines of ``query`` and ``document``, two texts that belong together.

    Other fields are ignored. Plain or gzip'd; ``-`` is standard input.

    Raises InputError as ``FILE:LINE: what; what to do``: no JSON object, a side that is missing, no text or
    empty, a file without pairs.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "pairs.jsonl"
    ...     _ = path.write_text('{"query": "the cat", "document": "die Katze"}\\n')
    ...     read_pairs(path)
    [('the cat', 'die Katze')]
    """
    name = name_of(source)
    pairs = []
    for number, line in read_lines(source):
        record = _object(f"{name}:{number}", decode(source, number, line), _LAYOUT)
        for side in ("query", "document"):
            if not isinstance(record.get(side), str):
                raise InputError(f"{name}:{number}: {side!r} is missing or not a text; {_LAYOUT}")
            if not record[side].strip():
                raise InputError(f"{name}:{number}: {side!r} is empty; give both texts or leave the pair out")
        pairs.append((record["query"], record["document"]))
    if not pairs:
        raise InputError(f"{name}: no pairs; {_LAYOUT}")
    return pairs


def read_labeled_pairs(
    source: Source,
    known: Callable[[Iterable[str]], Collection[str]] | None = None,
    *,
    remark: Callable[[str], object] | None = None,
) -> list[LabeledPair]:
    """Read labeled pairs of documents, in the file's order: TSV or JSON lines, told apart by the first line.

        a <tab> b <tab> related                  with or without this header; ids may hold spaces
        {"a": "d1", "b": "d2", "related": 1}     other fields are ignored

    A label is 1 (related) or 0 (not); JSON may also say true or false. Plain or gzip'd; ``-`` is standard
    input. A pair may be there both ways round. What occurs again with the same label is kept once, a document
    that is paired with itself is left out: both are counted in lines passed to ``remark``.

    known: those of the given ids that there are documents with, as :meth:`rerank.Engine.contains`.

    Raises InputError as ``FILE:LINE: what; what to do``: columns or fields that are missing, another label,
    an id that is unknown, the same pair with both labels, a document unrelated to itself; and as
    ``FILE: what; what to do`` where there are no pairs, or all have one label.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "pairs.tsv"
    ...     _ = path.write_text("a\\tb\\trelated\\nd1\\td2\\t1\\nd1\\td3\\t0\\n")
    ...     [tuple(pair) for pair in read_labeled_pairs(path)]
    [('d1', 'd2', True), ('d1', 'd3', False)]
    """
    name = name_of(source)
    found: dict[tuple[str, str], tuple[int, bool]] = {}
    again = itself = 0
    for number, a, b, related in _lines(source, labels=True):
        where = f"{name}:{number}"
        assert related is not None
        if a == b:
            if not related:
                raise InputError(f"{where}: document {a!r} is labeled as unrelated to itself; take it out")
            itself += 1
            continue
        first, label = found.setdefault((a, b), (number, related))
        if label != related:
            raise InputError(
                f"{where}: the pair of {a!r} and {b!r} was labeled {int(label)} on line {first}, now"
                f" {int(related)}; keep one of the two"
            )
        again += first != number
    _check_known(name, ((number, *pair) for pair, (number, _) in found.items()), known)
    pairs = [LabeledPair(a, b, related) for (a, b), (_, related) in found.items()]
    if not pairs:
        raise InputError(f"{name}: no pairs; {_LABELED}")
    if len({pair.related for pair in pairs}) == 1:
        one, other = ("related", "unrelated")[:: 1 if pairs[0].related else -1]
        raise InputError(
            f"{name}: {plural(len(pairs), 'pair[|s]')}, and all {one}; give {other} ones, too, or mine"
            f" pairs with `rerank mine pairs`"
        )
    if remark is not None:
        if again:
            remark(
                f"{name}: {plural(again, 'pair[ occurs|s occur]')} again with the same label:"
                " each counts once"
            )
        if itself:
            remark(f"{name}: {plural(itself, 'pair[|s]')} of a document with itself left out")
    return pairs


def read_unlabeled_pairs(
    source: Source, known: Callable[[Iterable[str]], Collection[str]] | None = None
) -> list[tuple[str, str, bool | None]]:
    """Read pairs of documents that may have labels, all of them, in the file's order.

    The layouts of :func:`read_labeled_pairs`, where the label may be left out: None stands for it.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "pairs.tsv"
    ...     _ = path.write_text("d1\\td2\\nd1\\td3\\n")
    ...     read_unlabeled_pairs(path)
    [('d1', 'd2', None), ('d1', 'd3', None)]
    """
    name = name_of(source)
    lines = list(_lines(source, labels=False))
    if not lines:
        raise InputError(f"{name}: no pairs; {_UNLABELED}")
    _check_known(name, ((number, a, b) for number, a, b, _ in lines), known)
    return [(a, b, related) for _, a, b, related in lines]


def write_labeled_pairs(path: str | os.PathLike[str], pairs: Iterable[LabeledPair]) -> None:
    """Write a file that :func:`read_labeled_pairs` reads: JSON lines where it ends in ``.jsonl``, else TSV.

    Raises InputError for an id with a tab or the end of a line in it, which TSV cannot hold.
    """
    if os.fspath(path).endswith(".jsonl"):
        lines = [
            json.dumps({"a": a, "b": b, "related": int(related)}, ensure_ascii=False)
            for a, b, related in pairs
        ]
    else:
        lines = ["\t".join(_HEADER)]
        for a, b, related in pairs:
            for one in (a, b):
                if not in_tsv(one):
                    raise InputError(f"{os.fspath(path)}: no TSV can hold the id {one!r}; call it .jsonl")
            lines.append(f"{a}\t{b}\t{int(related)}")
    write_text(path, "".join(f"{line}\n" for line in lines), follow=True)


def in_tsv(name: str) -> bool:
    """Whether TSV can hold an id.

    >>> in_tsv("d 1"), in_tsv("d\\t1")
    (True, False)
    """
    return name == name.strip() and len(name.splitlines()) == 1 and "\t" not in name


def _object(where: str, text: str, layout: str) -> dict[str, Any]:
    """Parse a line as a JSON object."""
    try:
        record = parse_json(text)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error}); {layout}") from error
    if not isinstance(record, dict):
        raise InputError(f"{where}: not a JSON object; {layout}")
    return record


def _lines(source: Source, *, labels: bool) -> Iterator[tuple[int, str, str, bool | None]]:
    """Yield (line number, id, id, label) of every line; without ``labels`` it may be None."""
    name, layout = name_of(source), _LABELED if labels else _UNLABELED
    is_json: bool | None = None
    for number, line in read_lines(source):
        where, text = f"{name}:{number}", decode(source, number, line)
        first, is_json = is_json is None, text.lstrip().startswith("{") if is_json is None else is_json
        if is_json:
            record = _object(where, text, layout)
            columns = [_cell(where, record, field, layout) for field in _HEADER]
            if columns[2] == "" and not labels:
                columns.pop()
        else:
            columns = [column.strip() for column in text.split("\t")]
            if first and tuple(column.lower() for column in columns) in (_HEADER, _HEADER[:2]):
                continue
        if len(columns) not in ((3,) if labels else (2, 3)) or not all(columns):
            filled = sum(map(bool, columns))
            raise InputError(f"{where}: {filled} filled columns, not {3 if labels else 2}; {layout}")
        label = columns[2] if len(columns) == 3 else None
        if label is not None and label not in _LABELS:
            raise InputError(f"{where}: the label {label[:40]!r} is neither 1 (related) nor 0; {layout}")
        yield number, columns[0], columns[1], None if label is None else _LABELS[label]


def _cell(where: str, record: dict[str, Any], field: str, layout: str) -> str:
    """A field of a JSON object as a column of TSV: ids may be integers, labels true or false."""
    value = record.get(field)
    if value is None:
        return ""
    if field == "related":
        return str(int(value)) if isinstance(value, (bool, int)) else str(value)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InputError(f"{where}: {field!r} is no id; {layout}")
    return str(value)


def _check_known(
    name: str,
    lines: Iterable[tuple[int, str, str]],
    known: Callable[[Iterable[str]], Collection[str]] | None,
) -> None:
    """Raise InputError for the first id that there is no document with."""
    if known is None:
        return
    ids: dict[str, int] = {}
    for number, a, b in lines:
        ids.setdefault(a, number)
        ids.setdefault(b, number)
    there = known(ids)
    lacking = [one for one in ids if one not in there]
    if lacking:
        more = f" ({len(lacking)} ids of the file are not)" if len(lacking) > 1 else ""
        raise InputError(
            f"{name}:{ids[lacking[0]]}: there is no document {lacking[0]!r}{more}; ingest it, or take the"
            " pair out"
        )
