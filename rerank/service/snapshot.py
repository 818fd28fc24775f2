"""The rankers, stacks and engine that answer requests."""

from __future__ import annotations

import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rerank.config_file import experiment_settings
from rerank.engines.opensearch.columns import column, feature_key
from rerank.errors import UsageError
from rerank.records import Document
from rerank.scoring.pipeline import Pipeline
from rerank.scoring.scorer import Scorer
from rerank.scoring.vector_cache import VectorCache
from rerank.service.experiment import Experiment
from rerank.service.settings import Settings
from rerank.stack.parse import parse_stack
from rerank.stack.signals import lexical_names, resolve
from rerank.stack.stack import Stack, find_stack
from rerank.text import Terms
from rerank.workspace import Workspace

Signature = tuple[tuple[str, int, int, int], ...]
_STACKS = 1000  # texts of stacks that are kept parsed


class Snapshot:
    """The state of a workspace at one moment. Raises RerankError if it cannot be read.

    pipeline:  engine and current rankers.
    versions:  (ranker, version) -> ranker, also older ones.
    tuned:     signals -> tuned stack.
    default:   stack of requests without one.
    experiment: the stacks whose results are interleaved, or None.
    columns:   features (``text@5865d3bb237ae6a4``) -> layout.
    analyze:   text -> terms.
    words:     fields with query words; empty: all.
    signature: state of the files.
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
        arms = self.experiment.arms if self.experiment is not None else ()
        for stack in (*self.tuned.values(), self.default, *arms):
            if stack.then is not None:
                stack.then.encoder()  # load it now, not at the first request
            for name, version in workspace.installed_versions(stack).items():
                self.versions[name, version] = workspace.ranker(name, version)
        self.pipeline = Pipeline(workspace.engine, self.rankers, settings.infer_categories, VectorCache())
        self.columns = {
            feature_key(*key): column(key[0], ranker.encode_documents([Document("empty")]), 1, None)
            for key, ranker in self.versions.items()
        }
        self.analyze = Terms(workspace.lang)
        self.words = workspace.words
        self._scorers: dict[str | None, tuple[Stack, Scorer]] = {}
        # SQLite connections are in a reference cycle: without this, files stay open until it is collected.
        weakref.finalize(self, workspace.engine.close).atexit = False

    def _tuned(self) -> dict[frozenset[str], Stack]:
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
        active = None if text else self._releases.stack
        return active or self.stack(text or self._first_stage)

    def _experiment(self) -> Experiment | None:
        settings = experiment_settings(self.workspace.config)
        return None if settings is None else Experiment.load(settings, self._default)

    def draw(self, client: str | None, text: str | None) -> tuple[Experiment | None, bytes]:
        """Return the experiment that a search takes part in, and its coins; None and nothing without one."""
        coins = None if self.experiment is None else self.experiment.coins(client, text or "")
        return (None, b"") if coins is None else (self.experiment, coins)

    def describe(self) -> dict[str, Any]:
        """Return the stack and the rankers that are served, for the log and ``/readyz``."""
        experiment = {} if self.experiment is None else {"experiment": self.experiment.name}
        return {
            **experiment,
            "stack": str(self.default),
            "normalization": self.default.combiner.normalization,
            "rankers": {name: ranker.version for name, ranker in self.rankers.items()},
            "tuned": sorted(",".join(sorted(names)) for names in self.tuned),
        }

    def models(self) -> dict[str, Any]:
        """Return the tuned stacks in the form of model lists; the default one is first."""
        names = [self.default.name, *sorted(",".join(sorted(signals)) for signals in self.tuned)]
        models = [{"id": name, "object": "model", "owned_by": "rerank"} for name in dict.fromkeys(names)]
        return {"object": "list", "data": models}

    def stored_bytes(self) -> dict[str, int]:
        """Ranker -> bytes of a document's features in a call of the hook. An attached index sends none."""
        source = self.pipeline.engine.hook_source()
        if source is not None and source.files is not None:
            return {}
        current = {name: feature_key(name, ranker.version) for name, ranker in self.rankers.items()}
        return {name: self.columns[key].stored_bytes for name, key in current.items()}

    @property
    def is_shared(self) -> bool:
        """Whether the documents are in a cluster."""
        return self.workspace.config.get("opensearch") is not None

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
        """Return the pipeline with the ranker versions that a stack was tuned with."""
        tuned = {key[0]: self.versions[key] for key in stack.versions.items() if key in self.versions}
        return replace(self.pipeline, rankers={**self.rankers, **tuned})

    def knows(self, text: str) -> bool:
        """Whether a text names a signal."""
        try:
            names, _ = parse_stack(text)
        except UsageError:
            return False
        return bool(lexical_names(names)) or any(name in self.rankers for name in names)

    def waits_for(self, before: Snapshot) -> str | None:
        """A newer ranker whose features are incomplete, or None. After a rollback, none is waited for."""
        if self._releases.rolled_back:
            return None
        for name, version in self.versions:
            newer = name in before.rankers and (name, version) not in before.versions
            if newer and self.workspace.engine.missing_features(name, version):
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
    base = Path(settings.folder)
    stack = settings.stack
    files = [base / "rerank.toml", base / "releases.json"]
    files += [*base.glob("rankers/*.json"), *base.glob("stacks/*")]
    files += [Path(stack)] if stack is not None and stack.endswith(".json") else []
    state = []
    for path in sorted(files):
        with suppress(OSError):
            stat = path.stat()
            state.append((str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return tuple(state)
