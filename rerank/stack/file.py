"""The JSON of a stack file."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from rerank.common.errors import InputError, UsageError
from rerank.common.files import parse_json, system_reason
from rerank.common.values import with_keys
from rerank.documents.records import SearchTemplate
from rerank.stack.linear import Linear
from rerank.stack.normalize import Moments
from rerank.stack.parse import parse_stack
from rerank.stack.relevance import Calibration, RelevanceModel

if TYPE_CHECKING:
    from rerank.rankers.encoder.cross_encoder import CrossEncoder


class SignalMoments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mean and population standard deviation of a signal's scores of the dev candidates."""

    mean: float
    deviation: Annotated[float, msgspec.Meta(ge=0)]


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A combiner as :meth:`Linear.summary` writes it.

    stack:         signals and weights, for example ``tfidf*0.35 + text*0.40``.
    normalization: of the scores.
    moments:       signal -> moments, only for the normalization ``fitted``.
    cases:         case -> weights that replace these.
    """

    stack: str
    normalization: str
    moments: dict[str, SignalMoments] = {}
    cases: dict[str, Weights] = {}

    def linear(self) -> Linear:
        """Return the combiner with the weights of all cases. Raises UsageError for inconsistent values."""
        names, weights = parse_stack(self.stack)
        moments = with_keys(self.moments, names).values()
        return Linear(
            names,
            weights or (),
            normalization=self.normalization,
            moments=tuple(Moments(stored.mean, stored.deviation) for stored in moments),
            cases={case: case_weights.linear() for case, case_weights in self.cases.items()},
        )


STACK = "stack"
"""The signal of a second phase that is the score of the stack."""

MODEL = "cross-encoder"
"""The signal of a second phase that is the score of the model."""


class SecondPhase(Weights, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Orders the best documents of the stack again, by its score and the score of a cross-encoder.

    The weights are for the signals :data:`STACK` and :data:`MODEL`; untuned, only the model counts.

    model:   folder of the cross-encoder.
    version: checksum of the model that was tuned; an empty text accepts any model.
    top:     number of documents to order.
    ms:      milliseconds after which the order of the stack is kept.
    """

    model: str
    version: str = ""
    top: Annotated[int, msgspec.Meta(ge=1)] = 20
    ms: Annotated[int, msgspec.Meta(ge=1)] = 2000
    stack: str = f"{STACK}*0 + {MODEL}*1"
    normalization: str = "min-max"

    def linear(self) -> Linear:
        """Return the weights of the two scores. Raises UsageError for other signals."""
        weights = super().linear()
        if weights.signals != (STACK, MODEL):
            raise UsageError(f"{self.stack!r}: a second phase needs weights for {STACK} and {MODEL}")
        return weights

    def encoder(self) -> CrossEncoder:
        """Return the cross-encoder, which is loaded once.

        Raises UsageError if it cannot be used, or is not the tuned one.
        """
        return _load(self.model, self.version)


def parse_second_phase(text: str, top: int | None = None, ms: int | None = None) -> SecondPhase:
    """Return the untuned second phase that the text ``cross-encoder:FOLDER`` names.

    top: number of documents to order. Default: 20.
    ms:  time limit in milliseconds. Default: 2000.

    Raises UsageError for another text, or a model that cannot be used.
    """
    kind, _, folder = text.partition(":")
    if kind != MODEL or not folder:
        raise UsageError(f"{text!r} is not a second phase; write {MODEL}:FOLDER")
    return SecondPhase(model=str(_load(folder).folder.resolve()), top=top or 20, ms=ms or 2000)


@lru_cache(4)
def _load(folder: str, version: str = "") -> CrossEncoder:
    """Load a model. The key of the cache has the version, because a folder can get a new model."""
    from rerank.rankers.encoder.cross_encoder import CrossEncoder

    encoder = CrossEncoder.load(folder)
    if version and encoder.version != version:
        raise UsageError(f"{folder}: another model than the tuned one; tune the stack again")
    return encoder


class CalibrationFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of :class:`rerank.stack.relevance.Calibration`."""

    intercept: float
    slope: Annotated[float, msgspec.Meta(gt=0)]
    length_slope: float
    relevant: int
    auc: float | None
    error: float


class RelevanceFile(Weights, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of :class:`rerank.stack.relevance.RelevanceModel`."""

    calibration: CalibrationFile | None = None
    cases: dict[str, RelevanceFile] = {}  # type: ignore[assignment]

    def model(self) -> RelevanceModel:
        """Return the model with the models of all cases. Raises UsageError for inconsistent values."""
        weights = msgspec.structs.replace(self, cases={}).linear()
        calibration = None
        if self.calibration is not None:
            calibration = Calibration(**msgspec.structs.asdict(self.calibration))
        cases = {case: case_model.model() for case, case_model in self.cases.items()}
        return RelevanceModel(weights, calibration, cases)


class StackFile(Weights, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stack as JSON: the fields of :class:`rerank.stack.stack.Stack` (docs/reference/formats.md)."""

    rerank_stack: int
    first_stage: str
    search: SearchTemplate | None = None
    retrieve: list[str]
    depth: int
    second_phase: SecondPhase | None = None
    relevance: RelevanceFile | None = None
    versions: dict[str, str]
    tuned: dict[str, Any]


def read(path: str | os.PathLike[str]) -> object:
    """Return the JSON values of a stack file.

    Raises InputError if it does not exist, cannot be read, or is not JSON. Its message does not name the
    file, so that callers can add the name.
    """
    if not os.path.exists(path):
        raise InputError("no such stack file; check the path, or tune one")
    if not os.path.isfile(path):  # a pipe may never end
        raise InputError("cannot be read: it is not a file; name a stack file")
    try:
        return parse_json(Path(path).read_bytes())
    except OSError as error:
        raise InputError(f"cannot be read: {system_reason(error)}; check its permissions") from error
    except ValueError as error:
        raise InputError(f"not a JSON file ({error}); tune it again") from error
