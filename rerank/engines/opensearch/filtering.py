"""Filters as query clauses, and numbers of fields."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import UsageError
from rerank.common.values import without_empty
from rerank.documents.filters import FIELD, KINDS, Filter, Span, every, exact, period
from rerank.documents.text import compose, normalize
from rerank.engines.opensearch.reading import Reader

NUMERIC = frozenset(
    ("byte", "short", "integer", "long", "unsigned_long", "half_float", "float", "double", "scaled_float")
)
TIMES = frozenset(("date", "date_nanos"))
_WORDS = frozenset(("keyword", "constant_keyword", "wildcard", "ip"))
_REMEMBERED = 1000
_SPELLINGS = (compose, partial(unicodedata.normalize, "NFD"), normalize)
_FORMATS = {"date": {"format": "epoch_millis"}, "number": {}}
"""Kind of a field -> the format in which its values are read."""
_UNITS = {"date": 1000.0, "number": 1.0}
"""Kind of a field -> the value that counts as 1: dates are read in milliseconds and returned in seconds."""
_BOUNDS = {">=": "gte", ">": "gt", "<=": "lte", "<": "lt"}


class Fields:
    """Clauses of filters, and values of fields."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._index = reader.index
        self._cached = lru_cache(_REMEMBERED)(self._clause)

    def clauses(self, filters: Sequence[Filter]) -> list[dict[str, Any]]:
        """Return a clause for each filter, in the language of OpenSearch.

        Raises UsageError for a field that is unknown or of a type without such filters.
        """
        uuids = frozenset(self._index.shape().uuids.values()) if filters else frozenset()
        return [self._cached(uuids, condition) for condition in filters]

    def _clause(self, uuids: frozenset[str], condition: Filter) -> dict[str, Any]:
        """Return the clause of a filter. uuids: of the indices, because another index has other fields."""
        if self._index.layout.attached:
            return self._clause_of_field(condition)
        condition.check(self._kinds(condition.field))
        clauses = list(map(_clause_of_term, condition.terms()))
        if len(clauses) == 1:
            return clauses[0]
        return {"bool": {"should": clauses}}

    def _kinds(self, field: str) -> str:
        """Return the kinds of values that documents have in a field, in an index that rerank made."""
        counts: dict[str, Any] = {}
        for kind in KINDS:
            counts[kind] = {"filter": _clause_of_term(every(field, kind))}
        answer = self._index.search("looking for fields", {"size": 0, "aggs": counts})["aggregations"]
        existing = [kind for kind in KINDS if answer[kind]["doc_count"]]
        return "".join(existing)

    def _clause_of_field(self, condition: Filter) -> dict[str, Any]:
        """Return the clause for a field of an attached index."""
        field = condition.field
        index = self._index.settings.index
        fields = self._caps(",".join([field, *_parents(field), "*.keyword"]))
        types = fields.get(field, {})
        if not _all_are("searchable", types):
            raise UsageError(
                f"filter {condition}: field {field!r} of index {index!r} has `index: false`, so no search can"
                " use it; name another field"
            )
        result = clause(condition, ", ".join(sorted(types)), index, fields)
        nested = _nested(field, fields)
        return {"nested": {"path": nested, "query": result}} if nested else result

    def _caps(self, names: str) -> dict[str, dict[str, Any]]:
        """Return field -> type -> capabilities."""
        index = self._index.settings.index
        with self._index.asking("looking for fields"):
            answer = self._index.client.field_caps(index=index, params={"fields": names})
        fields: dict[str, dict[str, Any]] = answer["fields"]
        return fields

    def number_fields(self, names: Sequence[str] = ("*",)) -> dict[str, str]:
        """Return the fields whose numbers can be read: field -> ``number`` or ``date``.

        names: names or patterns of fields. Fields without doc values are left out.
        """
        parents = set(chain.from_iterable(map(_parents, names)))
        fields = self._caps(",".join([*names, *sorted(parents)]))
        kinds = {name: _number_kind(name, fields) for name in fields}
        return without_empty(kinds)

    def field_values(self, ids: Sequence[str], fields: Sequence[str]) -> list[NDArray[np.float64]]:
        """Return (n,) numbers for each field; see :meth:`Engine.field_values`.

        Of several values of a document, the first is read.

        Raises UsageError for a field that is not a number or date.
        """
        if not fields:
            return []
        kinds = self.number_fields(fields)
        formats: list[dict[str, str]] = []
        for field in fields:
            if field not in kinds:
                raise self._not_a_number(field)
            formats.append({"field": field, **_FORMATS[kinds[field]]})

        values_by_id: dict[str, Mapping[str, Sequence[Any]]] = {}
        for hit in self._reader.hits(ids, _source=False, docvalue_fields=formats):
            values_by_id[hit["_id"]] = hit.get("fields", {})
        columns = []
        for field in fields:
            first_values = [values_by_id.get(id, {}).get(field, [np.nan])[0] for id in ids]
            numbers = np.array(list(map(float, first_values)), np.float64)
            columns.append(numbers / _UNITS[kinds[field]])
        return columns

    def _not_a_number(self, field: str) -> UsageError:
        """Return the error for a field that has no numbers or whose numbers cannot be read."""
        types = self._caps(field).get(field, {})
        description = f"of type {', '.join(sorted(types))}" if types else "missing"
        if types and types.keys() <= NUMERIC | TIMES:
            description += " in a nested field or without doc values"
        number_fields = ", ".join(sorted(self.number_fields()))
        return UsageError(
            f"field {field!r} of index {self._index.settings.index!r} is not a number: it is {description};"
            f" fields of numbers: {number_fields or 'none'}"
        )


