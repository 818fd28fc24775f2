"""The stack: signals + normalisation + weights = the final score, and the file that reproduces it."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import FIRST_STAGES
from rerank.errors import InputError, TrainingError, UsageError, WorkspaceError
from rerank.files import write_text
from rerank.order import rank
from rerank.records import Document

Array = NDArray[np.float64]

NORMALISATIONS = ("min-max", "z-score", "none", "bounds")
"""How a signal's raw scores are made comparable, per query; see :func:`normalise`."""

PARTS = 20
"""Weights are counted in twentieths unless finer ones are asked for."""

NOISE = 1e-6
"""A signal whose scores differ by no more than this part of the largest is constant: rankers compute in fp32,
where equal documents can differ in the last bits."""

FORMAT = 1
"""Version of the stack file."""

_NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_WEIGHT = r"\d{1,6}(?:\.\d{0,9})?|\.\d{1,9}|\d{1,9}/\d{1,9}"
_TERM = re.compile(rf"\s*({_NAME})\s*(?:\*\s*({_WEIGHT})\s*)?")
RETRIEVE = "name retrievers as bm25,s2net or bm25,s2net:200"
_HOW = "write it as tfidf*0.35 + text*0.40 + meta*0.25, or names alone: tfidf,text,meta"


def parse_stack(text: str) -> tuple[tuple[str, ...], tuple[Fraction, ...] | None]:
    """Split a stack's text into signal names and exact weights; the weights are None for names alone.

    Terms are joined by ``+`` or ``,``. A weight is a decimal or a fraction, not negative; weights need not
    sum to 1. Raises UsageError for anything else, a name given twice, and weights on some terms only.

    >>> parse_stack("tfidf*0.5 + text*0.5")
    (('tfidf', 'text'), (Fraction(1, 2), Fraction(1, 2)))
    >>> parse_stack("tfidf,text")
    (('tfidf', 'text'), None)
    """
    terms = [_TERM.fullmatch(term) for term in re.split(r"[+,]", text)]
    wrong = [term for term, match in zip(re.split(r"[+,]", text), terms) if match is None]
    if wrong:
        raise UsageError(f"stack {text!r}: {wrong[0].strip()!r} is no signal with a weight; {_HOW}")
    pairs = [match.groups() for match in terms if match is not None]
    names = tuple(name for name, _ in pairs)
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"stack {text!r}: {name} is named twice; {_HOW}")
    given = [weight for _, weight in pairs if weight is not None]
    if not given:
        return names, None
    if len(given) < len(names):
        raise UsageError(f"stack {text!r}: some signals have a weight and some have none; {_HOW}")
    try:
        weights = tuple(Fraction(weight) for weight in given)
    except ZeroDivisionError:
        raise UsageError(f"stack {text!r}: a weight divides by 0; {_HOW}") from None
    if not any(weights):
        raise UsageError(f"stack {text!r}: every weight is 0; give one of them some weight")
    return names, weights


def normalise(
    scores: NDArray[Any], method: str, bounds: Sequence[tuple[float, float]] | None = None
) -> Array:
    """Make the raw scores of one query's n candidates comparable: (n, S) -> (n, S) float64, per column.

        min-max   (x - min) / (max - min), in [0, 1]; a constant column gives 0
        z-score   (x - mean) / standard deviation (of the population); a constant column gives 0
        none      x
        bounds    (x - low) / (high - low) with the given range of each signal, (S,) pairs; not clipped

    A column is constant when max - min is at most ``NOISE`` times the largest magnitude in it.
    The result does not depend on the order of the candidates, to the last bit (sums are exact, by
    ``math.fsum``). Scores must be finite. Raises UsageError for an unknown method or missing bounds.

    >>> normalise(np.array([[1.0, 7.0], [3.0, 7.0], [2.0, 7.000001]]), "min-max").tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.5, 0.0]]
    """
    # A copy in a layout of its own, one row per signal: the result must not depend on the caller's.
    columns: Array = np.array(np.asarray(scores).T, dtype=np.float64, order="C")  # (S, n)
    if method not in NORMALISATIONS:
        raise UsageError(f"unknown normalisation {method!r}; choose one of {', '.join(NORMALISATIONS)}")
    if method == "none" or columns.size == 0:
        return np.transpose(columns)
    low: Array
    span: Array
    if method != "bounds":
        low, high = columns.min(axis=1), columns.max(axis=1)
        span = high - low
        constant = span <= NOISE * np.maximum(np.abs(low), np.abs(high))
        columns[constant] = 0.0
        if method == "z-score":
            return np.transpose(np.array([_z_score(column) for column in columns]))
        low[constant], span[constant] = 0.0, 1.0
    else:
        if bounds is None or len(bounds) != len(columns):
            raise UsageError("normalisation 'bounds' needs a range for every signal; name another method")
        low, high = np.array(bounds, dtype=np.float64).T
        span = high - low
    columns -= low[:, None]
    columns /= span[:, None]
    return np.transpose(columns)


