"""A workspace: a folder for one collection."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank.combiners.linear import NAME
from rerank.errors import RerankError, UsageError
from rerank.evaluation.leakage import TrainingRecord
from rerank.filters import filters_of
from rerank.rankers.base import Ranker
from rerank.rankers.registry import families
from rerank.rankers.store import RankerStore
from rerank.records import Query
from rerank.search.pipeline import Pipeline, ResultPage
from rerank.stack.parse import retriever_depths
from rerank.stack.releases import KEPT, Releases, tuned_versions
from rerank.stack.signals import check_retriever, learned, resolve
from rerank.stack.stack import Stack, called, find_stack
from rerank.workspace_folder import WorkspaceFolder

if TYPE_CHECKING:
    from rerank.rankers.graphs.citations import Citations


WorkspaceOrPath = WorkspaceFolder | str | PathLike[str]
"""A workspace, or its folder."""

LONGEST_NAME = 200
"""Characters of the name of a stack in the name of its file."""


class Workspace(WorkspaceFolder):
    """One collection with rankers and stacks. Use :meth:`open` or :meth:`create`.

    >>> from rerank import Document
    >>> workspace = Workspace.create(folder / "new", lang="en")
    >>> workspace.engine.write([Document("wolf", text="A grey wolf")]).added
    1
    >>> workspace = Workspace.open(workspace.folder)
    >>> workspace.lang, workspace.first_stage, workspace.trained(), len(workspace.engine)
    ('en', 'bm25', [], 1)
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        super().__init__(folder, config)
        self._rankers: dict[tuple[str, str | None], Ranker] = {}

    def citations(self) -> Citations:
        """Read the citations of the documents."""
        from rerank.rankers.graphs.citations import Citations

        return Citations.of(self.engine.documents())

    # -- rankers -----------------------------------------------------------------------------------------

    def trained(self) -> list[str]:
        """Return the names of the rankers."""
        return self._installed.names()

    def ranker(self, name: str, version: str | None = None) -> Ranker:
        """Load a ranker; default: its newest version. Raises NotTrainedError for an unknown one."""
        if (name, version) not in self._rankers:
            self._rankers[name, version] = self._installed.load(name, version)
        return self._rankers[name, version]

    def versions(self, stack: Stack | None = None) -> dict[str, str]:
        """Ranker -> version: of the stack, else of the active stack, else the newest."""
        stacks = [one for one in (stack, self.releases.stack) if one is not None]
        versions = {}
        for name in self.trained() if stack is None else stack.rankers:
            named = [one.versions[name] for one in stacks if name in one.versions]
            stored = (version for version in named if self._installed.has(name, version))
            versions[name] = next(stored, None) or self._installed.record(name).version
        return versions

    def versions_here(self, stack: Stack) -> dict[str, str]:
        """Ranker -> existing version of a stack."""
        return {
            name: version for name, version in stack.versions.items() if self._installed.has(name, version)
        }

    def needed(self, *, before: bool = False) -> dict[str, list[str]]:
        """Ranker -> versions whose features must be stored.

        before: include earlier stacks and the newest versions; all if a stack is unreadable.
        """
        tuned = tuned_versions(self.folder, 1 + KEPT if before else 1)
        needed = {}
        for name in self.trained():
            with suppress(RerankError):
                stored = self._installed.versions(name)
                wanted = stored if tuned is None else [*stored[:before], *tuned.get(name, ())]
                needed[name] = [one for one in dict.fromkeys(wanted) if self._installed.has(name, one)]
        return {name: versions for name, versions in needed.items() if versions}

    def forget_rankers(self) -> None:
        """Reload rankers on their next use."""
        self._rankers.clear()

    @property
    def _installed(self) -> RankerStore:
        # Not stored: a reference cycle would keep files open until garbage collection.
        return RankerStore(self.folder / "rankers", lambda: tuned_versions(self.folder))

    def check_name(self, name: str, family: str, variant: str) -> None:
        """Raise UsageError for an invalid or used name."""
        if not re.fullmatch(NAME, name):
            raise UsageError(
                f"{name!r} is not a name of a ranker; use letters, digits, and _ - . after the first letter"
            )
        if not learned([name]):
            raise UsageError(f"{name} is a first stage; choose another name for the ranker")
        owner = next(((one.name, name) for one in families().values() if name in one.rankers), None)
        if owner is None and name in self.trained():
            record = self._installed.record(name)
            owner = record.family, record.variant
        if owner not in (None, (family, variant)):
            raise UsageError(
                f"{name} is the name of another ranker ({owner[1]}, of the family {owner[0]}); choose another"
            )

    def seen(self, name: str, version: str | None = None) -> TrainingRecord:
        """Return training and dev queries, or empty. Default version: the newest."""
        return TrainingRecord.from_json(self._installed.read(name, version, "seen.json"))

    def training_records(self, stack: Stack) -> dict[str, TrainingRecord]:
        """Ranker -> training record; "": the stack's weights."""
        own = TrainingRecord.from_json(stack.tuned.get("seen"))
        return {name: self.seen(name, stack.versions.get(name)) for name in stack.rankers} | {"": own}

    def install(self, ranker: Ranker, seen: TrainingRecord | None = None) -> None:
        """Store a trained ranker as the newest version; versions without a stack are removed.

        seen: training and dev queries.
        """
        self.check_name(ranker.name, ranker.family, ranker.variant or ranker.name)
        self._installed.install(ranker, {"seen.json": json.dumps(seen.to_json()) + "\n"} if seen else {})
        # Loaded from disk on the next use, so tests check the stored ranker.
        self.forget_rankers()

    def remove_ranker(self, name: str, version: str | None = None) -> list[str]:
        """Remove a version of a ranker, or all of them; return the removed versions.

        Raises UsageError if the active stack uses it, and the errors of :meth:`ranker`.
        """
        active = self.releases.stack
        if active is not None and name in active.rankers:
            used = active.versions.get(name)
            if version in (None, used):
                raise UsageError(
                    f"the active stack {active} uses {name} {used}; activate another one with"
                    " `rerank stack use STACK` first"
                )
        removed = self._installed.remove(name, version)
        self.forget_rankers()
        return removed

    def pipeline(
        self,
        signals: Iterable[str],
        *,
        retrieve: Iterable[str] = (),
        infer_categories: bool = True,
        versions: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """Build the pipeline for these signals and retrievers.

        versions: ranker -> version; default: the newest.

        Raises UsageError for invalid retrievers.
        """
        depths, versions = retriever_depths(retrieve), versions or {}
        rankers = {name: self.ranker(name, versions.get(name)) for name in learned((*signals, *depths))}
        for signal in resolve(depths, rankers):
            check_retriever(signal, self.engine)
        return Pipeline(self.engine, rankers, infer_categories)

    def search(
        self,
        query: Query | str,
        k: int = 10,
        *,
        stack: str | Stack | None = None,
        filter: str | Sequence[str] = (),
        infer_categories: bool = True,
    ) -> ResultPage:
        """Return the first k documents for a query. Default: the active stack.

        filter: conditions such as ``year>=2020`` or ``tags=a``.

        >>> workspace.search("wolf", stack="bm25")
        rank   score  id    title                    bm25
        ----  ------  ----  ---------------------  ------
           1  0.9530  wolf  a wolf hunts at night  0.9530
        """
        if not isinstance(k, Integral) or k < 1:
            raise UsageError(f"k takes a whole number of 1 or more, not {k!r}")
        if not isinstance(query, (str, Query)):
            raise UsageError(f"query takes a text or a Query, not {query!r}")
        if not isinstance(stack, (str, Stack, type(None))):
            raise UsageError(f"stack takes a text or a Stack, not {stack!r}")
        found = stack if isinstance(stack, Stack) else self.stack(stack or self.default_stack)
        pipeline = self.pipeline(
            found.signals,
            retrieve=found.retrieve,
            infer_categories=infer_categories,
            versions=self.versions(found),
        )
        answer = pipeline.answer(query, found, filters=filters_of(filter))
        hits = pipeline.hits(answer, k)
        texts = self.engine.get([hit["id"] for hit in hits])
        return ResultPage(answer, [{**hit, "text": d.text if d else ""} for hit, d in zip(hits, texts)])

    def __repr__(self) -> str:
        return f"Workspace({str(self.folder)!r})"

    # -- stacks ------------------------------------------------------------------------------------------

    def stack_path(self, signals: Sequence[str]) -> Path:
        """Return the file of the signals' last tuned stack."""
        name = called(signals)
        if len(name) > LONGEST_NAME:
            name = f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        return self.folder / "stacks" / f"{name}.json"

    def stack(self, text: str, *, latest: bool = False) -> Stack:
        """Return the stack that a text names.

        ``tfidf,text``: the tuned stack of these signals. ``tfidf*0.4 + text*0.6``: these weights on min-max
        normalized scores. Also a stack file, a signal, or the number of an activated stack.

        latest: prefer the last tuned stack to the active one.
        """
        if text.endswith(".json"):
            return Stack.load(text)
        releases = self.releases
        if text.isdecimal():
            return releases.find(int(text))
        if not latest and releases.stack is not None and text == releases.name:
            return releases.stack

        def tuned(signals: Sequence[str]) -> Stack | None:
            path = self.stack_path(signals)
            active = releases.stack if called(signals) == releases.name else None
            if path.exists() and (latest or active is None):
                return Stack.load(path)
            in_use = releases.stack
            if active is None and in_use is not None and called(in_use.signals) == called(signals):
                return in_use  # named by its signals with weight
            return active

        first, search = self.first_stage_of(None)
        return find_stack(text, self.ranker, tuned, first, search)

    @property
    def releases(self) -> Releases:
        """Return the active stack and earlier versions."""
        return Releases.load(self.folder)

    @property
    def default_stack(self) -> str:
        """Name of the active stack, else the first stage."""
        return self.releases.name or self.first_stage

    def use_stack(self, text: str | Stack, gate: Mapping[str, Any] | None = None) -> Stack:
        """Activate a stack and return it. Default versions: the newest.

        text: a stack, or a text as for :meth:`stack`. gate: comparison with the active stack.

        Raises the errors of :meth:`stack`, NotTrainedError for unknown rankers, UsageError for unknown
        versions.
        """
        stack = text if isinstance(text, Stack) else self.stack(text, latest=True)
        with self._installed.changing():  # training must not remove a version now
            for name in stack.rankers:
                self.ranker(name)
            self._check_versions(stack, str(stack))
            stack = replace(stack, versions=self.versions(stack))
            self.releases.activate(stack, gate)
        return stack

    def rollback(self) -> Stack:
        """Activate the previous stack. Raises UsageError if it or a ranker is missing."""
        with self._installed.changing():
            before = self.releases.previous()
            assert before.stack is not None
            self._check_versions(before.stack, f"version {before.number}, {before.stack},")
            before.save()
        return before.stack

    def _check_versions(self, stack: Stack, name: str) -> None:
        for ranker in stack.rankers:
            version = stack.versions.get(ranker)
            if version is not None and not self._installed.has(ranker, version):
                raise UsageError(
                    f"the stack {name} needs {ranker} {version}, which is not in {self.folder}; tune it"
                    f" again, or use another one with `rerank stack use STACK`"
                )

    def outdated(self, stack: Stack) -> list[str]:
        """Return rankers trained after the stack was tuned."""
        versions = {name: self.ranker(name).version for name in stack.rankers}
        return [name for name, v in versions.items() if stack.versions.get(name, v) != v]
