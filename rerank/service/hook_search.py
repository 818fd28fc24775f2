"""The text and the stack of a search through the hook. Both calls of a search read them here."""

from __future__ import annotations

from dataclasses import dataclass

from rerank.scoring.scorer import Scorer
from rerank.service.context import RequestContext
from rerank.service.experiment import Experiment, can_take_part
from rerank.service.query_text import query_text
from rerank.service.schemas import HookBody, RetrieveBody, SearchOptions
from rerank.service.snapshot import Snapshot
from rerank.stack.parse import parse_stack
from rerank.stack.stack import Stack

_NO_OPTIONS = SearchOptions()


@dataclass(frozen=True, slots=True)
class HookSearch:
    """The words and the stack of a search.

    options:    of the user.
    text:       the words of the query; empty if it has none.
    stack:      of the user, else of the pipeline; in an experiment, the joint stack of both.
    scorer:     scores by the signals of the stack.
    experiment: the experiment that the search takes part in, or None.
    coins:      of the experiment.
    """

    options: SearchOptions
    text: str
    stack: Stack
    scorer: Scorer
    experiment: Experiment | None = None
    coins: bytes = b""

    @classmethod
    def read(cls, snapshot: Snapshot, body: HookBody | RetrieveBody, context: RequestContext) -> HookSearch:
        """Find the text and the stack of a call, and note its text and its time limit.

        Raises UsageError for an unknown stack, InputError for signals that are not tuned together.
        """
        options = body.rerank or _NO_OPTIONS
        context.timeout = body.timeout or context.timeout
        context.query = options.query
        if context.query is None:
            context.query = query_text(body.query, snapshot.words)
        text = context.query or ""
        stack, scorer = snapshot.scorer(options.stack or body.stack)
        if not can_take_part(body):
            return cls(options, text, stack, scorer)
        experiment, coins = snapshot.draw(options.client_id, text)
        if experiment is None:
            return cls(options, text, stack, scorer)
        return cls(options, text, experiment.joint, snapshot.scorer_of(experiment.joint), experiment, coins)

    @property
    def has_words(self) -> bool:
        """Whether the query has a text that is not only white space."""
        return bool(self.text.strip())


def is_free(snapshot: Snapshot, text: str, stack: Stack) -> bool:
    """Whether any search may name a stack that reads no fields: it is tuned, or the first stage."""
    names, weights = parse_stack(text)
    is_tuned = weights is None and frozenset(names) in snapshot.tuned
    return is_tuned or stack.signals == (stack.first_stage,)
