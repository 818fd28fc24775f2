"""The requests and the state of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rerank.common.results import Report
from rerank.stack.stack import Stack


@dataclass(frozen=True)
class Request:
    """A request that changes the cluster.

    method: HTTP method. path: path on the cluster.
    body:   JSON object, or None. A text such as ``<model>`` stands for a value from an earlier answer.
    """

    method: str
    path: str
    body: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        line = f"{self.method} {self.path}"
        return line if self.body is None else f"{line} {json.dumps(self.body)}"


@dataclass
class InstallReport(Report):
    """The result of installing or removing a pipeline.

    pipeline: name of the pipeline.
    requests: the requests in their order.
    warnings: why searches may not be reranked as the user expects.
    dry_run:  the requests were only planned, and not sent.
    """

    pipeline: str
    requests: tuple[Request, ...]
    warnings: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass
class Status(Report):
    """The state of a pipeline and of everything that it needs.

    pipeline:   name of the pipeline.
    exists:     whether the cluster has it.
    config:     its settings; None if it does not exist, or if rerank did not make it.
    problems:   why searches are not reranked as configured; empty: all is well.
    default_of: names of the indices whose default pipeline it is.
    indices:    names of the indices of the workspace.
    nodes:      node -> version of the plugin; None: the node lacks it.
    service:    answer of the service to ``/readyz``; None if it does not answer.
    statistics: URL of a node -> counters of the plugin.
    weights:    ``stack``, ``normalization`` and ``cases`` of the stack.
    stack:      the stack that scores; None: it cannot be read from here.
    """

    pipeline: str
    exists: bool
    config: dict[str, Any] | None
    problems: tuple[str, ...]
    default_of: tuple[str, ...]
    indices: tuple[str, ...]
    nodes: dict[str, str | None]
    service: dict[str, Any] | None
    statistics: dict[str, dict[str, Any]]
    weights: dict[str, Any] = field(default_factory=dict)
    stack: Stack | None = field(default=None, repr=False)
