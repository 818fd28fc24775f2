"""Custom searches: a request body or a run."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from rerank.common.errors import InputError, UsageError
from rerank.common.values import items_in
from rerank.documents.records import Query, SearchTemplate
from rerank.formats.lines import read_texts
from rerank.formats.opening import name_of
from rerank.formats.trec import read_run

SLOT = "%SearchText%"
"""The query in templates of Search Relevance Workbench, inside a JSON string."""

SLOTS = ("text", "query", "query_text", "query_string", "q", "keywords")
"""Names of the query in Mustache templates."""

_REQUEST = re.compile(r"(?:GET|POST)\s+(\S+)\s*", re.IGNORECASE)  # as Dev Tools copies it
_TAG = re.compile(r"\{\{(\{?)\s*([&#^/!>=]?)\s*([\w.%-]*)")
_VALUE = ("", "&")
"""Marks of tags that print a value."""
_SECTION_START = ("#", "^")
"""Marks of tags that begin a section."""
_FUNCTIONS = ("toJson", "join", "url")
_FUNCTION = re.compile(
    rf"\{{\{{\s*#\s*(?:{'|'.join(_FUNCTIONS)})\b[^}}]*\}}\}}\s*([\w.]+)\s*\{{\{{\s*/[^}}]*\}}\}}"
)
_SECTION = re.compile(r"\{\{\s*[#^]\s*([\w.%-]+)\s*\}\}.*?\{\{\s*/\s*\1\s*\}\}", re.DOTALL)


def read_template(text: str, folder: Path | None = None) -> SearchTemplate | None:
    """Read ``template:FILE`` or ``run:FILE``; None for other texts.

    folder: must contain FILE, so that a foreign workspace cannot send other files to a cluster.

    Raises InputError for invalid content, UsageError for a missing name or FILE.

    >>> read_template("bm25") is None, read_template("field:year") is None
    (True, True)
    """
    kind, colon, name = text.partition(":")
    if not colon or kind not in _READERS:
        return None
    if not name.strip():
        raise UsageError(f"--first-stage {text!r}: name the file")
    if folder is not None:
        name = _path_inside(folder, name, text)
    return _READERS[kind](name)


def _path_inside(folder: Path, name: str, text: str) -> str:
    """Return the path of a file in a folder. Raises UsageError for a file outside. text: for the message."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{folder / 'rerank.toml'}: {text!r} is not in this folder; copy the file into it")
    return str(path)


def _run(path: str) -> SearchTemplate:
    hits = {query: _without_ties(pairs) for query, pairs in read_run(path).items()}
    return SearchTemplate("run", Path(path).name, fingerprint=hashed(json.dumps(hits)), hits=hits)


