"""The stack and its file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import InputError, UsageError, WorkspaceError
from rerank.common.files import write_text
from rerank.common.order import rank
from rerank.common.values import items_not_in
from rerank.documents.records import Query, SearchTemplate
from rerank.stack.file import SecondPhase, StackFile, read
from rerank.stack.linear import Linear, check_name
from rerank.stack.parse import parse_stack, retriever_depths
from rerank.stack.ranking import Ranking
from rerank.stack.relevance import RelevanceModel
from rerank.stack.signals import DEFAULT_FIRST_STAGE, SEARCH, first_stages, ranker_names

FORMAT = 2
"""Version of the stack file."""


@dataclass(frozen=True)
class Stack:
    """All settings that decide how the documents of a query are found and ranked.

    combiner:    signals, weights and normalization.
    first_stage: the signal that orders the candidates: a first stage of the engine, or ``search``.
    depth:       number of candidates for each retriever without a separate depth.
    retrieve:    retrievers, such as ``s2net:200``. If empty, only the first stage retrieves.
    versions:    ranker -> its version, for the signals and the retrievers.
    search:      the user's search, if it is the first stage.
    second_phase: orders the best documents again, if there is one.
    relevance:   scores that do not depend on other candidates; None: the stack is not tuned.
    tuned:       record of the tuning as JSON values, without dates; empty: the stack is not tuned.

    Raises UsageError for inconsistent settings.

    >>> stack = Stack.parse("tfidf*0.35+text*0.4+meta*0.25")
    >>> str(stack), stack.first_stage
    ('tfidf*0.35 + text*0.40 + meta*0.25', 'tfidf')
    >>> stack.rank(["a", "b"], np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.5]])).ids
    ['b', 'a']
    """

    combiner: Linear
    first_stage: str
    depth: int = 1000
    retrieve: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    search: SearchTemplate | None = None
    second_phase: SecondPhase | None = None
    relevance: RelevanceModel | None = None
    tuned: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.first_stage)
        if self.depth < 1:
            raise UsageError(f"depth {self.depth} retrieves nothing; make it 1 or more")
        if self.second_phase is not None:
            self.second_phase.linear()  # raises early
        retriever_depths(self.retrieve)  # raises for a wrong name
        if self.retrieve == (self.first_stage,):
            object.__setattr__(self, "retrieve", ())
        if self.retrieve and (self.first_stage == SEARCH) != (SEARCH in self.retrieve):
            raise UsageError(
                f"the first stage is {self.first_stage}; a search and other retrievers need --first-stage"
                f" template:FILE or run:FILE and --retrieve {SEARCH},NAME"
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
    ) -> Stack:
        """Parse ``tfidf*0.35 + text*0.40 + meta*0.25``; a single name gets all the weight.

        first_stage:   Default: the first one among the names, or bm25.
        normalization: Default: none for one signal, min-max for several.
        depth:         number of candidates for each retriever.
        versions:      ranker -> its version.

        Raises UsageError for invalid text or missing weights.
        """
        names, weights = parse_stack(text)
        if weights is None:
            if len(names) > 1:
                raise UsageError(f"stack {text!r} has no weights; tune them, or write them: {_even(names)}")
            weights = (1.0,)
        default_normalization = "min-max" if len(names) > 1 else "none"
        combiner = Linear(names, weights, normalization or default_normalization)
        own_first_stage = next(iter(first_stages(names)), DEFAULT_FIRST_STAGE)
        return cls(combiner, first_stage or own_first_stage, depth, versions=versions or {})

    def __str__(self) -> str:
        return str(self.combiner)

    @property
    def signals(self) -> tuple[str, ...]:
        """The names of the S signals."""
        return self.combiner.signals

    @property
    def name(self) -> str:
        """The name of the stack: the tuned signals in alphabetical order, or the weights if it is not tuned.

        >>> Stack.parse("text*0.5 + bm25*0.5").name, Stack.parse("bm25").name
        ('text*0.50 + bm25*0.50', 'bm25')
        """
        if not self.tuned and len(self.signals) > 1:
            return str(self)
        return stack_key(self.tuned_for)

    @property
    def tuned_for(self) -> tuple[str, ...]:
        """The signals that were tuned, with the ones that got no weight and left the stack."""
        return tuple(self.tuned.get("signals", self.signals))

    @property
    def retrievers(self) -> tuple[str, ...]:
        """The retrievers with their depths: ``retrieve``, or the first stage."""
        return self.retrieve or (self.first_stage,)

    @property
    def rankers(self) -> tuple[str, ...]:
        """The rankers used as signals or retrievers."""
        return ranker_names(dict.fromkeys((*self.signals, *retriever_depths(self.retrieve))))

    def for_case(self, case: str) -> Stack:
        """Return the stack with the weights for a case, or this stack if it has none."""
        has_relevance_cases = self.relevance is not None and bool(self.relevance.cases)
        if case not in self.combiner.cases and not has_relevance_cases:
            return self
        relevance = self.relevance and self.relevance.for_case(case)
        return replace(self, combiner=self.combiner.for_case(case), relevance=relevance)

    def for_any_documents(self) -> Stack:
        """Return the stack whose scores do not depend on the other documents of a request.

        This is the stack with the statistics of its tuning, or the same stack if it has none.
        """
        if self.relevance is None or self.second_phase is not None:
            return self
        return replace(self, combiner=self.relevance.combiner)

    def with_template(self, search: SearchTemplate) -> Stack:
        """Return the stack with the user's search as first stage.

        The search replaces the present first stage, also as a signal. Rankers that retrieve still do.

        >>> str(Stack.parse("bm25*0.5 + text*0.5").with_template(SearchTemplate("run", "a.run")))
        'search*0.50 + text*0.50'
        """
        if self.first_stage != SEARCH and SEARCH in self.signals:
            raise UsageError(f"the stack {self} has another first stage than its own search; tune it again")
        # The scores of the search have another mean and deviation.
        combiner = self.combiner.without_moments().renamed({self.first_stage: SEARCH})
        rankers = items_not_in(self.retrieve, (self.first_stage, SEARCH))
        retrieve = (SEARCH, *rankers) if rankers else ()
        return replace(
            self, combiner=combiner, first_stage=SEARCH, retrieve=retrieve, search=search, relevance=None
        )

    def rank(
        self,
        ids: Sequence[str],
        raw: NDArray[Any],
        retrieved_by: Mapping[str, NDArray[np.bool_]] | None = None,
        query: Query | None = None,
    ) -> Ranking:
        """Rank n candidates by their raw scores.

        ids:          n document ids, in first-stage order.
        raw:          (n, S) scores by the signals.
        retrieved_by: retriever -> (n,) whether it found a candidate.
        query:        for the probabilities of relevance, which depend on its length.

        Raises TrainingError for a non-finite score.
        """
        scores = np.asarray(raw, dtype=np.float64)
        final, normalized, weighted = self.combiner.combine(scores)
        order = rank(ids, final)
        return Ranking(
            candidates=ids,
            scores=final[order],
            order=order,
            signals=self.signals,
            raw=scores,
            normalized=normalized,
            weighted=weighted,
            retrieved_by=retrieved_by or {},
            query=query,
            relevance_model=self.relevance,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON values of the stack file. Equal stacks have equal values."""
        data: dict[str, Any] = {
            "rerank_stack": FORMAT,
            **self.combiner.summary(),
            "first_stage": self.first_stage,
            "retrieve": self.retrievers,
            "depth": self.depth,
            "versions": self.versions,
            "tuned": self.tuned,
        }
        if self.second_phase is not None:
            data["second_phase"] = self.second_phase
        if self.relevance is not None:
            data["relevance"] = self.relevance.summary()
        if self.search is not None:
            data["search"] = replace(self.search, hits={})  # a run cannot be repeated
        return cast("dict[str, Any]", msgspec.to_builtins(data))

    @classmethod
    def from_json(cls, data: object) -> Stack:
        """Build a stack from the JSON values of :meth:`to_json`.

        Raises WorkspaceError for another version of the format, InputError for other mistakes.
        """
        if not isinstance(data, dict) or "rerank_stack" not in data:
            raise InputError('no stack: a stack file is a JSON object with "rerank_stack"')
        if data["rerank_stack"] != FORMAT:
            raise WorkspaceError(
                f"stack format {data['rerank_stack']!r}, but this version reads {FORMAT}; tune it again"
            )
        try:
            file = msgspec.convert(data, StackFile)
            msgspec.convert(file.tuned.get("signals", []), list[str])
            return cls(
                combiner=file.linear(),
                first_stage=file.first_stage,
                depth=file.depth,
                retrieve=tuple(file.retrieve),
                versions=file.versions,
                search=file.search,
                second_phase=file.second_phase,
                relevance=None if file.relevance is None else file.relevance.model(),
                tuned=file.tuned,
            )
        except msgspec.ValidationError as error:
            raise InputError(f"{error}; tune the stack again") from error
        except UsageError as error:
            raise InputError(str(error)) from error

    def save(self, path: str | os.PathLike[str], *, follow: bool = False) -> None:
        """Write the stack file, atomically. Equal stacks give equal bytes.

        follow: write the target of a symbolic link instead of replacing the link.
        """
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False)
        write_text(path, text + "\n", follow=follow)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Stack:
        """Read a stack file. Raises InputError or WorkspaceError if it is not usable."""
        try:
            return cls.from_json(read(path))
        except (InputError, WorkspaceError) as error:
            raise type(error)(f"{os.fspath(path)}: {error}") from error


