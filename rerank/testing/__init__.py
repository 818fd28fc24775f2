"""Test suites for rankers and engines."""

from __future__ import annotations

from collections.abc import Callable

from rerank.engines.base import Engine
from rerank.testing import engine as engines
from rerank.testing import retrieval
from rerank.testing.ranker import check_ranker
from rerank.testing.rules import run

__all__ = ["check_engine", "check_ranker", "engine_rules"]


def engine_rules(
    *, features: bool = True, retrieves: bool = True, exact: bool = True
) -> dict[str, Callable[[Engine], None]]:
    """Name -> rule, a function of an empty engine.

    >>> len(engine_rules()) > len(engine_rules(retrieves=False)) > 10
    True
    """
    rules = {**engines.RULES, **(engines.FEATURE_RULES if features else {})}
    if features and retrieves:
        rules |= {n: r for n, r in retrieval.RULES.items() if exact or not n.startswith(retrieval.TIES)}
    return rules


def check_engine(
    make: Callable[[], Engine], *, features: bool = True, retrieves: bool = True, exact: bool = True
) -> None:
    """Check an engine by the contract of :class:`rerank.Engine`.

    make: returns an empty engine for English documents.
    features: whether it stores features.
    retrieves: whether it searches vectors.
    exact: whether equally near documents are ordered by id.

    Raises AssertionError for the first broken rule.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from rerank import LocalEngine
    >>> def make():
    ...     return LocalEngine.create(Path(tempfile.mkdtemp()) / "engine", lang="en")
    >>> check_engine(make, retrieves=False)  # silent: it keeps every rule
    """
    for rule in engine_rules(features=features, retrieves=retrieves, exact=exact).values():
        engine = make()
        try:
            run(rule, engine)
        finally:
            engine.close()
