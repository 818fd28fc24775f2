"""Ids of queries that have only a text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_DIGITS = 10
"""Digits of a hash in an id."""


def query_ids(texts: Iterable[str]) -> dict[str, str]:
    """Return text -> id, which depends only on the text. Equal hashes get more digits.

    texts: in the form of :func:`rerank.documents.text.query_key`, so that equal queries have equal ids.

    >>> query_ids(["grey wolf"])
    {'grey wolf': 'cfaba5b0455'}
    """
    ids: dict[str, str] = {}
    used_ids: set[str] = set()
    for text in sorted(texts):
        digest = text_digest(text)
        length = _DIGITS
        while f"c{digest[:length]}" in used_ids:
            length += _DIGITS
        ids[text] = f"c{digest[:length]}"
        used_ids.add(ids[text])
    return ids


def text_digest(text: str) -> str:
    """Return the SHA-256 hash of a text as hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
