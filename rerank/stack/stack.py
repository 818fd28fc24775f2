"""The stack: signals + normalization + weights = the final score, and the file that reproduces it."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rerank.errors import InputError, TrainingError, UsageError, WorkspaceError
from rerank.files import write_text
from rerank.order import rank
from rerank.records import SearchTemplate
from rerank.stack.cases import CASES
from rerank.stack.file import Search, StackFile, Weights, checksum, decode, read
from rerank.stack.normalize import NORMALIZATIONS, combine, normalize
from rerank.stack.parse import RETRIEVE, SIGNAL, parse_stack, retriever_depths
from rerank.stack.ranking import Ranking
from rerank.stack.signals import DEFAULT_FIRST_STAGE, SEARCH, first_stages, learned
from rerank.text import plural

Array = NDArray[np.float64]

PARTS = 20
"""Weights are counted in twentieths unless finer ones are asked for."""

FORMAT = 1
"""Version of the stack file."""


@dataclass(frozen=True)
class Stack:
    """Signals, how they are made comparable, and their weights: everything that decides a final score.

    signals:       S names; the order is also the order in which the weighted scores are added.
    weights:       S integers; a weight is that many ``parts``-ths. They need not sum to 1.
    first_stage:   the signal whose scores order the candidates: a lexical one, or ``search``, the score of
                   the user's search. It need not be among the signals.
    normalization: one of NORMALIZATIONS.
    depth:         how many candidates each retriever returns unless it has a separate depth.
    retrieve:      the retrievers that find the candidates together, a ranker with a separate depth as
                   ``s2net:200``; empty: only the first stage.
    versions:      signal or retriever -> version of the ranker it was tuned with.
    bounds:        signal -> (low, high), for the normalization ``bounds``.
    search:        the user's search that finds the candidates, if ``first_stage`` is ``search``.
    cases:         case of CASES -> the stack of its queries, with separate weights and normalization. Other
                   cases have the weights above.
    rerank_only:   the signals without the first stage's, with weights and a normalization that were found for
                   them; None if they were not tuned. Only evaluations use it.
    tuned:         how the weights were found (measure, value on dev, near-optimal settings, ...); no dates.

    Raises UsageError when these do not fit together.

    >>> import numpy as np
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
    normalization: str = "min-max"
    depth: int = 1000
    retrieve: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    search: SearchTemplate | None = None
    cases: Mapping[str, Stack] = field(default_factory=dict)
    rerank_only: Stack | None = None
    tuned: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_weights()
        if self.depth < 1:
            raise UsageError(f"depth {self.depth} retrieves nothing; make it 1 or more")
        try:
            retriever_depths(self.retrieve)
        except UsageError as error:
            raise UsageError(f"{error}; {RETRIEVE}") from None
        if self.retrieve == (self.first_stage,):
            object.__setattr__(self, "retrieve", ())
        if self.retrieve and self.first_stage == SEARCH:
            raise UsageError(
                f"your search finds all candidates; leave out the retrievers {', '.join(self.retrieve)}"
            )
        for case, stack in self.cases.items():
            if case not in CASES or stack.signals != self.signals or stack.cases:
                raise UsageError(
                    f"{case!r} is not a case with weights for {', '.join(self.signals)}; tune it again"
                )
        if self.rerank_only is not None and not {*self.rerank_only.signals} < {*self.signals}:
            raise UsageError(
                f'"rerank_only" has other signals than {", ".join(self.signals)}; tune the stack again'
            )

    def _check_weights(self) -> None:
        """Raise UsageError for signals, weights and a normalization that do not fit together."""
        for name in (*self.signals, self.first_stage):
            if not re.fullmatch(SIGNAL, name):
                raise UsageError(f"{name!r} cannot be a signal's name; use letters, digits, _ . and -")
        if not self.signals or len(set(self.signals)) < len(self.signals):
            raise UsageError(f"a stack needs signals, each once, not {', '.join(self.signals) or 'none'}")
        if len(self.weights) != len(self.signals):
            raise UsageError(f"{len(self.signals)} signals need as many weights, not {len(self.weights)}")
        if min(self.weights) < 0 or max(self.weights) == 0 or self.parts < 1:
            raise UsageError("weights must not be negative, nor all 0, and parts must be 1 or more")
        if self.normalization not in NORMALIZATIONS:
            raise UsageError(
                f"unknown normalization {self.normalization!r}; choose one of {', '.join(NORMALIZATIONS)}"
            )
        for name in self.signals if self.normalization == "bounds" else ():
            low, high = self.bounds.get(name, (0.0, 0.0))
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise UsageError(
                    f"normalization 'bounds' needs a finite range of {name}, low < high; name another method"
                )

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        first_stage: str | None = None,
        normalization: str | None = None,
        depth: int = 1000,
        versions: Mapping[str, str] | None = None,
        bounds: Mapping[str, tuple[float, float]] | None = None,
    ) -> Stack:
        """Build a stack from ``tfidf*0.35 + text*0.40 + meta*0.25``; a lone name has all the weight.

        Without ``normalization``, a lone signal keeps its own scores, and several are min-max normalized.
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
        return cls(
            signals=names,
            weights=tuple(int(weight * parts) for weight in weights),
            parts=parts,
            first_stage=first_stage or (*first_stages(names), DEFAULT_FIRST_STAGE)[0],
            normalization=normalization or ("min-max" if len(names) > 1 else "none"),
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
    def name(self) -> str:
        """The name of the stack: the signals that it was tuned for, in alphabetical order, or its weights.

        >>> Stack.parse("text*0.5 + bm25*0.5").name, Stack.parse("bm25").name
        ('text*0.50 + bm25*0.50', 'bm25')
        """
        if not self.tuned and len(self.signals) > 1:
            return str(self)
        return ",".join(sorted(self.tuned_for))

    @property
    def tuned_for(self) -> tuple[str, ...]:
        """The signals that the stack was tuned for, also if they got no weight."""
        return tuple(self.tuned.get("signals", self.signals))

    @property
    def retrievers(self) -> tuple[str, ...]:
        """Who retrieves the candidates: ``retrieve``, or the first stage."""
        return self.retrieve or (self.first_stage,)

    def for_case(self, case: str) -> Stack:
        """Return the stack that ranks the queries of a case: with the weights of the case, if it has any.

        >>> Stack.parse("bm25").for_case("inferred") == Stack.parse("bm25")
        True
        """
        return self.cases.get(case, self)

    def with_template(self, search: SearchTemplate) -> Stack:
        """Return the stack with the candidates and the first-stage scores of the user's search.

        The hook does the same: the scores of the hits take the place of the stack's first stage.

        >>> str(Stack.parse("bm25*0.5 + text*0.5").with_template(SearchTemplate("run", "a.run")))
        'search*0.50 + text*0.50'
        """
        if self.first_stage != SEARCH and SEARCH in self.signals:
            raise UsageError(f"the stack {self} has another first stage than its own search; tune it again")
        renamed = {self.first_stage: SEARCH}
        return replace(
            self,
            signals=tuple(renamed.get(name, name) for name in self.signals),
            bounds={renamed.get(name, name): pair for name, pair in self.bounds.items()},
            first_stage=SEARCH,
            retrieve=(),
            search=search,
            cases={case: stack.with_template(search) for case, stack in self.cases.items()},
            rerank_only=self.rerank_only and self.rerank_only.with_template(search),
        )

    def without_first_stage(self) -> Stack | None:
        """Return the stack without its first stage's score: plain reranking.

        It has the weights that were tuned for plain reranking, or else the other weights unchanged. None if
        the first stage's score is not a signal, or no other signal has a weight.

        >>> str(Stack.parse("tfidf*0.5 + text*0.3 + meta*0.2").without_first_stage())
        'text*0.30 + meta*0.20'
        """
        kept = [(n, w) for n, w in zip(self.signals, self.weights) if n != self.first_stage]
        names = tuple(name for name, _ in kept)
        if len(kept) == len(self.signals):
            return None
        cases = {case: one.without_first_stage() for case, one in self.cases.items()}
        left = {case: one for case, one in cases.items() if one is not None}
        own = self.rerank_only
        if own is not None and own.signals == names:
            fields: dict[str, Any] = {"weights": own.weights, "parts": own.parts}
            fields["normalization"] = own.normalization
        elif any(weight for _, weight in kept):
            fields = {"weights": tuple(weight for _, weight in kept)}
        else:
            return None
        return replace(self, signals=names, cases=left, rerank_only=None, **fields)

    def ranks_like(self, other: Stack) -> bool:
        """Return whether both stacks rank every query alike: nothing differs but how they were found.

        >>> Stack.parse("bm25*1 + text*1").ranks_like(Stack.parse("text*1.0 + bm25*1.0"))
        True
        """
        return all(self.for_case(case)._settings() == other.for_case(case)._settings() for case in CASES)

    def _settings(self) -> tuple[object, ...]:
        """Everything that decides a final score."""
        weights = {name: Fraction(weight, self.parts) for name, weight in zip(self.signals, self.weights)}
        bounds = dict(self.bounds) if self.normalization == "bounds" else {}
        versions = {name: self.versions.get(name) for name in self.rankers}
        found_by = self.first_stage, set(self.retrievers), self.depth, self.search
        return weights, self.normalization, bounds, versions, found_by

    @property
    def rankers(self) -> tuple[str, ...]:
        """The rankers that the stack needs, as signals or as retrievers."""
        needed = dict.fromkeys((*self.signals, *retriever_depths(self.retrieve)))
        return learned(needed)

    @cached_property
    def weight_values(self) -> Array:
        """Return the weights as numbers, (S,): each is weights[s] / parts, rounded once."""
        values = np.array([weight / self.parts for weight in self.weights], dtype=np.float64)
        values.setflags(write=False)
        return values

    def score(self, raw: NDArray[Any]) -> tuple[Array, Array, Array]:
        """Final scores of one query's n candidates, from raw (n, S) scores in the order of ``signals``.

        Returns (final (n,), normalized (n, S), weighted (n, S)).

        Raises TrainingError when a signal gave a number that is not finite.
        """
        scores = np.asarray(raw, dtype=np.float64)
        if scores.ndim != 2 or scores.shape[1] != len(self.signals):
            raise ValueError(f"raw scores must be (n, {len(self.signals)}), not {scores.shape}")
        if not np.isfinite(scores).all():
            wrong = ~np.isfinite(scores)
            name = self.signals[int(wrong.any(axis=0).argmax())]
            raise TrainingError(
                f"signal {name} gave {int(wrong.any(axis=1).sum())} of"
                f" {plural(len(scores), 'candidate[|s]')} a score that "
                f"is not finite; train {name} again or leave it out of the stack"
            )
        ranges = [self.bounds[name] for name in self.signals] if self.normalization == "bounds" else None
        normalized = normalize(scores, self.normalization, ranges)
        weights = self.weight_values
        return combine(normalized, weights), normalized, normalized * weights

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
            raise ValueError(f"{len(ids)} ids, but scores of {plural(len(scores), 'document[|s]')}")
        final, normalized, weighted = self.score(scores)
        order = rank(ids, final)
        return Ranking(
            ids=[ids[position] for position in order.tolist()],
            scores=final[order],
            order=order,
            signals=self.signals,
            raw=scores,
            normalized=normalized,
            weighted=weighted,
            found=found or {},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the stack as JSON values: the content of its file."""
        search = None
        if self.search is not None:
            # The source of a stored one is read from the cluster, and a run cannot be made again.
            kept = self.search if self.search.kind == "template" else replace(self.search, source="")
            search = Search(*(getattr(kept, name) for name in Search.__struct_fields__))
        found: dict[str, Any] = msgspec.to_builtins(
            StackFile(
                rerank_stack=FORMAT,
                **self._weights(),
                first_stage=self.first_stage,
                search=search,
                retrieve=list(self.retrievers),
                depth=self.depth,
                versions=dict(self.versions),
                bounds=dict(self.bounds),
                cases={case: Weights(**stack._weights()) for case, stack in self.cases.items()},
                tuned=dict(self.tuned),
            )
        )
        return found

    def _weights(self) -> dict[str, Any]:
        """What the stack of a case has of its own."""
        plain = self.rerank_only
        return {
            "stack": str(self),
            "normalization": self.normalization,
            "weights": dict(zip(self.signals, self.weights)),
            "parts": self.parts,
            "rerank_only": None if plain is None else Weights(**plain._weights()),
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
        file = decode(data)
        shared: dict[str, Any] = {
            "first_stage": file.first_stage,
            "depth": file.depth,
            "retrieve": tuple(file.retrieve),
            "search": file.search and SearchTemplate(**msgspec.structs.asdict(file.search)),
            "versions": file.versions,
            "bounds": file.bounds,
        }
        cases = {case: cls._of(weights, shared) for case, weights in file.cases.items()}
        return cls._of(file, {**shared, "cases": cases, "tuned": file.tuned})

    @classmethod
    def _of(cls, file: StackFile | Weights, fields: Mapping[str, Any]) -> Stack:
        """The stack of these weights; fields: all others."""
        own = {name: value for name, value in fields.items() if name not in ("cases", "tuned")}
        try:
            stack = cls(
                signals=tuple(file.weights),
                weights=tuple(file.weights.values()),
                parts=file.parts,
                normalization=file.normalization,
                rerank_only=None if file.rerank_only is None else cls._of(file.rerank_only, own),
                **fields,
            )
        except UsageError as error:
            raise InputError(str(error)) from error
        if file.stack != str(stack):
            raise InputError(
                f'"stack" says {file.stack!r}, but "weights" and "parts" make {str(stack)!r}; make them agree'
            )
        return stack

    def save(self, path: str | os.PathLike[str], *, follow: bool = False) -> None:
        """Write the stack as JSON, atomically, with its checksum; the same stack gives the same bytes.

        follow: write to the target of a symbolic link, instead of replacing the link.
        """
        data = self.to_json()
        text = json.dumps({**data, "sum": checksum(data)}, indent=2, ensure_ascii=False)
        write_text(path, text + "\n", follow=follow)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Stack:
        """Read what :meth:`save` wrote.

        Raises InputError or WorkspaceError, with the file's name, when it is missing or not usable.
        """
        try:
            data = read(path)
            stack = cls.from_json(data)
            if isinstance(data, dict) and "sum" in data and data["sum"] != checksum(data):
                raise InputError(
                    'damaged, or changed by hand ("sum" is of something else); tune it again, or take "sum"'
                    " out if you have changed it yourself"
                )
        except (InputError, WorkspaceError) as error:
            raise type(error)(f"{os.fspath(path)}: {error}") from error
        return stack


def _decimals(weight: Fraction) -> int:
    """Digits after the point that write the weight exactly, 2 at least; 99 when no number of them does."""
    for digits in range(2, 10):
        if (weight * 10**digits).denominator == 1:
            return digits
    return 99
