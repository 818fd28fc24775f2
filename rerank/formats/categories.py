"""The category graph as TSV."""

from __future__ import annotations

from rerank.formats.lines import Source, check_columns, read_texts


def read_categories(source: Source) -> list[tuple[str, str]]:
    """Read distinct edges ``child <tab> parent`` in file order, with or without this header.

    Raises InputError (``FILE:LINE: ...``).

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "categories.tsv"
    ...     _ = path.write_text("child\\tparent\\ngame::chess\\tgame\\n")
    ...     read_categories(path)
    [('game::chess', 'game')]
    """
    edges: dict[tuple[str, str], None] = {}
    first = True
    for where, text in read_texts(source):
        columns = [column.strip() for column in text.split("\t")]
        is_header = first and [column.lower() for column in columns] == ["child", "parent"]
        first = False
        if is_header:
            continue
        check_columns(where, columns, 2, "write each line as child, tab, parent")
        edges[columns[0], columns[1]] = None
    return list(edges)
