"""The rankers, stacks and engine that answer requests."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rerank.engines.opensearch.columns import Column, column, feature_key
from rerank.errors import UsageError
from rerank.rankers.base import Ranker
from rerank.records import Document
from rerank.search.pipeline import Pipeline
from rerank.search.scorer import Scorer
from rerank.search.vector_cache import VectorCache
from rerank.service.settings import Settings
from rerank.stack.parse import parse_stack
from rerank.stack.signals import lexical, resolve
from rerank.stack.stack import Stack, find_stack
from rerank.text import Terms
from rerank.workspace import Workspace

Signature = tuple[tuple[str, int, int, int], ...]
_STACKS = 1000  # texts of stacks that are kept parsed


@dataclass(frozen=True)
class Snapshot:
    """An immutable state of a workspace.

    pipeline:  engine and current rankers.
    versions:  (ranker, version) -> ranker, also older ones.
    tuned:     signals -> tuned stack.
    default:   stack of requests without one.
    columns:   features (``text@5865d3bb237ae6a4``) -> layout.
    analyze:   text -> terms.
    signature: state of the files.
    find:      see :func:`find_stack`.
    words:     fields with query words; empty: all.
    at_once:   do not wait for features, after a rollback.
    """

    workspace: Workspace
    pipeline: Pipeline
    versions: Mapping[tuple[str, str], Ranker]
    tuned: Mapping[frozenset[str], Stack]
    default: Stack
    columns: Mapping[str, Column]
    analyze: Callable[[str], list[str]]
    signature: Signature
    find: Callable[[str], Stack]
    words: tuple[str, ...] = ()
    at_once: bool = False

    @classmethod
    def load(cls, settings: Settings) -> Snapshot:
        """Read the workspace. Raises RerankError if that fails or the stack does not exist."""
        seen = signature(settings)  # before reading: files that change meanwhile are read again later
        workspace = _open(settings)
        releases, current = workspace.releases, workspace.versions()
        rankers = {name: workspace.ranker(name, version) for name, version in current.items()}
        versions = {(name, current[name]): ranker for name, ranker in rankers.items()}
        tuned = {}
        for path in sorted((workspace.folder / "stacks").glob("*.json")):
            read, names = Stack.load(path), frozenset(path.stem.split(","))
            if names.issuperset(read.signals):
                tuned[names] = read
        if releases.active is not None:
            tuned[frozenset(releases.active.name.split(","))] = releases.active.stack
        first, search = workspace.first_stage_of(None)

        def find(text: str) -> Stack:
            def check(name: str) -> object:
                return resolve([name], rankers)

            return find_stack(text, check, lambda names: tuned.get(frozenset(names)), first, search)

        wanted = settings.stack
        if wanted is not None and wanted.endswith(".json"):
            default = Stack.load(wanted)
            resolve(default.signals, rankers)
        else:
            active = None if wanted else releases.stack
            default = active or find(wanted or workspace.first_stage)
        for one in (*tuned.values(), default):
            if one.then is not None:
                one.then.encoder()
            for name, version in workspace.versions_here(one).items():
                versions[name, version] = workspace.ranker(name, version)
        empty = [Document("")]
        snapshot = cls(
            workspace=workspace,
            pipeline=Pipeline(workspace.engine, rankers, settings.infer_categories, VectorCache()),
            tuned=tuned,
            default=default,
            versions=versions,
            columns={
                feature_key(*key): column(key[0], ranker.encode_documents(empty), 1, None)
                for key, ranker in versions.items()
            },
            analyze=Terms(workspace.lang),
            signature=seen,
            find=find,
            words=workspace.words,
            at_once=releases.rolled_back,
        )
        # SQLite connections are in a reference cycle: without this, files stay open until it is collected.
        weakref.finalize(snapshot, workspace.engine.close).atexit = False
        return snapshot

    def describe(self) -> dict[str, Any]:
        """Stack and rankers, for the log and ``/readyz``."""
        return {
            "stack": str(self.default),
            "normalization": self.default.combiner.normalization,
            "rankers": {name: ranker.version for name, ranker in self.rankers.items()},
            "tuned": sorted(",".join(sorted(names)) for names in self.tuned),
        }

    @property
    def is_shared(self) -> bool:
        """Whether the documents are in a cluster."""
        return self.workspace.config.get("opensearch") is not None

    @property
    def rankers(self) -> Mapping[str, Ranker]:
        """The current version of each ranker."""
        return self.pipeline.rankers

    def stack(self, text: str | None) -> Stack:
        """Find a stack; without a text, the default.

        Raises UsageError for an unknown stack, InputError for signals that are not tuned together.
        """
        if not text:
            return self.default
        if text.endswith(".json"):
            raise UsageError("a request names a stack by its signals; only the command line takes a file")
        return self.find(text)

    @cached_property
    def scorers(self) -> dict[str | None, tuple[Stack, Scorer]]:
        """Text of a request -> stack and scorer."""
        return {}

    def scorer(self, text: str | None) -> tuple[Stack, Scorer]:
        """The stack of a text, see :meth:`stack`, and the scorer of its signals."""
        found = self.scorers.get(text)
        if found is None:
            if len(self.scorers) >= _STACKS:
                self.scorers.clear()
            stack = self.stack(text)
            found = stack, self.pipeline_of(stack).scorer(stack.signals, stack.first_stage)
            self.scorers[text] = found
        return found

    def pipeline_of(self, stack: Stack) -> Pipeline:
        """Engine and rankers of a tuned stack."""
        older = {
            name: self.versions[name, version]
            for name, version in stack.versions.items()
            if (name, version) in self.versions and version != self.rankers[name].version
        }
        return replace(self.pipeline, rankers={**self.rankers, **older}) if older else self.pipeline

    def knows(self, text: str) -> bool:
        """Whether a text names a signal."""
        try:
            names, _ = parse_stack(text)
        except UsageError:
            return False
        return bool(lexical(names)) or any(name in self.rankers for name in names)

    def waits_for(self, before: Snapshot) -> str | None:
        """A newer ranker whose features are incomplete, or None."""
        for name, version in self.versions:
            newer = name in before.rankers and (name, version) not in before.versions
            if newer and not self.at_once and self.workspace.engine.missing_features(name, version):
                return name
        return None


def _open(settings: Settings) -> Workspace:
    workspace = Workspace.open(settings.folder)
    table = workspace.config.get("opensearch")
    if isinstance(table, dict) and isinstance(table.get("timeout", 60.0), (int, float)):
        timeout = min(table.get("timeout", 60.0), settings.deadline)
        workspace.config = {**workspace.config, "opensearch": {**table, "timeout": timeout}}
    return workspace


def signature(settings: Settings) -> Signature:
    """The state of the files of rankers and stacks."""
    base, stack = Path(settings.folder), settings.stack
    files = [base / "rerank.toml", base / "releases.json"]
    files += [*base.glob("rankers/*.json"), *base.glob("stacks/*")]
    files += [Path(stack)] if stack is not None and stack.endswith(".json") else []
    state = []
    for path in sorted(files):
        with suppress(OSError):
            stat = path.stat()
            state.append((str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return tuple(state)
