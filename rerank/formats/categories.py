"""The category graph as TSV."""

from __future__ import annotations

from rerank.formats.opening import Source
from rerank.formats.tables import read_rows


def read_categories(source: Source) -> list[tuple[str, str]]:
    """Read distinct edges ``child <tab> parent`` in file order, with or without this header.

    Raises InputError (``FILE:LINE: ...``).

    >>> path = folder / "categories.tsv"
    >>> _ = path.write_text("child\\tparent\\ngame::chess\\tgame\\n")
    >>> read_categories(path)
    [('game::chess', 'game')]
    """
    rows = read_rows(source, ("child", "parent"), "write each line as child, tab, parent")
    return list(dict.fromkeys((child, parent) for _, (child, parent) in rows))
