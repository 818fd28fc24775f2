"""The words that an OpenSearch query searches for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

_BY_FIELD = {
    **dict.fromkeys(("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix"), "query"),
    **dict.fromkeys(("neural", "neural_sparse"), "query_text"),
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
    "function_score": ("query",),
    "has_child": ("query",),
    "has_parent": ("query",),
    "hybrid": ("queries",),
    "nested": ("query",),
    "script_score": ("query",),
}
"""Queries around other queries -> the fields with these queries: one, or a list."""

_MOST = 20_000
"""Clauses that are read; OpenSearch accepts 1,024 by default."""

_FIELD = r"[\w.*\\-]+:"
_RANGE = r"[\[{][^\]}]*[\]}]?"
_GROUP = r"\((?:[^()]|\([^()]*\))*\)?"
_NO_WORDS = re.compile(
    "|".join(
        (
            rf'(?<![^\s(])(?:NOT\s+|[-!]+)(?:{_FIELD})?(?:{_RANGE}|"[^"]*"?|{_GROUP}|[^\s()"]+)?',  # excluded
            r"(?<![^\s(])(?:AND|OR|NOT)(?![^\s)])",
            rf"(?<![^\s(+]){_FIELD}",
            rf"(?<![^\s(:]){_RANGE}",
            r"(?<![^\s(:])/(?:[^\s/\\]|\\.)*/(?!\S)",  # a regular expression
            r"[~^][\d.]*(?=[\s()]|\Z)",  # a boost, or the distance of fuzzy words
        )
    )
)
"""The parts of a ``query_string`` without words, each found in linear time."""
_SIGNS = str.maketrans(dict.fromkeys('+|&!{}[]"~*?\\<>=^()', " "))
_NO_WORDS_OF_SIMPLE = re.compile(rf'(?<![^\s(])-+(?:"[^"]*"?|{_GROUP}|[^\s()"]+)?|~\d*(?=[\s()]|\Z)')
_SIGNS_OF_SIMPLE = str.maketrans(dict.fromkeys('+|"*()~\\', " "))

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
    users = [text for names, text in texts if not names or any(_is_among(fields, one) for one in names)]
    unique = dict.fromkeys(users or [text for _, text in texts])
    return " ".join(text for text in unique if text) or None


def clause_names(query: object) -> set[str]:
    """The names (``_name``) of a query's clauses.

    >>> clause_names({"bool": {"should": [{"match": {"title": {"query": "wolf", "_name": "title"}}}]}})
    {'title'}
    """

    def read(value: Query) -> tuple[Iterable[str], Iterable[Any]]:
        name = value.get("_name")
        return [name] if isinstance(name, str) else [], value.values()

    return set(_visit(query, read))


def _visit(root: object, read: Callable[[Query], tuple[Iterable[T], Iterable[Any]]]) -> Iterator[T]:
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
            waiting.extend(reversed([*inner]))


def _clause(clause: Query) -> tuple[list[Text], list[Any]]:
    """The texts of a clause, and the clauses inside."""
    texts: list[Text] = []
    inner: list[Any] = []
    for kind, about in clause.items():
        if not isinstance(about, Mapping):
            continue
        inner += [about[place] for place in _AROUND.get(kind, ()) if place in about]
        if kind == "template":  # a query that another processor has not filled in yet
            inner.append(about)
        elif kind in _BY_FIELD:
            for field, value in about.items():
                text = value.get(_BY_FIELD[kind]) if isinstance(value, Mapping) else value
                if isinstance(text, str):
                    texts.append((() if kind in _BY_VECTORS else (field,), text))
        elif kind in _OF_FIELDS and isinstance(text := about.get("query"), str):
            read = _WITH_SYNTAX.get(kind)
            texts.append((_fields(about), read(text) if read else text))
    return texts, inner


def _fields(about: Query) -> tuple[str, ...]:
    named = about.get("fields") or about.get("default_field") or ()
    named = [named] if isinstance(named, str) else named
    return tuple(map(str, named)) if isinstance(named, (list, Mapping)) else ()


def _is_among(fields: Sequence[str], name: str) -> bool:
    name = name.partition("^")[0]
    return any(
        fnmatchcase(name, field)
        or fnmatchcase(name, f"{field}.*")
        or ("*" in name and len(name) < 256 and fnmatchcase(field, name.replace("[", "[[]")))
        for field in fields
    )


def plain(text: str) -> str:
    """Remove the operators of ``query_string``, and excluded words.

    >>> plain('title:wolf AND (grey^2 OR "red fox"~3) -dog NOT cat year:[1990 TO 2000] lup*')
    'wolf grey red fox lup'
    """
    return " ".join(_NO_WORDS.sub(" ", text).translate(_SIGNS).split())


def plain_of_simple(text: str) -> str:
    """Remove the operators of ``simple_query_string``, and excluded words.

    >>> plain_of_simple('error: "disk full"~2 | [urgent] -dog NOT wolv* /var/log')
    'error: disk full [urgent] NOT wolv /var/log'
    """
    return " ".join(_NO_WORDS_OF_SIMPLE.sub(" ", text).translate(_SIGNS_OF_SIMPLE).split())


_WITH_SYNTAX = {"query_string": plain, "simple_query_string": plain_of_simple}
"""Queries with operators in the text -> the function that removes them."""
