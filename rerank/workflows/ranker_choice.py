"""Choose rankers for a collection, and plan their training steps.

Costs are counted in seconds of one core, estimated from the collection: equal files give equal plans on every
machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rerank.records import Document, Query
from rerank.text import guess_language, language_or_none
from rerank.workflows.splits import LEAST_TRAIN, Splits

LEAST_CATEGORIES = 0.1
"""Smallest share of documents with categories."""
LEAST_LINKS = 0.5
"""Smallest number of links per document."""
CORES = 1.5
"""Cores that trainings use on an idle machine of two."""
SCORING, SCORING_PASSAGES = 0.015, 0.01
"""Seconds of one core to score 1,000 candidates of a query, and for each passage of a document."""
ENCODING = 0.014
"""Seconds of one core to encode a part of 64 tokens."""
PARTS = "parts of a document"
"""Steps of rankers that only encode: the number of parts of 64 tokens that are read."""
LEAST_STEPS = 0.25
"""Smallest share of a ranker's steps that is worth training."""


@dataclass(frozen=True)
class CollectionFacts:
    """Input of the rules.

    words: of all documents. train_pairs: relevant documents of train queries. dev_queries, test_queries:
    numbers. with_categories: share of documents. links: per document. languages: most frequent of documents
    and of queries, or None. model: the encoder of ``dense`` is local. reads: its only language, or None.
    """

    documents: int
    train_queries: int
    words: int = 0
    train_pairs: int = 0
    dev_queries: int = 0
    test_queries: int = 0
    with_categories: float = 0.0
    links: float = 0.0
    languages: tuple[str | None, str | None] = (None, None)
    model: bool = False
    reads: str | None = None

    @classmethod
    def of(
        cls,
        documents: Iterable[Document],
        queries: Sequence[Query],
        splits: Splits,
        lang: str | None,
        **more: Any,
    ) -> CollectionFacts:
        """Count documents and judgments. lang: of documents without ``lang``. more: other fields."""
        ids, langs, targets = set[str](), Counter[str | None](), Counter[str]()
        words = categories = 0
        for document in documents:
            ids.add(document.id)
            words += len(document.content.split())
            categories += bool(document.categories)
            targets.update({*document.links} - {document.id})
            langs[language_or_none(document.lang)] += 1
        asked = Counter(language_or_none(query.lang) for query in queries)
        languages = [max(filter(None, one), key=one.__getitem__, default=None) for one in (langs, asked)]
        return cls(
            documents=len(ids),
            words=words,
            train_queries=len(splits.train),
            train_pairs=sum(len(splits.train.relevant(query)) for query in splits.train),
            dev_queries=len(splits.dev),
            test_queries=len(splits.test),
            with_categories=categories / max(len(ids), 1),
            links=sum(n for id, n in targets.items() if id in ids) / max(len(ids), 1),
            languages=(languages[0] or lang, languages[1] or guess_language(query.text for query in queries)),
            **more,
        )


def unmet(facts: CollectionFacts) -> dict[str, str]:
    """Return need -> why the collection does not meet it."""
    few = facts.train_queries < LEAST_TRAIN
    others = sorted({lang for lang in facts.languages if lang and facts.reads not in (lang, None)})
    reads = f"its encoder reads {facts.reads!r}, but there are texts in {' and '.join(map(repr, others))}"
    part = f"fewer than {LEAST_CATEGORIES:.0%} of the documents have categories"
    links = f"fewer than {LEAST_LINKS} links per document"
    needs = {
        "queries": (not few, f"fewer than {LEAST_TRAIN} train queries"),
        "few queries": (few, "adapter is the same encoder, and learns from the train queries"),
        "categories": (facts.with_categories >= LEAST_CATEGORIES, part),
        "links": (facts.links >= LEAST_LINKS, links),
        "model": (facts.model, "its encoder is not on this machine; --model names another one"),
        "language": (not others, f"{reads}; --model names another encoder"),
    }
    return {need: reason for need, (met, reason) in needs.items() if not met}


Cost = Callable[[CollectionFacts], tuple[float, float, int]]
"""Seconds before the first step, seconds of a step, and the number of steps of a complete training."""


def _cnn(facts: CollectionFacts, vectors: float) -> tuple[float, float, int]:
    step = 2e-4 * facts.train_pairs + 2e-4 * facts.documents + 1e-3 * min(facts.dev_queries, 800)
    return vectors + 1e-3 * facts.documents, step, 12


def _s2net(facts: CollectionFacts) -> tuple[float, float, int]:
    return 5 + 2e-3 * facts.documents, 2.2e-8 * facts.train_pairs * min(facts.documents, 4096), 120


def _candidates(facts: CollectionFacts) -> float:
    """Return the thousands of candidates that tuning and evaluation score."""
    return (3 * facts.dev_queries + facts.test_queries) * min(facts.documents, 1000) / 1000


def _encoding(facts: CollectionFacts) -> tuple[float, float, int]:
    scoring = SCORING_PASSAGES * _candidates(facts) / 4  # four parts are a passage
    parts = min(8, 1 + math.ceil(facts.words / 45 / max(facts.documents, 1)))  # of about 45 words
    return 5.0, ENCODING * facts.documents + scoring, parts


