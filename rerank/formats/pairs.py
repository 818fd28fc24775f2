"""Pairs of texts that belong together: translations, comparable texts, questions with answers."""

from __future__ import annotations

import json

from rerank.errors import InputError
from rerank.formats.lines import Source, decode, name_of, read_lines

_LAYOUT = 'write each line as {"query": "...", "document": "..."}'


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
        try:
            record = json.loads(decode(source, number, line))
        except ValueError as error:
            raise InputError(f"{name}:{number}: not JSON ({error}); {_LAYOUT}") from error
        if not isinstance(record, dict):
            raise InputError(f"{name}:{number}: not a JSON object; {_LAYOUT}")
        for side in ("query", "document"):
            if not isinstance(record.get(side), str):
                raise InputError(f"{name}:{number}: {side!r} is missing or not a text; {_LAYOUT}")
            if not record[side].strip():
                raise InputError(f"{name}:{number}: {side!r} is empty; give both texts or leave the pair out")
        pairs.append((record["query"], record["document"]))
    if not pairs:
        raise InputError(f"{name}: no pairs; {_LAYOUT}")
    return pairs
