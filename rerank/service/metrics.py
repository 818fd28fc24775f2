"""Counters for Prometheus. Files add up the counters of several workers (PROMETHEUS_MULTIPROC_DIR)."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHARED = "PROMETHEUS_MULTIPROC_DIR"

disable_created_metrics()  # type: ignore[no-untyped-call]
_REGISTRY = CollectorRegistry()
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_COUNTS = (1, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)

REQUESTS = Counter("rerank_requests", "Answers by status", ["endpoint", "status"], registry=_REGISTRY)
SECONDS = Histogram(
    "rerank_request_seconds", "Time to answer", ["endpoint"], buckets=_SECONDS, registry=_REGISTRY
)
STAGES = Histogram(
    "rerank_stage_seconds", "Time by stage", ["endpoint", "stage"], buckets=_SECONDS, registry=_REGISTRY
)
CANDIDATES = Histogram(
    "rerank_candidates", "Documents scored", ["endpoint"], buckets=_COUNTS, registry=_REGISTRY
)
MISSING = Counter(
    "rerank_features_missing", "Features fetched or computed", ["endpoint", "ranker"], registry=_REGISTRY
)
UNSCORED = Counter(
    "rerank_unscored", "Hits of the hook that kept their first-stage places", ["reason"], registry=_REGISTRY
)
WITHOUT_FEATURES = Counter(
    "rerank_searches_without_features",
    "Hook requests with hits that have no stored features",
    registry=_REGISTRY,
)
PASSED = Counter("rerank_passed", "Hook requests passed through", ["reason"], registry=_REGISTRY)
ERRORS = Counter("rerank_errors", "Requests that failed, by kind", ["endpoint", "kind"], registry=_REGISTRY)
REFUSED = Counter(
    "rerank_refused", "Connections ended before a request was complete", ["status"], registry=_REGISTRY
)
RELOADS = Counter("rerank_reloads", "Changes of rankers or stacks", ["result"], registry=_REGISTRY)
BUSY = Gauge("rerank_requests_in_hand", "Now", registry=_REGISTRY, multiprocess_mode="livesum")


One = TypeVar("One", Counter, Gauge, Histogram)


@lru_cache(10_000)
def of(metric: One, *labels: str | int) -> One:
    """The counter of these labels; to find it again would take as long as to count."""
    return metric.labels(*labels)


def _registry() -> CollectorRegistry:
    """Counters of this process, or of all workers."""
    if SHARED not in os.environ:
        return _REGISTRY
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


def text() -> bytes:
    """All of it in Prometheus's text format."""
    return generate_latest(_registry())


def forget(process: int) -> None:
    """Forget the current requests of a worker that has ended."""
    if SHARED in os.environ:
        multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]
