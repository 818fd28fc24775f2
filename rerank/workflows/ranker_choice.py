"""Choose rankers for a collection.

>>> facts = CollectionFacts(documents=5000, train_queries=30)
>>> print(*choose(facts), sep="\\n")
text is skipped: fewer than 50 train queries
meta is skipped: fewer than 50 train queries
s2net is skipped: fewer than 50 train queries
dense is skipped: the documents have no links
>>> print(*choose(CollectionFacts(documents=5000, train_queries=800, with_categories=0.9))[:2], sep="\\n")
text is trained: it learns which words of documents match which words of queries
meta is trained: it learns which categories of documents match which categories of queries
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rerank.workflows.splits import LEAST_TRAIN

LEAST_CATEGORIES = 0.1
"""Smallest share of documents with categories."""
LEAST_LINKS = 0.5
"""Smallest number of links per document."""
DENSE_PER_MINUTE = 200
"""Documents that ``dense`` trains on and encodes per minute on two cores (measured: cf, 1,239 documents)."""


@dataclass(frozen=True)
class CollectionFacts:
    """Input of the rules.

    with_categories: share of documents. links: per document. languages: most frequent of documents and of
    queries, or None. model: the encoder of ``dense`` is local. reads: its only language, or None. minutes:
    limit.
    """

    documents: int
    train_queries: int
    with_categories: float = 0.0
    links: float = 0.0
    languages: tuple[str | None, str | None] = (None, None)
    model: bool = False
    reads: str | None = None
    minutes: float = 10.0

    @property
    def two_languages(self) -> bool:
        """Whether queries and documents differ in language."""
        documents, queries = self.languages
        return None not in self.languages and documents != queries


Need = tuple[Callable[[CollectionFacts], bool], Callable[[CollectionFacts], str]]
"""A condition, and the reason if it fails."""

_QUERIES: Need = (
    lambda facts: facts.train_queries >= LEAST_TRAIN,
    lambda facts: f"fewer than {LEAST_TRAIN} train queries",
)
_CATEGORIES: Need = (
    lambda facts: facts.with_categories >= LEAST_CATEGORIES,
    lambda facts: (
        f"{facts.with_categories:.0%} of the documents have categories; {LEAST_CATEGORIES:.0%} are needed"
        if facts.with_categories
        else "the documents have no categories"
    ),
)
_LINKS: Need = (
    lambda facts: facts.links >= LEAST_LINKS,
    lambda facts: (
        f"{facts.links:.2f} links per document; {LEAST_LINKS} are needed"
        if facts.links
        else "the documents have no links"
    ),
)
_MODEL: Need = (
    lambda facts: facts.model,
    lambda facts: "its encoder is not on this machine; --model names another one",
)
_READS: Need = (
    lambda facts: facts.reads is None or {facts.reads, None} >= {*facts.languages},
    lambda facts: (
        f"its encoder reads {facts.reads!r}, and {_texts(facts)}; --model names one that"
        f" reads {'both' if facts.two_languages else repr(facts.languages[0] or facts.languages[1])}"
    ),
)
_TIME: Need = (
    lambda facts: dense_minutes(facts) <= facts.minutes / 2,
    lambda facts: (
        f"documents have links, but it takes about {dense_minutes(facts):.0f} minutes;"
        f" --minutes {math.ceil(2 * dense_minutes(facts))} has it trained"
    ),
)


def _texts(facts: CollectionFacts) -> str:
    documents, queries = facts.languages
    if facts.two_languages:
        return f"documents are in {documents!r}, queries in {queries!r}"
    return f"{'documents' if documents else 'queries'} are in {(documents or queries)!r}"


def dense_minutes(facts: CollectionFacts) -> float:
    """Estimate the minutes of ``dense`` on two cores."""
    return max(1.0, facts.documents / DENSE_PER_MINUTE)


@dataclass(frozen=True)
class Rule:
    """A ranker, its needs and its use; ``worth_across`` is for two languages."""

    ranker: str
    needs: tuple[Need, ...]
    worth: str
    worth_across: str = ""


RULES = (
    Rule(
        "text",
        (_QUERIES,),
        "it learns which words of documents match which words of queries",
        "it learns which words of documents match which words of the queries' language",
    ),
    Rule(
        "meta",
        (_QUERIES, _CATEGORIES),
        "it learns which categories of documents match which categories of queries",
    ),
    Rule(
        "s2net",
        (_QUERIES,),
        "it learns a space of terms and parts of words, which helps with rare words",
        "it learns a space that terms of both languages share",
    ),
    Rule(
        "dense",
        (_LINKS, _MODEL, _READS, _TIME),
        "its encoder knows more words than the judgments can teach, and learns from the links",
    ),
)
"""In the order of training."""


@dataclass(frozen=True)
class RankerChoice:
    """A ranker, trained or skipped, and the reason."""

    ranker: str
    trained: bool
    reason: str

    def __str__(self) -> str:
        return f"{self.ranker} is {'trained' if self.trained else 'skipped'}: {self.reason}"


def choose(facts: CollectionFacts) -> list[RankerChoice]:
    """Apply the rules."""
    choices = []
    for rule in RULES:
        failed = next((say(facts) for holds, say in rule.needs if not holds(facts)), None)
        worth = rule.worth_across if facts.two_languages and rule.worth_across else rule.worth
        choices.append(RankerChoice(rule.ranker, failed is None, failed or worth))
    return choices
