"""The words that an OpenSearch query searches for."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from fnmatch import translate
from functools import lru_cache, partial
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from rerank.common.values import items_not_in, listed, with_keys
from rerank.documents.text import words
from rerank.service.query_syntax import parse_query_string, parse_simple_query_string

_BY_FIELD = {
    **dict.fromkeys(("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix"), "query"),
    **dict.fromkeys(("neural", "neural_sparse"), "query_text"),
    "span_term": "value",
    "terms_set": "terms",
}
"""Queries of the shape {field: text} or {field: {NAME: text}} -> NAME."""

_BY_VECTORS = ("neural", "neural_sparse")
"""The field of these has vectors, so it is none of a user's words."""

_OF_FIELDS = ("multi_match", "combined_fields", "query_string", "simple_query_string")
"""Queries of the shape {"query": text}."""

_AROUND = {
    "bool": ("must", "should"),  # not filter and must_not: they only exclude documents
    "boosting": ("positive",),
    "constant_score": ("filter",),
    "dis_max": ("queries",),
    "field_masking_span": ("query",),
    "function_score": ("query",),
    "has_child": ("query",),
    "has_parent": ("query",),
    "hybrid": ("queries",),
    "nested": ("query",),
    "script_score": ("query",),
    "span_containing": ("big", "little"),
    "span_first": ("match",),
    "span_multi": ("match",),
    "span_near": ("clauses",),
    "span_not": ("include",),  # not exclude
    "span_or": ("clauses",),
    "span_within": ("big", "little"),
}
"""Queries around other queries -> the fields with these queries: one, or a list."""

_INTERVAL_WORDS = {"match": "query", "fuzzy": "term"}
"""Rules of ``intervals`` -> the field with the words."""

_INTERVAL_FILTERS = ("after", "before", "containing", "contained_by", "overlapping")
"""Filters of ``intervals`` whose words must occur. Filters that begin with ``not_`` exclude words."""

_MOST = 20_000
"""Clauses that are read; OpenSearch accepts 1,024 by default."""

_MOST_NAMES = 100
"""Names of fields that are read of a clause."""

_LONGEST_NAME = 256
"""Characters of a name of a field; longer names are ignored."""

_NOT_FLAG = 2  # of simple_query_string, as a node writes flags
_NAMES_WITH_NOT = frozenset(("ALL", "NOT"))
"""Flags of ``simple_query_string`` by their names that make ``-`` an operator."""

Query = Mapping[str, Any]
Text = tuple[Sequence[str], str]
"""The fields of a text, and the text; no fields: the default fields of the index."""

T = TypeVar("T")


def query_text(query: object, fields: Sequence[str] = ()) -> str | None:
    """Return the words that a query searches for, or None. Words that it excludes are left out.

    query:  the ``query`` of a ``_search``.
    fields: fields with user words and their sub-fields; ``*`` is a wildcard. Other fields are used only if
            these have no text. Empty: all fields.

    >>> query_text({"bool": {"must": {"match": {"title": "grey wolf"}}, "filter": {"term": {"lang": "en"}}}})
    'grey wolf'
    >>> query_text({"match_all": {}}) is None
    True
    >>> query_text({"bool": {"must": [{"match": {"body": "wolf"}}, {"match": {"year": 2000}}]}}, ["body"])
    'wolf'
    """
    is_user_field = _field_test(tuple(fields))
    all_texts: list[str] = []
    user_texts: list[str] = []
    for names, text in _visit(query, _read_clause):
        all_texts.append(" ".join(text.split()))
        if not names or any(map(is_user_field, names[:_MOST_NAMES])):
            user_texts.append(all_texts[-1])
    unique_texts = dict.fromkeys(user_texts or all_texts)
    return " ".join(filter(None, unique_texts)) or None


def _visit(root: object, read_clause: Callable[[Query], tuple[Iterable[T], Iterable[Any]]]) -> Iterator[T]:
    """Yield the results of all clauses of a query, in the order of the query.

    read_clause: returns the results of one clause, and the clauses inside it.

    It is not recursive, because a query may be nested to any depth, and it stops after ``_MOST`` values.
    """
    waiting = [root]  # the next one is last
    for _ in range(_MOST):
        if not waiting:
            return
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(reversed(value[:_MOST]))
        elif isinstance(value, Mapping):
            results, inner = read_clause(value)
            yield from results
            waiting.extend(reversed([*inner]))


