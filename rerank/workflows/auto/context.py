"""The options of an auto run, and the results of its first steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rerank.common.progress import Progress
from rerank.documents.records import Qrels, Query
from rerank.stack.normalize import FITTED
from rerank.workflows.auto.files import Folder
from rerank.workflows.auto.judgments import Judgments
from rerank.workflows.auto.splits import Splits
from rerank.workspace.workspace import Workspace

if TYPE_CHECKING:
    from rerank.engines.opensearch import Settings


@dataclass
class AutoContext:
    """The options of :func:`rerank.auto`, and the results of its first steps.

    files:     the files of the collection.
    measure:   the measure to maximize.
    minutes:   time for all steps.
    seed:      of random choices.
    model:     name or folder of the encoder; None: an installed one.
    end:       moment of ``time.monotonic`` at which the time is over.
    ubi:       cluster with a click log, if any.
    messages:  remarks of the steps.
    workspace: exists after the documents are ingested.
    judgments: exist after all judgments are read.
    """

    files: Folder
    measure: str
    minutes: float
    seed: int
    model: str | None
    progress: Progress
    end: float
    ubi: Settings | None = None
    messages: list[str] = field(default_factory=list)
    workspace: Workspace = field(init=False)
    judgments: Judgments = field(init=False)

    @property
    def queries(self) -> Sequence[Query]:
        """All queries with a text: of the user, of clicks and of a pool."""
        return self.judgments.queries

    @property
    def splits(self) -> Splits:
        """The judgments of the train, dev and test queries, which have no query in common."""
        return self.judgments.splits

    @property
    def normalizations(self) -> tuple[str, ...]:
        """The normalizations that tuning tries; (): its default.

        With rankers that learn from clicks, the few queries judged by hand chose better weights if they did
        not also choose the normalization (benchmarks/decisions.md).
        """
        scales_vary = self.workspace.engine.shared
        return (FITTED,) if self.judgments.from_clicks and not scales_vary else ()

    def judged_queries(self, qrels: Qrels) -> list[Query]:
        """Return the queries with judgments, in the order of :attr:`queries`."""
        return [query for query in self.queries if query.id in qrels]

    def say(self, step: str, *lines: str) -> None:
        """Print remarks of a step, and keep them for the report.

        step: name of the step, which comes before each line.
        """
        for line in lines:
            self.messages.append(f"{step}: {line}")
            self.progress.say(f"{step}: {line}")

    def is_late(self, seconds: float) -> bool:
        """Return whether work of so many seconds would not end in time."""
        return time.monotonic() + seconds > self.end
