"""A workspace: a folder for one collection."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank import config_file
from rerank.combiners.linear import NAME
from rerank.engines.base import Engine
from rerank.engines.registry import engine_class
from rerank.errors import (
    BusyError,
    NoCollectionError,
    RerankError,
    UsageError,
    WorkspaceError,
)
from rerank.evaluation.leakage import TrainingRecord
from rerank.files import LOCK, folder_lock, trouble, write_text
from rerank.filters import filters_of
from rerank.rankers.base import Ranker
from rerank.rankers.registry import families
from rerank.rankers.store import RankerStore
from rerank.records import Query, SearchTemplate
from rerank.search.pipeline import Pipeline, ResultPage
from rerank.stack.parse import retriever_depths
from rerank.stack.releases import KEPT, Releases, tuned_versions
from rerank.stack.signals import SEARCH, check_retriever, learned, resolve
from rerank.stack.stack import Stack, called, find_stack
from rerank.text import language

if TYPE_CHECKING:
    from rerank.progress import Progress
    from rerank.rankers.graphs.citations import Citations

_ELSEWHERE = "choose another folder with -w"


class Workspace:
    """One collection with rankers and stacks. Use :meth:`open` or :meth:`create`.

    >>> import tempfile
    >>> from rerank import Document
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> workspace.engine.write([Document("wolf", text="A grey wolf")]).added
    1
    >>> workspace = Workspace.open(workspace.folder)
    >>> workspace.lang, workspace.first_stage, workspace.trained(), len(workspace.engine)
    ('en', 'tfidf', [], 1)
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = config
        self._engine: Engine | None = None
        self._rankers: dict[tuple[str, str | None], Ranker] = {}

    def __fspath__(self) -> str:
        return str(self.folder)

    # -- the folder ------------------------------------------------------------------------------------

    @staticmethod
    def exists(folder: str | os.PathLike[str]) -> bool:
        """Whether the folder is a workspace."""
        return (Path(folder) / "rerank.toml").exists()

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        *,
        lang: str | None = None,
        engine: str = "local",
        settings: Mapping[str, Any] | None = None,
        attach: bool = False,
    ) -> Workspace:
        """Create a workspace for documents in ``lang`` (None: unknown or mixed).

        engine: its name. settings: its settings.
        attach: use an existing index, unchanged.
        """
        path = Path(folder)
        try:
            os.fspath(path).encode()
        except UnicodeEncodeError:  # tantivy cannot open it
            raise WorkspaceError(f"{str(path)!a}: the name is not UTF-8; {_ELSEWHERE}") from None
        lang, existed = language(lang), path.exists()
        if existed and not path.is_dir():
            raise WorkspaceError(f"{path}: a file, and not a workspace; {_ELSEWHERE}")
        try:
            path.mkdir(parents=True, exist_ok=True)
            with folder_lock(path, f"making a workspace in {path}"):
                if cls.exists(path):
                    raise BusyError(f"another process has just made a workspace in {path}; run again")
                # An interrupted creation leaves only an engine.
                if not {one.name for one in path.iterdir()} <= {"engine", LOCK}:
                    raise WorkspaceError(f"{path}: not empty, and not a workspace; {_ELSEWHERE}")
                shutil.rmtree(path / "engine", ignore_errors=True)
                try:
                    cls._fill(path, lang, engine, settings or {}, attach)
                except BaseException:
                    shutil.rmtree(path / "engine", ignore_errors=True)
                    if not existed:
                        with suppress(OSError):
                            path.rmdir()
                    raise
        except OSError as error:
            raise WorkspaceError(f"{path}: cannot make a workspace ({error.strerror or error})") from error
        return cls.open(path)

    @staticmethod
    def _fill(path: Path, lang: str | None, engine: str, settings: Mapping[str, Any], attach: bool) -> None:
        """Create the engine, then ``rerank.toml``."""
        kind, where = engine_class(engine, str(path)), str(path / "rerank.toml")
        kind.named(settings, where)
        created = kind.in_workspace(path / "engine", lang, settings, new=not attach, where=where)
        try:
            write_text(where, config_file.written(lang, engine, settings, created.first_stages))
            created.close()
        except BaseException:
            if not attach:
                with suppress(RerankError):
                    created.discard()
            raise

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Workspace:
        """Open a workspace. Raises WorkspaceError."""
        path = Path(folder)
        file = path / "rerank.toml"
        try:
            config = config_file.load(file)
        except (FileNotFoundError, NotADirectoryError):
            raise WorkspaceError(
                f"{path}: no workspace here; make one with `rerank ingest CORPUS -w {shlex.quote(str(path))}`"
            ) from None
        except (OSError, ValueError) as error:
            raise (
                trouble(error, file)
                or WorkspaceError(
                    f"{file}: cannot be read ({error}); correct it, or ingest again into another workspace"
                )
            ) from error
        if config.get("format") != config_file.FORMAT:
            raise WorkspaceError(
                f"{path}: a workspace of format {config.get('format')!r}, but this version of rerank reads"
                f" {config_file.FORMAT}; use the version that wrote it, or ingest the documents into a new"
                " workspace"
            )
        config_file.check(config, file)
        return cls(path, config)

    def discard(self) -> None:
        """Remove a new, empty workspace."""
        with suppress(OSError, RerankError):
            (self.folder / "engine").mkdir(exist_ok=True)
            with self.engine.lock():
                if len(self.engine):
                    return
                self.engine.discard()
                (self.folder / "rerank.toml").unlink()
                shutil.rmtree(self.folder / "engine", ignore_errors=True)
                self.folder.rmdir()

    @property
    def engine(self) -> Engine:
        """The engine, opened when first used."""
        if self._engine is None:
            self._engine = self._open_engine()
        return self._engine

    def recreate_engine(self) -> None:
        """Create the engine again if its folder was removed."""
        try:
            _ = self.engine
        except NoCollectionError:
            self._engine = self._open_engine(new=True)

    def _open_engine(self, *, new: bool = False) -> Engine:
        kind, settings, where = self._engine_kind()
        return kind.in_workspace(self.folder / "engine", self.lang, settings, new=new, where=where)

    def _engine_kind(self) -> tuple[type[Engine], dict[str, Any], str]:
        name, file = self.config.get("engine", "local"), str(self.folder / "rerank.toml")
        kind = engine_class(name, file)
        return kind, self.config.get(name, {}), file

    @property
    def first_stage(self) -> str:
        """Default first stage: a signal, or ``search`` (template)."""
        return self.first_stage_of(None)[0]

    def first_stage_of(self, text: str | None) -> tuple[str, SearchTemplate | None]:
        """Read ``bm25``, ``template:FILE``, ``stored:ID`` or ``run:FILE``; default: from ``rerank.toml``.

        FILE is then relative to the workspace.
        """
        from rerank.formats import read_template

        folder = self.folder if text is None else None
        text = str(self.config.get("first_stage", "tfidf")) if text is None else text
        search = read_template(text, folder)
        return (text, None) if search is None else (SEARCH, search)

    @property
    def words(self) -> tuple[str, ...]:
        """Fields that other clients search for words; empty: all. Attached index: title and text."""
        named = self.config.get("words")
        if named is None:
            fields = self.config.get("opensearch", {}).get("fields", {})
            values = [fields.get(name, ()) for name in ("title", "text")] if isinstance(fields, dict) else []
            named = [one for some in values for one in ([some] if isinstance(some, str) else some)]
        return tuple(named)

    @property
    def place(self) -> str:
        """Location of the documents, for messages."""
        kind, settings, where = self._engine_kind()
        return kind.place_of(settings, where) or str(self.folder)

    def check_place(self, engine: str, settings: Mapping[str, Any]) -> None:
        """Raise UsageError if the settings name another location."""
        kind, mine, where = self._engine_kind()
        here = kind.place_of(mine, where)
        if engine_class(engine, where).place_of(settings, where) != here:
            raise UsageError(
                f"{self.folder}: the documents are in {here or 'this folder'}; leave --url, --index and"
                f" --profile out, edit {where}, or choose another workspace with -w"
            )
        kind.named(settings, where)

    @property
    def lang(self) -> str | None:
        """Language of the documents; None: unknown or mixed."""
        return self.config.get("lang") or None

    def verify(self) -> dict[str, str]:
        """Compare files with checksums; return corrupt file -> problem. Large collections take minutes.

        Raises BusyError.
        """
        wrong = self._installed.verify()
        for folder in ("stacks", "releases"):
            for path in sorted((self.folder / folder).glob("*.json")):
                try:
                    Stack.load(path)
                except RerankError as error:
                    wrong[str(path)] = str(error)
        try:
            _ = self.releases
        except RerankError as error:
            wrong[str(self.folder / "releases.json")] = str(error)
        try:
            return self.engine.verify() | wrong
        except BusyError:
            raise
        except RerankError as error:
            return {str(self.folder / "engine"): str(error)} | wrong

    # -- the category graph ------------------------------------------------------------------------------

    def category_edges(self) -> list[tuple[str, str]] | None:
        """Return child-parent pairs of the category graph, or None."""
        from rerank.formats import read_categories

        path = self.folder / "categories.tsv"
        return read_categories(path) if path.exists() else None

    def save_category_edges(self, edges: Iterable[tuple[str, str]]) -> None:
        """Store a category graph."""
        lines = "".join(f"{child}\t{parent}\n" for child, parent in edges)
        write_text(self.folder / "categories.tsv", "child\tparent\n" + lines)

    def citations(self, progress: Progress | None = None) -> Citations:
        """Read the citations of the documents."""
        from rerank.rankers.graphs.citations import Citations

        engine = self.engine
        documents = engine.documents()
        if progress is not None:
            documents = progress.over(documents, "citations", len(engine), "doc")
        return Citations.of(documents)

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
                f"{name} is the name of another ranker ({owner[1]}, of the family {owner[0]}); choose"
                " another name"
            )

    def seen(self, name: str, version: str | None = None) -> TrainingRecord:
        """Return training and dev queries, or empty. Default version: the newest."""
        return _training_record(self._installed.read(name, version, "seen.json"))

    def training_records(self, stack: Stack) -> dict[str, TrainingRecord]:
        """Ranker -> training record; "": the stack's weights."""
        own = _training_record(stack.tuned.get("seen"))
        return {name: self.seen(name, stack.versions.get(name)) for name in stack.rankers} | {"": own}

    def install(self, ranker: Ranker, seen: TrainingRecord | None = None) -> None:
        """Store a trained ranker as the newest version; versions without a stack are removed.

        seen: training and dev queries.
        """
        self.check_name(ranker.name, ranker.family, ranker.variant or ranker.name)
        self._installed.install(ranker, {"seen.json": json.dumps(seen.to_json()) + "\n"} if seen else {})
        # Loaded from disk on the next use, so tests check the stored ranker.
        self.forget_rankers()

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
        return self.folder / "stacks" / f"{called(signals)}.json"

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
            return releases.find(int(text)).stack
        if not latest and releases.active is not None and text == releases.name:
            return releases.active.stack

        def tuned(signals: Sequence[str]) -> Stack | None:
            path = self.stack_path(signals)
            active = releases.stack if called(signals) == releases.name else None
            return Stack.load(path) if path.exists() and (latest or active is None) else active

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
            releases = self.releases
            release = releases.previous()
            self._check_versions(release.stack, f"version {release.number}, {release.stack},")
            releases.roll_back()
        return release.stack

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


def _training_record(values: Any) -> TrainingRecord:
    try:
        return TrainingRecord.from_json(values)
    except (ValueError, TypeError, AttributeError):
        return TrainingRecord({})
