"""Judged queries and their scored candidates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rerank.combiners.score_table import ScoreTable
from rerank.errors import EngineError, InputError, WorkspaceError
from rerank.evaluation.protocols import Protocol
from rerank.filters import Filter, filters_of
from rerank.formats.templates import check_values
from rerank.inputs import Judgments, Queries, as_qrels, as_queries
from rerank.progress import Progress
from rerank.records import Qrels, Query, SearchTemplate
from rerank.search.build_table import ScoringReport, TableRequest, score_table
from rerank.search.pipeline import Pipeline, check_clauses, check_filters
from rerank.search.vector_cache import VectorCache
from rerank.text import plural
from rerank.workflows.encode import encode
from rerank.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class JudgedQueries:
    """Judged queries; see :func:`rerank.evaluate`."""

    queries: Sequence[Query]
    qrels: Qrels
    filters: Sequence[Filter] = ()
    ignore_categories: bool = False
    infer: bool = True
    seed: int = 0
    progress: Progress | None = None

    @classmethod
    def of(
        cls, queries: Queries, qrels: Judgments, filter: str | Sequence[str] = (), **more: Any
    ) -> JudgedQueries:
        """Read queries, judgments and filters in any form. more: other fields."""
        return cls(queries=as_queries(queries), qrels=as_qrels(qrels), filters=filters_of(filter), **more)


@dataclass
class Experiment:
    """Judged queries and their pipeline. unknown_queries: judged queries without text."""

    workspace: Workspace
    pipeline: Pipeline
    queries: list[Query]
    qrels: Qrels
    unknown_queries: int
    seed: int
    progress: Progress | None
    filters: Sequence[Filter] = ()

    @classmethod
    def prepare(
        cls,
        workspace: Workspace,
        signals: Sequence[str],
        judged: JudgedQueries,
        *,
        retrieve: Iterable[str] = (),
        searches: Sequence[SearchTemplate] = (),
        versions: Mapping[str, str] | None = None,
    ) -> Experiment:
        """Encode missing features and keep the judged queries with a text.

        searches: custom first stages. versions: ranker -> version; default: newest.

        Raises InputError if no query remains, or a run has other queries or documents.
        """
        pipeline = workspace.pipeline(
            signals, retrieve=retrieve, infer_categories=judged.infer, versions=versions
        )
        queries, qrels = {query.id: query for query in judged.queries}, judged.qrels
        known = [queries[id] for id in sorted(qrels) if id in queries]
        if judged.ignore_categories:
            known = [replace(query, categories=()) for query in known]
        kept = Qrels({query.id: qrels[query.id] for query in known})
        if not kept:
            problem = "no judged query is in the query file" if queries else "no queries are given"
            raise InputError(f"{problem}; check that --queries and --qrels belong together")
        check_filters(searches, judged.filters)
        for search in searches:
            checked = check_search(workspace, search, known)
            if len(searches) == 1 and search.kind != "run":
                check_clauses(checked, signals)
        with suppress(WorkspaceError, EngineError):  # busy or read-only: features are computed per query
            encode(workspace, pipeline.rankers.values(), progress=judged.progress)
        return cls(
            workspace,
            replace(pipeline, vectors=VectorCache()),  # a query is searched and scored in several cases
            known,
            kept,
            len(qrels) - len(known),
            judged.seed,
            judged.progress,
            judged.filters,
        )

    def table(
        self,
        protocol: Protocol,
        signals: Sequence[str],
        first_stage: str,
        retrieve: Sequence[str] = (),
        *,
        search: SearchTemplate | None = None,
        every_case: bool = False,
    ) -> tuple[ScoreTable, ScoringReport]:
        """Score the candidates of every query.

        search: if ``first_stage`` is ``search``. every_case: a row per query and case.
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
            seed=self.seed,
        )
        table, report = score_table(self.pipeline, request, self.progress)
        report.unknown_queries = self.unknown_queries
        return table, report


def check_search(workspace: Workspace, search: SearchTemplate, queries: Sequence[Query]) -> SearchTemplate:
    """Try a search on the first query and return its current form.

    Raises InputError for a run of other queries or documents, or a template field without values.
    """
    if search.kind == "run":
        hits = {id for query in queries for id, _ in search.hits.get(query.id, ())}
        if not hits:
            raise InputError(
                f"{search}: has none of {plural(len(queries), 'quer[y|ies]')}; make the run with the ids of"
                f" --queries"
            )
        unknown = sorted(hits - workspace.engine.contains(hits))
        if unknown:
            raise InputError(
                f"{search}: {len(unknown):,} of its {plural(len(hits), 'document[ is|s are]')} not in the"
                f" workspace ({unknown[0]!r} first); make the run of the same documents"
            )
    checked = workspace.engine.check_template(search, queries[0])
    check_values(checked, queries)
    return checked
