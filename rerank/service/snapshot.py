"""Rankers, stacks and the engine of one moment, from which the service answers."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from rerank.engines.opensearch.features import Column, column
from rerank.engines.opensearch.layout import feature_key
from rerank.errors import RerankError, UsageError, WorkspaceError
from rerank.rankers.base import Ranker
from rerank.records import Document
from rerank.search.pipeline import Pipeline
from rerank.search.scorer import Scorer
from rerank.search.vector_cache import QueryVectors
from rerank.service.settings import Settings
from rerank.stack.find import find_stack, with_search
from rerank.stack.parse import parse_stack
from rerank.stack.signals import lexical, resolve
from rerank.stack.stack import Stack
from rerank.text import Terms
from rerank.workspace import Workspace

Signature = tuple[tuple[str, int, int, int], ...]
_STACKS = 1000  # texts of stacks that are kept parsed
_TRIES = 20  # to read files that somebody keeps changing, with 50 ms in between


@dataclass(frozen=True)
class Snapshot:
    """The state of a workspace at one moment. It never changes; a newer one replaces it.

    pipeline:  the engine, and all rankers, in the versions that their names alone stand for.
    versions:  those, and the others that stacks were tuned with: (ranker, version) -> ranker.
    tuned:     set of signals -> the tuned stack of them.
    default:   the stack of requests that name none.
    columns:   name of a ranker's stored features, as ``text@5865d3bb237ae6a4`` -> how they are laid out.
    at_once:   whether it does not wait for features: the last change was a rollback.
    analyze:   text -> terms.
    signature: names, sizes and times of the files.
    words:     fields of the index that hold the words of a user's query; none: all of them do.
    find:      text -> the stack of these signals; see :func:`find_stack`.
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
        """Read the workspace until nothing was changed while it was read.

        Raises RerankError when something in it cannot be read, or the stack is not there.
        """
        for _ in range(_TRIES):
            before = signature(settings)
            problem: RerankError | None = None
            try:
                found = cls._load(settings, before)
            except RerankError as error:
                problem = error
            if signature(settings) == before:
                if problem is not None:
                    raise problem
                return found
            time.sleep(0.05)
        raise WorkspaceError(
            f"{settings.folder}: rankers and stacks keep changing; start again when that is over"
        )

    @classmethod
    def _load(cls, settings: Settings, seen: Signature) -> Snapshot:
        stack = settings.stack
        workspace = Workspace.open(settings.folder)
        table = workspace.config.get("opensearch")
        if isinstance(table, dict) and isinstance(table.get("timeout", 60.0), (int, float)):
            # A thread must not wait for a cluster when nobody waits for the answer any more.
            timeout = min(table.get("timeout", 60.0), settings.deadline)
            workspace.config = {**workspace.config, "opensearch": {**table, "timeout": timeout}}
        releases, alone = workspace.releases, workspace.versions()
        rankers = {name: workspace.ranker(name, version) for name, version in alone.items()}
        versions = {(name, alone[name]): ranker for name, ranker in rankers.items()}
        tuned = {}
        for path in sorted((workspace.folder / "stacks").glob("*.json")):
            read = Stack.load(path)
            if {*read.signals} <= {*path.stem.split(",")}:
                tuned[frozenset(path.stem.split(","))] = read
        if releases.active is not None:
            tuned[frozenset(releases.active.name.split(","))] = releases.active.stack

        first, search = workspace.first_stage_of(None)

        @lru_cache(_STACKS)
        def find(text: str) -> Stack:
            def check(name: str) -> object:
                return resolve([name], rankers)

            found = find_stack(text, check, lambda names: tuned.get(frozenset(names)), first)
            return with_search(found, search)

        if stack is not None and stack.endswith(".json"):
            default = Stack.load(stack)
            resolve(default.signals, rankers)
        else:
            default = releases.stack if not stack and releases.stack else find(stack or workspace.first_stage)
        for one in (*tuned.values(), default):
            for name, version in workspace.versions_here(one).items():
                versions[name, version] = workspace.ranker(name, version)
        empty = [Document("")]
        found = cls(
            workspace=workspace,
            pipeline=Pipeline(workspace.engine, rankers, settings.infer_categories, QueryVectors()),
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
        # A connection of SQLite is in a cycle with its cache of statements: left alone it would stay open,
        # with its files, till the garbage collector comes by.
        weakref.finalize(found, workspace.engine.close).atexit = False
        return found

    @property
    def is_shared(self) -> bool:
        """Whether the documents are in a cluster, whose nodes may call this service."""
        return self.workspace.config.get("opensearch") is not None

    @property
    def rankers(self) -> Mapping[str, Ranker]:
        """All trained rankers, in the versions that their names alone stand for."""
        return self.pipeline.rankers

    def stack(self, text: str | None) -> Stack:
        """Find the stack that a request names; None or nothing: the default.

        Raises UsageError for what is no stack, InputError for signals that are not tuned together.
        """
        if not text:
            return self.default
        if text.endswith(".json"):
            raise UsageError("a request names a stack by its signals; files are for the service's own stack")
        return self.find(text)

    @cached_property
    def scorers(self) -> dict[str, Scorer]:
        """Those of the stacks that requests have named, by their texts; of no text: the default's."""
        return {}

    def scorer_of(self, text: str | None) -> tuple[Stack, Scorer]:
        """The stack that a request names, see :meth:`stack`, and what scores by it; kept for the next one."""
        stack = self.stack(text)
        kept = self.scorers
        found = kept.get(text or "")
        if found is None:
            if len(kept) >= _STACKS:
                kept.clear()
            found = kept[text or ""] = self.scorer(stack)
        return stack, found

    def scorer(self, stack: Stack) -> Scorer:
        """What scores candidates by a stack's signals."""
        return self.pipeline_of(stack).scorer(stack.signals, stack.first_stage)

    def pipeline_of(self, stack: Stack) -> Pipeline:
        """The engine, and the rankers that a stack was tuned with."""
        older = {
            name: self.versions[name, version]
            for name, version in stack.versions.items()
            if (name, version) in self.versions and version != self.rankers[name].version
        }
        return replace(self.pipeline, rankers={**self.rankers, **older}) if older else self.pipeline

    def knows(self, text: str) -> bool:
        """Whether a text names one of the signals here, as a stack would."""
        try:
            names, _ = parse_stack(text)
        except UsageError:
            return False
        return bool(lexical(names)) or any(name in self.rankers for name in names)

    def waits_for(self, before: Snapshot) -> str | None:
        """Name a ranker that is newer than ``before`` and whose features are not all stored yet."""
        for name, version in self.versions:
            newer = name in before.rankers and (name, version) not in before.versions
            if newer and not self.at_once and self.workspace.engine.missing_features(name, version):
                return name
        return None


def signature(settings: Settings) -> Signature:
    """What says which rankers and stacks are in use: another one after every change of them."""
    base, stack = Path(settings.folder), settings.stack
    files = [
        base / "rerank.toml",
        base / "releases.json",
        *base.glob("rankers/*.json"),
        *base.glob("stacks/*"),
    ]
    if stack is not None and stack.endswith(".json"):
        files.append(Path(stack))
    seen = []
    for path in sorted(files):
        try:
            about = path.stat()
        except OSError:
            continue
        seen.append((str(path), about.st_ino, about.st_mtime_ns, about.st_size))
    return tuple(seen)
