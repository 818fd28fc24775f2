"""A workspace: the folder that holds one collection's index, its fitted rankers, stacks and runs.

rerank.toml         format, engine, language, where the cluster is; may be edited by hand
engine/             the local engine's documents, index and features; features of an attached index
categories.tsv      the category graph, if one was given
rankers/NAME.json   which version of a ranker is the newest; NAME-VERSION/ holds it
stacks/*.json       stacks as they were tuned last
releases/N.json     version N of a stack that is or was in use, with the versions of its rankers
releases.json       which version is in use since when, and those before it
cache/              scores the tuner has computed; may be deleted
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
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
    NotTrainedError,
    RerankError,
    UsageError,
    WorkspaceError,
)
from rerank.evaluation.leakage import TrainingRecord
from rerank.files import LOCK, folder_lock, parse_json, trouble, write_text
from rerank.filters import filters_of
from rerank.rankers.base import Ranker
from rerank.rankers.registry import families, trainable
from rerank.rankers.store import RankerStore
from rerank.records import Query, SearchTemplate
from rerank.search.pipeline import Found, Pipeline
from rerank.stack.find import find_stack, with_search
from rerank.stack.parse import retriever_depths
from rerank.stack.releases import KEPT, Releases, called
from rerank.stack.signals import SEARCH, learned, resolve
from rerank.stack.stack import Stack
from rerank.text import language

if TYPE_CHECKING:
    from rerank.progress import Progress
    from rerank.rankers.graphs.citations import Citations

_ELSEWHERE = "choose another folder with -w"


class Workspace:
    """One collection and what was learned from it. Open with :meth:`open` or :meth:`create`.

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
        """Whether there is a workspace in the folder."""
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
        """Make a workspace for documents in ``lang`` (None: unknown or mixed).

        engine: where they are to be, by its name in ``rerank.engines.registry``; settings: that engine's.
        attach: use what is there, as it is.
        """
        path = Path(folder)
        try:
            os.fspath(path).encode()
        except UnicodeEncodeError:  # tantivy cannot open it
            raise WorkspaceError(f"{str(path)!a}: the folder's name is no UTF-8; {_ELSEWHERE}") from None
        lang = language(lang)
        there = path.exists()
        if there and not path.is_dir():
            raise WorkspaceError(f"{path}: a file, and not a workspace; {_ELSEWHERE}")
        try:
            path.mkdir(parents=True, exist_ok=True)
            with folder_lock(path, f"making a workspace in {path}"):
                if cls.exists(path):
                    raise BusyError(f"another process has just made a workspace in {path}; run again")
                # A creation that was cut off leaves an engine and nothing else.
                if not {found.name for found in path.iterdir()} <= {"engine", LOCK}:
                    raise WorkspaceError(f"{path}: not empty, and not a workspace; {_ELSEWHERE}")
                shutil.rmtree(path / "engine", ignore_errors=True)
                made: Engine | None = None
                try:
                    kind, where = engine_class(engine, str(path)), str(path / "rerank.toml")
                    kind.named(settings or {}, where)
                    made = kind.in_workspace(
                        path / "engine", lang, settings or {}, new=not attach, where=where
                    )
                    # Last: a folder with a rerank.toml is a complete workspace.
                    made_file = config_file.written(lang, engine, settings or {}, made.first_stages)
                    write_text(path / "rerank.toml", made_file)
                    made.close()
                except BaseException:
                    if made is not None and not attach:
                        with suppress(RerankError):
                            made.discard()
                    shutil.rmtree(path / "engine", ignore_errors=True)
                    if not there:
                        with suppress(OSError):
                            path.rmdir()
                    raise
        except OSError as error:
            raise WorkspaceError(f"{path}: cannot make a workspace ({error.strerror or error})") from error
        return cls.open(path)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Workspace:
        """Open an existing workspace; WorkspaceError when there is none or it is of another version."""
        path = Path(folder)
        file = path / "rerank.toml"
        try:
            config = config_file.load(file)
        except (FileNotFoundError, NotADirectoryError):
            raise WorkspaceError(
                f"{path}: no workspace here; make one with"
                f" `rerank ingest CORPUS -w {shlex.quote(str(path))}`{cls._neighbors(path)}"
            ) from None
        except (OSError, ValueError) as error:
            raise (
                trouble(error, file)
                or WorkspaceError(f"{file}: cannot be read ({error}); mend it, or ingest again elsewhere")
            ) from error
        if config.get("format") != config_file.FORMAT:
            raise WorkspaceError(
                f"{path}: a workspace of format {config.get('format')!r}, but this version of rerank reads"
                f" {config_file.FORMAT}; use the version that wrote it, or ingest the documents into a new"
                " workspace"
            )
        config_file.check(config, file)
        return cls(path, config)

    @classmethod
    def _neighbors(cls, path: Path) -> str:
        """Name the workspaces next to a folder, as a part of a message."""
        try:
            folders = sorted(one for one in path.parent.iterdir() if cls.exists(one))[:3]
        except OSError:
            return ""
        names = " or ".join(f"-w {shlex.quote(str(one))}" for one in folders)
        return f", or use an existing one: {names}" if names else ""

    def discard(self) -> None:
        """Remove a workspace that was just made, if nothing came into it and nobody is writing to it."""
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
            kind, settings, where = self._engine_kind()
            folder = self.folder / "engine"
            self._engine = kind.in_workspace(folder, self.lang, settings, new=False, where=where)
        return self._engine

    def make_engine_again(self) -> None:
        """Make the engine anew where its folder was removed; rankers and stacks stay."""
        try:
            _ = self.engine
        except NoCollectionError:
            kind, settings, where = self._engine_kind()
            folder = self.folder / "engine"
            self._engine = kind.in_workspace(folder, self.lang, settings, new=True, where=where)

    def _engine_kind(self) -> tuple[type[Engine], dict[str, Any], str]:
        """The class of the engine, its settings, and the file that they are in."""
        name, file = self.config.get("engine", "local"), str(self.folder / "rerank.toml")
        kind = engine_class(name, file)
        return kind, self.config.get(name, {}), file

    @property
    def first_stage(self) -> str:
        """What retrieves where nothing else is said: a lexical signal, or ``search``, the user's own."""
        return self.first_stage_of(None)[0]

    def first_stage_of(self, text: str | None) -> tuple[str, SearchTemplate | None]:
        """Read ``bm25``, ``template:FILE``, ``stored:ID`` or ``run:FILE``; None: what ``rerank.toml`` says.

        A FILE that ``rerank.toml`` names is looked for in the workspace's folder.
        """
        from rerank.formats import read_template

        folder = self.folder if text is None else None
        text = str(self.config.get("first_stage", "tfidf")) if text is None else text
        search = read_template(text, folder)
        return (text, None) if search is None else (SEARCH, search)

    @property
    def words(self) -> tuple[str, ...]:
        """Fields of the index in which others' searches look for a user's words; none: all of them.

        As ``words`` in ``rerank.toml`` says; of an attached index, unless told, those of title and text.
        """
        named = self.config.get("words")
        if named is None:
            fields = self.config.get("opensearch", {}).get("fields", {})
            held = [fields.get(name, ()) for name in ("title", "text")] if isinstance(fields, dict) else []
            named = [one for some in held for one in ([some] if isinstance(some, str) else some)]
        return tuple(named)

    @property
    def place(self) -> str:
        """Where the documents are, for messages."""
        kind, settings, where = self._engine_kind()
        return kind.place_of(settings, where) or str(self.folder)

    def check_place(self, engine: str, settings: Mapping[str, Any]) -> None:
        """Raise UsageError when the documents are elsewhere than the user says now."""
        kind, mine, where = self._engine_kind()
        here = kind.place_of(mine, where)
        if engine_class(engine, where).place_of(settings, where) != here:
            raise UsageError(
                f"{self.folder}: keeps its documents in {here or 'this folder'}; leave"
                f" --url, --index and --profile out, edit"
                f" {self.folder / 'rerank.toml'}, or choose another workspace with"
                f" -w"
            )
        kind.named(settings, where)

    @property
    def lang(self) -> str | None:
        """Language of the documents; None: unknown or mixed."""
        return self.config.get("lang") or None

    def verify(self) -> dict[str, str]:
        """Compare the files of documents, features, rankers and stacks with their checksums.

        Returns each corrupted file and what is wrong with it. Reads everything, so large collections take
        minutes. Raises BusyError while another process writes.
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
        """Child-parent pairs of the category graph that was given at ingest, or None."""
        from rerank.formats import read_categories

        path = self.folder / "categories.tsv"
        return read_categories(path) if path.exists() else None

    def save_category_edges(self, edges: Iterable[tuple[str, str]]) -> None:
        """Keep a category graph with the workspace."""
        lines = "".join(f"{child}\t{parent}\n" for child, parent in edges)
        write_text(self.folder / "categories.tsv", "child\tparent\n" + lines)

    def citations(self, progress: Progress | None = None) -> Citations:
        """Read where the documents cite what, for networks of references."""
        from rerank.rankers.graphs.citations import Citations

        engine = self.engine
        documents = engine.documents()
        if progress is not None:
            documents = progress.over(documents, "citations", len(engine), "doc")
        return Citations.of(engine, documents)

    # -- rankers -----------------------------------------------------------------------------------------

    def trained(self) -> list[str]:
        """Names of the rankers."""
        return self._installed.names()

    def ranker(self, name: str, version: str | None = None) -> Ranker:
        """Load the newest version of a ranker, or an older one that a stack was tuned with.

        NotTrainedError names the command that trains it.
        """
        if (name, version) not in self._rankers:
            try:
                self._rankers[name, version] = self._installed.load(name, version)
            except KeyError:
                raise NotTrainedError(f"{name} {version} is not in {self.folder} any more") from None
        return self._rankers[name, version]

    def versions(self, stack: Stack | None = None) -> dict[str, str]:
        """Ranker -> the version that a stack is scored by; None: that a ranker's name alone stands for.

        That is the one that the stack was tuned with; if it says nothing, that of the stack in use; else the
        newest.
        """
        used = self.releases.stack
        names = self.trained() if stack is None else stack.rankers
        found = {}
        for name in names:
            for one in (stack, used):
                version = one.versions.get(name) if one is not None else None
                if version is not None and self._has(name, version):
                    found[name] = version
                    break
            else:
                found[name] = self._installed.record(name).version
        return found

    def versions_here(self, stack: Stack) -> dict[str, str]:
        """Ranker -> version that a stack was tuned with, of those that are here."""
        return {name: version for name, version in stack.versions.items() if self._has(name, version)}

    def _has(self, name: str, version: str) -> bool:
        try:
            self._installed.record(name, version)
        except (KeyError, RerankError):
            return False
        return True

    def needed(self, *, before: bool = False) -> dict[str, list[str]]:
        """Ranker -> the versions that stacks were tuned with, whose features are to be there.

        before: also those of the last stacks that were in use, and the newest. Where a stack's file cannot
        be read, all that are here.
        """
        named = self._named_by_stacks(recent=1 + KEPT if before else 1)
        if named is None or before:
            named, stacks = {}, named
            for name in self.trained():
                with suppress(RerankError):
                    here = self._installed.versions(name)
                    named[name] = here if stacks is None else [here[0], *stacks.get(name, ())]
        found = {name: [v for v in versions if self._has(name, v)] for name, versions in named.items()}
        return {name: versions for name, versions in found.items() if versions}

    def _named_by_stacks(self, recent: int | None = None) -> dict[str, list[str]] | None:
        """Ranker -> versions that a stack was tuned with; None where a file cannot be read.

        recent: of the last so many stacks that were in use, and the candidates; None: of all.
        """
        found: dict[str, dict[str, None]] = {}
        try:
            releases = self.releases
            last = releases.all() if recent is None else releases.recent(recent)
            stacks = [release.stack for release in last]
            stacks += [Stack.load(path) for path in sorted((self.folder / "stacks").glob("*.json"))]
        except RerankError:
            return None
        for stack in stacks:
            for name, version in stack.versions.items():
                found.setdefault(name, {})[version] = None
        return {name: list(versions) for name, versions in found.items()}

    def forget_rankers(self) -> None:
        """Load rankers anew when they are next used: another process may have trained them meanwhile."""
        self._rankers.clear()

    @property
    def _installed(self) -> RankerStore:
        # Not kept: a circle with its workspace would hold files open until the garbage collector comes.
        return RankerStore(self.folder / "rankers", self._not_trained, self._named_by_stacks)

    def _not_trained(self, name: str) -> NotTrainedError | UsageError:
        there = ", ".join((*Engine.first_stages, *self.trained()))
        family = trainable().get(name)
        if family is None:
            every = (
                *Engine.first_stages,
                *self.trained(),
                *(r for f in families().values() for r in f.rankers),
            )
            similar = get_close_matches(name, every, 1)
            question = f"; did you mean {similar[0]}?" if similar else ""
            return UsageError(f"signal {name!r} is unknown; this workspace has {there}{question}")
        judged = "judgments" in family.learns_from
        files = " --queries QUERIES --qrels QRELS" if judged else ""
        return NotTrainedError(
            f"signal {name!r} is not trained in {self.folder} (there are {there});"
            f" train it with `rerank train {name}{files}`"
        )

    def family_of(self, name: str) -> tuple[str, str]:
        """Return the family and the variant of a trained ranker."""
        record = self._installed.record(name)
        return record.family, record.variant

    def check_name(self, name: str, family: str, variant: str) -> None:
        """Raise UsageError where a ranker cannot be called so: it is another's name, or no name at all."""
        if not re.fullmatch(NAME, name):
            raise UsageError(
                f"a ranker cannot be called {name!r}; use letters, digits, and _ - . after the first letter"
            )
        if not learned([name]):
            raise UsageError(f"{name} is a first stage; call the ranker something else")
        owner = next(((one.name, name) for one in families().values() if name in one.rankers), None)
        if owner is None and name in self.trained():
            owner = self.family_of(name)
        if owner not in (None, (family, variant)):
            raise UsageError(
                f"{name} is the name of another ranker ({owner[1]}, of the family {owner[0]}); call this"
                " one something else"
            )

    def seen(self, name: str, version: str | None = None) -> TrainingRecord:
        """Tell which queries a ranker was fitted and stopped on; nothing, where that is not known.

        version: an older one, where it is here; None: the newest.
        """
        version = version if version is not None and self._has(name, version) else None
        try:
            path = self._installed.version_folder(name, version) / "seen.json"
            return TrainingRecord.from_json(parse_json(path.read_bytes()))
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            return TrainingRecord({})

    def training_records(self, stack: Stack) -> dict[str, TrainingRecord]:
        """Return ranker -> its training record; under "" the record of the stack's weights."""
        try:
            own = TrainingRecord.from_json(stack.tuned.get("seen", {}))
        except (ValueError, TypeError, AttributeError):
            own = TrainingRecord({})
        return {name: self.seen(name, stack.versions.get(name)) for name in stack.rankers} | {"": own}

    def history(self, name: str, version: str | None = None) -> dict[str, Any]:
        """Tell how a ranker was trained, as :meth:`install` was told; nothing, where that is not known.

        version: an older one, where it is here; None: the newest.
        """
        version = version if version is not None and self._has(name, version) else None
        path = self._installed.version_folder(name, version) / "training.json"
        try:
            found = parse_json(path.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def install(
        self, ranker: Ranker, seen: TrainingRecord | None = None, history: Mapping[str, Any] | None = None
    ) -> None:
        """Make a fitted ranker the newest: what is tuned from now on is tuned with it.

        A stack goes on with the version that it was tuned with; what no stack was tuned with is dropped.
        seen: which queries it was fitted and stopped on; history: how it was trained. Kept beside it.
        """
        self.check_name(ranker.name, ranker.family, ranker.variant or ranker.name)
        beside = {"seen.json": json.dumps(seen.to_json()) + "\n"} if seen else {}
        if history:
            beside["training.json"] = json.dumps(history) + "\n"
        self._installed.install(ranker, beside)
        # Loaded again from disk when next used, so that what is tested is what is stored.
        self.forget_rankers()

    def pipeline(
        self,
        signals: Iterable[str],
        *,
        retrieve: Iterable[str] = (),
        infer_categories: bool = True,
        versions: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """Build the query path for these signals and retrievers.

        versions: of the rankers, as :meth:`versions` gives them for a stack; not named: the newest.

        Raises UsageError for a retriever that cannot retrieve, or not on this index yet.
        """
        depths, versions = retriever_depths(retrieve), versions or {}
        rankers = {name: self.ranker(name, versions.get(name)) for name in learned((*signals, *depths))}
        for signal in resolve(depths, rankers):
            signal.check_retrieves(self.engine)
        return Pipeline(self.engine, rankers, infer_categories)

    def search(
        self,
        query: Query | str,
        k: int = 10,
        *,
        stack: str | Stack | None = None,
        filter: str | Sequence[str] = (),
        infer_categories: bool = True,
    ) -> Found:
        """Rank documents for a query, by a stack or by the one in use; the first k with titles and texts.

        filter: what every document must fulfil: ``year>=2020``, ``tags=a``, or several of these.

        >>> import tempfile
        >>> from rerank import Document, Workspace
        >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
        >>> workspace.engine.write([Document("wolf", "Wolves", "they hunt"), Document("fox", "Foxes")]).added
        2
        >>> workspace.search("wolves", stack="bm25")
        rank   score  id    title     bm25
        ----  ------  ----  ------  ------
           1  0.5754  wolf  Wolves  0.5754
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
        return Found(answer, [{**hit, "text": d.text if d else ""} for hit, d in zip(hits, texts)])

    def __repr__(self) -> str:
        return f"Workspace({str(self.folder)!r})"

    # -- stacks ------------------------------------------------------------------------------------------

    def stack_path(self, signals: Sequence[str]) -> Path:
        """Return the file of the candidate of these signals, in any order: the stack that was tuned last."""
        return self.folder / "stacks" / f"{called(signals)}.json"

    def stack(self, text: str, *, latest: bool = False) -> Stack:
        """Find the stack that a text names.

        ``tfidf,text,meta``: the stack that was tuned for these signals; ``tfidf*0.4 + text*0.6``: these
        weights, on min-max normalized scores; a path: that stack file; a single signal: only that signal;
        a number: that version of the stacks that are or were in use.

        latest: the candidate, even if another stack that was tuned for these signals is in use.
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
        return with_search(find_stack(text, self.ranker, tuned, first), search)

    @property
    def releases(self) -> Releases:
        """The stack in use, and the versions that were in use before it, as they are now."""
        return Releases.load(self.folder)

    @property
    def default_stack(self) -> str:
        """The stack of requests that name none: the name of the stack in use, or the first stage."""
        return self.releases.name or self.first_stage

    def use_stack(self, text: str | Stack, gate: Mapping[str, Any] | None = None) -> Stack:
        """Put a stack in use, with the rankers of today if it names no versions; returns it.

        text: as for :meth:`stack`; signals name the stack that was tuned last for them. Or the stack itself.
        gate: the comparison with the stack in use.

        Raises what :meth:`stack` does, NotTrainedError for a ranker that is not here, and UsageError for a
        version that is not here.
        """
        stack = text if isinstance(text, Stack) else self.stack(text, latest=True)
        with self._installed.changing():  # else a training could remove a version that is just named
            for name in stack.rankers:
                self.ranker(name)
            self._check_versions(stack, str(stack))
            stack = replace(stack, versions=self.versions(stack))
            self.releases.activate(stack, gate)
        return stack

    def rollback(self) -> Stack:
        """Put the stack in use that was in use before; the version that was in use stays.

        Raises UsageError if there is none, or one of its rankers is gone.
        """
        with self._installed.changing():
            releases = self.releases
            release = releases.previous()
            self._check_versions(release.stack, f"version {release.number}, {release.stack},")
            releases.roll_back()
        return release.stack

    def _check_versions(self, stack: Stack, name: str) -> None:
        """Raise UsageError for a stack that was tuned with a version of a ranker that is not here."""
        for ranker in stack.rankers:
            version = stack.versions.get(ranker)
            if version is not None and not self._has(ranker, version):
                raise UsageError(
                    f"the stack {name} needs {ranker} {version}, which is not in {self.folder}; tune it"
                    f" again, or use another one with `rerank stack use STACK`"
                )

    def outdated(self, stack: Stack) -> list[str]:
        """Return the rankers of a stack that were trained again since it was tuned."""
        versions = {name: self.ranker(name).version for name in stack.rankers}
        return [name for name, v in versions.items() if stack.versions.get(name, v) != v]
