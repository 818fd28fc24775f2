"""Index templates: how OpenSearch analyses, scores and stores the documents of rerank, as plain JSON.

``rerank-similarity``, ``rerank-analysis-LANG``, ``rerank-mappings`` and ``rerank-features`` are component
templates, ``rerank-index-LANG`` composes them into the index template of the indices ``rerank-LANG-*``.
Every file is the body of the request that is named as the file, so they can be put by hand, in this folder::

    curl -fsS -X PUT "$OPENSEARCH/_component_template/rerank-mappings" \\
        -H "Content-Type: application/json" --data-binary @rerank-mappings.json

and after all components of one language its index template, to ``/_index_template/rerank-index-en``.
:func:`index_body` composes the same here, for an index of any name in a cluster without the templates.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from rerank.text import STEMMERS, language

_SHARED = {"ja": "cjk", "ko": "cjk", "nb": "no", "nn": "no", "zh": "cjk"}


def analysis(lang: str | None) -> str:
    """Return which ``rerank-analysis-...`` is for ``lang``; ``neutral`` for None and where there is none.

    Raises UsageError for something that is not a language code.

    >>> analysis("en-GB"), analysis("nb"), analysis("ja"), analysis("haw"), analysis(None)
    ('en', 'no', 'cjk', 'neutral', 'neutral')
    """
    code = language(lang) or "neutral"
    return _SHARED.get(code, code if code in STEMMERS else "neutral")


def component(name: str) -> dict[str, Any]:
    """Return a component template, the body of ``PUT /_component_template/NAME``.

    >>> component("rerank-similarity")["template"]["settings"]["index"]["similarity"]["rerank_bm25"]
    {'type': 'BM25', 'k1': 1.2, 'b': 0.75}
    """
    return _read(name)


def index_body(
    lang: str | None, *, shards: int, replicas: int, k1: float = 1.2, b: float = 0.75
) -> dict[str, Any]:
    """Return the body of ``PUT /INDEX`` that gives the index which the index template for ``lang`` gives.

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
    """Add what ``other`` holds, at every depth; where both have a value, ``other``'s counts."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
