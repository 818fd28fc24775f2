"""Conditions that every hit of a query meets, as filters for documents of other retrievers.

The structure of the query decides, never the text of its words: a filter for ``{"owner": "ann"}`` stays also
if a user searches for "ann". ``Conditions.java`` of the plugin is the same; ``tests/conditions.json`` tests
both.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from rerank.common.errors import InputError
from rerank.common.values import as_mapping, listed, objects_inside

Query = Mapping[str, Any]
Clause = dict[str, Any]
"""A query that restricts documents, in the language of OpenSearch."""

Minimum = int | str | None
"""``minimum_should_match``: a number, or a text such as ``75%``. None: one clause."""

_SCORED = ("function_score", "script_score")
"""Compound queries that compute a score, which can have a minimum."""

_INNER = {
    **dict.fromkeys(_SCORED, "query"),
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

_ALL: Clause = {"match_all": {}}
_CONDITIONS = ("filter", "must_not", "mustNot")
_OPERATORS = frozenset(("AND", "OR", "NOT"))
_SIGNS = frozenset(" \t\n\r\u3000.,;'_")


def restrictions(query: Query, word_fields: Collection[str]) -> list[Clause]:
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

    In all methods, ``required`` states that every hit matches the query.
    """

    def __init__(self, word_fields: Collection[str]) -> None:
        self._word_fields = word_fields
        self.texts: set[frozenset[str]] = set()
        self.has_search = False

    def read(self, query: object, *, required: bool) -> list[Clause]:
        """Return the conditions of a query, and note its texts.

        Raises InputError for a query whose conditions cannot be separated from its words.
        """
        kind, value = _kind_and_value(query)
        inner = as_mapping(value)
        if kind == "match_all":
            return []
        if kind == "bool":
            return self._read_bool(inner, required=required)
        if kind in _INNER:
            _refuse_min_score(kind, inner)
            inner_query = inner.get(_INNER[kind], _ALL)
            return self.read(inner_query, required=required)
        if kind in _ALTERNATIVES:
            return self._read_queries(inner, required=required)
        if self._is_search(kind, inner, required=required):
            return []
        return [{kind: value}]

    def _read_queries(self, inner: Query, *, required: bool) -> list[Clause]:
        """Return the conditions of a query such as ``dis_max``, of whose queries one must match."""
        queries = listed(inner.get("queries", []))
        conditions = self._read_alternatives(queries, None, required=required)
        if "filter" in inner:
            conditions.insert(0, inner["filter"])
        return conditions

    def _is_search(self, kind: str, inner: Query, *, required: bool) -> bool:
        """Return whether a query only searches for words or vectors, and note its texts.

        Raises InputError if it has conditions next to them.
        """
        if kind in _JOINED:
            return self._is_search_in_other_documents(inner, kind, required=required)
        if kind in _VECTORS:
            _refuse_conditions(inner, kind)
            self.has_search = True
            return True
        return self._is_words(kind, inner, required=required)

    def _read_bool(self, inner: Query, *, required: bool) -> list[Clause]:
        parts: dict[str, Any] = {}
        for key, value in inner.items():
            if key not in _BOOL:
                raise _unknown(key, "bool", "correct it")
            parts[_BOOL[key]] = value
        must = listed(parts.get("must", []))
        filters = listed(parts.get("filter", []))
        excluded = listed(parts.get("must_not", []))

        conditions: list[Clause] = []
        for clause in must:
            conditions += self.read(clause, required=required)
        conditions += filters
        if excluded:
            conditions.append({"bool": {"must_not": excluded}})

        minimum = parts.get("minimum_should_match")
        is_optional = minimum is None and bool(must or filters)
        if not is_optional:
            is_required = required and minimum not in (0, "0")
            should = listed(parts.get("should", []))
            conditions += self._read_alternatives(should, minimum, required=is_required)
        return conditions

    def _read_alternatives(
        self, queries: Sequence[object], minimum: Minimum, *, required: bool
    ) -> list[Clause]:
        """Return the condition that ``minimum`` of the queries match, if they have conditions.

        A query without conditions counts as matched. No document meets a ``minimum`` above the number of
        queries. required: every hit matches ``minimum`` of them.
        """
        readers: list[_Reader] = []
        should: list[Clause] = []
        for query in queries:
            reader = _Reader(self._word_fields)
            conditions = reader.read(query, required=required)
            should.append({"bool": {"filter": conditions}} if conditions else _ALL)
            readers.append(reader)
        self._add_texts(readers, minimum)

        without_conditions = should.count(_ALL)
        if not should or _is_always_met(minimum, len(should), without_conditions):
            return []
        minimum = 1 if minimum is None else minimum
        return [{"bool": {"should": should, "minimum_should_match": minimum}}]

    def _add_texts(self, alternatives: Sequence[_Reader], minimum: Minimum) -> None:
        """Add the texts of alternatives. Every hit matches at least ``minimum`` of them."""
        texts: set[frozenset[str]] = set()
        each_needs_several = True
        for reader in alternatives:
            texts |= reader.texts
            self.has_search |= reader.has_search
            each_needs_several &= len(reader.texts) > 1
        one_is_enough = minimum in (None, 1, "1")
        if each_needs_several or not one_is_enough:
            self.texts |= texts
        elif texts:
            self.texts.add(frozenset[str]().union(*texts))

    def _is_search_in_other_documents(self, inner: Query, kind: str, *, required: bool) -> bool:
        """Return whether a query for other documents, such as ``nested``, only searches for words or vectors.

        Raises InputError if it has conditions next to them.
        """
        _refuse_conditions(inner, kind)
        reader = _Reader(self._word_fields)
        conditions = reader.read(inner.get("query", _ALL), required=required)
        self.texts |= reader.texts
        self.has_search |= reader.has_search
        return reader.has_search and not conditions

    def _is_words(self, kind: str, inner: Query, *, required: bool) -> bool:
        """Return whether a query searches for the words of the user, and note its text."""
        search = _word_search(kind, inner)
        if search is None or not self._is_in_word_fields(search):
            return False
        if kind.endswith("query_string") and not _is_plain(search.text):
            raise InputError(
                f'the "{kind}" has operators or names of fields, which may be conditions; write them into a'
                ' "filter"'
            )
        self.has_search = True
        if required:
            self.texts.add(frozenset([" ".join(search.text.split())]))
        return True

    def _is_in_word_fields(self, search: _WordSearch) -> bool:
        """Return whether a search looks into the default fields, or into a field with words of documents."""
        if not search.fields:
            return True
        return any(is_word_field(field, self._word_fields) for field in search.fields)


