"""The words that a query in OpenSearch's query language looks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from itertools import islice
from typing import Any

_BY_FIELD = ("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix")
"""Queries of the shape {field: text} or {field: {"query": text}}."""

_PLAIN = ("multi_match", "combined_fields")
"""Queries of the shape {"query": text}."""

_WITH_SYNTAX = ("query_string", "simple_query_string")
"""The same, with operators in the text."""

_AROUND = {
    "bool": ("must", "should"),  # filter and must_not say what to leave out, not what to look for
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
    "span_containing": ("big",),  # the little one only says which
    "span_first": ("match",),
    "span_near": ("clauses",),
    "span_not": ("include",),
    "span_or": ("clauses",),
    "span_within": ("little",),
}
"""Queries around other queries, and where in them those are: one, or a list."""

_BY_VECTORS = ("neural", "neural_sparse")
"""Queries of the shape {field: {"query_text": text}}; the field holds vectors."""

_RULES = ("all_of", "any_of")
"""Rules of ``intervals`` around others, in the place of the same name."""

_CLAUSES = 20_000
"""As many clauses are looked at: more of them would only take time."""

_NAME = 200
"""Characters of a field's name that is remembered."""

_TOKEN = re.compile(r'"[^"]*"?|[()]|[^\s"()]+')
_FIELD = re.compile(r"[\w.*\\-]+:")
_SUFFIX = re.compile(r"[~^][\d.]*\Z")
_OPERATORS = frozenset({"AND", "OR", "TO", "&&", "||"})
_SIGNS = str.maketrans(dict.fromkeys('+|&!{}[]"~*?\\<>=^', " "))


def query_text(query: object, fields: Sequence[str] = ()) -> str | None:
    """Return the words that a query looks for; None when it looks for none.

    fields: those that hold a user's words, with ``*`` for any part of a name; a sub-field is its field's.
        What a query looks for in other fields, such as a year or a permission, is left out where it looks
        for something in these. None: all count.

    At most 20,000 values are looked at (OpenSearch takes 1,024 unless told otherwise).

    query: the value of ``query`` in the body of a ``_search``, as JSON values. Texts of several clauses
        are joined by spaces, each text once. What is no query, or of a kind that has no text, is passed over.

    >>> query_text({"bool": {"must": {"match": {"title": "grey wolf"}}, "filter": {"term": {"lang": "en"}}}})
    'grey wolf'
    >>> query_text({"match_all": {}}) is None
    True
    >>> query_text({"bool": {"must": [{"match": {"body": "wolf"}}, {"match": {"year": "2000"}}]}}, ["body"])
    'wolf'
    """
    found = [(where, " ".join(text.split())) for where, text in _texts(query)]
    fields = tuple(fields)
    held = [text for where, text in found if not where or any(_is_among(fields, one) for one in where)]
    texts = dict.fromkeys(held or [text for _, text in found])
    return " ".join(text for text in texts if text) or None


def clause_names(query: object) -> set[str]:
    """The names that clauses of a query have, of as many as are looked at.

    >>> clause_names({"bool": {"should": [{"match": {"title": {"query": "wolf", "_name": "title"}}}]}})
    {'title'}
    """
    names, waiting = set(), [query]
    for _ in range(_CLAUSES):
        if not waiting:
            break
        found = waiting.pop()
        if isinstance(found, Mapping):
            name = found.get("_name")
            names |= {name} if isinstance(name, str) else set()
            waiting.extend(islice(found.values(), _CLAUSES))
        elif isinstance(found, list):
            waiting.extend(found[:_CLAUSES])
    return names


def _is_among(fields: tuple[str, ...], name: str) -> bool:
    return _holds(fields, name) if len(name) <= _NAME else _holds.__wrapped__(fields, name)


@lru_cache(1000)  # searches name the same few fields again and again
def _holds(fields: tuple[str, ...], name: str) -> bool:
    """Whether a field that a query names, as ``body``, ``body.en^2`` or ``bo*``, is one of the fields."""
    name = name.partition("^")[0]
    return any(
        fnmatchcase(name, field)
        or fnmatchcase(name, f"{field}.*")
        or ("*" in name and fnmatchcase(field, name))
        for field in fields
    )