def _adapter(facts: CollectionFacts) -> tuple[float, float, int]:
    before, part, parts = _encoding(facts)
    learning = ENCODING * facts.documents  # encodes all documents before it learns
    return before + 0.02 * facts.train_queries, part + learning, parts


def _encoder_of_links(facts: CollectionFacts) -> tuple[float, float, int]:
    before, part, parts = _encoding(facts)
    return before + part * parts, 0.05 * facts.documents, 8


def _judged_encoder(facts: CollectionFacts) -> tuple[float, float, int]:
    before, part, _ = _encoding(facts)
    texts = 2 * facts.documents + facts.train_queries + facts.dev_queries  # their lower layers run once
    epoch = 0.06 * min(facts.train_pairs, 4 * facts.train_queries) + 0.01 * min(facts.documents, 2000)
    return before + part + 0.01 * texts, epoch, 2


@dataclass(frozen=True)
class Rule:
    """A ranker, its needs (see :func:`unmet`), its use and its training.

    variant: trained ranker; default: ``ranker``. judged: whether it learns from the train queries. steps:
    option that limits them. share: largest part of the time that is left.
    """

    ranker: str
    needs: tuple[str, ...]
    worth: str
    variant: str = ""
    judged: bool = True
    cost: Cost = lambda facts: (0.0, 0.0, 0)
    steps: str = "epochs"
    share: float = 0.6
    config: Mapping[str, Any] = field(default_factory=dict)


RULES = (
    Rule(
        "meta",
        ("queries", "categories"),
        "it learns which categories of documents match which categories of queries",
        cost=partial(_cnn, vectors=5),
    ),
    Rule(
        "s2net",
        ("queries",),
        "it learns a space of terms and parts of words, which helps with rare words and other languages",
        cost=_s2net,
        config={"init": "lsi"},
    ),
    Rule(
        "dense",
        ("few queries", "model", "language"),
        "its encoder knows more words than the judgments can teach",
        judged=False,
        cost=_encoding,
        steps=PARTS,
        config={"untrained": True},
    ),
    Rule(
        "adapter",
        ("queries", "model"),  # also adds to a stack in languages that the encoder does not read
        "it learns a map of the encoder's vectors from the judgments",
        cost=_adapter,
        steps=PARTS,
    ),
    Rule(
        "text",
        ("queries",),
        "it learns which words of documents match which words of queries",
        cost=partial(_cnn, vectors=15),
    ),
    Rule(
        "dense_judged",
        ("queries", "model", "language"),
        "it is the encoder of dense, and also learns from the judgments",
        variant="dense",
        cost=_judged_encoder,
        share=1.0,
        config={"epochs": 2, "average": False, "passages": 1},
    ),
    Rule(
        "dense_links",
        ("links", "model", "language"),
        "it is the encoder of dense, and also learns from the links",
        variant="dense",
        judged=False,
        cost=_encoder_of_links,
        share=1.0,
    ),
)
"""In the order of training: the highest expected gain per second first."""


@dataclass(frozen=True)
class RankerChoice:
    """A ranker, trained or skipped, and the reason.

    steps: planned. minutes: of ``auto`` for a complete training, if its time was too short.
    """

    ranker: str
    trained: bool
    reason: str
    steps: int = 0
    minutes: int | None = None

    @property
    def too_long(self) -> bool:
        """Whether only its training time is the reason to skip it."""
        return not self.trained and self.minutes is not None

    def __str__(self) -> str:
        more = "" if self.minutes is None else f"; --minutes {self.minutes} trains it completely"
        return f"{self.ranker} is {'trained' if self.trained else 'skipped'}: {self.reason}{more}"


class Budget:
    """Seconds of one core. minutes: of ``auto``. left: for the next trainings."""

    def __init__(self, facts: CollectionFacts, minutes: float = math.inf) -> None:
        self.facts, self.minutes = facts, minutes
        seconds = 60 * CORES * minutes
        self.left = seconds - min(SCORING * _candidates(facts), seconds / 2)

    def choose(self, rule: Rule) -> RankerChoice:
        """Apply a rule."""
        facts = self.facts
        reasons = unmet(facts)
        if failed := [reasons[need] for need in rule.needs if need in reasons]:
            return RankerChoice(rule.ranker, False, failed[0])
        before, step, complete = rule.cost(facts)
        allowed, needed = self.left * rule.share, before + step * complete
        if needed <= allowed:
            return RankerChoice(rule.ranker, True, rule.worth, complete)
        minutes = math.ceil(self.minutes + (needed - allowed) / rule.share / 60 / CORES)
        steps = int((allowed - before) / step) if step else 0
        if steps < max(1, LEAST_STEPS * complete):
            return RankerChoice(rule.ranker, False, "its training is too long", 0, minutes)
        reason = f"{rule.worth}; time for {steps} of {complete} {rule.steps}"
        return RankerChoice(rule.ranker, True, reason, steps, minutes)

    def spend(self, rule: Rule, steps: int) -> None:
        """Subtract the cost of a training with these steps."""
        before, step, complete = rule.cost(self.facts)
        self.left -= before + step * min(steps, complete)
