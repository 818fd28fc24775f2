"""A workspace: a folder for one collection."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank.common.errors import NoCollectionError, RerankError, UsageError, WorkspaceError
from rerank.common.files import system_reason, write_text
from rerank.documents.filters import filters_of
from rerank.documents.records import Query, SearchTemplate, shorten
from rerank.documents.text import language
from rerank.engines.base import Engine
from rerank.engines.registry import engine_class
from rerank.evaluation.leakage import TrainingRecord
from rerank.rankers.base import Ranker
from rerank.rankers.registry import families
from rerank.rankers.store import RankerStore
from rerank.scoring.pipeline import Pipeline, ResultPage
from rerank.scoring.vector_cache import VectorCache
from rerank.stack.linear import NAME
from rerank.stack.parse import retriever_depths
from rerank.stack.releases import KEPT_RELEASES, Releases, tuned_versions
from rerank.stack.signals import check_retriever, ranker_names, resolve
from rerank.stack.stack import Stack, find_stack
from rerank.workspace import config_file
from rerank.workspace.folder import SETTINGS, check_folder, new_folder, write_durably
from rerank.workspace.settings import WorkspaceSettings
from rerank.workspace.tuned_stacks import find_tuned_stack, stack_path

if TYPE_CHECKING:
    from typing_extensions import Self

    from rerank.rankers.graphs.citations import Citations

_QUERY_VECTORS = 50_000  # about 80 MB; fewer than queries times rankers would never be found again


class Workspace:
    """The folder of one collection: its settings, documents, rankers and stacks.

    Use :meth:`open` or :meth:`create`. The documents can be in the folder or in an OpenSearch cluster, which
    the settings (``rerank.toml``) name. Nothing is read before it is needed.

    >>> from rerank import Document
    >>> workspace = Workspace.create(folder / "new", lang="en")
    >>> workspace.engine.write([Document("wolf", text="A grey wolf")]).added
    1
    >>> workspace = Workspace.open(workspace.folder)
    >>> workspace.lang, workspace.first_stage, workspace.trained(), len(workspace.engine)
    ('en', 'bm25', [], 1)
    """

    def __init__(self, settings: WorkspaceSettings) -> None:
        self.settings = settings
        self.folder = settings.folder
        self.query_vectors = VectorCache(_QUERY_VECTORS)
        """Vectors of queries, which repeated measurements with the same queries share."""
        self._engine: Engine | None = None
        self._rankers: dict[tuple[str, str | None], Ranker] = {}

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"Workspace({str(self.folder)!r})"

    @staticmethod
    def exists(folder: str | PathLike[str]) -> bool:
        """Return whether the folder has the settings of a workspace. They can still be invalid."""
        return (Path(folder) / SETTINGS).exists()

    @classmethod
    def create(
        cls,
        folder: str | PathLike[str],
        *,
        lang: str | None = None,
        engine: str = "local",
        settings: Mapping[str, Any] | None = None,
        attach: bool = False,
    ) -> Self:
        """Create a workspace and open it.

        lang:     language of the documents; None if it is unknown or mixed.
        engine:   name of the engine, and its settings.
        attach:   use an index that exists, and do not change its documents.

        Raises WorkspaceError if the folder is a workspace or has other files, UsageError for wrong settings.
        """
        path = Path(folder)
        check_folder(path)
        lang = language(lang)
        settings = settings or {}
        settings_file = str(path / SETTINGS)
        kind = engine_class(engine, str(path))
        kind.trust_hosts(settings, settings_file)
        try:
            with new_folder(path) as unfinished, ExitStack() as undo:
                created = kind.in_workspace(
                    path / "engine", lang, settings, new=not attach, settings_file=settings_file
                )
                if not attach:
                    undo.callback(_discard, created)
                text = config_file.render_settings(lang, engine, settings, created.first_stages)
                created.close()
                write_durably(unfinished, text)
                undo.pop_all()
        except OSError as error:
            problem = f"cannot make a workspace ({system_reason(error)}); check the folder and the disk"
            raise WorkspaceError(f"{path}: {problem}") from error
        return cls.open(path)

    @classmethod
    def open(cls, folder: str | PathLike[str] | Self) -> Self:
        """Open a workspace; an open one is returned unchanged. Raises WorkspaceError."""
        if isinstance(folder, cls):
            return folder
        if not isinstance(folder, (str, PathLike)):
            raise UsageError(f"workspace: {shorten(folder)} is neither a Workspace nor a folder")
        return cls(WorkspaceSettings.load(Path(folder)))

    def discard(self) -> None:
        """Remove a new workspace without stored documents, as after a failed ingest. Others are unchanged."""
        with suppress(OSError, RerankError):
            (self.folder / "engine").mkdir(exist_ok=True)
            with self.engine.lock():
                if self.engine.stores_documents():
                    return
                self.engine.discard()
                (self.folder / SETTINGS).unlink()
                shutil.rmtree(self.folder / "engine", ignore_errors=True)
                self.folder.rmdir()

    @property
    def engine(self) -> Engine:
        """The engine that stores and searches the documents. It is opened when it is first used."""
        if self._engine is None:
            self._engine = self.settings.open_engine()
        return self._engine

    def recreate_engine(self) -> None:
        """Create the engine again if its folder was removed."""
        try:
            _ = self.engine
        except NoCollectionError:
            self._engine = self.settings.open_engine(new=True)

    @property
    def first_stage(self) -> str:
        """The first stage of stacks without a lexical signal: a signal, or ``search`` for a template."""
        return self.first_stage_of(None)[0]

    def first_stage_of(self, text: str | None) -> tuple[str, SearchTemplate | None]:
        """Read ``bm25``, ``template:FILE`` or ``run:FILE``; default: from ``rerank.toml``.

        FILE is then relative to the workspace.
        """
        return self.settings.first_stage_of(text)

    @property
    def location(self) -> str:
        """Where the documents are, for messages: the folder, or an index and its nodes."""
        return self.settings.location or str(self.folder)

    @property
    def lang(self) -> str | None:
        """Language of the documents; None if it is unknown or mixed."""
        return self.settings.lang

    def category_edges(self) -> list[tuple[str, str]] | None:
        """Return child-parent pairs of the category graph, or None."""
        from rerank.formats import read_categories

        path = self.folder / "categories.tsv"
        return read_categories(path) if path.exists() else None

    def save_category_edges(self, edges: Iterable[tuple[str, str]]) -> None:
        """Store the category graph, which rankers that learn from categories read.

        edges: pairs of a child and its parent.
        """
        from rerank.formats.tables import format_rows

        write_text(self.folder / "categories.tsv", format_rows([("child", "parent"), *edges]))

    def citations(self) -> Citations:
        """Read all documents, and return the texts that they cite, with the citing sentences."""
        from rerank.rankers.graphs.citations import Citations

        return Citations.from_documents(self.engine.documents())

    # -- rankers -----------------------------------------------------------------------------------------

    def trained(self) -> list[str]:
        """Return the names of the trained rankers, without the first stages of the engine."""
        return self._installed.names()

    def ranker(self, name: str, version: str | None = None) -> Ranker:
        """Load a ranker; default: its newest version. Raises NotTrainedError for an unknown one."""
        if (name, version) not in self._rankers:
            self._rankers[name, version] = self._installed.load(name, version)
        return self._rankers[name, version]

    def versions(self, stack: Stack | None = None) -> dict[str, str]:
        """Return the version of each ranker that searches use.

        It is the version of the stack, else the one of the active stack, else the newest. A version that was
        removed does not count.
        """
        stacks = list(filter(None, (stack, self.releases.stack)))
        versions = {}
        names = self.trained() if stack is None else stack.rankers
        for name in names:
            in_stacks = [candidate.versions[name] for candidate in stacks if name in candidate.versions]
            installed = self._only_installed(name, in_stacks)
            versions[name] = installed[0] if installed else self._installed.record(name).version
        return versions

    def installed_versions(self, stack: Stack) -> dict[str, str]:
        """Return the versions that a stack names and that are installed."""
        versions = stack.versions.items()
        return {name: version for name, version in versions if self._installed.has(name, version)}

    def versions_to_keep(self, *, include_previous: bool = False) -> dict[str, list[str]]:
        """Return the versions of each ranker whose features must be stored.

        These are the versions of the active stack. With ``include_previous``, also the newest version, and
        versions of earlier stacks, to which a rollback can return. If a stack cannot be read, all are kept.
        """
        in_stacks = tuned_versions(self.folder, 1 + KEPT_RELEASES if include_previous else 1)
        versions_by_ranker = {}
        for name in self.trained():
            with suppress(RerankError):
                stored = self._installed.versions(name)
                if in_stacks is None:
                    versions = stored
                else:
                    newest = stored[:1] if include_previous else []
                    versions = [*newest, *in_stacks.get(name, ())]
                installed = self._only_installed(name, versions)
                if installed:
                    versions_by_ranker[name] = installed
        return versions_by_ranker

    def _only_installed(self, name: str, versions: Iterable[str]) -> list[str]:
        """Return the versions of a ranker that are installed, each once."""
        return [version for version in dict.fromkeys(versions) if self._installed.has(name, version)]

    def forget_rankers(self) -> None:
        """Load rankers from the disk again on their next use, because another version may be the newest."""
        self._rankers.clear()

    @property
    def _installed(self) -> RankerStore:
        # Not stored: a reference cycle would keep files open until garbage collection.
        return RankerStore(self.folder / "rankers", lambda: tuned_versions(self.folder))

    def check_ranker_name(self, name: str, family: str, variant: str) -> None:
        """Raise UsageError for an invalid name, and for the name of another ranker."""
        if not re.fullmatch(NAME, name):
            raise UsageError(
                f"{name!r} is not a name of a ranker; use letters, digits, and _ - . after the first letter"
            )
        if not ranker_names([name]):
            raise UsageError(f"{name} is a first stage; choose another name for the ranker")
        owner = self._family_and_variant(name)
        if owner not in (None, (family, variant)):
            raise UsageError(
                f"{name} is the name of another ranker ({owner[1]}, of the family {owner[0]}); choose another"
            )

    def _family_and_variant(self, name: str) -> tuple[str, str] | None:
        """Return the family and the variant of the ranker with this name, built in or trained; else None."""
        for family in families().values():
            if name in family.rankers:
                return family.name, name
        if name in self.trained():
            record = self._installed.record(name)
            return record.family, record.variant
        return None

    def training_record(self, name: str, version: str | None = None) -> TrainingRecord:
        """Return the queries and documents that trained a ranker, or an empty record.

        version: by default the newest.
        """
        return TrainingRecord.from_json(self._installed.read(name, version, "seen.json"))

    def training_records(self, stack: Stack) -> dict[str, TrainingRecord]:
        """Return the training record of each ranker. The name "" has the record of the stack's weights."""
        records = {name: self.training_record(name, stack.versions.get(name)) for name in stack.rankers}
        records[""] = TrainingRecord.from_json(stack.tuned.get("seen"))
        return records

    def install(self, ranker: Ranker, record: TrainingRecord | None = None) -> None:
        """Store a trained ranker as the newest version, and remove versions that no stack uses.

        record: the queries and documents that trained it.
        """
        self.check_ranker_name(ranker.name, ranker.family, ranker.variant or ranker.name)
        files = {"seen.json": json.dumps(record.to_json()) + "\n"} if record else {}
        self._installed.install(ranker, files)
        # Loaded from disk on the next use, so tests check the stored ranker.
        self.forget_rankers()

    def remove_ranker(self, name: str, version: str | None = None) -> list[str]:
        """Remove a version of a ranker, or all of them; return the removed versions.

        Raises UsageError if the active stack uses it, and the errors of :meth:`ranker`.
        """
        active = self.releases.stack
        if active is not None and name in active.rankers:
            active_version = active.versions.get(name)
            if version in (None, active_version):
                raise UsageError(
                    f"the active stack {active} uses {name} {active_version}; activate another one with"
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
        depths = retriever_depths(retrieve)
        versions = versions or {}
        rankers = {name: self.ranker(name, versions.get(name)) for name in ranker_names((*signals, *depths))}
        for signal in resolve(depths, rankers):
            check_retriever(signal, self.engine)
        return Pipeline(self.engine, rankers, infer_categories)

    def pipeline_of(self, stack: Stack, *, infer_categories: bool = True) -> Pipeline:
        """Build the pipeline for the signals, the retrievers and the ranker versions of a stack."""
        return self.pipeline(
            stack.signals,
            retrieve=stack.retrieve,
            infer_categories=infer_categories,
            versions=self.versions(stack),
        )

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
        _check_arguments(query, k, stack)
        stack = self.stack(stack or self.default_stack)
        pipeline = self.pipeline_of(stack, infer_categories=infer_categories)
        answer = pipeline.answer(query, stack, filters=filters_of(filter))
        hits = pipeline.hits(answer, k)
        documents = self.engine.get([hit["id"] for hit in hits])
        texts = [document.text if document is not None else "" for document in documents]
        return ResultPage(answer, [{**hit, "text": text} for hit, text in zip(hits, texts)])

    # -- stacks ------------------------------------------------------------------------------------------

    def stack_path(self, signals: Sequence[str]) -> Path:
        """Return the file in which tuning stores the stack of these signals."""
        return stack_path(self.folder, signals)

    def stack(self, text: str | Stack, *, latest: bool = False) -> Stack:
        """Return the stack that a text names; a stack is returned unchanged.

        ``tfidf,text``: the tuned stack of these signals. ``tfidf*0.4 + text*0.6``: these weights on min-max
        normalized scores. Also a stack file, a signal, or the number of an activated stack.

        latest: prefer the last tuned stack to the active one.
        """
        if isinstance(text, Stack):
            return text
        if text.endswith(".json"):
            return Stack.load(text)
        releases = self.releases
        if text.isdecimal():
            return releases.find(int(text))
        is_active = text == releases.name
        if releases.stack is not None and is_active and not latest:
            return releases.stack

        load_tuned = partial(find_tuned_stack, releases, latest=latest)
        first_stage, search = self.first_stage_of(None)
        return find_stack(text, self.ranker, load_tuned, first_stage, search)

    def is_tuned(self, signals: Sequence[str]) -> bool:
        """Return whether these signals have tuned weights."""
        return find_tuned_stack(self.releases, signals, latest=True) is not None

    @property
    def releases(self) -> Releases:
        """The stacks that were active, with their version numbers, and the one that is active now."""
        return Releases.load(self.folder)

    @property
    def default_stack(self) -> str:
        """The stack that searches use by default: the name of the active one, else the first stage."""
        return self.releases.name or self.first_stage

    def use_stack(self, text: str | Stack, gate: Mapping[str, Any] | None = None) -> Stack:
        """Activate a stack and return it. Default versions: the newest.

        text: a stack, or a text as for :meth:`stack`. gate: comparison with the active stack.

        Raises the errors of :meth:`stack`, NotTrainedError for unknown rankers, UsageError for unknown
        versions.
        """
        stack = self.stack(text, latest=True)
        with self._installed.exclusive_lock():  # training must not remove a version now
            for name in stack.rankers:
                self.ranker(name)
            self._check_versions(stack, str(stack))
            stack = replace(stack, versions=self.versions(stack))
            self.releases.activate(stack, gate)
        return stack

    def rollback(self) -> Stack:
        """Activate the previous stack. Raises UsageError if it or a ranker is missing."""
        with self._installed.exclusive_lock():
            previous = self.releases.previous()
            assert previous.stack is not None
            self._check_versions(previous.stack, f"version {previous.number}, {previous.stack},")
            previous.save()
        return previous.stack

    def _check_versions(self, stack: Stack, name: str) -> None:
        for ranker in stack.rankers:
            version = stack.versions.get(ranker)
            if version is not None and not self._installed.has(ranker, version):
                raise UsageError(
                    f"the stack {name} needs {ranker} {version}, which is not in {self.folder}; tune it"
                    f" again, or use another one with `rerank stack use STACK`"
                )

    def outdated(self, stack: Stack) -> list[str]:
        """Return the rankers that were trained again after the tuning, so that weights may not fit."""
        versions = {name: self.ranker(name).version for name in stack.rankers}
        return [name for name, version in versions.items() if stack.versions.get(name, version) != version]


def _check_arguments(query: object, k: object, stack: object) -> None:
    """Raise UsageError for arguments of :meth:`Workspace.search` with other types."""
    if not isinstance(k, Integral) or k < 1:
        raise UsageError(f"k takes a whole number of 1 or more, not {k!r}")
    if not isinstance(query, (str, Query)):
        raise UsageError(f"query takes a text or a Query, not {query!r}")
    if not isinstance(stack, (str, Stack, type(None))):
        raise UsageError(f"stack takes a text or a Stack, not {stack!r}")


WorkspaceOrPath = Workspace | str | PathLike[str]
"""A workspace, or its folder."""


def _discard(engine: Engine) -> None:
    """Remove the empty index of a workspace that could not be created."""
    with suppress(RerankError):
        engine.discard()
