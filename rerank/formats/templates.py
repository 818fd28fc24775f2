"""A search of the user's own: a file with the body of a ``_search``, a stored template, or a run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rerank.errors import InputError, UsageError
from rerank.files import parse_json
from rerank.formats.lines import decode, name_of, read_lines
from rerank.formats.trec import read_run
from rerank.records import Query, SearchTemplate

KINDS = ("template", "stored", "run")

SLOT = "%SearchText%"
"""Stands for the query in templates of Search Relevance Workbench, within a JSON string."""

SLOTS = ("text", "query", "query_text", "query_string", "q", "keywords")
"""Names that a Mustache template can call the query by."""

_REQUEST = re.compile(r"(?:GET|POST)\s+(\S+)\s*", re.IGNORECASE)  # as Dev Tools copies it
_TAG = re.compile(r"\{\{(\{?)\s*([&#^/!>=]?)\s*([\w.%-]*)")
_FUNCTIONS = ("toJson", "join", "url")
_FUNCTION = re.compile(rf"\{{\{{\s*#\s*(?:{'|'.join(_FUNCTIONS)})\b[^}}]*\}}\}}\s*([\w.]+)\s*\{{\{{\s*/")


def read_template(text: str, folder: Path | None = None) -> SearchTemplate | None:
    """Read ``template:FILE``, ``stored:ID`` or ``run:FILE``; None for what begins otherwise.

    folder: where FILE has to be, links followed; None: anywhere. Who has made a workspace must not have any
        file of its user sent to a cluster.

    Raises InputError for a file that is none of these, UsageError for a name that is missing, or elsewhere.

    >>> read_template("bm25") is None, str(read_template("stored:shop"))
    (True, 'stored:shop')
    """
    kind, colon, name = text.partition(":")
    if not colon or kind not in KINDS:
        return None
    if not name.strip():
        raise UsageError(f"--first-stage {text!r}: name the file, or the stored template")
    if kind == "stored":
        return SearchTemplate("stored", name)
    path = name
    if folder is not None:
        path = str(folder / name)
        if not Path(path).resolve().is_relative_to(folder.resolve()):
            raise UsageError(
                f"{folder / 'rerank.toml'}: {text!r} is not in this folder; copy the file into it"
            )
    return _run(path) if kind == "run" else _template(path)


def _run(path: str) -> SearchTemplate:
    hits = read_run(path)
    return SearchTemplate("run", Path(path).name, fingerprint=hashed(json.dumps(hits)), hits=hits)


def _template(path: str) -> SearchTemplate:
    source = "\n".join(decode(path, number, line) for number, line in read_lines(path)).strip()
    index = pipeline = None
    if request := _REQUEST.match(source):
        source = source[request.end() :].strip()
        url = urlsplit(request[1])
        parts = url.path.strip("/").split("/")
        if parts[-1] != "_search" or len(parts) > 2:
            raise InputError(
                f"{name_of(path)}:1: {request[0].strip()} is no search; write GET /INDEX/_search"
            )
        index = parts[0] if len(parts) == 2 else None
        pipeline = parse_qs(url.query).get("search_pipeline", [None])[0]
    configuration = _configuration(source)
    if configuration is not None:
        index = configuration.get("index") or index
        pipeline = configuration.get("searchPipeline") or pipeline
        source = configuration["query"].strip()
    if not source:
        raise InputError(f"{name_of(path)}: the template is empty; write the body of a _search")
    check_slots(source, name_of(path))
    return SearchTemplate("template", Path(path).name, source, pipeline, index, fingerprint(source, pipeline))


def _configuration(source: str) -> dict[str, Any] | None:
    """A search configuration of Search Relevance Workbench: the body is a string in it."""
    try:
        found = parse_json(source)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("query"), str) else None


def slots(source: str) -> list[str]:
    """The names in a template that stand for the query, each once, in order.

    >>> slots('{"query": {"match": {"title": "{{text}}"}}}'), slots('{"query": "%SearchText%"}')
    (['text'], ['%SearchText%'])
    """
    named = [name for _, mark, name in _TAG.findall(source) if mark in ("", "&")]
    found = [SLOT] if SLOT in source else []
    return found + [name for name in dict.fromkeys(named) if name in SLOTS]


def check_slots(source: str, where: str) -> None:
    """Raise InputError unless a template has one slot for the query, and every slot is escaped."""
    if any(mark == "=" for _, mark, _ in _TAG.findall(source)):
        raise InputError(
            f"{where}: the template changes Mustache's delimiters; write {{{{ and }}}} everywhere"
        )
    raw = next((name for brace, mark, name in _TAG.findall(source) if brace or mark == "&"), None)
    # OpenSearch's functions write a text as it is: they are for lists and objects.
    raw = raw or next((name for name in _FUNCTION.findall(source) if name in SLOTS), None)
    if raw is not None:
        raise InputError(
            f"{where}: the slot {raw} is not escaped, so a query's quotes would change the template; write"
            f' "{{{{{raw}}}}}"'
        )
    found = slots(source)
    if not found:
        raise InputError(
            f'{where}: the template has no slot for the query; write "{{{{text}}}}" or "{SLOT}" where its'
            " words go"
        )
    if len(found) > 1:
        raise InputError(
            f"{where}: the template has {len(found)} slots for the query, {' and '.join(found)}; write one of"
            " them everywhere"
        )


def check_brought(search: SearchTemplate, queries: Sequence[Query]) -> None:
    """Raise InputError for a slot outside sections that no query has a value for: it would be empty.

    What is left out where there is no value stands within a section, ``{{#year}}...{{/year}}``, or has a
    default beside it, ``{{^year}}2000{{/year}}{{year}}``.

    >>> search = SearchTemplate("template", "shop.json", '{"match": {"{{field}}": "{{text}}"}}')
    >>> check_brought(search, [Query("q", "wolf", params={"field": "body"})])
    """
    lacking = _slots_of_fields(search.source)
    for query in queries:
        lacking -= {*query.params, *(("lang",) if query.lang else ())}
        if not lacking:
            return
    if lacking:
        name = min(lacking)
        lacks = f"query {queries[0].id!r} has no value" if len(queries) == 1 else "no query has a value"
        raise InputError(
            f"{search}: {lacks} for its slot {name}; give queries a field {name!r}, or write {{{{#{name}}}}}"
            f" and {{{{/{name}}}}} around what goes without one"
        )


def fields_of(search: SearchTemplate) -> set[str]:
    """The fields of queries that a template has slots or sections for.

    >>> sorted(fields_of(SearchTemplate("template", "a", '{{text}} {{#tags}}{{.}}{{/tags}} {{user.id}}')))
    ['tags', 'user']
    """
    named = {name for _, _, name in _TAG.findall(search.source)} | {*_FUNCTION.findall(search.source)}
    roots = {name.partition(".")[0] for name in named - {*_FUNCTIONS}}
    return roots - {*SLOTS, ""}


def _slots_of_fields(source: str) -> set[str]:
    """The fields of queries that a template cannot be filled in without, by their names."""
    if SLOT in source:
        return set()
    needed, optional, within = set(), {*SLOTS, "categories", "."}, 0
    for tag in _TAG.finditer(source):
        _, mark, name = tag.groups()
        if mark in ("#", "^") and name not in _FUNCTIONS:
            optional.add(name.partition(".")[0])
            within += 1
        elif mark == "/" and name not in _FUNCTIONS:
            within -= 1
        elif not within and mark in ("", "&"):
            needed.add(name.partition(".")[0])
        elif not within and (call := _FUNCTION.match(source, tag.start())):
            needed.add(call[1].partition(".")[0])
    return needed - optional


def fingerprint(source: str, pipeline: str | None) -> str:
    """Hash of what a template asks for."""
    return hashed(f"{source.strip()}\0{pipeline or ''}")


def hashed(text: str) -> str:
    """The first 16 hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
