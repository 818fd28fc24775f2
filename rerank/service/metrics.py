"""Prometheus counters. With several workers, PROMETHEUS_MULTIPROC_DIR adds them up."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)

if TYPE_CHECKING:
    from rerank.service.context import RequestContext

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHARED = "PROMETHEUS_MULTIPROC_DIR"

disable_created_metrics()  # type: ignore[no-untyped-call]
_REGISTRY = CollectorRegistry()
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_COUNTS = (1, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
_counter = partial(Counter, registry=_REGISTRY)
_times = partial(Histogram, registry=_REGISTRY, buckets=_SECONDS)

REQUESTS = _counter("rerank_requests", "Answers by status", ["endpoint", "status"])
SECONDS = _times("rerank_request_seconds", "Time to answer", ["endpoint"])
STAGES = _times("rerank_stage_seconds", "Time by stage", ["endpoint", "stage"])
CANDIDATES = Histogram(
    "rerank_candidates", "Documents scored", ["endpoint"], buckets=_COUNTS, registry=_REGISTRY
)
MISSING = _counter("rerank_features_missing", "Features fetched or computed", ["endpoint", "ranker"])
UNSCORED = _counter("rerank_unscored", "Hits of the hook that kept their first-stage places", ["reason"])
WITHOUT_FEATURES = _counter(
    "rerank_searches_without_features", "Requests with candidates that have no stored features"
)
PASSED = _counter("rerank_passed", "Hook requests passed through", ["reason"])
UBI_RECORDS = _counter("rerank_ubi_records", "Searches in the file of --ubi-log", ["result"])
INTERLEAVED = _counter("rerank_interleaved", "Interleaved searches, by presence of a query_id", ["joinable"])
ERRORS = _counter("rerank_errors", "Requests that failed, by kind", ["endpoint", "kind"])
REFUSED = _counter("rerank_refused", "Connections ended before a request was complete", ["status"])
RELOADS = _counter("rerank_reloads", "Changes of rankers or stacks", ["result"])
BUSY = Gauge("rerank_requests_in_hand", "Current requests", registry=_REGISTRY, multiprocess_mode="livesum")


def observe(endpoint: str, context: RequestContext) -> None:
    """Add the notes of a finished request to the counters.

    endpoint: its name in the counters.
    """
    for stage, seconds in list(context.seconds.items()):
        STAGES.labels(endpoint, stage).observe(seconds)
    if context.candidates is not None:
        CANDIDATES.labels(endpoint).observe(context.candidates)
    for ranker, count in list(context.missing.items()):
        MISSING.labels(endpoint, ranker).inc(count)
    for reason, count in list(context.unscored.items()):
        UNSCORED.labels(reason).inc(count)
    if context.without_features:
        WITHOUT_FEATURES.inc()
    if context.passed is not None:
        PASSED.labels(context.passed).inc()


def text() -> bytes:
    """The counters of all workers, in Prometheus text format."""
    registry = _REGISTRY
    if SHARED in os.environ:
        for path in Path(os.environ[SHARED]).glob("gauge_live*.db"):
            process = path.stem.rpartition("_")[2]
            try:
                os.kill(int(process), 0)
            except (ProcessLookupError, PermissionError):  # another user's process has its number now
                multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
