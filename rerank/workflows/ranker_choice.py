"""Which rankers a collection gets, and why: the rules, as data.

>>> facts = CollectionFacts(documents=5000, train_queries=30)
>>> print(*choose(facts), sep="\\n")
text is left out: fewer than 50 queries are there to learn from
meta is left out: fewer than 50 queries are there to learn from
s2net is left out: fewer than 50 queries are there to learn from
dense is left out: documents have no links
>>> print(*choose(CollectionFacts(documents=5000, train_queries=800, with_categories=0.9))[:2], sep="\\n")
text is trained: it learns which words of documents belong to which words of queries
meta is trained: it learns which categories of documents belong to which of queries
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rerank.workflows.splits import LEAST_TRAIN

LEAST_CATEGORIES = 0.1
"""Share of the documents with categories from which on they are learned from."""
LEAST_LINKS = 0.5
"""Links per document from which on they are learned from."""
DENSE_PER_MINUTE = 200
"""Documents of which ``dense`` is trained and encoded in a minute, on two cores: cf's 1,239 took 12 minutes
of processor time (``rerank train dense``)."""


@dataclass(frozen=True)
class CollectionFacts:
    """What the rules look at.

    documents:       how many there are. train_queries: queries to learn from.
    with_categories: share of the documents that have categories.
    links:           links between documents, a document.
    languages:       that of most documents and that of most queries, where it is said.
    model:           whether the encoder of ``dense`` is on this machine.
    reads:           the one language that it reads; None: more of them, or not known.
    minutes:         how long all may take.
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
        """Whether queries are in another language than documents."""
        documents, queries = self.languages
        return None not in self.languages and documents != queries


Need = tuple[Callable[[CollectionFacts], bool], Callable[[CollectionFacts], str]]
"""What must be so, and what is said where it is not."""

_QUERIES: Need = (
    lambda facts: facts.train_queries >= LEAST_TRAIN,
    lambda facts: f"fewer than {LEAST_TRAIN} queries are there to learn from",
)
_CATEGORIES: Need = (
    lambda facts: facts.with_categories >= LEAST_CATEGORIES,
    lambda facts: (
        f"{facts.with_categories:.0%} of the documents have categories, {LEAST_CATEGORIES:.0%} are needed"
        if facts.with_categories
        else "documents have no categories"
    ),
)
_LINKS: Need = (
    lambda facts: facts.links >= LEAST_LINKS,
    lambda facts: (
        f"{facts.links:.2f} links a document, {LEAST_LINKS} are needed"
        if facts.links
        else "documents have no links"
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
    """About how long ``dense`` takes, on two cores."""
    return max(1.0, facts.documents / DENSE_PER_MINUTE)


@dataclass(frozen=True)
class Rule:
    """A ranker, what it needs, and what it is for; in two languages something else may be."""

    ranker: str
    needs: tuple[Need, ...]
    worth: str
    worth_across: str = ""


RULES = (
    Rule(
        "text",
        (_QUERIES,),
        "it learns which words of documents belong to which words of queries",
        "it learns which words of documents belong to which of the queries' language",
    ),
    Rule(
        "meta",
        (_QUERIES, _CATEGORIES),
        "it learns which categories of documents belong to which of queries",
    ),
    Rule(
        "s2net",
        (_QUERIES,),
        "it learns a space of terms and parts of words, in which rare words have neighbors, too",
        "it learns a space that terms of both languages share",
    ),
    Rule(
        "dense",
        (_LINKS, _MODEL, _READS, _TIME),
        "its encoder knows more words than the judgments can teach, and learns from the links",
    ),
)
"""In this order they are trained, and left out when time is up."""


@dataclass(frozen=True)
class RankerChoice:
    """A ranker that is trained, or left out, and the reason, with its hints marked."""

    ranker: str
    trained: bool
    reason: str

    @property
    def told(self) -> str:
        """Both in a line, its hints marked."""
        return f"{self.ranker} is {'trained' if self.trained else 'left out'}: {self.reason}"

    def __str__(self) -> str:
        return self.told

    def to_json(self) -> dict[str, object]:
        """Return it in JSON's values."""
        return {**vars(self), "reason": self.reason}


def choose(facts: CollectionFacts) -> list[RankerChoice]:
    """Apply the rules."""
    found = []
    for rule in RULES:
        lacking = next((say(facts) for holds, say in rule.needs if not holds(facts)), None)
        worth = rule.worth_across if facts.two_languages and rule.worth_across else rule.worth
        found.append(RankerChoice(rule.ranker, lacking is None, lacking or worth))
    return found