def _texts(query: object) -> Iterator[tuple[Sequence[str], str]]:
    """Texts, each with its fields; no fields: the default fields of the index."""
    waiting = [query]  # the next one last; no recursion: a query may be nested as deep as it likes
    for _ in range(_CLAUSES):
        if not waiting:
            return
        found = waiting.pop()
        if isinstance(found, list):
            waiting.extend(reversed(found[:_CLAUSES]))
        if not isinstance(found, Mapping):
            continue
        inner: list[Any] = []
        for kind, about in islice(found.items(), _CLAUSES):
            if not isinstance(about, Mapping):
                continue
            if kind in _READERS:
                yield from _READERS[kind](about)
            elif kind == "template":  # a query, before others have filled it in
                inner.append(about)
            elif kind in _AROUND:
                inner += [about[place] for place in _AROUND[kind] if place in about]
        waiting.extend(reversed(inner))


_Texts = Iterable[tuple[Sequence[str], str]]


def _by_field(read: Callable[[object], Iterator[str]]) -> Callable[[Mapping[str, Any]], _Texts]:
    """A reader of queries that have a value for each field."""
    return lambda about: (
        ((str(field),), text) for field, value in islice(about.items(), _CLAUSES) for text in read(value)
    )


def _by_vectors(about: Mapping[str, Any]) -> _Texts:
    return (((), text) for value in islice(about.values(), _CLAUSES) for text in _text(value, "query_text"))


def _like(about: Mapping[str, Any]) -> _Texts:
    likes = about.get("like")
    likes = likes[:_CLAUSES] if isinstance(likes, list) else [likes]
    return ((_fields(about), like) for like in likes if isinstance(like, str))  # else a document, by its id


def _with_syntax(about: Mapping[str, Any]) -> _Texts:
    return ((_fields(about), plain(text)) for text in _text(about))


def _plain_text(about: Mapping[str, Any]) -> _Texts:
    return ((_fields(about), text) for text in _text(about))


def _intervals(rule: object) -> Iterator[str]:
    """The words of a rule of ``intervals``, and of those within it; its filters only say where they stand."""
    waiting = [rule]
    for _ in range(_CLAUSES):
        if not waiting:
            return
        found = waiting.pop()
        if not isinstance(found, Mapping):
            continue
        yield from _text(found.get("match"))
        for name in _RULES:
            about = found.get(name)
            inner = about.get("intervals") if isinstance(about, Mapping) else None
            waiting.extend(reversed(inner[:_CLAUSES]) if isinstance(inner, list) else ())


def _fields(about: Mapping[str, Any]) -> tuple[str, ...]:
    named = about.get("fields") or about.get("default_field") or ()
    named = [named] if isinstance(named, str) else named
    return tuple(str(one) for one in islice(named, _CLAUSES)) if isinstance(named, (list, Mapping)) else ()


def _text(value: object, name: str = "query") -> Iterator[str]:
    if isinstance(value, Mapping):
        value = value.get(name)
    if isinstance(value, str):
        yield value


def plain(text: str) -> str:
    """Drop the operators of ``query_string`` from a text, and what they exclude.

    >>> plain('title:wolf AND (grey^2 OR "red fox"~3) -dog NOT cat year:[1990 TO 2000] lup*')
    'wolf grey red fox lup'
    """
    kept: list[str] = []
    excluded = False  # whether what comes next is
    depth = 0  # of open parentheses in what is excluded
    closing = ""  # what ends the range that is open
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
            continue  # the field or the sign belongs to what comes next
        if token[0] in "[{":
            closing = "" if token[-1] in "]}" else "]"
        elif not (excluded or token[0] in "~^" or (token[0] == "/" and token[-1] == "/")):
            kept.append(_SUFFIX.sub("", token).translate(_SIGNS))
        excluded = False
    return " ".join(" ".join(kept).split())


_READERS: dict[str, Callable[[Mapping[str, Any]], _Texts]] = {
    **dict.fromkeys(_BY_FIELD, _by_field(_text)),
    **dict.fromkeys(_BY_VECTORS, _by_vectors),
    **dict.fromkeys(_PLAIN, _plain_text),
    **dict.fromkeys(_WITH_SYNTAX, _with_syntax),
    "span_term": _by_field(partial(_text, name="value")),
    "intervals": _by_field(_intervals),
    "more_like_this": _like,
}
"""Kind of a query -> its texts with their fields."""
