"""Judged queries and their scored candidates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rerank.errors import EngineError, InputError, WorkspaceError
from rerank.filters import Filter, filters_of
from rerank.formats.templates import check_values
from rerank.inputs import Judgments, Queries, as_qrels, as_queries
from rerank.progress import Progress
from rerank.records import Qrels, Query, SearchTemplate
from rerank.scoring.build_table import ScoringReport, TableRequest, score_table
from rerank.scoring.pipeline import Pipeline, check_filters
from rerank.scoring.vector_cache import VectorCache
from rerank.stack.parse import retriever_depths
from rerank.stack.stack import Stack
from rerank.text import plural
from rerank.tuning.score_table import ScoreTable
from rerank.workflows.encode import encode
from rerank.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class JudgedQueries:
    """Judged queries; see :func:`rerank.evaluate`."""

    queries: Sequence[Query]
    qrels: Qrels
    filters: Sequence[Filter] = ()
    infer: bool = True
    seed: int = 0
    progress: Progress | None = None

    @classmethod
    def of(
        cls,
        queries: Queries,
        qrels: Judgments,
        filter: str | Sequence[str] = (),
        *,
        ignore_categories: bool = False,
        **more: Any,
    ) -> JudgedQueries:
        """Read queries, judgments and filters in any form. more: other fields."""
        read = as_queries(queries, ignore_categories=ignore_categories)
        return cls(queries=read, qrels=as_qrels(qrels), filters=filters_of(filter), **more)


@dataclass(frozen=True, kw_only=True)
class Experiment(JudgedQueries):
    """Judged queries and their pipeline. unknown_queries: without text. searches: in their current form."""

    workspace: Workspace
    pipeline: Pipeline
    unknown_queries: int
    searches: Sequence[SearchTemplate]

    @classmethod
    def of_stacks(
        cls,
        workspace: Workspace,
        stacks: Collection[Stack],
        judged: JudgedQueries,
        versions: Mapping[str, str] | None = None,
    ) -> Experiment:
        """Encode missing features of the stacks' rankers and keep the judged queries with a text.

        versions: ranker -> version; default: newest.

        Raises InputError if no query remains, or a run has other queries or documents.
        """
        signals = list(dict.fromkeys(name for stack in stacks for name in stack.signals))
        retrieve = dict.fromkeys(name for stack in stacks for name in retriever_depths(stack.retrieve))
        named = list(dict.fromkeys(stack.search for stack in stacks if stack.search is not None))
        pipeline = workspace.pipeline(
            signals, retrieve=retrieve, infer_categories=judged.infer, versions=versions
        )
        queries, qrels = {query.id: query for query in judged.queries}, judged.qrels
        known = [queries[id] for id in sorted(qrels) if id in queries]
        kept = Qrels({query.id: qrels[query.id] for query in known})
        if not kept:
            problem = "no judged query is in the query file" if queries else "no queries are given"
            raise InputError(f"{problem}; check that --queries and --qrels belong together")
        check_filters(named, judged.filters)
        searches = [check_search(workspace, search, known) for search in named]
        with suppress(WorkspaceError, EngineError):  # busy or read-only: features are computed per query
            encode(workspace, pipeline.rankers.values(), progress=judged.progress)
        return cls(
            workspace=workspace,
            # A query is searched and scored in several cases.
            pipeline=replace(pipeline, vectors=VectorCache()),
            unknown_queries=len(qrels) - len(known),
            searches=searches,
            **vars(replace(judged, queries=known, qrels=kept)),
        )

    def table(self, **options: Any) -> tuple[ScoreTable, ScoringReport]:
        """Score the candidates of every query. options: other fields of :class:`TableRequest`."""
        options |= {"queries": self.queries, "qrels": self.qrels, "filters": self.filters}
        table, report = score_table(self.pipeline, TableRequest(**options), self.progress)
        report.unknown_queries = self.unknown_queries
        return table, report


def check_search(workspace: Workspace, search: SearchTemplate, queries: Sequence[Query]) -> SearchTemplate:
    """Try a search on the first query and return its current form.

    Raises InputError for a run of other queries or documents, or a template field without values.
    """
    if search.kind == "run":
        hits = {id for query in queries for id, _ in search.hits.get(query.id, ())}
        if not hits:
            raise InputError(f"{search}: has none of the queries; make the run with the ids of --queries")
        unknown = sorted(hits - workspace.engine.contains(hits))
        if unknown:
            known = plural(len(unknown), "document[ is|s are] not in the workspace")
            raise InputError(f"{search}: {known} ({unknown[0]!r} first); make the run of the same documents")
    checked = workspace.engine.check_template(search, queries[0])
    check_values(checked, queries)
    return checked
