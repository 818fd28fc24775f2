"""Ratings of Search Relevance Workbench (SRW), to compare. They are never used.

Source: ``CoecClickModel.java`` of the project opensearch-project/search-relevance, commit dc8937c7.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, TypeVar

from rerank.formats.click_log import CLICK, IMPRESSION, Event

RATINGS_MARK = '"judgmentRatings"'
"""Text near the start of every file of ratings. Other existing files are not replaced."""
Key = TypeVar("Key", str, int)

_MOST_ACTIONS = 10
"""The default size of an aggregation of terms."""
_THOUSANDTH = Decimal("0.001")


class _Pair:
    """Counts of a query and a document.

    rank: the best rank of a click or an impression; None without any.
    """

    def __init__(self) -> None:
        self.clicks = 0
        self.impressions = 0
        self.rank: int | None = None

    def add(self, action: str, ordinal: int) -> None:
        """Count a click or an impression at a rank. Other actions count as neither."""
        if action == CLICK:
            self.clicks += 1
        elif action == IMPRESSION:
            self.impressions += 1
        else:
            return
        self.rank = ordinal if self.rank is None else min(self.rank, ordinal)


class SrwCounts:
    """Clicks over expected clicks (COEC), exactly as SRW computes it.

    - All events with an ordinal up to the maximum rank are read, of all applications.
    - The click rate of a rank is clicks / impressions, for ranks below the maximum rank. Other ranks have
      rate 0.
    - The rating is clicks / (click rate of the lowest rank x impressions), or 0 if that is 0.
    - The text of the query is the text of the event, unchanged. Events without it are skipped.
    - Any action with a position makes a rating.
    """

    def __init__(self, max_rank: int) -> None:
        self.max_rank = max_rank
        self._actions: Counter[str] = Counter()
        self._positions: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._pairs: defaultdict[tuple[str, str], _Pair] = defaultdict(_Pair)

    def add(self, event: Event) -> None:
        """Count an event if Search Relevance Workbench reads it, else ignore it."""
        ordinal = event.ordinal
        if ordinal is None or not event.plain_ordinal or ordinal > self.max_rank:
            return
        self._actions[event.action] += 1
        self._positions[event.action][ordinal] += 1
        document = event.object.get("object_id")
        if event.user_query is None or document is None:
            return
        pair = self._pairs[event.user_query, str(document)]
        pair.add(event.action.lower(), ordinal)

    def _click_rates(self) -> dict[int, float]:
        """Return rank -> click rate."""
        counts: dict[str, dict[int, int]] = {CLICK: {}, IMPRESSION: {}}
        for action in _most_frequent(self._actions, _MOST_ACTIONS):
            counts_of_action = counts.get(action.lower())
            if counts_of_action is None:
                continue
            positions = self._positions[action]
            for position in _most_frequent(positions, self.max_rank):
                counts_of_action[position] = positions[position]

        rates: dict[int, float] = {}
        for rank in range(self.max_rank):
            impressions = counts[IMPRESSION].get(rank, 0)
            rates[rank] = counts[CLICK].get(rank, 0) / impressions if impressions else 0.0
        return rates

    def ratings(self) -> dict[str, dict[str, str]]:
        """Return query text -> document -> rating with three digits."""
        rates = self._click_rates()
        ratings: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for (query, document), pair in sorted(self._pairs.items()):
            rate = 0.0 if pair.rank is None else rates.get(pair.rank, 0.0)
            expected = rate * pair.impressions
            rating = pair.clicks / expected if expected > 0 else 0.0
            # Java rounds the shortest decimal form, half up.
            ratings[query][document] = str(Decimal(repr(rating)).quantize(_THOUSANDTH, ROUND_HALF_UP))
        return dict(ratings)

    def to_json(self) -> dict[str, Any]:
        """Return the body of a request that imports the ratings into Search Relevance Workbench."""
        judgments = []
        for query, ratings in self.ratings().items():
            rows = [{"docId": document, "rating": rating} for document, rating in ratings.items()]
            judgments.append({"query": query, "ratings": rows})
        return {
            "name": "COEC",
            "description": "Ratings of COEC as Search Relevance Workbench computes them",
            "type": "IMPORT_JUDGMENT",
            "judgmentRatings": judgments,
        }


def _most_frequent(counts: Mapping[Key, int], limit: int) -> list[Key]:
    """Return the keys with the largest counts; equal counts by key, as OpenSearch orders them."""
    return sorted(counts, key=lambda key: (-counts[key], key))[:limit]
