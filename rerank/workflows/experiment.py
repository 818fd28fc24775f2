"""Judged queries and their scored candidates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from rerank.common.errors import EngineError, InputError, WorkspaceError
from rerank.common.progress import SILENT, Progress
from rerank.common.values import with_keys
from rerank.documents.filters import Filter, filters_of
from rerank.documents.records import Qrels, Query, SearchTemplate
from rerank.documents.text import count_of
from rerank.evaluation.protocols import Protocol
from rerank.formats.inputs import Judgments, Queries, as_qrels, as_queries
from rerank.formats.templates import check_values
from rerank.scoring.build_table import ScoringReport, TableRequest, score_table
from rerank.scoring.pipeline import Pipeline, check_filters
from rerank.stack.parse import retriever_depths
from rerank.stack.stack import Stack
from rerank.tuning.score_table import ScoreTable
from rerank.workflows.encode import encode
from rerank.workspace.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class JudgedQueries:
    """Judged queries, conditions for their candidates, and options of the work with them.

    infer: infer the categories of queries without categories. seed: of random choices.
    """

    queries: Sequence[Query]
    qrels: Qrels
    filters: Sequence[Filter] = ()
    infer: bool = True
    seed: int = 0
    progress: Progress = SILENT

    @classmethod
    def of(
        cls,
        queries: Queries,
        qrels: Judgments,
        filter: str | Sequence[str] = (),
        *,
        ignore_categories: bool = False,
        infer: bool = True,
        seed: int = 0,
        progress: Progress = SILENT,
    ) -> JudgedQueries:
        """Read queries, judgments and filters in any form that :func:`rerank.evaluate` accepts.

        infer: infer the categories of queries without categories. seed: of random choices.
        """
        read_queries = as_queries(queries, ignore_categories=ignore_categories)
        return cls(
            queries=read_queries,
            qrels=as_qrels(qrels, read_queries),
            filters=filters_of(filter),
            infer=infer,
            seed=seed,
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Judged queries, and the pipeline that finds and scores their candidates.

    queries:         the judged queries with a text, by id.
    qrels:           the judgments of these queries.
    filters:         conditions for candidates.
    searches:        the searches of the stacks in their current form.
    unknown_queries: number of judged queries without a text.
    """

    workspace: Workspace
    pipeline: Pipeline
    queries: Sequence[Query]
    qrels: Qrels
    filters: Sequence[Filter]
    searches: Sequence[SearchTemplate]
    unknown_queries: int
    progress: Progress

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
        signals: dict[str, None] = {}
        retrievers: dict[str, None] = {}
        stack_searches: dict[SearchTemplate, None] = {}
        for stack in stacks:
            signals |= dict.fromkeys(stack.signals)
            retrievers |= dict.fromkeys(retriever_depths(stack.retrieve))
            if stack.search is not None:
                stack_searches[stack.search] = None
        pipeline = workspace.pipeline(
            list(signals), retrieve=retrievers, infer_categories=judged.infer, versions=versions
        )
        query_by_id = {query.id: query for query in judged.queries}
        queries = list(with_keys(query_by_id, sorted(judged.qrels)).values())
        if not queries:
            problem = "no judged query is in the query file" if query_by_id else "no queries are given"
            raise InputError(f"{problem}; check that --queries and --qrels belong together")
        check_filters(list(stack_searches), judged.filters)
        searches = [check_search(workspace, search, queries) for search in stack_searches]
        with suppress(WorkspaceError, EngineError):  # busy or read-only: features are computed per query
            encode(workspace, pipeline.rankers.values(), progress=judged.progress)
        return cls(
            workspace=workspace,
            pipeline=replace(pipeline, vectors=workspace.query_vectors),
            unknown_queries=len(judged.qrels) - len(queries),
            searches=searches,
            queries=queries,
            qrels=Qrels({query.id: judged.qrels[query.id] for query in queries}),
            filters=judged.filters,
            progress=judged.progress,
        )

    def table(
        self,
        *,
        signals: Sequence[str],
        first_stage: str,
        protocol: Protocol,
        retrieve: Sequence[str] = (),
        search: SearchTemplate | None = None,
        every_case: bool = False,
    ) -> tuple[ScoreTable, ScoringReport]:
        """Score the candidates of every query by the signals, and count the omissions.

        The arguments are fields of :class:`TableRequest`.
        """
        request = TableRequest(
            queries=self.queries,
            qrels=self.qrels,
            signals=signals,
            first_stage=first_stage,
            protocol=protocol,
            retrieve=retrieve,
            search=search,
            filters=self.filters,
            every_case=every_case,
        )
        table, report = score_table(self.pipeline, request, self.progress)
        report.unknown_queries = self.unknown_queries
        return table, report


def check_search(workspace: Workspace, search: SearchTemplate, queries: Sequence[Query]) -> SearchTemplate:
    """Try a search on the first query and return its current form.

    Raises InputError for a run of other queries or documents, or a template field without values.
    """
    if search.kind == "run":
        hits: set[str] = set()
        for query in queries:
            hits.update(id for id, _ in search.hits.get(query.id, ()))
        if not hits:
            raise InputError(f"{search}: has none of the queries; make the run with the ids of --queries")
        unknown = sorted(hits - workspace.engine.contains(hits))
        if unknown:
            raise InputError(
                f"{search}: {count_of(len(unknown), 'document')} not in the workspace ({unknown[0]!r} first);"
                " make the run of the same documents"
            )
    checked = workspace.engine.check_template(search, queries[0])
    check_values(checked, queries)
    return checked
