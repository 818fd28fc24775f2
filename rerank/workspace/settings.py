"""What ``rerank.toml`` says about the documents of a workspace: their place, language and fields."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank.common.errors import InputError, RerankError, UsageError, WorkspaceError
from rerank.common.files import as_system_error
from rerank.documents.records import SearchTemplate
from rerank.engines.base import FIRST_STAGES, Engine
from rerank.engines.registry import engine_class
from rerank.formats import read_template
from rerank.stack.signals import SEARCH
from rerank.workspace import config_file
from rerank.workspace.folder import SETTINGS, lost_settings

if TYPE_CHECKING:
    from typing_extensions import Self


class WorkspaceSettings:
    """The settings of a workspace.

    folder: of the workspace.
    config: the values and tables of ``rerank.toml``.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self.config = config

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the settings of a folder.

        Raises WorkspaceError if the folder is not a workspace, or one of another version of rerank.
        Raises UsageError for an invalid setting.
        """
        file = folder / SETTINGS
        try:
            config = config_file.load(file)
        except InputError as error:
            raise _cannot_open(folder, error) from error
        if config.get("format") != config_file.FORMAT:
            raise WorkspaceError(
                f"{folder}: a workspace of format {config.get('format')!r}, but this version of rerank reads"
                f" {config_file.FORMAT}; ingest the documents into a new workspace"
            )
        config_file.validate_settings(config, file)
        return cls(folder, config)

    @property
    def file(self) -> str:
        """The path of ``rerank.toml``, for messages about a setting."""
        return str(self.folder / SETTINGS)

    @property
    def lang(self) -> str | None:
        """Language of the documents; None if it is unknown or mixed."""
        return self.config.get("lang") or None

    @property
    def words(self) -> tuple[str, ...]:
        """Fields that other clients search for words; empty: all.

        By default, title and text of an attached index.
        """
        words = self.config.get("words")
        if words is not None:
            return tuple(words)
        fields = self.config.get("opensearch", {}).get("fields", {})
        paths: list[str] = []
        for name in ("title", "text"):
            values = fields.get(name, ()) if isinstance(fields, dict) else ()
            paths += [values] if isinstance(values, str) else values
        return tuple(paths)

    def first_stage_of(self, text: str | None) -> tuple[str, SearchTemplate | None]:
        """Return the signal of a first stage, and its search if it is one of the user.

        text: ``bm25``, ``template:FILE`` or ``run:FILE``. None: the setting. Its FILE must be in the folder.
        """
        if text is None:
            text = str(self.config.get("first_stage", FIRST_STAGES[0]))
            search = read_template(text, self.folder)
        else:
            search = read_template(text)
        return (text, None) if search is None else (SEARCH, search)

    def open_engine(self, *, new: bool = False) -> Engine:
        """Open the engine that has the documents. new: create an empty one."""
        kind, table = self._engine()
        engine = kind.in_workspace(self.folder / "engine", self.lang, table, new=new, settings_file=self.file)
        engine.word_fields = self.words
        return engine

    @property
    def location(self) -> str:
        """Where the documents are, for messages: an index and its nodes; "" for the folder itself."""
        kind, table = self._engine()
        return kind.location(table, self.file)

    def check_location(self, engine: str, table: Mapping[str, Any]) -> None:
        """Raise UsageError if the table of an engine names another place of the documents than the settings.

        Otherwise the hosts in the table are trusted from now on.
        """
        kind, _ = self._engine()
        if engine_class(engine, self.file).location(table, self.file) != self.location:
            raise UsageError(
                f"{self.folder}: the documents are in {self.location or 'this folder'}; leave --url, --index"
                f" and --profile out, edit {self.file}, or choose another workspace with -w"
            )
        kind.trust_hosts(table, self.file)

    def _engine(self) -> tuple[type[Engine], dict[str, Any]]:
        """Return the class of the engine, and its table of settings."""
        name = self.config.get("engine", "local")
        return engine_class(name, self.file), self.config.get(name, {})


def _cannot_open(folder: Path, error: InputError) -> RerankError:
    """Return the error for a folder whose settings cannot be read."""
    cause = error.__cause__
    if not isinstance(cause, (FileNotFoundError, NotADirectoryError)):
        return as_system_error(cause, folder / SETTINGS) or WorkspaceError(str(error))
    command = f"rerank ingest CORPUS -w {shlex.quote(str(folder))}"
    no_workspace = f"{folder}: no workspace here; make one with `{command}`"
    return WorkspaceError(lost_settings(folder) or no_workspace)