def _number_kind(field: str, fields: Mapping[str, Mapping[str, Any]]) -> str:
    """Return ``number`` or ``date`` for a field whose numbers can be read, else an empty text."""
    types = fields[field]
    has_doc_values = _all_are("aggregatable", types)
    is_internal = field.startswith("_")
    is_separate = _nested(field, fields) is not None
    if is_internal or is_separate or not has_doc_values:
        return ""
    if types.keys() <= TIMES:
        return "date"
    if types.keys() <= NUMERIC | TIMES:
        return "number"
    return ""


def _all_are(capability: str, types: Mapping[str, Any]) -> bool:
    """Return whether a field has a capability in all its types. types: type -> capabilities."""
    return all(capabilities.get(capability, True) for capabilities in types.values())


def _parents(field: str) -> list[str]:
    """Return the paths above a field, the longest first."""
    parts = field.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def _nested(field: str, fields: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the path of the nested field around a field, or None."""
    for parent in _parents(field):
        if "nested" in fields.get(parent, {}):
            return parent
    return None


def clause(condition: Filter, kind: str, index: str, fields: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return a filter's clause for an attached index. Raises UsageError if the type has no such filter.

    kind: type of the field; empty if the index lacks it. fields: other fields of the index.

    >>> clause(Filter.parse("year>=2020"), "integer", "shop")
    {'range': {'year': {'gte': 2020}}}
    """
    field = condition.field
    if not kind:
        raise UsageError(f"filter {condition}: index {index!r} has no field {field!r}")
    described = f"filter {condition}: field {field!r} of index {index!r} is of type {kind}"
    if kind in NUMERIC:
        return _clause_of_number(condition, described)
    if kind in TIMES:
        return _clause_of_date(condition, described)
    if condition.op != "=":
        raise UsageError(f"{described}, and {condition.op} compares numbers and dates; use =")
    if kind == "boolean":
        return _clause_of_boolean(condition, described)
    if kind in _WORDS:
        return _clause_of_word(condition)
    keyword = f"{field}.keyword"
    suggestion = f", {keyword}" if keyword in fields else ""
    raise UsageError(f"{described}; filter by one of type keyword{suggestion}")


def _clause_of_word(condition: Filter) -> dict[str, Any]:
    """Return the clause for a word, in all forms in which Unicode can write it."""
    spellings = [spelling(condition.value) for spelling in _SPELLINGS]
    values = list(dict.fromkeys([condition.value, *spellings]))
    if len(values) == 1:
        return {"term": {condition.field: condition.value}}
    return {"terms": {condition.field: values}}


def _clause_of_number(condition: Filter, described: str) -> dict[str, Any]:
    value = exact(condition.value)
    if value is None or value in (math.inf, -math.inf):
        raise UsageError(f"{described}, and {condition.value!r} is no number")
    if condition.op == "=":
        return {"term": {condition.field: value}}
    return {"range": {condition.field: {_BOUNDS[condition.op]: value}}}


def _clause_of_date(condition: Filter, described: str) -> dict[str, Any]:
    seconds = period(condition.value)
    if seconds is None:
        raise UsageError(
            f"{described}, and {condition.value!r} is no date; write 2024, 2024-06 or 2024-06-30"
        )
    begin, end = (round(1000 * second) for second in seconds)
    bounds = {
        "=": {"gte": begin, "lt": end},
        ">=": {"gte": begin},
        ">": {"gte": end},
        "<": {"lt": begin},
        "<=": {"lt": end},
    }
    return {"range": {condition.field: {**bounds[condition.op], "format": "epoch_millis"}}}


def _clause_of_term(term: Span | str) -> dict[str, Any]:
    """Return the clause for one term of a filter, or for a range of terms."""
    if isinstance(term, Span):
        return {"range": {FIELD: {"gte": term.low, "lt": term.high}}}
    return {"term": {FIELD: term}}


def _clause_of_boolean(condition: Filter, described: str) -> dict[str, Any]:
    """Return the clause for a value that is true or false. Raises UsageError for other values."""
    if condition.value not in ("true", "false"):
        raise UsageError(f"{described}, and {condition.value!r} is neither true nor false")
    return {"term": {condition.field: condition.value == "true"}}