def _z_score(column: Array) -> Array:
    """Standardise one column; sums are exact, so the candidates' order cannot change the result."""
    deviations = column - math.fsum(column.tolist()) / len(column)
    deviation = math.sqrt(math.fsum((deviations * deviations).tolist()) / len(column))
    return deviations / deviation if deviation > 0 else np.zeros_like(column)


def combine(normalised: Array, weights: Sequence[float] | Array) -> Array:
    """Sum weight * normalised score over the signals: (n, S), (S,) -> (n,).

    Products are rounded one by one and added from the first signal to the last. The tuner does the
    very same operations, so that what is a tie there is a tie here.

    >>> combine(np.array([[1.0, 0.0], [0.5, 1.0]]), [0.25, 0.75]).tolist()
    [0.25, 0.875]
    """
    total = normalised[:, 0] * weights[0]
    for signal in range(1, normalised.shape[1]):
        total = total + normalised[:, signal] * weights[signal]
    return np.asarray(total, dtype=np.float64)


def parse_retrieve(text: str) -> tuple[str, ...]:
    """Split ``bm25,s2net:200`` into retrievers. Raises UsageError for anything else.

    >>> parse_retrieve("bm25, s2net:200")
    ('bm25', 's2net:200')
    """
    retrievers = tuple(one.strip() for one in text.split(","))
    try:
        retriever_depths(retrievers)
    except UsageError as error:
        raise UsageError(f"--retrieve {text!r}: {error}; {RETRIEVE}") from None
    return retrievers


def retriever_depths(retrievers: Iterable[str]) -> dict[str, int | None]:
    """Name of each retriever -> the depth of its own, as in ``s2net:200``; None where it has none.

    Raises UsageError for what is no retriever, one named twice, and a first stage with a depth of its own.

    >>> retriever_depths(["bm25", "s2net:200"])
    {'bm25': None, 's2net': 200}
    """
    depths: dict[str, int | None] = {}
    for text in retrievers:
        match = re.fullmatch(rf"({_NAME})(?::([1-9]\d{{0,8}}))?", text)
        if match is None:
            raise UsageError(f"{text!r} cannot be a retriever")
        name, depth = match.groups()
        if name in depths:
            raise UsageError(f"{name} is named twice")
        if depth is not None and name in FIRST_STAGES:
            raise UsageError(f"the depth of {name} is that of --depth, only a ranker can have its own")
        depths[name] = None if depth is None else int(depth)
    return depths


