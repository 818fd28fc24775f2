"""Choose rankers for a collection.

The order, the rules and the steps are fixed. A training ends early if its time is over.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rerank.common.values import items_in, with_keys, without_empty
from rerank.documents.categories import count_mentioned_names, names_as_text
from rerank.documents.records import Document, Query
from rerank.documents.stop_words import guess_language
from rerank.documents.text import language_or_none
from rerank.rankers.dense.config import PRESETS
from rerank.workflows.auto.splits import LEAST_TRAIN, Splits

LEAST_CATEGORIES = 0.1
"""Smallest share of documents with categories."""
LEAST_MENTIONED = 0.3
"""Smallest share of names of categories with a word of their document. Other names are codes, for example."""
MOST_NAMED = 5_000
"""Documents with categories whose names are compared with their words."""
LEAST_LINKS = 0.5
"""Smallest number of links per document."""
CLICK_NETWORKS = 3
"""Networks of a ranker that learns from clicks, whose trainings differ more than those from judgments."""
UNTRAINED = "dense"
"""The ranker whose encoder does not learn."""
NEIGHBORS = 3
"""Neighbors toward which the vectors of a document move."""
LEAST_NEIGHBOR_SHARE = 0.2
"""Smallest share of relevant documents among the neighbors of a relevant one, for moving to neighbors."""
LARGE = 20_000
"""Documents, or relevant documents of train queries, from which trainings have fewer steps."""
HUGE = 200_000
"""Documents, or relevant documents of train queries, from which trainings have the fewest steps."""
MOST_PARTS = 8
"""Largest number of parts of 64 tokens that an encoder reads of a document."""
PART_TOKENS = 64
"""Tokens of a part of a document."""


@dataclass(frozen=True)
class CollectionFacts:
    """The properties of a collection that decide which rankers are trained.

    words:           number of words of all documents.
    train_pairs:     number of relevant documents of the train queries.
    dev_queries, test_queries: numbers of queries.
    with_categories: share of the documents that have categories.
    mentioned_names: share of the names of categories that have a word of their document, in the first
                     MOST_NAMED documents with categories.
    name_words:      number of words of the names of the categories of all documents.
    links:           mean number of links of a document to other documents of the collection.
    languages:       most frequent language of the documents and of the queries; None if unknown.
    model:           whether the encoder of ``dense`` is on this machine.
    reads:           the only language that this encoder reads, or None.
    can_learn:       whether this encoder can be trained; a file of ONNX cannot.
    """

    documents: int
    train_queries: int
    words: int = 0
    train_pairs: int = 0
    dev_queries: int = 0
    test_queries: int = 0
    with_categories: float = 0.0
    mentioned_names: float = 0.0
    name_words: int = 0
    links: float = 0.0
    languages: tuple[str | None, str | None] = (None, None)
    model: bool = False
    reads: str | None = None
    can_learn: bool = True

    @classmethod
    def of(
        cls,
        documents: Iterable[Document],
        queries: Sequence[Query],
        splits: Splits,
        lang: str | None,
    ) -> CollectionFacts:
        """Count documents and judgments. The facts of the encoder are not set.

        lang: of documents without ``lang``.
        """
        ids = set[str]()
        langs = Counter[str | None]()
        targets = Counter[str]()
        words = 0
        with_categories = 0
        compared_names = 0
        mentioned_names = 0
        name_words = 0
        for document in documents:
            ids.add(document.id)
            words += len(document.content.split())
            with_categories += bool(document.categories)
            name_words += len(names_as_text(document.categories).split())
            if document.categories and with_categories <= MOST_NAMED:
                compared_names += len(document.categories)
                mentioned_names += count_mentioned_names(document, lang)
            targets.update({*document.links} - {document.id})
            langs[language_or_none(document.lang)] += 1
        query_langs = Counter(language_or_none(query.lang) for query in queries)
        query_lang = _most_frequent(query_langs) or guess_language(query.text for query in queries)
        return cls(
            documents=len(ids),
            words=words,
            train_queries=len(splits.train),
            train_pairs=sum(len(splits.train.relevant(query)) for query in splits.train),
            dev_queries=len(splits.dev),
            test_queries=len(splits.test),
            with_categories=with_categories / max(len(ids), 1),
            mentioned_names=mentioned_names / max(compared_names, 1),
            name_words=name_words,
            links=sum(with_keys(targets, ids).values()) / max(len(ids), 1),
            languages=(_most_frequent(langs) or lang, query_lang),
        )


def _most_frequent(languages: Counter[str | None]) -> str | None:
    """Return the most frequent language; None if no text has one."""
    return max(filter(None, languages), key=languages.__getitem__, default=None)


def unmet(facts: CollectionFacts) -> dict[str, str]:
    """Return need -> why the collection does not meet it."""
    unread = sorted(filter(None, {*facts.languages} - {facts.reads}))
    is_unmet = {
        "queries": facts.train_queries < LEAST_TRAIN,
        "categories": facts.with_categories < LEAST_CATEGORIES,
        "names": facts.mentioned_names < LEAST_MENTIONED,
        "few queries": facts.train_queries >= LEAST_TRAIN,
        "links": facts.links < LEAST_LINKS,
        "model": not facts.model,
        "training": not facts.can_learn,
        "language": facts.reads is not None and bool(unread),
    }
    texts = " and ".join(map(repr, unread))
    problem_of_language = f"its encoder reads {facts.reads!r}, but there are texts in {texts}"
    reasons = {
        "queries": f"fewer than {LEAST_TRAIN} train queries",
        "categories": f"fewer than {LEAST_CATEGORIES:.0%} of the documents have categories",
        "names": f"fewer than {LEAST_MENTIONED:.0%} of the names of categories have a word of their document",
        "few queries": "meta learns from the judgments what the categories mean",
        "links": f"fewer than {LEAST_LINKS} links per document",
        "model": "its encoder is not on this machine; --model names another one",
        "training": "its encoder is a file of ONNX, which cannot learn; --model names another one",
        "language": f"{problem_of_language}; --model names another encoder",
    }
    return with_keys(reasons, without_empty(is_unmet))


@dataclass(frozen=True)
class Rule:
    """When a ranker is trained, why it is useful, and how it is trained.

    ranker:  its name in the workspace.
    needs:   the properties that a collection must have; see :func:`unmet`.
    worth:   its use for a stack, for the report.
    variant: the ranker of a family that is trained. Default: the one named ``ranker``.
    judged:  whether it learns from the train queries.
    share:   its part of the remaining time, compared with the parts of later rankers.
    epochs:  of a small, a large and a huge collection; (): it has none.
    steps:   the most steps of a training; the time can allow fewer. 0: the epochs decide.
    passes:  how often an encoder reads all documents, if it does not share the vectors of another ranker.
    pretrained: whether the transformer does not learn, so that rankers share its vectors. The time limits the
        parts of documents that it reads.
    config:  settings of the training.
    click_config: further settings of a training on clicks.
    """

    ranker: str
    needs: tuple[str, ...]
    worth: str
    variant: str = ""
    judged: bool = True
    share: float = 1.0
    epochs: tuple[int, ...] = ()
    steps: int = 0
    passes: int = 0
    pretrained: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    click_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads_names(self) -> bool:
        """Whether an encoder reads the names of categories instead of texts."""
        return bool(self.config.get("names"))

    def all_parts(self, facts: CollectionFacts) -> int:
        """Return the parts of 64 tokens, about 45 words, of what the encoder reads of a mean document."""
        words = facts.name_words if self.reads_names else facts.words
        return min(MOST_PARTS, 1 + math.ceil(words / 45 / max(facts.documents, 1)))

    def parts(self, facts: CollectionFacts) -> int:
        """Return the parts of a document that an encoder reads after its training."""
        passages = int(self.config.get("passages", MOST_PARTS))
        return min(
            self.all_parts(facts),
            passages * int(self.config.get("passage_tokens", PART_TOKENS)) // PART_TOKENS,
        )

    def epoch_count(self, facts: CollectionFacts) -> int:
        """Return the epochs for the size of the collection; 0: the ranker has none."""
        if not self.epochs:
            return 0
        size = max(facts.documents, facts.train_pairs)
        return self.epochs[(size > LARGE) + (size > HUGE)]


RULES = (
    Rule(
        UNTRAINED,
        ("model", "language"),
        "its encoder knows more words than the judgments can teach",
        judged=False,
        share=3.0,
        passes=1,
        pretrained=True,
        config={"untrained": True},
    ),
    Rule(
        "dense_names",
        ("model", "language", "categories", "names", "few queries"),
        "its encoder knows the words in the names of categories",
        variant="dense",
        judged=False,
        passes=1,
        pretrained=True,
        config={"untrained": True, "names": True},
    ),
    Rule(
        "meta",
        ("queries", "categories"),
        "it learns which categories of documents match which categories of queries",
        epochs=(12, 6, 3),
        click_config={"networks": CLICK_NETWORKS},
    ),
    Rule(
        "s2net",
        ("queries",),
        "it learns a space of terms and parts of words, which helps with rare words and other languages",
        epochs=(120, 60, 20),
        config={"init": "lsi"},
    ),
    Rule(
        "adapter",
        ("queries", "model"),  # also adds to a stack in languages that the encoder does not read
        "it learns a map of the encoder's vectors from the judgments",
        passes=2,
        pretrained=True,
    ),
    Rule(
        "dense_judged",
        ("queries", "model", "training", "language"),
        "it is the encoder of dense, and also learns from the judgments",
        variant="dense",
        share=6.0,
        steps=PRESETS["judged"]["steps"],
        passes=1,
        config=PRESETS["judged"],
    ),
    Rule(
        "text",
        ("queries",),
        "it learns which words of documents match which words of queries",
        epochs=(12, 6, 3),
        click_config={"networks": CLICK_NETWORKS},
    ),
    Rule(
        "dense_links",
        ("links", "model", "training", "language"),
        "it is the encoder of dense, and also learns from the links",
        variant="dense",
        judged=False,
        share=2.0,
        epochs=(8, 4, 1),
        passes=1,
    ),
)
"""In the order of training: the highest expected gain per second first."""


def query_seconds(facts: CollectionFacts, unmet_needs: Container[str], part_seconds: float) -> float:
    """Return the seconds that encoders need for the queries after the training.

    Dev queries are encoded to tune, test queries to evaluate. Rankers with the pretrained encoder share its
    vectors. A short query takes about as long as a part of a document.

    unmet_needs: the needs that the collection does not meet; see :func:`unmet`.
    part_seconds: seconds to encode 64 tokens of a document.
    """
    encoders: set[str] = set()
    for rule in RULES:
        is_trained = not items_in(rule.needs, unmet_needs)
        if is_trained and rule.passes:
            encoders.add("pretrained" if rule.pretrained else rule.ranker)
    return len(encoders) * (facts.dev_queries + facts.test_queries) * part_seconds


@dataclass(frozen=True)
class RankerChoice:
    """A ranker, trained or skipped, and the reason. cut: whether the time was too short for it."""

    ranker: str
    trained: bool
    reason: str
    cut: bool = False

    def __str__(self) -> str:
        return f"{self.ranker} is {'trained' if self.trained else 'skipped'}: {self.reason}"
