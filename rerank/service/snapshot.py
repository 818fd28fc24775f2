"""The rankers, stacks and engine that answer requests."""

from __future__ import annotations

import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rerank.common.errors import UsageError
from rerank.documents.records import Document
from rerank.documents.text import Terms
from rerank.engines.opensearch.columns import Column, column, feature_key
from rerank.scoring.pipeline import Pipeline
from rerank.scoring.scorer import Scorer
from rerank.scoring.vector_cache import VectorCache
from rerank.service.experiment import Experiment
from rerank.service.settings import Settings
from rerank.stack.parse import parse_stack
from rerank.stack.signals import lexical_names, resolve
from rerank.stack.stack import Stack, find_stack
from rerank.workspace.config_file import experiment_settings
from rerank.workspace.workspace import Workspace

Signature = tuple[tuple[str, int, int, int], ...]
_STACKS = 1000  # texts of stacks that are kept parsed


class Snapshot:
    """The state of a workspace at one moment. Raises RerankError if it cannot be read.

    pipeline:   scores by the engine and the current rankers.
    rankers:    name -> current ranker.
    versions:   (ranker, version) -> ranker, also older ones that a stack uses.
    tuned:      names of signals -> tuned stack.
    default:    the stack of requests that name none.
    experiment: the stacks whose results are interleaved, or None.
    columns:    feature key (``text@5865d3bb237ae6a4``) -> layout of its features in a call of the hook.
    analyze:    returns the terms of a text.
    words:      fields with the words of users; empty: all fields.
    signature:  state of the files, to see a change.
    """

    def __init__(self, settings: Settings) -> None:
        self.signature = signature(settings)  # files that change while they are read are read again later
        self.workspace = workspace = _open(settings)
        self._releases = workspace.releases
        current = workspace.versions()
        self.rankers = {name: workspace.ranker(name, version) for name, version in current.items()}
        self.versions = {(name, current[name]): ranker for name, ranker in self.rankers.items()}
        self._first_stage, self._search = workspace.first_stage_of(None)
        self.tuned = self._tuned()
        self.default = self._default(settings.stack)
        self.experiment = self._experiment()
        self._load_stacks()
        self.pipeline = Pipeline(workspace.engine, self.rankers, settings.infer_categories, VectorCache())
        self.columns: dict[str, Column] = {}
        for (name, version), ranker in self.versions.items():
            features = ranker.encode_documents([Document("empty")])
            self.columns[feature_key(name, version)] = column(name, features, 1, None)
        self.analyze = Terms(workspace.lang)
        self.words = workspace.settings.words
        self._scorers: dict[str | None, tuple[Stack, Scorer]] = {}
        # SQLite connections are in a reference cycle: without this, files stay open until it is collected.
        weakref.finalize(self, workspace.engine.close).atexit = False

    def _load_stacks(self) -> None:
        """Load the models of all stacks now, not at the first request."""
        arms = self.experiment.arms if self.experiment is not None else ()
        for stack in (*self.tuned.values(), self.default, *arms):
            if stack.second_phase is not None:
                stack.second_phase.encoder()
            for name, version in self.workspace.installed_versions(stack).items():
                self.versions[name, version] = self.workspace.ranker(name, version)

    def _tuned(self) -> dict[frozenset[str], Stack]:
        """Return the tuned stacks. The active release replaces a candidate with the same signals."""
        tuned = {}
        for path in sorted((self.workspace.folder / "stacks").glob("*.json")):
            stack = Stack.load(path)
            names = frozenset(path.stem.split(","))
            if names.issuperset(stack.signals):
                tuned[names] = stack
        if self._releases.stack is not None:
            tuned[frozenset(self._releases.stack.name.split(","))] = self._releases.stack
        return tuned

    def _default(self, text: str | None) -> Stack:
        if text is not None and text.endswith(".json"):
            stack = Stack.load(text)
            resolve(stack.signals, self.rankers)
            return stack
        if not text and self._releases.stack is not None:
            return self._releases.stack
        return self.stack(text or self._first_stage)

    def _experiment(self) -> Experiment | None:
        settings = experiment_settings(self.workspace.settings.config)
        return None if settings is None else Experiment.load(settings, self._default)

    def draw(self, client: str | None, text: str | None) -> tuple[Experiment | None, bytes]:
        """Return the experiment that a search takes part in, and its coins; None and nothing without one.

        client: id of the client; None: the text decides. text: words of the query.
        """
        if self.experiment is None:
            return None, b""
        coins = self.experiment.coins(client, text or "")
        if coins is None:
            return None, b""
        return self.experiment, coins

    def describe(self) -> dict[str, Any]:
        """Return the stack and the rankers that are served, as JSON values for the log and ``/readyz``."""
        state: dict[str, Any] = {
            "stack": str(self.default),
            "normalization": self.default.combiner.normalization,
            "rankers": {name: ranker.version for name, ranker in self.rankers.items()},
            "tuned": self._names_of_tuned(),
        }
        if self.experiment is not None:
            state["experiment"] = self.experiment.name
        return state

    def _names_of_tuned(self) -> list[str]:
        return sorted(",".join(sorted(signals)) for signals in self.tuned)

    def models(self) -> dict[str, Any]:
        """Return the tuned stacks in the form of a model list, as other services have one.

        The default stack is the first.
        """
        names = dict.fromkeys([self.default.name, *self._names_of_tuned()])
        models = [{"id": name, "object": "model", "owned_by": "rerank"} for name in names]
        return {"object": "list", "data": models}

    def stored_bytes(self) -> dict[str, int]:
        """Return ranker -> bytes of a document's features in a call of the hook.

        It is empty for an attached index, whose features are in files of the workspace.
        """
        source = self.pipeline.engine.hook_source()
        if source is not None and source.files is not None:
            return {}
        sizes: dict[str, int] = {}
        for name, ranker in self.rankers.items():
            sizes[name] = self.columns[feature_key(name, ranker.version)].stored_bytes
        return sizes

    @property
    def is_shared(self) -> bool:
        """Whether the documents are in a cluster, so that other clients also search them."""
        return self.workspace.settings.config.get("opensearch") is not None

    def stack(self, text: str | None) -> Stack:
        """Find a stack; without a text, the default.

        Raises UsageError for an unknown stack, InputError for signals that are not tuned together.
        """
        if not text:
            return self.default
        if text.endswith(".json"):
            raise UsageError("a request names a stack by its signals; only the command line takes a file")
        return find_stack(
            text,
            lambda name: resolve([name], self.rankers),
            lambda names: self.tuned.get(frozenset(names)),
            self._first_stage,
            self._search,
        )

    def scorer(self, text: str | None) -> tuple[Stack, Scorer]:
        """Return the stack of a text, as :meth:`stack` does, and the scorer of its signals."""
        entry = self._scorers.get(text)  # other threads may clear the cache
        if entry is None:
            if len(self._scorers) >= _STACKS:
                self._scorers.clear()
            stack = self.stack(text)
            entry = stack, self.scorer_of(stack)
            self._scorers[text] = entry
        return entry

    def scorer_of(self, stack: Stack) -> Scorer:
        """Return the scorer of the signals of a stack, in the versions of the stack."""
        return self.pipeline_of(stack).scorer(stack.signals, stack.first_stage)

    def pipeline_of(self, stack: Stack) -> Pipeline:
        """Return the pipeline with the rankers in the versions that a stack was tuned with."""
        rankers = dict(self.rankers)
        for name, version in stack.versions.items():
            if (name, version) in self.versions:
                rankers[name] = self.versions[name, version]
        return replace(self.pipeline, rankers=rankers)

    def knows(self, text: str) -> bool:
        """Return whether a text, such as the ``model`` of a request, names a signal of this service."""
        try:
            names, _ = parse_stack(text)
        except UsageError:
            return False
        return bool(lexical_names(names)) or any(name in self.rankers for name in names)

    def waits_for(self, before: Snapshot) -> str | None:
        """Return a newer ranker whose features are incomplete, or None if this state can be used.

        before: the state in use. After a rollback, no ranker is waited for.
        """
        if self._releases.rolled_back:
            return None
        for name, version in sorted(self.versions.keys() - before.versions.keys()):
            if name in before.rankers and self.workspace.engine.missing_features(name, version):
                return name
        return None


def _open(settings: Settings) -> Workspace:
    workspace = Workspace.open(settings.folder)
    config = workspace.settings.config
    table = config.get("opensearch")
    if isinstance(table, dict) and isinstance(table.get("timeout", 60.0), (int, float)):
        timeout = min(table.get("timeout", 60.0), settings.deadline)
        workspace.settings.config = {**config, "opensearch": {**table, "timeout": timeout}}
    return workspace


def signature(settings: Settings) -> Signature:
    """Return the state of the files of rankers and stacks. It differs if one of them was written."""
    base = Path(settings.folder)
    files = [base / "rerank.toml", base / "releases.json"]
    files += [*base.glob("rankers/*.json"), *base.glob("stacks/*")]
    if settings.stack is not None and settings.stack.endswith(".json"):
        files.append(Path(settings.stack))
    state = []
    for path in sorted(files):
        with suppress(OSError):
            stat = path.stat()
            state.append((str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return tuple(state)