@dataclass(frozen=True, slots=True)
class SignalScore:
    """What one signal gave one document: its own score, made comparable, and times its weight."""

    raw: float
    normalised: float
    weighted: float


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked document. Ranks count from 1; ``first_stage_rank`` is where it was before reranking.

    found_by: the retrievers that found it, where that is known.
    """

    id: str
    score: float
    rank: int
    first_stage_rank: int
    signals: Mapping[str, SignalScore]
    found_by: tuple[str, ...] = ()

    def explanation(self) -> dict[str, dict[str, float]]:
        """Signal -> raw, normalised and weighted score, as JSON values."""
        return {
            name: {"raw": s.raw, "normalised": s.normalised, "weighted": s.weighted}
            for name, s in self.signals.items()
        }

    def as_dict(self, document: Document | None, *, explain: bool = True) -> dict[str, Any]:
        """The hit as JSON values, with the title of its document (its first words where it has none)."""
        found: dict[str, Any] = {
            "id": self.id,
            "title": (document.title or document.text[:100]) if document else "",
            "score": self.score,
            "rank": self.rank,
            "first_stage_rank": self.first_stage_rank,
            "found_by": list(self.found_by),
        }
        return {**found, "signals": self.explanation()} if explain else found


@dataclass(frozen=True)
class Ranking:
    """One query's candidates in their final order, with what is needed to explain each place.

    Arrays are kept as they were computed, in the first stage's order; hits are made when asked for.

    ids:        n document ids, best first.
    scores:     (n,) final scores, best first.
    order:      (n,) positions in the first stage's order (0 = its best), best first.
    signals:    S names.
    raw, normalised, weighted: (n, S), rows in the first stage's order.
    found:      retriever -> (n,) whether it found a document, in the first stage's order.
    """

    ids: list[str]
    scores: Array
    order: NDArray[np.intp]
    signals: tuple[str, ...]
    raw: Array
    normalised: Array
    weighted: Array
    found: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, position: int) -> Hit:
        row = int(self.order[position])
        cells = zip(self.raw[row].tolist(), self.normalised[row].tolist(), self.weighted[row].tolist())
        return Hit(
            id=self.ids[position],
            score=float(self.scores[position]),
            rank=range(len(self.ids))[position] + 1,
            first_stage_rank=row + 1,
            signals={name: SignalScore(*cell) for name, cell in zip(self.signals, cells)},
            found_by=tuple(name for name, where in self.found.items() if where[row]),
        )

    def __iter__(self) -> Iterator[Hit]:
        return (self[position] for position in range(len(self)))

    def top(self, count: int) -> list[Hit]:
        """Return the ``count`` best hits, or all there are."""
        return [self[position] for position in range(min(count, len(self)))]

    def run(self) -> list[tuple[str, float]]:
        """Return (document id, score) pairs, best first, as ``write_run`` takes them."""
        return list(zip(self.ids, self.scores.tolist()))


@dataclass(frozen=True)
class Stack:
    """Signals, how they are made comparable, and their weights: everything that decides a final score.

    signals:       S names; the order is also the order in which the weighted scores are added.
    weights:       S integers; a weight is that many ``parts``-ths. They need not sum to 1.
    first_stage:   the lexical signal whose scores order the candidates; it need not be among the signals.
    normalisation: one of NORMALISATIONS.
    depth:         how many candidates each retriever returns that has no depth of its own.
    retrieve:      the retrievers whose finds together are the candidates, a ranker with a depth of its own as
                   ``s2net:200``; empty: the first stage alone.
    versions:      signal or retriever -> version of the ranker it was tuned with.
    bounds:        signal -> (low, high), for the normalisation ``bounds``.
    tuned:         how the weights were found (measure, value on dev, flatness, ...); no dates.

    Raises UsageError when these do not fit together.

    >>> stack = Stack.parse("tfidf*0.35+text*0.4+meta*0.25")
    >>> str(stack), stack.weights, stack.parts, stack.first_stage
    ('tfidf*0.35 + text*0.40 + meta*0.25', (7, 8, 5), 20, 'tfidf')
    >>> stack.rank(["a", "b"], np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.5]])).ids
    ['b', 'a']
    """

    signals: tuple[str, ...]
    weights: tuple[int, ...]
    first_stage: str
    parts: int = PARTS
    normalisation: str = "min-max"
    depth: int = 1000
    retrieve: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    tuned: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.signals, self.first_stage):
            if not re.fullmatch(_NAME, name):
                raise UsageError(f"{name!r} cannot be a signal's name; use letters, digits, _ . and -")
        if not self.signals or len(set(self.signals)) < len(self.signals):
            raise UsageError(f"a stack needs signals, each once, not {', '.join(self.signals) or 'none'}")
        if len(self.weights) != len(self.signals):
            raise UsageError(f"{len(self.signals)} signals need as many weights, not {len(self.weights)}")
        if min(self.weights) < 0 or max(self.weights) == 0 or self.parts < 1:
            raise UsageError("weights must not be negative, nor all 0, and parts must be 1 or more")
        if self.normalisation not in NORMALISATIONS:
            raise UsageError(
                f"unknown normalisation {self.normalisation!r}; choose one of {', '.join(NORMALISATIONS)}"
            )
        if self.depth < 1:
            raise UsageError(f"depth {self.depth} retrieves nothing; make it 1 or more")
        try:
            retriever_depths(self.retrieve)
        except UsageError as error:
            raise UsageError(f"{error}; {RETRIEVE}") from None
        if self.retrieve == (self.first_stage,):
            object.__setattr__(self, "retrieve", ())
        for name in self.signals if self.normalisation == "bounds" else ():
            low, high = self.bounds.get(name, (0.0, 0.0))
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise UsageError(
                    f"normalisation 'bounds' needs a finite range of {name}, low < high; name another method"
                )

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        first_stage: str | None = None,
        normalisation: str = "min-max",
        depth: int = 1000,
        versions: Mapping[str, str] | None = None,
        bounds: Mapping[str, tuple[float, float]] | None = None,
    ) -> Stack:
        """Build a stack from ``tfidf*0.35 + text*0.40 + meta*0.25``; a lone name has all the weight.

        Without ``first_stage``, the first lexical signal among the names retrieves, or bm25 when none is
        there. Raises UsageError, also for several names without weights: those have to be tuned first.
        """
        names, weights = parse_stack(text)
        if weights is None:
            if len(names) > 1:
                raise UsageError(
                    f"stack {text!r} has no weights; tune them, or write them: "
                    + " + ".join(f"{name}*{1 / len(names):.2f}" for name in names)
                )
            weights = (Fraction(1),)
        parts = math.lcm(PARTS, *(weight.denominator for weight in weights))
        lexical = [name for name in names if name in FIRST_STAGES]
        return cls(
            signals=names,
            weights=tuple(int(weight * parts) for weight in weights),
            parts=parts,
            first_stage=first_stage or (lexical[0] if lexical else FIRST_STAGES[0]),
            normalisation=normalisation,
            depth=depth,
            versions=versions or {},
            bounds=bounds or {},
        )

    def __str__(self) -> str:
        fractions = [Fraction(weight, self.parts) for weight in self.weights]
        digits = max((_decimals(weight) for weight in fractions), default=2)
        texts = [str(weight) if digits > 9 else f"{float(weight):.{digits}f}" for weight in fractions]
        return " + ".join(f"{name}*{text}" for name, text in zip(self.signals, texts))

    @property
    def retrievers(self) -> tuple[str, ...]:
        """Who retrieves the candidates: ``retrieve``, or the first stage."""
        return self.retrieve or (self.first_stage,)

    @property
    def rankers(self) -> tuple[str, ...]:
        """The rankers that the stack needs, as signals or as retrievers."""
        needed = dict.fromkeys((*self.signals, *retriever_depths(self.retrieve)))
        return tuple(name for name in needed if name not in FIRST_STAGES)

    @property
    def weight_values(self) -> Array:
        """Return the weights as numbers, (S,): each is weights[s] / parts, rounded once."""
        return np.array([weight / self.parts for weight in self.weights], dtype=np.float64)

    def score(self, raw: NDArray[Any]) -> tuple[Array, Array, Array]:
        """Final scores of one query's n candidates, from raw (n, S) scores in the order of ``signals``.

        Returns (final (n,), normalised (n, S), weighted (n, S)).

        Raises TrainingError when a signal gave a number that is not finite.
        """
        scores = np.asarray(raw, dtype=np.float64)
        if scores.ndim != 2 or scores.shape[1] != len(self.signals):
            raise ValueError(f"raw scores must be (n, {len(self.signals)}), not {scores.shape}")
        wrong = ~np.isfinite(scores)
        if wrong.any():
            name = self.signals[int(wrong.any(axis=0).argmax())]
            raise TrainingError(
                f"signal {name} gave {int(wrong.any(axis=1).sum())} of {len(scores)} candidates a score that "
                f"is not finite; train {name} again or leave it out of the stack"
            )
        ranges = [self.bounds[name] for name in self.signals] if self.normalisation == "bounds" else None
        normalised = normalise(scores, self.normalisation, ranges)
        weights = self.weight_values
        return combine(normalised, weights), normalised, normalised * weights

    def rank(
        self,
        ids: Sequence[str],
        raw: NDArray[Any],
        found: Mapping[str, NDArray[np.bool_]] | None = None,
    ) -> Ranking:
        """Order one query's candidates: n ids in the first stage's order, and their raw (n, S) scores.

        found: who found them; see :class:`Candidates`.
        """
        scores = np.asarray(raw, dtype=np.float64)
        if len(scores) != len(ids):
            raise ValueError(f"{len(ids)} ids, but scores of {len(scores)} documents")
        final, normalised, weighted = self.score(scores)
        order = rank(ids, final)
        return Ranking(
            ids=[ids[position] for position in order.tolist()],
            scores=final[order],
            order=order,
            signals=self.signals,
            raw=scores,
            normalised=normalised,
            weighted=weighted,
            found=found or {},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the stack as JSON values: the content of its file."""
        return {
            "rerank_stack": FORMAT,
            "stack": str(self),
            "first_stage": self.first_stage,
            "retrieve": list(self.retrievers),
            "depth": self.depth,
            "normalisation": self.normalisation,
            "weights": dict(zip(self.signals, self.weights)),
            "parts": self.parts,
            "versions": dict(self.versions),
            "bounds": {name: list(pair) for name, pair in self.bounds.items()},
            "tuned": dict(self.tuned),
        }

    @classmethod
    def from_json(cls, data: object) -> Stack:
        """Build a stack from what :meth:`to_json` gave.

        Raises WorkspaceError for another version's format, InputError for anything else that is wrong.
        """
        if not isinstance(data, dict) or "rerank_stack" not in data:
            raise InputError('no stack: a stack file is a JSON object with "rerank_stack"')
        if data["rerank_stack"] != FORMAT:
            raise WorkspaceError(
                f"stack format {data['rerank_stack']!r}, but this version reads {FORMAT}; tune it again"
            )
        weights = _field(data, "weights", dict)
        try:
            stack = cls(
                signals=tuple(weights),
                weights=tuple(_integer(name, weight) for name, weight in weights.items()),
                parts=_integer("parts", data.get("parts")),
                first_stage=_field(data, "first_stage", str),
                normalisation=_field(data, "normalisation", str),
                depth=_integer("depth", data.get("depth")),
                retrieve=_names(data.get("retrieve", [])),
                versions=_strings(_field(data, "versions", dict)),
                bounds={name: _pair(name, value) for name, value in _field(data, "bounds", dict).items()},
                tuned=_field(data, "tuned", dict),
            )
        except UsageError as error:
            raise InputError(str(error)) from error
        if data.get("stack") != str(stack):
            raise InputError(
                f'"stack" says {data.get("stack")!r}, but "weights" and "parts" make {str(stack)!r}; '
                "make them agree"
            )
        return stack

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the stack as JSON, atomically; the same stack gives the same bytes."""
        write_text(path, json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Stack:
        """Read what :meth:`save` wrote.

        Raises InputError or WorkspaceError, with the file's name, when it is missing or not usable.
        """
        name = os.fspath(path)
        try:
            data = json.loads(Path(path).read_bytes())
        except FileNotFoundError as error:
            raise InputError(f"{name}: no such stack file; check the path, or tune one") from error
        except OSError as error:
            raise InputError(f"{name}: cannot be read: {error.strerror or error}") from error
        except json.JSONDecodeError as error:
            raise InputError(f"{name}:{error.lineno}: broken JSON ({error.msg}); tune it again") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name}: not a JSON file ({error}); tune it again") from error
        try:
            return cls.from_json(data)
        except (InputError, WorkspaceError) as error:
            raise type(error)(f"{name}: {error}") from error


def _decimals(weight: Fraction) -> int:
    """Digits after the point that write the weight exactly, 2 at least; 99 when no number of them does."""
    for digits in range(2, 10):
        if (weight * 10**digits).denominator == 1:
            return digits
    return 99


def _field(data: Mapping[str, Any], name: str, kind: type) -> Any:
    value = data.get(name)
    if not isinstance(value, kind):
        raise InputError(f'"{name}" is missing or of the wrong type; tune the stack again')
    return value


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError('"retrieve" must be a list of names; tune the stack again')
    return tuple(value)


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f'"{name}" must be an integer, not {value!r}; tune the stack again')
    return value


def _strings(values: Mapping[str, Any]) -> dict[str, str]:
    for name, value in values.items():
        if not isinstance(value, str):
            raise InputError(f'the version of "{name}" must be a string; tune the stack again')
    return dict(values)


def _pair(name: str, value: object) -> tuple[float, float]:
    if isinstance(value, list) and len(value) == 2:
        low, high = value
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            return float(low), float(high)
    raise InputError(f'the bounds of "{name}" must be [low, high]; tune the stack again')
