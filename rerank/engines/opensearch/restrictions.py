"""Conditions that every hit of a query meets, as filters for documents of other retrievers.

The structure of the query decides, never the text of its words: a filter for ``{"owner": "ann"}`` stays also
if a user searches for "ann". ``Conditions.java`` of the plugin is the same; ``tests/conditions.json`` tests
both.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rerank.errors import InputError

Query = Mapping[str, Any]

_INNER = {
    **dict.fromkeys(("function_score", "script_score"), "query"),
    **{"constant_score": "filter", "boosting": "positive"},
}
"""Compound query -> the query that its hits match."""

_ALTERNATIVES = ("dis_max", "hybrid")
"""Queries whose hits match one of their ``queries``."""

_JOINED = ("nested", "has_child", "has_parent")
"""Queries for other documents, which are kept as a whole."""

_WORDS_OF_FIELD = ("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix")
"""Queries of the shape {field: text} or {field: {"query": text}}."""

_WORDS_OF_FIELDS = ("multi_match", "combined_fields", "query_string", "simple_query_string")
"""Queries of the shape {"query": text, "fields": [field]}."""

_VECTORS = ("knn", "neural", "neural_sparse")
"""Queries for the nearest vectors: another retriever replaces them."""

_BOOL = {
    **{name: name for name in ("must", "filter", "should", "must_not", "minimum_should_match")},
    **{"mustNot": "must_not", "boost": "", "_name": "", "adjust_pure_negative": ""},
}
"""Key of a ``bool`` -> its part; empty: without effect on hits."""

_CONDITIONS = ("filter", "must_not", "mustNot")
_OPERATORS = frozenset(("AND", "OR", "NOT"))
_SIGNS = frozenset(" \t\n\r\u3000.,;'_")


def restrictions(query: Query, word_fields: Collection[str]) -> list[dict[str, Any]]:
    """Return filters that every hit of a query meets; only the words of the user are left out.

    Always kept: ``filter``, ``must_not`` and other required clauses. Left out: a match of words in a field of
    ``word_fields``, and optional clauses.

    word_fields: fields that the words of users are searched in, with their sub-fields; ``*`` is a wildcard.

    Raises InputError for a query whose conditions cannot be separated from its words.

    >>> text, public = {"match": {"body": "grey wolf"}}, {"term": {"public": True}}
    >>> restrictions({"bool": {"must": text, "filter": public}}, ["body"])
    [{'term': {'public': True}}]
    >>> restrictions({"bool": {"should": [text, public], "must_not": {"term": {"old": True}}}}, ["body"])
    [{'bool': {'must_not': [{'term': {'old': True}}]}}]
    """
    reader = _Reader(word_fields)
    conditions = reader.read(query, required=True)
    if len(reader.texts) > 1:
        raise InputError(
            "the query needs matches of several texts, so one may be a condition;"
            ' write conditions into "filter"'
        )
    return conditions


class _Reader:
    """Reads the conditions of one query.

    texts:      sets of texts; every hit matches a text of each set in word fields.
    has_search: whether the query searches for words or vectors.
    """

    def __init__(self, word_fields: Collection[str]) -> None:
        self._word_fields = word_fields
        self.texts: set[frozenset[str]] = set()
        self.has_search = False

    def read(self, query: Any, *, required: bool) -> list[dict[str, Any]]:
        """Return the conditions of a query. required: every hit matches it."""
        if not isinstance(query, Mapping) or len(query) != 1:
            raise InputError("a query must be an object with one name; correct it")
        ((kind, value),) = query.items()
        inner = value if isinstance(value, Mapping) else {}
        if kind == "match_all":
            return []
        if kind in ("function_score", "script_score") and "min_score" in inner:
            raise _unknown("min_score", kind, "remove it")
        if kind == "bool":
            return self._of_bool(inner, required=required)
        if kind in _INNER:
            return self.read(inner[_INNER[kind]], required=required) if _INNER[kind] in inner else []
        if kind in _ALTERNATIVES:
            always = [inner["filter"]] if "filter" in inner else []
            return always + self._alternatives(_listed(inner.get("queries", [])), None, required=required)
        if kind in _JOINED:
            _refuse_conditions(inner, kind)
            reader = _Reader(self._word_fields)
            conditions = reader.read(inner.get("query", {"match_all": {}}), required=required)
            self.texts |= reader.texts
            self.has_search |= reader.has_search
            return [] if reader.has_search and not conditions else [dict(query)]
        if kind in _VECTORS:
            _refuse_conditions(inner, kind)
            self.has_search = True
            return []
        return [] if self._is_words(kind, inner, required=required) else [dict(query)]

    def _of_bool(self, inner: Query, *, required: bool) -> list[dict[str, Any]]:
        parts: dict[str, Any] = {}
        for key, value in inner.items():
            if key not in _BOOL:
                raise _unknown(key, "bool", "correct it")
            parts[_BOOL[key]] = value
        must = _listed(parts.get("must", []))
        filters = _listed(parts.get("filter", []))
        excluded = _listed(parts.get("must_not", []))
        conditions: list[dict[str, Any]] = []
        for clause in must:
            conditions += self.read(clause, required=required)
        conditions += filters
        if excluded:
            conditions.append({"bool": {"must_not": excluded}})
        minimum = parts.get("minimum_should_match")
        if minimum is not None or not (must or filters):
            is_required = required and minimum not in (0, "0")
            should = _listed(parts.get("should", []))
            conditions += self._alternatives(should, minimum, required=is_required)
        return conditions

    def _alternatives(self, queries: Sequence[Any], minimum: Any, *, required: bool) -> list[dict[str, Any]]:
        """Return the condition that ``minimum`` of the queries match (None: one), if they have conditions.

        A query without conditions counts as matched. required: every hit matches ``minimum`` of them.
        """
        readers = [_Reader(self._word_fields) for _ in queries]
        conditions_of_queries = [
            reader.read(query, required=required) for reader, query in zip(readers, queries)
        ]
        self._add_texts(readers, minimum)
        if minimum is None and not all(conditions_of_queries):
            return []
        if not any(conditions_of_queries):
            return []
        should: list[dict[str, Any]] = [
            {"bool": {"filter": conditions}} if conditions else {"match_all": {}}
            for conditions in conditions_of_queries
        ]
        return [{"bool": {"should": should, "minimum_should_match": 1 if minimum is None else minimum}}]

    def _add_texts(self, alternatives: Sequence[_Reader], minimum: Any) -> None:
        """Add the texts of alternatives of which every hit matches ``minimum`` (None: one)."""
        self.has_search |= any(reader.has_search for reader in alternatives)
        texts = set[frozenset[str]]().union(*(reader.texts for reader in alternatives))
        each_needs_several = all(len(reader.texts) > 1 for reader in alternatives)
        if minimum not in (None, 1, "1") or each_needs_several:
            self.texts |= texts
        elif texts:
            self.texts.add(frozenset[str]().union(*texts))

    def _is_words(self, kind: str, inner: Query, *, required: bool) -> bool:
        """Whether a query searches for the words of the user."""
        if kind in _WORDS_OF_FIELD and len(inner) == 1:
            ((field, value),) = inner.items()
            fields = [field]
            text = value.get("query") if isinstance(value, Mapping) else value
        elif kind in _WORDS_OF_FIELDS:
            listed = inner.get("fields") or inner.get("default_field") or []
            fields = [listed] if isinstance(listed, str) else list(listed)
            text = inner.get("query")
        else:
            return False
        if fields and not any(is_word_field(field, self._word_fields) for field in fields):
            return False
        text = text if isinstance(text, str) else str(text)
        if kind.endswith("query_string") and not _is_plain(text):
            raise InputError(
                f'the "{kind}" has operators or names of fields, which may be conditions; write them into a'
                ' "filter"'
            )
        self.has_search = True
        if required:
            self.texts.add(frozenset([" ".join(text.split())]))
        return True


def is_word_field(field: str, word_fields: Collection[str]) -> bool:
    """Whether a field of a query is one of these fields, or a sub-field. A boost is left out.

    >>> names = ["title^2", "title.stem", "body_en", "t*", "id"]
    >>> [is_word_field(name, ["title", "body_*"]) for name in names]
    [True, True, True, True, False]
    """
    name = field.partition("^")[0]
    for pattern in word_fields:
        if _fits(pattern, name) or _fits(f"{pattern}.*", name):
            return True
        if "*" in name and "*" not in pattern and _fits(name, pattern):
            return True
    return False


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def _is_plain(text: str) -> bool:
    """Whether a query language reads only words in a text: letters, digits, spaces and a few signs."""
    if not _OPERATORS.isdisjoint(text.split()):
        return False
    return all(
        character in _SIGNS or unicodedata.category(character).startswith(("L", "Nd")) for character in text
    )


def _refuse_conditions(inner: Any, kind: str) -> None:
    """Raise InputError for conditions inside a query that other retrievers cannot obey."""
    waiting = [inner]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            for name in _CONDITIONS:
                if name in value:
                    raise _unknown(name, kind, 'for --retrieve, write it into a "bool" around it')
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value


def _unknown(name: str, kind: str, remedy: str) -> InputError:
    return InputError(f'the query has "{name}" inside "{kind}"; {remedy}')


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
