"""The fields of a document in an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate, chain, product
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rerank.common.errors import EngineError, UsageError
from rerank.common.values import is_list, listed, without_empty
from rerank.documents.filters import FIELD, terms_of
from rerank.documents.records import Document
from rerank.documents.text import STEMMERS, language, searchable
from rerank.engines.base import FIRST_STAGES
from rerank.engines.opensearch.columns import DOCUMENT, FEATURES, document_row

_SEARCHED = ("text", "match_only_text")
_WITH_WORDS = ("title", "text")
"""The parts of a document that BM25 searches."""
_Paths = Annotated[tuple[Annotated[str, Meta(pattern=r"\S")], ...], Meta(min_length=1)]
"""Names of fields in the settings."""

FIELDS = ("title", "text", "categories", "links", "lang")
"""Parts of a document. In an index that rerank made, these are the names of its fields."""
_OWN_FIELDS = {name: (name,) for name in FIELDS}


def fields_of(table: Mapping[str, Any], settings_file: str) -> dict[str, tuple[str, ...]]:
    """Return the document fields of an attached index: part of a document -> paths of fields.

    table:         ``[opensearch.fields]`` of the settings.
    settings_file: the file of the settings, which errors name.

    Raises UsageError for a table that names an unknown part of a document, or no field with words.

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
        try:
            fields[name] = msgspec.convert(listed(paths), _Paths)
        except msgspec.ValidationError:
            raise UsageError(
                f"{settings_file}: field {name!r} needs the name of a field of the index"
            ) from None
    if fields and fields.keys().isdisjoint(_WITH_WORDS):
        raise UsageError(f"{settings_file}: neither title nor text is given; name the field with the words")
    return fields


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
        self.source: bool | list[str] = sorted({*chain.from_iterable(fields.values())}) or True
        self._words = [*fields.get("title", ()), *fields.get("text", ())]
        paths_by_part = fields or _OWN_FIELDS
        self._paths: list[tuple[str, list[str]]] = []
        for name, paths in paths_by_part.items():
            for path in paths:
                self._paths.append((name, path.split(".")))

    @property
    def word_fields(self) -> list[str]:
        """The fields of the index that BM25 searches for the words of a query."""
        return self._words or ["content"]

    def query(self, text: str, signal: str) -> dict[str, Any]:
        """Return the query of a lexical signal, in the language of OpenSearch.

        text: plain words. If title and text are different fields, their scores add up.
        """
        if len(self._words) > 1:
            return {"multi_match": {"query": text, "fields": self._words, "type": "most_fields"}}
        field = "content" if signal == "bm25" else "content.tfidf"
        if self._words:
            (field,) = self._words
        return {"match": {field: {"query": text}}}

    def document(self, id: str, source: Mapping[str, Any]) -> Document:
        """Return the document that a ``_source`` contains.

        Several values of a title or text are joined by line breaks. Of several languages, the first is used.
        """
        texts: dict[str, list[str]] = {name: [] for name in FIELDS}
        for name, path in self._paths:
            texts[name] += _strings(_value_at(source, path))
        extra = None if self.attached else source.get("extra")
        return Document(
            id,
            title="\n".join(texts["title"]),
            text="\n".join(texts["text"]),
            categories=tuple(texts["categories"]),
            links=tuple(texts["links"]),
            lang=next(iter(texts["lang"]), None),
            extra=extra or {},
        )

    def has_value(self, path: str, source: Mapping[str, Any]) -> bool:
        """Return whether a ``_source`` has a text that is not empty at the path of a field."""
        return any(_strings(_value_at(source, path.split("."))))

    def row(self, document: Document) -> dict[str, Any]:
        """Return the fields that are written with the features: id and categories, for the hook.

        An attached index gets none.
        """
        if self.attached:
            return {}
        return {DOCUMENT: document_row(document.id, document.categories)}

    def to_source(self, document: Document) -> dict[str, Any]:
        """Return the ``_source`` of a document in an index that rerank made.

        It has the parts of the document that are not empty, its normalized words and its filter terms.
        """
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
        return without_empty(fields)

    def _normalized(self, document: Document) -> list[str]:
        """Return the words that normalization changes, which are searched in addition to the original ones.

        The cluster would need 60 % more time for the same work on all texts. It normalizes queries.
        """
        has_entities = "&" in document.content
        if document.content.isascii() and not has_entities:
            return []
        normalized: list[str] = []
        for word in document.content.split():
            text = searchable(word, stemmed=self._stemmed)
            if text != word:
                normalized.append(text)
        return normalized


