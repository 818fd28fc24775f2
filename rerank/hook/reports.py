"""The requests and the state of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rerank.results import Report
from rerank.stack.stack import Stack


@dataclass(frozen=True)
class Request:
    """A request that changes the cluster. ``<name>``: from an earlier answer."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}" + (f" {json.dumps(self.body)}" if self.body is not None else "")


@dataclass
class InstallReport(Report):
    """The requests, sent or planned (``dry_run``)."""

    pipeline: str
    requests: tuple[Request, ...]
    warnings: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass
class Status(Report):
    """The state of a pipeline and its requirements.

    exists:     whether it exists.
    config:     its settings; None if rerank did not make it.
    problems:   why searches are not reranked as configured.
    default_of: indices that use it by default.
    indices:    of the workspace.
    nodes:      node -> plugin version or None.
    service:    answer to ``/readyz`` or None.
    statistics: URL of a node -> counters.
    weights:    ``stack``, ``normalization`` and ``cases`` of the stack.
    stack:      the stack that scores; None: unknown.
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
