"""Create the folder of a workspace, so that an interruption leaves no half of one."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rerank.common.errors import BusyError, WorkspaceError
from rerank.common.files import LOCK, folder_lock, parse_json, sync_folder
from rerank.documents.text import language_or_none
from rerank.workspace import config_file

SETTINGS = "rerank.toml"
"""The file that makes a folder a workspace."""

ELSEWHERE = "choose another folder with -w"
"""The hint for a folder that cannot become a workspace."""

_UNFINISHED = "rerank.toml.new"  # of a workspace in creation; it becomes rerank.toml


def check_folder(folder: Path) -> None:
    """Raise WorkspaceError for a path that cannot be the folder of a workspace."""
    try:
        os.fspath(folder).encode()
    except UnicodeEncodeError:  # tantivy cannot open it
        raise WorkspaceError(f"{str(folder)!a}: the name is not UTF-8; {ELSEWHERE}") from None
    if folder.exists() and not folder.is_dir():
        raise WorkspaceError(f"{folder}: a file, and not a workspace; {ELSEWHERE}")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield the file for the settings, and make the folder a workspace if the block succeeds.

    The file marks an unfinished workspace from the beginning, and becomes ``rerank.toml`` at the end. Only a
    folder ``engine`` next to this mark is removed, after an error or by the next creation.
    """
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / _UNFINISHED
    with folder_lock(folder, f"making a workspace in {folder}"):
        if (folder / SETTINGS).exists():
            raise BusyError(f"another process has just made a workspace in {folder}; run again")
        names = {path.name for path in folder.iterdir()} - {LOCK}
        if names and not {_UNFINISHED} <= names <= {_UNFINISHED, "engine"}:
            raise WorkspaceError(
                lost_settings(folder) or f"{folder}: not empty, and not a workspace; {ELSEWHERE}"
            )
        write_durably(unfinished, "")
        shutil.rmtree(folder / "engine", ignore_errors=True)
        try:
            yield unfinished
            unfinished.rename(folder / SETTINGS)
            sync_folder(folder)
        except BaseException:
            shutil.rmtree(folder / "engine", ignore_errors=True)
            unfinished.unlink(missing_ok=True)
            if not existed:
                with suppress(OSError):
                    folder.rmdir()
            raise


def write_durably(path: Path, text: str) -> None:
    """Write a file that is on the disk before the function returns."""
    path.write_text(text, "utf-8")
    sync_folder(path)
    sync_folder(path.parent)


def lost_settings(folder: Path) -> str | None:
    """Return the error for a folder with documents, but without settings; None without documents."""
    try:
        lang = parse_json((folder / "engine" / "engine.json").read_bytes())["lang"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    lines = f'format = {config_file.FORMAT}\\nlang = "{language_or_none(lang) or ""}"\\n'
    file = shlex.quote(str(folder / SETTINGS))
    return (
        f"{folder}: {SETTINGS} is missing, but the folder `engine` holds a collection; write the file again"
        f" with `printf '{lines}' > {file}`"
    )
