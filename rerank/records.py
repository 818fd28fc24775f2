"""Records of all modules. Do not write to their arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from rerank.text import plural, query_language, without_stop_words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Document:
    """One document; ``extra`` has the other fields of the input.

    >>> Document("1", title="Sorting", text="A faster quicksort").content
    'Sorting\\nA faster quicksort'
    """

    id: str
    title: str = ""
    text: str = ""
    categories: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    lang: str | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)

    @property
    def content(self) -> str:
        """Title and text."""
        return f"{self.title}\n{self.text}" if self.title and self.text else self.title or self.text


@dataclass(frozen=True, slots=True)
class Query:
    """One query. Empty ``categories`` are inferred from candidates.

    lexical_text: replaces ``text`` in lexical signals (Kuwa et al. 2020, section 5.3).
    params: other fields, for search templates.

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

    @property
    def lexical(self) -> str:
        """The text of lexical signals."""
        return self.text if self.lexical_text is None else self.lexical_text

    def search_text(self, lang: str | None) -> str:
        """Return the text of lexical signals without stop words.

        lang: of the documents. A query without ``lang`` is in the language that its stop words show.

        >>> Query("q1", "die Kosten", lang="de").search_text("en").split()
        ['Kosten']
        >>> Query("q1", "the cost of search").search_text("de").split()
        ['cost', 'search']
        """
        own = lang if self.lexical_text else self.lang or query_language(self.text, lang)
        return without_stop_words(self.lexical, own)


@dataclass(frozen=True, slots=True)
class SearchTemplate:
    """A custom search that finds and scores candidates.

    kind:        ``template`` (body of ``_search``), ``stored`` (in the cluster) or ``run`` (TREC run).
    name:        file or id.
    source:      text of the template.
    pipeline:    default search pipeline. index: intended index.
    fingerprint: hash of the search.
    hits:        query id -> (document id, score) pairs, best first.

    >>> str(SearchTemplate("template", "shop.json"))
    'template:shop.json'
    """

    kind: str
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
        if isinstance(judgments, Mapping):
            judgments = ((q, d, grade) for q, judged in judgments.items() for d, grade in judged.items())
        for query, document, grade in judgments:
            self._grades.setdefault(query, {})[document] = grade

    def __getitem__(self, query: str) -> Mapping[str, int]:
        return self._grades[query]

    def __iter__(self) -> Iterator[str]:
        return iter(self._grades)

    def __len__(self) -> int:
        return len(self._grades)

    def __repr__(self) -> str:
        judged = plural(sum(map(len, self._grades.values())), "judgment[|s]")
        return f"Qrels({plural(len(self), 'quer[y|ies]')}, {judged})"

    def relevant(self, query: str) -> dict[str, int]:
        """Return relevant document -> grade."""
        return {d: g for d, g in self._grades.get(query, {}).items() if g > 0}


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
        """The two ids, ascending."""
        return (self.a, self.b) if self.a <= self.b else (self.b, self.a)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The n documents retrieved for one query.

    ids:      by score descending, then id ascending.
    scores:   (n,) float64 of the first stage; 0: no shared term.
    rows:     (n,) int64, handles for the engine.
    features: ranker -> (n, width).
    missing:  ranker -> (n,) bool, True without a feature.
    retrieved_by: retriever -> (n,) bool.
    signals:  name -> (n,) float64, other scores.
    took:     seconds in a remote engine, without transfer.

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
    signals: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    took: float | None = None

    def __len__(self) -> int:
        return len(self.ids)
