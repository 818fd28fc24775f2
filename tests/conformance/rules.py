"""Rules and assertions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from rerank.documents.records import Candidates
from rerank.engines.base import Engine
from rerank.engines.search_request import SearchRequest

Rule = TypeVar("Rule", bound=Callable[..., None])


class Rules(dict[str, Callable[..., None]]):
    """Name -> rule; decorates the functions that it registers."""

    def __call__(self, rule: Rule) -> Rule:
        """Register a rule."""
        self[rule.__name__] = rule
        return rule


def run(rule: Callable[..., None], *given: Any) -> None:
    """Check a rule. Raises AssertionError with its text."""
    demand = " ".join((rule.__doc__ or "").split())
    try:
        rule(*given)
    except AssertionError as error:
        raise AssertionError(f"{rule.__name__}: {demand} {error}") from error


def same(found: object, wanted: object, what: str) -> None:
    """Raise AssertionError unless both are equal."""
    if isinstance(found, np.ndarray) or isinstance(wanted, np.ndarray):
        equal = np.array_equal(np.asarray(found), np.asarray(wanted))
    else:
        equal = bool(found == wanted)
    true(equal, f"{what} is {_short(found)}, not {_short(wanted)}")


def true(holds: object, what: str) -> None:
    """Raise AssertionError with ``what`` unless something holds."""
    if not holds:
        raise AssertionError(what)


def search(engine: Engine, text: str, first_stage: str, depth: int = 10, **options: Any) -> Candidates:
    """Return the candidates of one request."""
    return engine.find(SearchRequest(text, first_stage, depth, **options))


def finds(engine: Engine, text: str, ids: list[str] | set[str], **options: Any) -> None:
    """Raise AssertionError unless every first stage finds ``ids``, a list in this order."""
    for stage in engine.first_stages:
        found = search(engine, text, stage, **options).ids
        same(set(found) if isinstance(ids, set) else found, ids, f"{stage}, the matches of {text[:40]!r}")


@contextmanager
def raises(kind: type[BaseException], pattern: str = "") -> Iterator[None]:
    """Raise AssertionError unless the block raises ``kind``."""
    try:
        yield
    except kind as error:
        true(re.search(pattern, str(error)), f"the message {str(error)!r} does not match {pattern!r}")
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else f"{text[:200]}…"
