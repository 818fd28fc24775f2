"""The fields of a document in an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rerank.engines.base import FIRST_STAGES
from rerank.engines.opensearch.columns import DOCUMENT, FEATURES, document_row
from rerank.errors import EngineError, UsageError
from rerank.filters import FIELD, terms_of
from rerank.records import Document
from rerank.text import STEMMERS, language, searchable

_SEARCHED = ("text", "match_only_text")

FIELDS = ("title", "text", "categories", "links", "lang")
"""Parts of a document. In an index that rerank made, these are the names of its fields."""


def fields_of(table: Mapping[str, Any], settings_file: str) -> dict[str, tuple[str, ...]]:
    """Return the document fields of an attached index. Raises UsageError, which names the file.

    >>> fields_of({"text": "body", "categories": ["tags", "topic.name"]}, "rerank.toml")
    {'text': ('body',), 'categories': ('tags', 'topic.name')}
    """
    if not isinstance(table, Mapping):
        raise UsageError(
            f"{settings_file}: fields = {table!r} is not a table of fields; write [opensearch.fields]"
        )
    fields: dict[str, tuple[str, ...]] = {}
    for name, paths in table.items():
        if name not in FIELDS:
            raise UsageError(
                f"{settings_file}: {name!r} is not a part of a document; use {', '.join(FIELDS)}"
            )
        listed = (paths,) if isinstance(paths, str) else paths
        if not _are_paths(listed):
            raise UsageError(f"{settings_file}: field {name!r} needs the name of a field of the index")
        fields[name] = tuple(listed)
    if fields and not {"title", "text"} & fields.keys():
        raise UsageError(f"{settings_file}: neither title nor text is given; name the field with the words")
    return fields


def _are_paths(values: object) -> bool:
    if not isinstance(values, (list, tuple)) or not values:
        return False
    return all(isinstance(value, str) and value.strip() for value in values)


class Layout:
    """The fields of the documents in an index.

    fields: of an attached index: part of a document -> fields; dots lead into objects. Empty: an index that
        rerank made (index_templates/).
    lang: language of the documents.
    first_stages: lexical signals.
    source: ``_source`` fields of a document.
    """

    def __init__(self, fields: Mapping[str, Sequence[str]] = {}, lang: str | None = None) -> None:
        self.fields = dict(fields)
        self.attached = bool(fields)
        self._stemmed = language(lang) in STEMMERS
        self.first_stages = ("bm25",) if fields else FIRST_STAGES
        self.source: bool | list[str] = sorted({path for paths in fields.values() for path in paths}) or True
        self._words = [path for name in ("title", "text") for path in fields.get(name, ())]
        parts = fields or {name: (name,) for name in FIELDS}
        self._paths = [(name, path.split(".")) for name, paths in parts.items() for path in paths]

    @property
    def word_fields(self) -> list[str]:
        """The fields that BM25 searches."""
        return self._words or ["content"]

    def query(self, text: str, signal: str) -> dict[str, Any]:
        """Return the query of a lexical signal. text: plain words. Scores of title and text add up."""
        if len(self._words) > 1:
            return {"multi_match": {"query": text, "fields": self._words, "type": "most_fields"}}
        (field,) = self._words or ["content" if signal == "bm25" else "content.tfidf"]
        return {"match": {field: {"query": text}}}

    def document(self, id: str, source: Mapping[str, Any]) -> Document:
        """Return the document of a ``_source``; several texts are joined by line breaks."""
        texts: dict[str, list[str]] = {}
        for name, path in self._paths:
            value = source.get(path[0]) if len(path) == 1 else _value_at(source, path)
            texts.setdefault(name, []).extend(_strings(value))
        return Document(
            id,
            "\n".join(texts.get("title", ())),
            "\n".join(texts.get("text", ())),
            tuple(texts.get("categories", ())),
            tuple(texts.get("links", ())),
            next(iter(texts.get("lang", ())), None),
            {} if self.attached else source.get("extra") or {},
        )

    def has_value(self, path: str, source: Mapping[str, Any]) -> bool:
        """Return whether a ``_source`` has a text at the path of a field."""
        return any(_strings(_value_at(source, path.split("."))))

    def row(self, document: Document) -> dict[str, Any]:
        """Return the fields that are written with the features: id and categories, for the hook.

        An attached index gets none.
        """
        return {} if self.attached else {DOCUMENT: document_row(document.id, document.categories)}

    def to_source(self, document: Document) -> dict[str, Any]:
        """Return a document's ``_source`` in an index of rerank, with filter terms."""
        fields = {
            "id": document.id,
            "title": document.title,
            "text": document.text,
            "normalized": self._normalized(document),
            "categories": document.categories,
            "links": document.links,
            "lang": document.lang,
            "extra": document.extra,
            FIELD: terms_of(document),
        }
        return {name: value for name, value in fields.items() if value}

    def _normalized(self, document: Document) -> list[str]:
        """Return the words that normalization changes, which are searched in addition to the original ones.

        The cluster would need 60 % more time for the same work on all texts. It normalizes queries.
        """
        if document.content.isascii() and "&" not in document.content:
            return []
        words = document.content.split()
        return [text for word in words if (text := searchable(word, stemmed=self._stemmed)) != word]