def _is_always_met(minimum: Minimum, queries: int, without_conditions: int) -> bool:
    """Return whether every document matches ``minimum`` of the queries, as enough have no conditions.

    A minimum such as ``75%`` is met if no query has conditions.
    """
    if minimum is None:
        return without_conditions > 0
    is_number = re.fullmatch("[0-9]{1,9}", str(minimum)) is not None
    is_possible = not is_number or int(minimum) <= queries
    return is_possible and without_conditions == queries


def _kind_and_value(query: object) -> tuple[str, Any]:
    """Return the only name in a query, such as ``bool``, and the value of this name."""
    if not isinstance(query, Mapping) or len(query) != 1:
        raise InputError("a query must be an object with one name; correct it")
    ((kind, value),) = query.items()
    return kind, value


def _refuse_min_score(kind: str, inner: Query) -> None:
    """Raise InputError for a minimum score, which is a condition that other retrievers cannot obey."""
    if kind in _SCORED and "min_score" in inner:
        raise _unknown("min_score", kind, "remove it")


class _WordSearch(NamedTuple):
    """A text and the fields in which a query searches for it. No fields: the default ones of the index."""

    fields: Sequence[str]
    text: str


def _word_search(kind: str, inner: Query) -> _WordSearch | None:
    """Return the search of a query for a text, or None if it is of another kind."""
    if kind in _WORDS_OF_FIELD and len(inner) == 1:
        ((field, options),) = inner.items()
        return _search_of_field(field, options)
    if kind in _WORDS_OF_FIELDS:
        return _search_of_fields(inner)
    return None


def _search_of_field(field: str, options: object) -> _WordSearch:
    """Return the search of a query such as ``match``. options: the text, or an object with the text."""
    text = options.get("query") if isinstance(options, Mapping) else options
    return _WordSearch([field], str(text))


def _search_of_fields(inner: Query) -> _WordSearch:
    """Return the search of a query such as ``multi_match``, with a text and a name or a list of names."""
    default_field = inner.get("default_field") or []
    fields = inner.get("fields") or default_field
    text = inner.get("query")
    return _WordSearch(listed(fields), str(text))


def is_word_field(field: str, word_fields: Collection[str]) -> bool:
    """Return whether a field of a query is one of these fields, or one of their sub-fields.

    field:       name in a query; a boost such as ``^2`` is left out, and ``*`` is a wildcard.
    word_fields: names of fields; ``*`` is a wildcard.

    >>> names = ["title^2", "title.stem", "body_en", "t*", "id"]
    >>> [is_word_field(name, ["title", "body_*"]) for name in names]
    [True, True, True, True, False]
    """
    name = field.partition("^")[0]
    return any(_is_of_word_field(name, pattern) for pattern in word_fields)


def _is_of_word_field(name: str, pattern: str) -> bool:
    """Return whether a name in a query is for a field of documents, or for one of its sub-fields.

    name, pattern: ``*`` is a wildcard.
    """
    is_field = _fits(pattern, name)
    is_sub_field = _fits(f"{pattern}.*", name)
    includes_field = "*" not in pattern and _fits(name, pattern)
    return is_field or is_sub_field or includes_field


def _fits(pattern: str, name: str) -> bool:
    """Return whether a name fits a pattern in which ``*`` stands for any characters.

    It takes linear time for any number of ``*``: patterns can come from the query of a user.
    """
    begin, *literals = pattern.split("*")
    if not literals:
        return name == pattern
    *middle, end = literals
    middle_end = len(name) - len(end)
    position = len(begin)
    has_ends = name.startswith(begin) and name.endswith(end)
    if not has_ends or position > middle_end:
        return False
    for literal in middle:
        position = name.find(literal, position, middle_end)
        if position < 0:
            return False
        position += len(literal)
    return True


def _is_plain(text: str) -> bool:
    """Whether a query language reads only words in a text: letters, digits, spaces and a few signs."""
    if not _OPERATORS.isdisjoint(text.split()):
        return False
    characters = set(text) - _SIGNS
    categories = map(unicodedata.category, characters)
    return all(category.startswith(("L", "Nd")) for category in categories)


def _refuse_conditions(inner: object, kind: str) -> None:
    """Raise InputError for conditions inside a query that other retrievers cannot obey."""
    for json_object, name in product(objects_inside(inner), _CONDITIONS):
        if name in json_object:
            raise _unknown(name, kind, 'for --retrieve, write it into a "bool" around it')


def _unknown(name: str, kind: str, remedy: str) -> InputError:
    return InputError(f'the query has "{name}" inside "{kind}"; {remedy}')
