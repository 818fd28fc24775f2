"""The time of each stage of the work for a query, and its limits."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class StageTimer:
    """Measures the seconds of each stage of the work.

    A subclass can limit the work: its methods raise an exception to stop it.

    seconds: stage -> its time so far.
    """

    seconds: dict[str, float]

    def __init__(self) -> None:
        self.seconds = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to this stage."""
        begin = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def check(self) -> None:
        """Called between the steps of long work. A subclass raises an exception to stop it."""

    def remaining_seconds(self) -> float:
        """Return the seconds left for a second phase."""
        return math.inf

    def encoding_limit(self, rankers: Iterable[str]) -> int | None:
        """Return how many candidates without features these rankers may encode, or None for all of them."""
        return None

    def on_documents_encoded(self, ranker: str, characters: int, seconds: float) -> None:
        """Called after each chunk of documents, so that a subclass can learn the speed of a ranker.

        characters: size of the chunk, as in :func:`rerank.scoring.encoding.encoding_size`.
        """
