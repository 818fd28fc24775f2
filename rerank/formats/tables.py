"""Read tables with quoted fields, as spreadsheets write them."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from operator import attrgetter

from rerank.common.errors import InputError
from rerank.common.values import first_in, without_empty
from rerank.formats.contents import describe_line
from rerank.formats.lines import LONGEST, Line, check_columns, decode, read_numbered_lines
from rerank.formats.opening import Source, name_of

SEPARATORS = ("\t", ";", ",", "|")
"""Separators of columns, in the order in which they are tried."""

Row = tuple[str, list[str]]
"""FILE:LINE and the stripped cells."""

_SEPARATOR_HINT = re.compile(r'"?sep=(.)"?\s*')  # the first line of some files of Excel


def split_rows(name: str, lines: Iterator[Line], separator: str) -> Iterator[Row]:
    """Yield the rows of a table; quoted cells may contain separators and line ends.

    Raises InputError for wrong quotes and for lines that are not UTF-8.
    """
    csv.field_size_limit(LONGEST)
    begin: int | None = None  # the first line of the row

    def texts() -> Iterator[str]:
        nonlocal begin
        for number, line in lines:
            begin = begin or number
            yield decode(f"{name}:{number}", line)

    reader = csv.reader(texts(), delimiter=separator, strict=True)
    try:
        for row in reader:
            cells = list(map(str.strip, row))
            if any(cells):
                yield f"{name}:{begin}", cells
            begin = None
    except csv.Error as error:
        raise InputError(f"{name}:{begin}: {_quoting_problem(error)}") from error


def _quoting_problem(error: csv.Error) -> str:
    text = str(error)
    if "unexpected end" in text:
        problem = "a quote is not closed"
    elif "expected after" in text:
        problem = "text after a closing quote"
    else:
        if "new-line character" in text:
            text = "a carriage return inside a line"
        return f"not a table ({text}); end each row with a line feed, for example with `tr '\\r' '\\n'`"
    return f'{problem}; quote the whole cell, and write " inside it as ""'


def split_line(text: str, separator: str) -> list[str]:
    """Return the stripped cells of one line; if its quotes are wrong, split at each separator."""
    try:
        cells = next(csv.reader([text], delimiter=separator, strict=True), [])
    except csv.Error:
        cells = text.split(separator)
    return list(map(str.strip, cells))


def read_rows(
    source: Source, header: Sequence[str], layout: str, min_cells: int | None = None
) -> Iterator[Row]:
    """Yield (FILE:LINE, cells) of each row of a TSV file; the first row may be the header.

    layout: for errors. min_cells: number of required cells. Default: all.

    Raises InputError, also for another number of cells.
    """
    min_cells = min_cells or len(header)
    rows = split_rows(name_of(source), read_numbered_lines(source), "\t")
    for position, (location, cells) in enumerate(rows):
        if position == 0 and _is_header(cells, header):
            continue
        _refuse_other_content(location, cells, layout)
        has_optional_cells = min_cells < len(cells) <= len(header)
        check_columns(location, cells, len(cells) if has_optional_cells else min_cells, layout)
        yield location, cells


def _refuse_other_content(location: str, cells: Sequence[str], layout: str) -> None:
    """Raise InputError for a line that is not a row of a table, and whose kind of file is known."""
    if len(cells) > 1:
        return
    kind = describe_line(cells[0])
    if kind:
        raise InputError(f"{location}: the file looks like {kind}; {layout}")


def _is_header(cells: Sequence[str], header: Sequence[str]) -> bool:
    """Whether a row has the names of the first columns, two or more."""
    names = list(map(str.lower, cells))
    return len(names) > 1 and names == list(header[: len(names)])


class Table:
    """The header of a table, which maps columns to fields.

    separator: between cells.
    columns:   field -> position of its column.
    others:    name -> position of each other column.
    repeated:  names that several columns have.
    """

    def __init__(self, separator: str, cells: Sequence[str], aliases: Mapping[str, Sequence[str]]) -> None:
        self.separator = separator
        self.width = len(cells)
        names = list(map(normalize_column, cells))
        self.columns = _columns_of_fields(names, aliases)
        self.others = _other_columns(cells, self.columns)
        self.repeated = _repeated(names)

    def fields(self, location: str, cells: Sequence[str]) -> dict[str, str]:
        """Return field -> cell without empty cells. Raises InputError for another number of cells."""
        if len(cells) != self.width:
            raise InputError(
                f"{location}: {len(cells)} cells, but the header has {self.width}; quote cells that contain"
                f" {self.separator!r}"
            )
        positions = {**self.others, **self.columns}
        return without_empty({name: cells[position] for name, position in positions.items()})


def _repeated(names: Sequence[str]) -> list[str]:
    """Return the names that several columns have. Columns without a name do not count."""
    counts = Counter(filter(None, names))
    return list(counts - Counter(set(names)))


def _other_columns(cells: Sequence[str], columns: Mapping[str, int]) -> dict[str, int]:
    """Return name -> position of each column that has a name and is not the column of a field."""
    used_positions = set(columns.values())
    positions = dict(zip(cells, count()))
    positions.pop("", None)
    return {name: position for name, position in positions.items() if position not in used_positions}


def _columns_of_fields(names: Sequence[str], aliases: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return field -> position of the column with the first of its names that the table has."""
    columns: dict[str, int] = {}
    for field, field_names in aliases.items():
        name = first_in(field_names, names)
        if name is not None:
            columns[field] = names.index(name)
    return columns


def read_header(text: str, aliases: Mapping[str, Sequence[str]]) -> Table | None:
    """Return the table that begins with this line, or None if the line names no field.

    aliases: field -> names of its column, the preferred name first.
    """
    tables = []
    for separator in SEPARATORS:
        cells = split_line(text, separator)
        if len(cells) > 1:
            tables.append(Table(separator, cells, aliases))
    named_tables = filter(attrgetter("columns"), tables)
    return max(named_tables, key=lambda table: len(table.columns), default=None)


def format_rows(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as TSV, with quotes where :func:`split_rows` needs them.

    >>> format_rows([("a", 'x"y'), ("b", 1)]).split()
    ['a', '"x""y"', 'b', '1']
    """
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows(rows)
    return text.getvalue()


def skip_separator_hint(lines: Iterator[Line]) -> Iterator[Line]:
    """Yield the lines without a first line such as ``sep=;``."""
    for number, line in islice(lines, 1):
        if not _SEPARATOR_HINT.fullmatch(line.decode("utf-8", "replace")):
            yield number, line
    yield from lines


def normalize_column(name: str) -> str:
    """Return the name of a column for comparisons.

    >>> normalize_column(" Query ID"), normalize_column("_id")
    ('query-id', 'id')
    """
    return name.strip(' "').lower().replace("_", "-").replace(" ", "-").strip("-")