def check_fields(index: str, mappings: Mapping[str, Any], fields: Mapping[str, Sequence[str]]) -> None:
    """Check that the fields of an attached index exist, can be read, and can be searched.

    mappings: the mappings of the index. fields: part of a document -> paths of fields.

    Raises UsageError for a field that is missing or of an unsuitable type, EngineError for one that is not in
    ``_source``.
    """
    all_paths = list(chain.from_iterable(fields.values()))
    _check_source(index, mappings.get("_source", {}), all_paths)
    types = dict(field_types(mappings.get("properties", {})))
    existing_fields = ", ".join(types) or "none"
    for name, paths in fields.items():
        for path in paths:
            if path not in types:
                raise UsageError(f"index {index!r} has no field {path!r} ({name}); it has {existing_fields}")
            _check_field(name, path, mappings, f"field {path!r} of index {index!r}")


def _check_field(name: str, path: str, mappings: Mapping[str, Any], described: str) -> None:
    """Raise UsageError for an existing field that cannot be used for a part of a document.

    name: the part of a document. described: the field, for messages.
    """
    definition, nested = _definition(mappings, path)
    kind = definition.get("type")
    if kind == "alias":
        raise UsageError(f"{described} is an alias; name the field {definition.get('path')!r} itself")
    if name not in _WITH_WORDS:
        return
    if kind not in _SEARCHED:
        raise UsageError(f"{described} is of type {kind}; {name} needs text")
    if nested:
        raise UsageError(
            f"{described} is inside {nested!r} of type nested, so no search for words finds it; name a field"
            " outside, or reindex it with `include_in_root: true`"
        )
    if definition.get("index") is False:
        raise UsageError(
            f"{described} has `index: false`, so no search finds its words; name another, or reindex it"
        )


def field_types(properties: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the type of each field of a mapping, without the fields that rerank adds.

    properties: the fields of the mapping or of an object in it.
    above:      path of this object, with a dot at its end.
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
    nested = ""
    remaining = path
    while remaining:
        name = _first_name(remaining, definition["properties"])
        definition = definition["properties"][name]
        remaining = remaining[len(name) + 1 :]
        is_separate = definition.get("type") == "nested" and not definition.get("include_in_root")
        if is_separate:
            nested = path.removesuffix(f".{remaining}")
    return definition, nested


def _first_name(path: str, properties: Mapping[str, Any]) -> str:
    """Return the property at the start of a path. A name can have dots with ``subobjects: false``."""
    for name in _beginnings(path):
        if name in properties:
            return name
    return path


def _beginnings(path: str) -> list[str]:
    """Return the paths of the objects around a field, the outermost first, and the path itself.

    >>> _beginnings("author.name.last")
    ['author', 'author.name', 'author.name.last']
    """
    return list(accumulate(path.split("."), "{}.{}".format))


def _check_source(index: str, source: Mapping[str, Any], paths: Sequence[str]) -> None:
    """Raise EngineError for a field that is not in ``_source``. source: ``_source`` of the mapping."""
    if source.get("enabled") is False:
        raise EngineError(f"index {index!r} has no _source, so it cannot be read; reindex it with _source")
    missing: list[str] = []
    for path in paths:
        if not _in_source(path, source):
            missing.append(path)
    if missing:
        raise EngineError(
            f"index {index!r} excludes {', '.join(missing)} from _source; name others, or reindex it with"
            " them"
        )


def _in_source(path: str, source: Mapping[str, Any]) -> bool:
    """Return whether the ``_source`` of documents contains a field. source: ``_source`` of the mapping."""
    includes = source.get("includes") or ["*"]
    excludes = source.get("excludes", [])
    is_included = _fits_any(path, includes)
    is_excluded = _fits_any(path, excludes)
    return is_included and not is_excluded


def _fits_any(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a pattern fits a field or an object around it."""
    names_and_patterns = product(_beginnings(path), patterns)
    return any(fnmatchcase(name, pattern) for name, pattern in names_and_patterns)


def _value_at(source: object, path: Sequence[str]) -> object:
    """Return the value at a path of names; of a list, the values of its items. None means no value."""
    if not path:
        return source
    if isinstance(source, list):
        return [_value_at(item, path) for item in source]
    if not isinstance(source, Mapping):
        return None
    for end in range(len(path), 0, -1):  # a name in a document can have dots
        name = ".".join(path[:end])
        if name in source:
            return _value_at(source[name], path[end:])
    return None


def _strings(value: object) -> list[str]:
    """Return the texts inside a JSON value; a number or truth value is a text."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = list(value.values())
    if not is_list(value):
        return [str(value)]
    strings: list[str] = []
    for item in value:
        strings += _strings(item)
    return strings