def _read_clause(clause: Query) -> tuple[list[Text], list[Any]]:
    """Return the texts of a clause, and the clauses inside."""
    texts: list[Text] = []
    inner: list[Any] = []
    for kind, body in clause.items():
        if not isinstance(body, Mapping):
            continue
        read_clauses = _CLAUSE_READERS.get(kind, _inner_clauses)
        inner += read_clauses(kind, body)
        read_texts = _TEXT_READERS.get(kind, _no_texts)
        texts += read_texts(kind, body)
    return texts, inner


def _inner_clauses(kind: str, body: Query) -> list[Any]:
    """Return the queries inside a query of this kind."""
    return list(with_keys(body, _AROUND.get(kind, ())).values())


def _filled_template(kind: str, body: Query) -> list[Any]:
    """Return the query of a ``template`` that another processor has not filled in yet."""
    return [body]


def _as_text(value: object) -> str | None:
    """Return the text that OpenSearch searches for a JSON value, or None if it has no text.

    >>> _as_text(True), _as_text(2020), _as_text(["grey", "wolf"]), _as_text(None)
    ('true', '2020', 'grey wolf', None)
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float, str)):
        return str(value)
    if isinstance(value, list):
        return _text_of_list(value)
    return None


def _text_of_list(values: Sequence[object]) -> str:
    """Return the text of the values of a list, without lists in it."""
    single_values = [value for value in values if not isinstance(value, list)]
    return " ".join(_texts(single_values))


def _texts(values: Iterable[object]) -> list[str]:
    """Return the texts of JSON values, without values that have no text."""
    texts = map(_as_text, values)
    return [text for text in texts if text is not None]


def _texts_by_field(kind: str, body: Query) -> list[Text]:
    """Return the texts of a query of the shape {field: text} or {field: {NAME: text}}."""
    texts: list[Text] = []
    for field, value in body.items():
        if isinstance(value, Mapping):
            value = value.get(_BY_FIELD[kind])
        text = _as_text(value)
        if text is not None:
            fields = () if kind in _BY_VECTORS else (field,)
            texts.append((fields, text))
    return texts


def _no_texts(kind: str, body: Query) -> list[Text]:
    """Return nothing: queries of other kinds have no texts of their own."""
    return []


def _texts_of_fields(kind: str, body: Query) -> list[Text]:
    """Return the texts of a query of the shape {"query": text, "fields": [field]}."""
    fields = _fields(body)
    text = _as_text(body.get("query"))
    if text is None:
        return []
    if kind == "query_string":
        return _texts_of_query_string(text, fields, is_escaped=body.get("escape") is True)
    if kind == "simple_query_string":
        text = parse_simple_query_string(text, has_not=_has_not(body.get("flags")))
    return [(fields, text)]


def _texts_of_query_string(text: str, fields: tuple[str, ...], *, is_escaped: bool) -> list[Text]:
    """Return a text for each run of words with the same field. fields: the fields of all other words."""
    if is_escaped:
        text = escape_query_string(text)
    texts: list[Text] = []
    for field, run in groupby(parse_query_string(text), attrgetter("field")):
        words_of_run = " ".join(map(attrgetter("text"), run))
        fields_of_run = fields if field is None else (field,)
        texts.append((fields_of_run, words_of_run))
    return texts


def escape_query_string(text: str) -> str:
    """Return a ``query_string`` in which all signs are letters, as with ``"escape": true``.

    >>> print(escape_query_string("wolf -fox"))
    wolf \\-fox
    """
    return re.sub(r'[\\+\-!():^\[\]"{}~*?|&/]', r"\\\g<0>", text)


def _has_not(flags: object) -> bool:
    """Whether the flags of a ``simple_query_string`` make ``-`` an operator: a number or names."""
    if isinstance(flags, int):
        return bool(flags & _NOT_FLAG)
    if isinstance(flags, str):
        names = flags.upper().split("|")
        return not _NAMES_WITH_NOT.isdisjoint(names)
    return True  # by default, all operators


def _interval_texts(kind: str, body: Query) -> list[Text]:
    """Return the texts of ``intervals``: {field: rule}, where rules can be inside rules."""
    texts: list[Text] = []
    for field, rule in body.items():
        texts += [((field,), text) for text in _visit(rule, _read_interval_rule)]
    return texts


def _read_interval_rule(rule: Query) -> tuple[list[str], list[Any]]:
    """Return the texts of a rule, and the rules inside."""
    texts: list[str] = []
    inner: list[Any] = []
    for kind, options in rule.items():
        if not isinstance(options, Mapping):
            continue
        text = _as_text(options.get(_INTERVAL_WORDS.get(kind)))
        if text:
            texts.append(text)
        inner.append(options.get("intervals"))
        filters = options.get("filter")
        if isinstance(filters, Mapping):
            inner += with_keys(filters, _INTERVAL_FILTERS).values()
    return texts, inner


def _like_texts(kind: str, body: Query) -> list[Text]:
    """Return the texts of ``like`` in a ``more_like_this``, without the words of ``unlike``."""
    fields = _fields(body)
    excluded = {*chain.from_iterable(map(words, _example_texts(body.get("unlike"))))}
    texts: list[Text] = []
    for text in _example_texts(body.get("like")):
        texts.append((fields, _without_words(text, excluded)))
    return texts


def _without_words(text: str, excluded: Set[str]) -> str:
    """Return a text without some words. Without words to exclude, it stays as it is."""
    if not excluded:
        return text
    return " ".join(items_not_in(words(text), excluded))


def _example_texts(examples: object) -> list[str]:
    """Return the texts of examples: texts, or documents that are not in the index. An id has no text."""
    values: list[object] = []
    for example in listed(examples):
        if not isinstance(example, Mapping):
            values.append(example)
            continue
        document = example.get("doc")
        if isinstance(document, Mapping):
            values += document.values()
    return _texts(values)


_TEXT_READERS: Mapping[str, Callable[[str, Query], list[Text]]] = {
    **dict.fromkeys(_BY_FIELD, _texts_by_field),
    **dict.fromkeys(_OF_FIELDS, _texts_of_fields),
    "intervals": _interval_texts,
    "more_like_this": _like_texts,
}
"""Kind of a query -> the function that returns its texts."""


def _decode_wrapper(kind: str, body: Query) -> list[Any]:
    """Return the query inside a ``wrapper``: JSON in Base64."""
    try:
        return [msgspec.json.decode(b64decode(str(body.get("query"))))]
    except (Base64Error, ValueError, msgspec.DecodeError, RecursionError):
        return []


_CLAUSE_READERS: Mapping[str, Callable[[str, Query], list[Any]]] = {
    "template": _filled_template,
    "wrapper": _decode_wrapper,
}
"""Kind of a query -> the function that returns the queries inside; others: :func:`_inner_clauses`."""


def _fields(body: Query) -> tuple[str, ...]:
    """Return the fields that a query names; none: the default fields of the index."""
    names = body.get("fields") or body.get("default_field")
    if isinstance(names, str):
        return (names,)
    if isinstance(names, (list, Mapping)):
        return tuple(map(str, names))
    return ()


@lru_cache(maxsize=16)
def _field_test(fields: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a test for names in a query: whether a name is one of these fields.

    The patterns of ``fields`` come from the settings. A pattern in a query is not matched, as that could be
    slow: it counts if its part before the first ``*`` fits the beginning of a field.
    """
    fields_and_sub_fields = [*fields, *(f"{field}.*" for field in fields)]
    pattern = re.compile("|".join(map(translate, fields_and_sub_fields)))
    beginnings = [field.partition("*")[0] for field in fields]
    return partial(_is_one_of_fields, pattern=pattern, beginnings=beginnings)


def _is_one_of_fields(name: str, pattern: re.Pattern[str], beginnings: Sequence[str]) -> bool:
    """Return whether a name in a query, with a boost or wildcards, is one of the fields of a pattern.

    beginnings: the parts of the fields before their first ``*``.
    """
    name = name.partition("^")[0]
    if len(name) > _LONGEST_NAME:
        return False
    name_beginning, wildcard, _ = name.partition("*")
    if not wildcard:
        return pattern.match(name) is not None
    return any(map(partial(_begins_equally, name_beginning), beginnings))


def _begins_equally(a: str, b: str) -> bool:
    """Return whether one of two texts is the beginning of the other one."""
    length = min(len(a), len(b))
    return a[:length] == b[:length]
