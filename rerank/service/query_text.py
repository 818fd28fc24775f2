"""The words that an OpenSearch query searches for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any, TypeVar

_BY_FIELD = ("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix")
"""Queries of the shape {field: text} or {field: {"query": text}}."""

_PLAIN = ("multi_match", "combined_fields")
"""Queries of the shape {"query": text}."""

_WITH_SYNTAX = ("query_string", "simple_query_string")
"""The same, with operators in the text."""

_AROUND = {
    "bool": ("must", "should"),  # not filter and must_not: they only exclude documents
    "boosting": ("positive",),
    "constant_score": ("filter",),
    "dis_max": ("queries",),
    "function_score": ("query",),
    "has_child": ("query",),
    "has_parent": ("query",),
    "hybrid": ("queries",),
    "nested": ("query",),
    "script_score": ("query",),
    "field_masking_span": ("query",),
    "span_containing": ("big",),
    "span_first": ("match",),
    "span_near": ("clauses",),
    "span_not": ("include",),
    "span_or": ("clauses",),
    "span_within": ("little",),
}
"""Queries around other queries -> the fields with these queries: one, or a list."""

_BY_VECTORS = ("neural", "neural_sparse")
"""Queries of the shape {field: {"query_text": text}}; the field holds vectors."""

_RULES = ("all_of", "any_of")
"""Rules of ``intervals`` around other rules."""

_MOST = 20_000
"""Clauses that are read; OpenSearch accepts 1,024 by default."""

_NAME = 200
"""Characters of a field's name that is cached."""

_TOKEN = re.compile(r'"[^"]*"?|[()]|[^\s"()]+')
_FIELD = re.compile(r"[\w.*\\-]+:")
_SUFFIX = re.compile(r"[~^][\d.]*\Z")
_OPERATORS = frozenset({"AND", "OR", "TO", "&&", "||"})
_SIGNS = str.maketrans(dict.fromkeys('+|&!{}[]"~*?\\<>=^', " "))

Query = Mapping[str, Any]
Text = tuple[Sequence[str], str]
"""The fields of a text, and the text; no fields: the default fields of the index."""

T = TypeVar("T")


def query_text(query: object, fields: Sequence[str] = ()) -> str | None:
    """Return the words that a query searches for, or None.

    query:  the ``query`` of a ``_search``.
    fields: fields with user words and their sub-fields; ``*`` is a wildcard. Other fields are used only if
            these have no text. Empty: all fields.

    >>> query_text({"bool": {"must": {"match": {"title": "grey wolf"}}, "filter": {"term": {"lang": "en"}}}})
    'grey wolf'
    >>> query_text({"match_all": {}}) is None
    True
    >>> query_text({"bool": {"must": [{"match": {"body": "wolf"}}, {"match": {"year": "2000"}}]}}, ["body"])
    'wolf'
    """
    texts = [(names, " ".join(text.split())) for names, text in _visit(query, _clause)]
    fields = tuple(fields)
    users = [text for names, text in texts if not names or any(_is_among(fields, one) for one in names)]
    unique = dict.fromkeys(users or [text for _, text in texts])
    return " ".join(text for text in unique if text) or None


def clause_names(query: object) -> set[str]:
    """The names (``_name``) of a query's clauses.

    >>> clause_names({"bool": {"should": [{"match": {"title": {"query": "wolf", "_name": "title"}}}]}})
    {'title'}
    """

    def read(value: Query) -> tuple[Iterable[str], list[Any]]:
        name = value.get("_name")
        return [name] if isinstance(name, str) else [], list(islice(value.values(), _MOST))

    return set(_visit(query, read))


def _visit(root: object, read: Callable[[Query], tuple[Iterable[T], list[Any]]]) -> Iterator[T]:
    waiting = [root]  # the next one is last; not recursive: a query may be nested to any depth
    for _ in range(_MOST):
        if not waiting:
            return
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(reversed(value[:_MOST]))
        elif isinstance(value, Mapping):
            results, inner = read(value)
            yield from results
            waiting.extend(reversed(inner))


def _clause(clause: Query) -> tuple[Iterable[Text], list[Any]]:
    texts: list[Iterable[Text]] = []
    inner: list[Any] = []
    for kind, about in islice(clause.items(), _MOST):
        if not isinstance(about, Mapping):
            continue
        if kind in _READERS:
            texts.append(_READERS[kind](about))
        elif kind == "template":  # a query that another processor has not filled in yet
            inner.append(about)
        elif kind in _AROUND:
            inner += [about[place] for place in _AROUND[kind] if place in about]
    return chain.from_iterable(texts), inner


