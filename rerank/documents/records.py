"""Records of all modules. Do not write to their arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rerank.common.errors import UsageError
from rerank.common.values import is_collection, is_series, items_of, without_empty
from rerank.documents.stop_words import query_language, without_stop_words
from rerank.documents.text import compose, count_of, normalize

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_EMPTY: tuple[str, ...] = ()  # the default of fields; Python has only one empty tuple


LARGEST_GRADE = 1000
"""Largest grade of a judgment: the time of trec_eval grows with the square of the grades."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a collection.

    id:         the id, unique in the collection.
    categories: names of its categories.
    links:      ids of the documents that it links to.
    lang:       code of its language, or None.
    extra:      the other fields of the input, which filters can use.

    The fields are normalized as in files: an integer id becomes text, None an empty text, and one category or
    link without a list becomes a list of one. Titles and texts are composed (NFC), categories are normalized
    (:func:`rerank.documents.text.normalize`). Raises UsageError, with the field's name, for other types.

    >>> Document("1", title="Sorting", text="A faster quicksort").content
    'Sorting\\nA faster quicksort'
    >>> Document(2, categories="algorithms").categories
    ('algorithms',)
    """

    id: str
    title: str = ""
    text: str = ""
    categories: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    lang: str | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        _set_fields(
            self,
            id=record_id(self.id, "the id of a document"),
            title=_text(self.title, "title", self.id),
            text=_text(self.text, "text", self.id),
            categories=category_names(self.categories, "categories"),
            links=_names(self.links, "links"),
            lang=_text(self.lang, "lang", self.id) or None,
        )
        _check_mapping(self.extra, "extra")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as in a file of documents, without empty ones.

        >>> Document("1", text="A tree", categories=["botany"], extra={"year": 2024}).to_json()
        {'_id': '1', 'text': 'A tree', 'categories': ['botany'], 'year': 2024}
        """
        lists = {"categories": list(self.categories), "links": list(self.links)}
        fields = {"title": self.title, "text": self.text, **lists, "lang": self.lang}
        return {"_id": self.id, **without_empty(fields), **self.extra}

    @property
    def content(self) -> str:
        """Title and text, which engines index and rankers read. The title is on its own line."""
        return "\n".join(filter(None, (self.title, self.text)))


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a user.

    id:           the id, unique among the queries of a call.
    text:         the words of the user.
    categories:   names of categories of relevant documents. Without them, they are inferred from candidates.
    lang:         code of its language, or None.
    lexical_text: replaces ``text`` in lexical signals (Kuwa et al. 2020, section 5.3).
    params:       other fields, for search templates.

    The fields are normalized like the fields of a document. Raises UsageError for other types.

    >>> Query("q1", "grey wolf", categories=("Carnivora",)).lexical
    'grey wolf'
    >>> Query("q1", "grey wolf", lexical_text="lupo grigio").lexical
    'lupo grigio'
    """

    id: str
    text: str
    categories: tuple[str, ...] = ()
    lang: str | None = None
    params: Mapping[str, Any] = field(default_factory=lambda: _NOTHING, hash=False)
    lexical_text: str | None = None

    def __post_init__(self) -> None:
        if self.text is None:
            raise UsageError(f"the text of query {self.id!r} is None; give a text")
        lexical_text = self.lexical_text
        _set_fields(
            self,
            id=record_id(self.id, "the id of a query"),
            text=_text(self.text, "text", self.id),
            categories=category_names(self.categories, "categories"),
            lang=_text(self.lang, "lang", self.id) or None,
            lexical_text=None if lexical_text is None else _text(lexical_text, "lexical_text", self.id),
        )
        _check_mapping(self.params, "params")

    @property
    def lexical(self) -> str:
        """The text that lexical signals search for: ``lexical_text``, or else ``text``."""
        if self.lexical_text is None:
            return self.text
        return self.lexical_text

    def search_text(self, lang: str | None) -> str:
        """Return the text of lexical signals without stop words.

        lang: of the documents. A query without ``lang`` is in the language that its stop words show.

        >>> Query("q1", "die Kosten", lang="de").search_text("en").split()
        ['Kosten']
        >>> Query("q1", "the cost of search").search_text("de").split()
        ['cost', 'search']
        """
        if self.lexical_text:
            return without_stop_words(self.lexical_text, lang)
        query_lang = self.lang or query_language(self.text, lang)
        return without_stop_words(self.lexical, query_lang)


@dataclass(frozen=True, slots=True)
class SearchTemplate:
    """A custom search that finds and scores candidates.

    kind:        ``template`` (body of ``_search``) or ``run`` (TREC run).
    name:        of the file.
    source:      text of the template.
    pipeline:    default search pipeline. index: intended index.
    fingerprint: hash of the search.
    hits:        query id -> (document id, score) pairs, best first.

    >>> str(SearchTemplate("template", "shop.json"))
    'template:shop.json'
    """

    kind: Literal["template", "run"]
    name: str
    source: str = ""
    pipeline: str | None = None
    index: str | None = None
    fingerprint: str = ""
    hits: Mapping[str, Sequence[tuple[str, float]]] = field(
        default_factory=lambda: _NOTHING, repr=False, hash=False
    )

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class Qrels(Mapping[str, Mapping[str, int]]):
    """Query id -> document id -> grade (above 0: relevant).

    Grades are integers of any type, also ``2.0`` and NumPy numbers.

    Raises UsageError for other grades, grades above 1000, other types, and two grades of one document.

    >>> qrels = Qrels([("q1", "d1", 2), ("q1", "d2", 0)])
    >>> qrels["q1"]["d1"], qrels.relevant("q1")
    (2, {'d1': 2})
    >>> qrels
    Qrels(1 query, 2 judgments)
    >>> Qrels({"q1": {"d1": 2, "d2": 0}}) == qrels
    True
    """

    def __init__(
        self, judgments: Iterable[tuple[str, str, int]] | Mapping[str, Mapping[str, int]] = ()
    ) -> None:
        self._grades: dict[str, dict[str, int]] = {}
        for query, document, grade in _judgment_rows(judgments):
            query_id = record_id(query, "qrels: a query id")
            document_id = record_id(document, "qrels: a document id")
            value = integral_grade(grade)
            pair = f"of document {document_id!r} for query {query_id!r}"
            if value is None:
                raise UsageError(f"qrels: the grade {shorten(grade)} {pair} is not an integer")
            if abs(value) > LARGEST_GRADE:
                raise UsageError(
                    f"qrels: the grade {value} {pair} is above {LARGEST_GRADE:,}; use grades such as 0 to 3"
                )
            if self._grades.setdefault(query_id, {}).setdefault(document_id, value) != value:
                raise UsageError(
                    f"qrels: two grades {pair}, {self._grades[query_id][document_id]} and {value}; keep one"
                )

    def __getitem__(self, query: str) -> Mapping[str, int]:
        return self._grades[query]

    def __iter__(self) -> Iterator[str]:
        return iter(self._grades)

    def __len__(self) -> int:
        return len(self._grades)

    def __repr__(self) -> str:
        judged = count_of(sum(map(len, self._grades.values())), "judgment")
        return f"Qrels({count_of(len(self), 'query')}, {judged})"

    def relevant(self, query: str) -> dict[str, int]:
        """Return document -> grade of the relevant documents of a query; empty for an unknown query."""
        grades = self._grades.get(query, {})
        return {document: grade for document, grade in grades.items() if grade > 0}


class LabeledPair(NamedTuple):
    """Two document ids, and whether they are related.

    >>> LabeledPair("b", "a", True).key
    ('a', 'b')
    """

    a: str
    b: str
    related: bool

    @property
    def key(self) -> tuple[str, str]:
        """The two ids in ascending order, equal for both orders of the pair."""
        return min(self.a, self.b), max(self.a, self.b)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The n documents retrieved for one query.

    ids:      by score descending, then id ascending.
    scores:   (n,) float64 of the first stage; 0: no shared term.
    rows:     (n,) int64, handles for the engine.
    features: ranker -> (n, width).
    missing:  ranker -> (n,) bool, True without a feature.
    retrieved_by: retriever -> (n,) bool.
    took:     seconds in a remote engine, without transfer.
    approximate: retrievers that may have missed some of the nearest documents.
    legs:     ``leg:NAME`` -> (n,) float64, the scores of clauses of the user's search; 0: no match.

    >>> import numpy as np
    >>> found = Candidates(["d2", "d1"], np.array([3.5, 1.0]), np.array([1, 0]))
    >>> found.ids[0], found.scores[0].item()
    ('d2', 3.5)
    """

    ids: list[str]
    scores: NDArray[np.float64]
    rows: NDArray[np.int64]
    features: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    missing: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    retrieved_by: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    took: float | None = None
    approximate: tuple[str, ...] = ()
    legs: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