def _without_ties(pairs: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Lower tied scores by the smallest step, so that documents stay in the order of the run."""
    strict: list[tuple[str, float]] = []
    for document, score in pairs:
        if strict and score >= strict[-1][1]:
            score = math.nextafter(strict[-1][1], -math.inf)
        strict.append((document, score))
    return strict


def _template(path: str) -> SearchTemplate:
    source = "\n".join(text for _, text in read_texts(path)).strip()
    index: str | None = None
    pipeline: str | None = None
    request = _REQUEST.match(source)
    if request is not None:
        source = source[request.end() :].strip()
        index, pipeline = _index_and_pipeline(request, name_of(path))
    if not source:
        raise InputError(f"{name_of(path)}: the template is empty; write the body of a _search")
    check_slots(source, name_of(path))
    return SearchTemplate("template", Path(path).name, source, pipeline, index, fingerprint(source, pipeline))


def _index_and_pipeline(request: re.Match[str], location: str) -> tuple[str | None, str | None]:
    """Return the index and the search pipeline of a line such as ``GET /INDEX/_search``.

    Raises InputError for another request than a search.
    """
    url = urlsplit(request[1])
    *indices, action = url.path.strip("/").split("/")
    if action != "_search" or len(indices) > 1:
        raise InputError(f"{location}:1: {request[0].strip()} is not a search; write GET /INDEX/_search")
    index = next(iter(indices), None)
    pipeline = parse_qs(url.query).get("search_pipeline", [None])[0]
    return index, pipeline


_READERS: dict[str, Callable[[str], SearchTemplate]] = {"template": _template, "run": _run}
"""Kind of a custom search -> the function that reads its file."""


def _tag_names(source: str, *marks: str) -> list[str]:
    """Return the names of the tags that have one of these marks. ``""``: tags without a mark."""
    return [name for _, mark, name in _TAG.findall(source) if mark in marks]


def _root(name: str) -> str:
    """Return the field of a name such as ``user.id``."""
    return name.partition(".")[0]


def slots(source: str) -> list[str]:
    """Return the names of query slots in order.

    >>> slots('{"query": {"match": {"title": "{{text}}"}}}'), slots('{"query": "%SearchText%"}')
    (['text'], ['%SearchText%'])
    """
    names = dict.fromkeys([*re.findall(SLOT, source), *_tag_names(source, *_VALUE)])
    return items_in(names, (SLOT, *SLOTS))


def check_slots(source: str, location: str) -> None:
    """Raise InputError unless a template has one name for query slots and escapes all slots."""
    if _tag_names(source, "="):
        raise InputError(
            f"{location}: the template changes Mustache's delimiters; write {{{{ and }}}} everywhere"
        )
    unescaped = _unescaped_slots(source)
    if unescaped:
        raise InputError(
            f"{location}: the slot {unescaped[0]} is not escaped, so a query's quotes would change the"
            f' template; write "{{{{{unescaped[0]}}}}}"'
        )
    names = slots(source)
    if not names:
        raise InputError(
            f'{location}: the template has no slot for the query; write "{{{{text}}}}" or "{SLOT}" where its'
            " words go"
        )
    if len(names) > 1:
        raise InputError(
            f"{location}: the template has {len(names)} slots for the query, {' and '.join(names)}; use only"
            " one of them"
        )


def _unescaped_slots(source: str) -> list[str]:
    """Return the names of slots whose values the cluster does not escape."""
    unescaped: list[str] = []
    for brace, mark, name in _TAG.findall(source):
        if brace or mark == "&":
            unescaped.append(name)
    # OpenSearch's functions do not escape texts.
    unescaped += items_in(_FUNCTION.findall(source), SLOTS)
    return unescaped


def check_values(search: SearchTemplate, queries: Sequence[Query]) -> None:
    """Raise InputError for a slot without a value in any query.

    Sections (``{{#year}}...{{/year}}``) and defaults (``{{^year}}2000{{/year}}{{year}}``) are allowed.

    >>> search = SearchTemplate("template", "shop.json", '{"match": {"{{field}}": "{{text}}"}}')
    >>> check_values(search, [Query("q", "wolf", params={"field": "body"})])
    """
    missing = _required_fields(search.source)
    for query in queries:
        missing.difference_update(query.params)
        if query.lang:
            missing.discard("lang")
    if not missing:
        return
    name = min(missing)
    problem = f"query {queries[0].id!r} has no value" if len(queries) == 1 else "no query has a value"
    raise InputError(
        f"{search}: {problem} for its slot {name}; give queries a field {name!r}, or put"
        f" {{{{#{name}}}}} and {{{{/{name}}}}} around the optional part"
    )


def fields_of(search: SearchTemplate) -> set[str]:
    """Return the query fields of a template.

    >>> sorted(fields_of(SearchTemplate("template", "a", '{{text}} {{#tags}}{{.}}{{/tags}} {{user.id}}')))
    ['tags', 'user']
    """
    tags = _TAG.findall(search.source)
    names = {*map(itemgetter(2), tags), *_FUNCTION.findall(search.source)}
    roots = set(map(_root, names - {*_FUNCTIONS}))
    return roots - {*SLOTS, ""}


def _required_fields(source: str) -> set[str]:
    """Fields outside of sections, which do not have a section elsewhere."""
    if SLOT in source:
        return set()
    plain = _FUNCTION.sub(r"{{\1}}", source)
    outside = _SECTION.sub("", plain)
    sections = set(map(_root, _tag_names(plain, *_SECTION_START)))
    needed = set(map(_root, _tag_names(outside, *_VALUE)))
    return needed - sections - {*SLOTS, "categories", ""}


def fingerprint(source: str, pipeline: str | None) -> str:
    """Return a hash of a template and its pipeline. A tuned stack recognizes its search by it."""
    return hashed(f"{source.strip()}\0{pipeline or ''}")


def hashed(text: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