def check_fields(index: str, mappings: Mapping[str, Any], fields: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageError or EngineError for missing or unreadable fields."""
    types = dict(field_types(mappings.get("properties", {})))
    source = mappings.get("_source", {})
    if source.get("enabled") is False:
        raise EngineError(f"index {index!r} has no _source, so it cannot be read; reindex it with _source")
    not_stored = [path for paths in fields.values() for path in paths if not _in_source(path, source)]
    if not_stored:
        raise EngineError(
            f"index {index!r} excludes {', '.join(not_stored)} from _source; name others, or reindex it with"
            " them"
        )
    for name, paths in fields.items():
        for path in paths:
            kind = types.get(path)
            field = f"field {path!r} of index {index!r}"
            if kind is None:
                names = ", ".join(types) or "none"
                raise UsageError(f"index {index!r} has no field {path!r} ({name}); it has {names}")
            definition, nested = _definition(mappings, path)
            if kind == "alias":
                raise UsageError(f"{field} is an alias; name the field {definition.get('path')!r} itself")
            if name not in ("title", "text"):
                continue
            if kind not in _SEARCHED:
                raise UsageError(f"{field} is of type {kind}; {name} needs text")
            if nested:
                raise UsageError(
                    f"{field} is inside {nested!r} of type nested, so no search for words finds it; name a"
                    " field outside, or reindex it with `include_in_root: true`"
                )
            if definition.get("index") is False:
                raise UsageError(
                    f"{field} has `index: false`, so no search finds its words; name another, or reindex it"
                )


def field_types(properties: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Return the path and the type of each field.

    above: path of the object with these properties, with a dot at its end.
    """
    for name, definition in properties.items():
        path = above + name
        if path == FEATURES:
            continue
        if "properties" in definition:
            yield from field_types(definition["properties"], f"{path}.")
        elif definition.get("type") != "object":
            yield path, str(definition.get("type"))


def _definition(mappings: Mapping[str, Any], path: str) -> tuple[Mapping[str, Any], str]:
    """Return the mapping of an existing field, and the path of the nested field around it, or ""."""
    definition: Mapping[str, Any] = mappings
    parts = path.split(".")
    nested = ""
    start = 0
    while start < len(parts):
        properties = definition["properties"]
        # A name in a mapping can have dots with `subobjects: false`.
        end = next(
            end for end in range(start + 1, len(parts) + 1) if ".".join(parts[start:end]) in properties
        )
        definition = properties[".".join(parts[start:end])]
        if definition.get("type") == "nested" and not definition.get("include_in_root"):
            nested = ".".join(parts[:end])
        start = end
    return definition, nested


def _in_source(path: str, source: Mapping[str, Any]) -> bool:
    def covers(patterns: Sequence[str]) -> bool:
        parts = path.split(".")
        above = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        return any(fnmatchcase(name, pattern) for name in above for pattern in patterns)

    includes = source.get("includes") or ["*"]
    return covers(includes) and not covers(source.get("excludes") or [])


def _value_at(source: Any, path: Sequence[str]) -> Any:
    """Return the value at a path; of a list, the values of its items."""
    if not path:
        return source
    if isinstance(source, list):
        return [_value_at(item, path) for item in source]
    if not isinstance(source, Mapping):
        return None
    for end in range(len(path), 0, -1):
        key = ".".join(path[:end])
        if key in source:
            return _value_at(source[key], path[end:])
    return None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
    elif value is not None:
        yield str(value)