def stack_key(signals: Iterable[str]) -> str:
    """Return the name of the tuned stack of these signals, which is the same for any order of them.

    >>> stack_key(["tfidf", "bm25"])
    'bm25,tfidf'
    """
    return ",".join(sorted(signals))


def find_stack(
    text: str,
    ensure_trained: Callable[[str], object],
    load_tuned: Callable[[tuple[str, ...]], Stack | None],
    first_stage: str,
    search: SearchTemplate | None,
) -> Stack:
    """Return the stack for signal names, with or without weights.

    ensure_trained: raises an error for a ranker that is unknown.
    load_tuned:     returns the tuned stack of signals, or None.
    first_stage:    the first stage of a stack that names none.
    search:         the user's search, for a stack that needs one.

    Raises InputError for several signals without tuned weights.
    """
    names, weights = parse_stack(text)
    for name in ranker_names(names):
        ensure_trained(name)
    stack: Stack | None
    if weights or len(names) == 1:
        stack = Stack.parse(text, first_stage=next(iter(first_stages(names)), first_stage))
    else:
        stack = load_tuned(names)
    if stack is None:
        raise InputError(
            f"stack {text!r} is not tuned; tune it with `rerank tune --stack {text} --queries QUERIES"
            f" --qrels QRELS`, or give weights: --stack '{_even(names)}'"
        )
    if stack.first_stage == SEARCH and stack.search is None:
        stack = replace(stack, search=search)
    return stack


def _even(names: Sequence[str]) -> str:
    return " + ".join(f"{name}*{1 / len(names):.2f}" for name in names)