def _is_among(fields: tuple[str, ...], name: str) -> bool:
    return _matches(fields, name) if len(name) <= _NAME else _matches.__wrapped__(fields, name)


@lru_cache(1000)
def _matches(fields: tuple[str, ...], name: str) -> bool:
    name = name.partition("^")[0]
    return any(
        fnmatchcase(name, field)
        or fnmatchcase(name, f"{field}.*")
        or ("*" in name and fnmatchcase(field, name))
        for field in fields
    )


def _by_field(read: Callable[[object], Iterator[str]]) -> Callable[[Query], Iterable[Text]]:
    return lambda about: (
        ((str(field),), text) for field, value in islice(about.items(), _MOST) for text in read(value)
    )


def _by_vectors(about: Query) -> Iterable[Text]:
    return (((), text) for value in islice(about.values(), _MOST) for text in _text(value, "query_text"))


def _like(about: Query) -> Iterable[Text]:
    likes = about.get("like")
    likes = likes[:_MOST] if isinstance(likes, list) else [likes]
    return ((_fields(about), like) for like in likes if isinstance(like, str))  # others are documents


def _with_syntax(about: Query) -> Iterable[Text]:
    return ((_fields(about), plain(text)) for text in _text(about))


def _plain_text(about: Query) -> Iterable[Text]:
    return ((_fields(about), text) for text in _text(about))


def _intervals(rule: object) -> Iterator[str]:
    def read(value: Query) -> tuple[Iterable[str], list[Any]]:
        rules = [value[name] for name in _RULES if isinstance(value.get(name), Mapping)]
        inner = [one["intervals"] for one in rules if isinstance(one.get("intervals"), list)]
        return _text(value.get("match")), inner

    return _visit(rule, read)


def _fields(about: Query) -> tuple[str, ...]:
    named = about.get("fields") or about.get("default_field") or ()
    named = [named] if isinstance(named, str) else named
    return tuple(str(one) for one in islice(named, _MOST)) if isinstance(named, (list, Mapping)) else ()


def _text(value: object, name: str = "query") -> Iterator[str]:
    if isinstance(value, Mapping):
        value = value.get(name)
    if isinstance(value, str):
        yield value


def plain(text: str) -> str:
    """Remove the operators of ``query_string``, and excluded words.

    >>> plain('title:wolf AND (grey^2 OR "red fox"~3) -dog NOT cat year:[1990 TO 2000] lup*')
    'wolf grey red fox lup'
    """
    kept: list[str] = []
    excluded = False  # whether the next word or group is
    depth = 0  # of open parentheses in an excluded group
    closing = ""  # the end of the open range
    for token in _TOKEN.findall(text):
        if depth:
            depth += (token == "(") - (token == ")")
            continue
        if closing:
            closing = "" if token[-1] in "]}" else closing
            continue
        if token in "()":
            depth = int(excluded and token == "(")
            excluded = False
            continue
        if token in _OPERATORS:
            continue
        if token == "NOT":
            excluded = True
            continue
        bare = token.lstrip("-!+")
        excluded = excluded or not set(token[: len(token) - len(bare)]) <= {"+"}
        token = bare
        if token[:1] != '"' and (field := _FIELD.match(token)):
            token = token[field.end() :]
        if not token:
            continue  # the field or the sign belongs to the next token
        if token[0] in "[{":
            closing = "" if token[-1] in "]}" else "]"
        elif not (excluded or token[0] in "~^" or (token[0] == "/" and token[-1] == "/")):
            kept.append(_SUFFIX.sub("", token).translate(_SIGNS))
        excluded = False
    return " ".join(" ".join(kept).split())


_READERS: dict[str, Callable[[Query], Iterable[Text]]] = {
    **dict.fromkeys(_BY_FIELD, _by_field(_text)),
    **dict.fromkeys(_BY_VECTORS, _by_vectors),
    **dict.fromkeys(_PLAIN, _plain_text),
    **dict.fromkeys(_WITH_SYNTAX, _with_syntax),
    "span_term": _by_field(partial(_text, name="value")),
    "intervals": _by_field(_intervals),
    "more_like_this": _like,
}
"""Kind of a query -> its texts with their fields."""
