"""Index templates: JSON files that define analysis, scoring and storage in OpenSearch.

``rerank-index-LANG``, for indices ``rerank-LANG-*``, combines the other files, which are component templates.
Each file is a request body::

    curl -fsS -X PUT "$OPENSEARCH/_component_template/rerank-mappings" \\
        -H "Content-Type: application/json" --data-binary @rerank-mappings.json

Send the components first, then the index template to ``/_index_template/rerank-index-en``.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from rerank.documents.text import STEMMERS, language

_SHARED = {"ja": "cjk", "ko": "cjk", "nb": "no", "nn": "no", "zh": "cjk"}


def analysis(lang: str | None) -> str:
    """Return the LANG of ``rerank-analysis-LANG`` for a language; default: ``neutral``.

    Raises UsageError for an invalid language code.

    >>> analysis("en-GB"), analysis("nb"), analysis("ja"), analysis("haw"), analysis(None)
    ('en', 'no', 'cjk', 'neutral', 'neutral')
    """
    code = language(lang) or "neutral"
    return _SHARED.get(code, code if code in STEMMERS else "neutral")


def component(name: str) -> dict[str, Any]:
    """Return the body of ``PUT /_component_template/NAME``.

    >>> component("rerank-similarity")["template"]["settings"]["index"]["similarity"]["rerank_bm25"]
    {'type': 'BM25', 'k1': 1.2, 'b': 0.75}
    """
    return _read(name)


def index_body(
    lang: str | None, *, shards: int, replicas: int, k1: float = 1.2, b: float = 0.75
) -> dict[str, Any]:
    """Return the body of ``PUT /INDEX``, with the same effect as the index template.

    >>> body = index_body("en", shards=1, replicas=0, k1=0.9)
    >>> body["settings"]["index"]["similarity"]["rerank_bm25"]
    {'type': 'BM25', 'k1': 0.9, 'b': 0.75}
    >>> body["settings"]["index"]["analysis"]["filter"]["rerank_stemmer"]
    {'type': 'snowball', 'language': 'English'}
    """
    body: dict[str, Any] = {}
    for name in _read(f"rerank-index-{analysis(lang)}")["composed_of"]:
        _merge(body, component(name)["template"])
    own = {"number_of_shards": shards, "number_of_replicas": replicas}
    _merge(body, {"settings": {"index": {**own, "similarity": {"rerank_bm25": {"k1": k1, "b": b}}}}})
    return body


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((resources.files(__name__) / f"{name}.json").read_text("utf-8"))
    return content


def _merge(into: dict[str, Any], other: dict[str, Any]) -> None:
    """Merge ``other`` recursively; its values win."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