def record_id(value: object, label: str) -> str:
    """Return an id as text; integers are accepted. Raises UsageError, also for an empty id."""
    if isinstance(value, str):
        if not value.strip():
            raise UsageError(f"{label} is empty; give one")
        return str(value)
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageError(f"{label} is {shorten(value)}, not a text or an integer")
    return str(int(value))


def category_names(values: object, label: str) -> tuple[str, ...]:
    """Return distinct names, normalized and without white space around them; one text is one name.

    Raises UsageError.

    >>> category_names(["wolves ", "wolves", ""], "categories"), category_names("wolves", "categories")
    (('wolves',), ('wolves',))
    """
    if values is _EMPTY:
        return ()
    names = dict.fromkeys(normalize(name).strip() for name in _names(values, label))
    names.pop("", None)
    return tuple(names)


def integral_grade(value: object) -> int | None:
    """Return a number without fraction as an integer; None for other values.

    >>> integral_grade(2.0), integral_grade(0.5), integral_grade("2")
    (2, None, None)
    """
    if type(value) is int:
        return value
    if isinstance(value, Real) and float(value).is_integer():
        return int(float(value))
    return None


def shorten(value: object) -> str:
    """Return a value for an error message, at most about 80 characters."""
    text = repr(value)
    if len(text) <= 60:
        return text
    return f"{text[:57]}... ({type(value).__name__})"


