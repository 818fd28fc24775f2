"""The folder of a workspace: its settings, engine and category graph."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank import config_file
from rerank.engines.base import FIRST_STAGES, Engine
from rerank.engines.registry import engine_class
from rerank.errors import BusyError, InputError, NoCollectionError, RerankError, UsageError, WorkspaceError
from rerank.files import LOCK, folder_lock, parse_json, sync_folder, trouble, write_text
from rerank.records import SearchTemplate, shorten
from rerank.stack.signals import SEARCH
from rerank.text import language, language_or_none

if TYPE_CHECKING:
    from typing_extensions import Self

_ELSEWHERE = "choose another folder with -w"
_SETTINGS = "rerank.toml"
_MARK = "rerank.toml.new"  # of a workspace in creation; it becomes rerank.toml


class WorkspaceFolder:
    """Settings (``rerank.toml``), engine and category graph of a workspace."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = config
        self._engine: Engine | None = None

    def __fspath__(self) -> str:
        return str(self.folder)

    @staticmethod
    def exists(folder: str | os.PathLike[str]) -> bool:
        """Whether the folder is a workspace."""
        return (Path(folder) / _SETTINGS).exists()

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        *,
        lang: str | None = None,
        engine: str = "local",
        settings: Mapping[str, Any] | None = None,
        attach: bool = False,
    ) -> Self:
        """Create a workspace for documents in ``lang`` (None: unknown or mixed).

        engine: its name. settings: its settings.
        attach: use an existing index, unchanged.
        """
        path = Path(folder)
        try:
            os.fspath(path).encode()
        except UnicodeEncodeError:  # tantivy cannot open it
            raise WorkspaceError(f"{str(path)!a}: the name is not UTF-8; {_ELSEWHERE}") from None
        if path.exists() and not path.is_dir():
            raise WorkspaceError(f"{path}: a file, and not a workspace; {_ELSEWHERE}")
        lang = language(lang)
        settings = settings or {}
        file = str(path / _SETTINGS)
        kind = engine_class(engine, str(path))
        kind.trust_hosts(settings, file)
        try:
            with _creation(path) as mark:
                created = kind.in_workspace(
                    path / "engine", lang, settings, new=not attach, settings_file=file
                )
                try:
                    text = config_file.written(lang, engine, settings, created.first_stages)
                    created.close()
                    _write_durably(mark, text)
                except BaseException:
                    if not attach:
                        with suppress(RerankError):
                            created.discard()
                    raise
        except OSError as error:
            raise WorkspaceError(f"{path}: cannot make a workspace ({error.strerror or error})") from error
        return cls.open(path)

    @classmethod
    def open(cls, folder: str | os.PathLike[str] | Self) -> Self:
        """Open a workspace; an open one is returned unchanged. Raises WorkspaceError."""
        if isinstance(folder, cls):
            return folder
        if not isinstance(folder, (str, os.PathLike)):
            raise UsageError(f"workspace: {shorten(folder)} is neither a Workspace nor a folder")
        path = Path(folder)
        file = path / _SETTINGS
        try:
            config = config_file.load(file)
        except InputError as error:
            if isinstance(cause := error.__cause__, (FileNotFoundError, NotADirectoryError)):
                make = f"make one with `rerank ingest CORPUS -w {shlex.quote(str(path))}`"
                problem = _lost_settings(path) or f"{path}: no workspace here; {make}"
                raise WorkspaceError(problem) from None
            raise (trouble(cause, file) or WorkspaceError(str(error))) from error
        if config.get("format") != config_file.FORMAT:
            raise WorkspaceError(
                f"{path}: a workspace of format {config.get('format')!r}, but this version of rerank reads"
                f" {config_file.FORMAT}; ingest the documents into a new workspace"
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
                (self.folder / _SETTINGS).unlink()
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
        return kind.in_workspace(self.folder / "engine", self.lang, settings, new=new, settings_file=where)

    def _engine_kind(self) -> tuple[type[Engine], dict[str, Any], str]:
        name, file = self.config.get("engine", "local"), str(self.folder / _SETTINGS)
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
        text = str(self.config.get("first_stage", FIRST_STAGES[0])) if text is None else text
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
        return kind.location(settings, where) or str(self.folder)

    def check_place(self, engine: str, settings: Mapping[str, Any]) -> None:
        """Raise UsageError if the settings name another location."""
        kind, mine, where = self._engine_kind()
        here = kind.location(mine, where)
        if engine_class(engine, where).location(settings, where) != here:
            raise UsageError(
                f"{self.folder}: the documents are in {here or 'this folder'}; leave --url, --index and"
                f" --profile out, edit {where}, or choose another workspace with -w"
            )
        kind.trust_hosts(settings, where)

    @property
    def lang(self) -> str | None:
        """Language of the documents; None: unknown or mixed."""
        return self.config.get("lang") or None

    def category_edges(self) -> list[tuple[str, str]] | None:
        """Return child-parent pairs of the category graph, or None."""
        from rerank.formats import read_categories

        path = self.folder / "categories.tsv"
        return read_categories(path) if path.exists() else None

    def save_category_edges(self, edges: Iterable[tuple[str, str]]) -> None:
        """Store a category graph."""
        from rerank.formats.tables import format_rows

        write_text(self.folder / "categories.tsv", format_rows([("child", "parent"), *edges]))


@contextmanager
def _creation(folder: Path) -> Iterator[Path]:
    """Yield the path of the settings that the block must write to make the folder a workspace.

    The file marks an unfinished creation from the beginning and becomes ``rerank.toml`` at the end. Only a
    folder ``engine`` next to this mark is removed, after an error or by the next creation.
    """
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / _MARK
    with folder_lock(folder, f"making a workspace in {folder}"):
        if (folder / _SETTINGS).exists():
            raise BusyError(f"another process has just made a workspace in {folder}; run again")
        names = {path.name for path in folder.iterdir()} - {LOCK}
        if names and not {_MARK} <= names <= {_MARK, "engine"}:
            raise WorkspaceError(
                _lost_settings(folder) or f"{folder}: not empty, and not a workspace; {_ELSEWHERE}"
            )
        _write_durably(mark, "")
        shutil.rmtree(folder / "engine", ignore_errors=True)
        try:
            yield mark
            mark.rename(folder / _SETTINGS)
            sync_folder(folder)
        except BaseException:
            shutil.rmtree(folder / "engine", ignore_errors=True)
            mark.unlink(missing_ok=True)
            if not existed:
                with suppress(OSError):
                    folder.rmdir()
            raise


def _write_durably(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    sync_folder(path)
    sync_folder(path.parent)


def _lost_settings(folder: Path) -> str | None:
    """Return the error for a folder with documents, but without settings; None without documents."""
    try:
        lang = parse_json((folder / "engine" / "engine.json").read_bytes())["lang"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    lines = f'format = {config_file.FORMAT}\\nlang = "{language_or_none(lang) or ""}"\\n'
    file = shlex.quote(str(folder / _SETTINGS))
    return (
        f"{folder}: {_SETTINGS} is missing, but the folder `engine` holds a collection; write the file again"
        f" with `printf '{lines}' > {file}`"
    )
