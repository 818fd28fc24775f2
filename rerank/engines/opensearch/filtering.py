"""Filters as query clauses, and numbers of fields."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.engines.opensearch.reading import Reader
from rerank.errors import UsageError
from rerank.filters import FIELD, KINDS, Filter, Span, every, exact, period
from rerank.text import compose, normalize

NUMERIC = frozenset(
    ("byte", "short", "integer", "long", "unsigned_long", "half_float", "float", "double", "scaled_float")
)
TIMES = frozenset(("date", "date_nanos"))
_WORDS = frozenset(("keyword", "constant_keyword", "wildcard", "ip"))
_REMEMBERED = 1000
_SPELLINGS = (compose, partial(unicodedata.normalize, "NFD"), normalize)
_BOUNDS = {">=": "gte", ">": "gt", "<=": "lte", "<": "lt"}


class Fields:
    """Clauses of filters, and values of fields."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._index = reader, reader.index
        self._cached = lru_cache(_REMEMBERED)(self._clause)

    def clauses(self, filters: Sequence[Filter]) -> list[dict[str, Any]]:
        """Return a clause per filter. Raises UsageError for an unknown field or wrong type."""
        uuids = frozenset(self._index.shape().uuids.values()) if filters else frozenset()
        return [self._cached(uuids, one) for one in filters]

    def _clause(self, uuids: frozenset[str], condition: Filter) -> dict[str, Any]:
        """uuids: of the indices, which can change."""
        if self._index.layout.attached:
            return self._clause_of_field(condition)
        counts = {kind: {"filter": _span(every(condition.field, kind))} for kind in KINDS}
        answer = self._index.search("looking for fields", {"size": 0, "aggs": counts})["aggregations"]
        condition.check("".join(kind for kind in KINDS if answer[kind]["doc_count"]))
        terms = condition.terms()
        clauses = [_span(term) if isinstance(term, Span) else {"term": {FIELD: term}} for term in terms]
        return {"bool": {"should": clauses}} if len(clauses) > 1 else clauses[0]

    def _clause_of_field(self, condition: Filter) -> dict[str, Any]:
        """Return the clause for a field of an attached index."""
        field = condition.field
        index = self._index.settings.index
        fields = self._caps(",".join([field, *_parents(field), "*.keyword"]))
        types = fields.get(field, {})
        if not all(about.get("searchable", True) for about in types.values()):
            raise UsageError(
                f"filter {condition}: field {field!r} of index {index!r} has `index: false`, so no search can"
                " use it; name another field"
            )
        result = clause(condition, ", ".join(sorted(types)), index, fields)
        nested = _nested(field, fields)
        return {"nested": {"path": nested, "query": result}} if nested else result

    def _caps(self, names: str) -> dict[str, dict[str, Any]]:
        """Field -> type -> capabilities."""
        index = self._index.settings.index
        with self._index.asking("looking for fields"):
            answer = self._index.client.field_caps(index=index, params={"fields": names})
        fields: dict[str, dict[str, Any]] = answer["fields"]
        return fields

    def number_fields(self, names: Sequence[str] = ("*",)) -> dict[str, str]:
        """Return field -> ``number`` or ``date``, without fields that have no doc values."""
        parents = {parent for name in names for parent in _parents(name)}
        fields = self._caps(",".join([*names, *sorted(parents)]))
        numbers: dict[str, str] = {}
        for name, types in fields.items():
            readable = all(about.get("aggregatable", True) for about in types.values())
            if name.startswith("_") or not readable or _nested(name, fields):
                continue
            if types.keys() <= NUMERIC | TIMES:
                numbers[name] = "date" if types.keys() <= TIMES else "number"
        return numbers

    def field_values(self, ids: Sequence[str], fields: Sequence[str]) -> list[NDArray[np.float64]]:
        """Return numbers and dates; see :meth:`Engine.field_values`."""
        known = self.number_fields(fields)
        for field in fields:
            if field not in known:
                types = self._caps(field).get(field, {})
                kinds = ", ".join(sorted(types))
                if types and types.keys() <= NUMERIC | TIMES:
                    kinds += " in a nested field or without doc values"
                raise UsageError(
                    f"field {field!r} of index {self._index.settings.index!r} is not a number: it is"
                    f" {f'of type {kinds}' if kinds else 'missing'}; fields of numbers:"
                    f" {', '.join(sorted(self.number_fields())) or 'none'}"
                )
        asked = [{"field": f} | ({"format": "epoch_millis"} if known[f] == "date" else {}) for f in fields]
        hits = self._reader.hits(ids, _source=False, docvalue_fields=asked) if fields else ()
        found = {hit["_id"]: hit.get("fields", {}) for hit in hits}
        values = [[float(found.get(id, {}).get(f, [np.nan])[0]) for id in ids] for f in fields]
        scale = {"date": 1000.0, "number": 1.0}
        return [np.array(some, np.float64) / scale[known[f]] for f, some in zip(fields, values)]


def _parents(field: str) -> list[str]:
    """Return the paths above a field, the longest first."""
    parts = field.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def _nested(field: str, fields: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the path of the nested field around a field."""
    return next((parent for parent in _parents(field) if "nested" in fields.get(parent, {})), None)


def clause(one: Filter, kind: str, index: str, known: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return a filter's clause for an attached index. Raises UsageError if the type has no such filter.

    kind: type of the field. known: other fields.

    >>> clause(Filter.parse("year>=2020"), "integer", "shop")
    {'range': {'year': {'gte': 2020}}}
    """
    if not kind:
        raise UsageError(f"filter {one}: index {index!r} has no field {one.field!r}")
    where = f"filter {one}: field {one.field!r} of index {index!r} is of type {kind}"
    if kind in NUMERIC:
        value = exact(one.value)
        if value is None or value in (math.inf, -math.inf):
            raise UsageError(f"{where}, and {one.value!r} is no number")
        if one.op == "=":
            return {"term": {one.field: value}}
        return {"range": {one.field: {_BOUNDS[one.op]: value}}}
    if kind in TIMES:
        when = period(one.value)
        if when is None:
            raise UsageError(f"{where}, and {one.value!r} is no date; write 2024, 2024-06 or 2024-06-30")
        low, high = (round(1000 * moment) for moment in when)
        bounds = {
            "=": {"gte": low, "lt": high},
            ">=": {"gte": low},
            ">": {"gte": high},
            "<": {"lt": low},
            "<=": {"lt": high},
        }[one.op]
        return {"range": {one.field: {**bounds, "format": "epoch_millis"}}}
    if one.op != "=":
        raise UsageError(f"{where}, and {one.op} compares numbers and dates; use =")
    if kind == "boolean":
        if one.value not in ("true", "false"):
            raise UsageError(f"{where}, and {one.value!r} is neither true nor false")
        return {"term": {one.field: one.value == "true"}}
    if kind not in _WORDS:
        beside = f"{one.field}.keyword"
        raise UsageError(f"{where}; filter by one of type keyword" + f", {beside}" * (beside in known))
    spellings = [form(one.value) for form in _SPELLINGS]
    values = list(dict.fromkeys([one.value, *spellings]))
    return {"terms": {one.field: values}} if len(values) > 1 else {"term": {one.field: one.value}}


def _span(span: Span) -> dict[str, Any]:
    return {"range": {FIELD: {"gte": span.low, "lt": span.high}}}