def _set_fields(record: Document | Query, **values: object) -> None:
    for name, value in values.items():
        if value is not getattr(record, name):
            object.__setattr__(record, name, value)  # the class is frozen


def _text(value: object, name: str, record_id: object) -> str:
    """Return a text with composed accents. Raises UsageError for other types."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(f"the {name} of {record_id!r} is {shorten(value)}, not a text")
    return compose(str(value))  # a plain text also for a subclass, such as those of NumPy


def _names(values: object, label: str) -> tuple[str, ...]:
    """Return texts and integers as texts; a single one is a list of one. Raises UsageError for others."""
    if values is None or values is _EMPTY:
        return ()
    if isinstance(values, (str, Integral)):
        return (str(values),)
    if not is_series(values):
        raise UsageError(f"{label}: {shorten(values)} is not a list of texts")
    return tuple(_name(value, label) for value in values)


def _name(value: object, label: str) -> str:
    if not isinstance(value, (str, Integral)):
        raise UsageError(f"{label}: {shorten(value)} is not a text")
    return str(value)


def _check_mapping(values: object, label: str) -> None:
    if not isinstance(values, Mapping):
        raise UsageError(f"{label}: {shorten(values)} is not a mapping of names to values")


def _judgment_rows(judgments: object) -> Iterator[tuple[object, object, object]]:
    """Yield query id, document id and grade. Raises UsageError for other forms."""
    if isinstance(judgments, Mapping):
        yield from _rows_of_mapping(judgments)
    elif is_collection(judgments):
        yield from map(_judgment_row, judgments)
    else:
        raise UsageError(f"qrels: {shorten(judgments)} is neither a mapping nor a list of judgments")


def _rows_of_mapping(judgments: Mapping[object, object]) -> Iterator[tuple[object, object, object]]:
    for query, grades in judgments.items():
        if not isinstance(grades, Mapping):
            raise UsageError(f"qrels: {shorten(grades)} of query {query!r} is not a mapping of grades")
        yield from zip(repeat(query), grades.keys(), grades.values())


def _judgment_row(row: object) -> tuple[object, object, object]:
    values = tuple(items_of(row))
    if len(values) != 3:
        raise UsageError(f"qrels: {shorten(row)} is not a query id, a document id and a grade")
    return values[0], values[1], values[2]
