"""How frequent the terms of a text are in an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rerank.documents.text import Terms
from rerank.engines.base import TermStatistics
from rerank.engines.opensearch.index import Index

_K1 = 1.2
"""BM25's k1 of an index that sets none. Lucene's BM25 is smaller by the factor k1 + 1."""

_MAX_WORDS = 200
"""Words of a text whose frequency an attached index counts; the others are rare or do not matter."""

_READING = "reading the frequencies of terms"


def term_statistics(index: Index, text: str) -> TermStatistics:
    """Return the statistics of the terms of a text.

    An index of rerank has the analyzer of the service, so its terms are looked up. An attached index can have
    another analyzer, so it counts the documents that match each word.
    """
    if index.layout.attached:
        return _counted(index, text)
    (field,) = index.layout.word_fields
    # The analyzer of documents does not normalize.
    vectors = _term_vectors(index, {field: Terms(index.lang).searchable(text)})[field]
    totals = vectors["field_statistics"]
    frequencies = {term: int(counts.get("doc_freq", 0)) for term, counts in vectors["terms"].items()}
    return _statistics(totals["doc_count"], [totals], frequencies)


def _counted(index: Index, text: str) -> TermStatistics:
    analyze = Terms(index.lang)
    words = list(dict.fromkeys(text.split()))[:_MAX_WORDS]
    filters = {word: index.layout.query(word, "bm25") for word in words}
    body: dict[str, Any] = {"size": 0, "track_total_hits": True}
    if words:
        body["aggs"] = {"words": {"filters": {"filters": filters}}}
    answer = index.search(_READING, body)
    buckets = answer["aggregations"]["words"]["buckets"] if words else {}
    frequencies: dict[str, int] = {}
    for word, bucket in buckets.items():
        for term in analyze(word):
            frequencies[term] = max(int(bucket["doc_count"]), frequencies.get(term, 0))
    fields = index.layout.word_fields
    vectors = _term_vectors(index, dict.fromkeys(fields, "a"))
    totals = [vectors[field]["field_statistics"] for field in fields if field in vectors]
    return _statistics(answer["hits"]["total"]["value"], totals, frequencies)


def _term_vectors(index: Index, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return field -> terms and totals, for the texts of a document that is not stored."""
    document: dict[str, Any] = {}
    for path, text in fields.items():
        *objects, name = path.split(".")
        parent = document
        for name_of_object in objects:
            parent = parent.setdefault(name_of_object, {})
        parent[name] = text
    options = {"term_statistics": True, "field_statistics": True, "positions": False, "offsets": False}
    body = {"doc": document, "fields": list(fields), "payloads": False, **options}
    with index.asking(_READING):
        name = next(iter(index.indices()))
        answer: dict[str, Any] = index.client.termvectors(index=name, body=body)
    vectors: dict[str, Any] = answer["term_vectors"]
    return vectors


def _statistics(
    documents: int, totals: Sequence[Mapping[str, int]], frequencies: Mapping[str, int]
) -> TermStatistics:
    mean_length = sum(max(field["sum_ttf"], 0) / max(field["doc_count"], 1) for field in totals)
    return TermStatistics(max(int(documents), 0), mean_length, frequencies, bm25_scale=1 / (_K1 + 1))
