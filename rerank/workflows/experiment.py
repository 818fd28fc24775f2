"""What tuning and evaluation share: the judged queries, and what each signal gives their candidates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from rerank.combiners.score_table import ScoreTable
from rerank.errors import EngineError, InputError, WorkspaceError
from rerank.evaluation.protocols import Protocol
from rerank.filters import Filter
from rerank.formats.templates import check_brought
from rerank.progress import Progress
from rerank.records import Qrels, Query, SearchTemplate
from rerank.search.build_table import ScoringReport, TableRequest, candidate_recall, score_table, top
from rerank.search.pipeline import Pipeline, check_clauses, check_filters
from rerank.text import plural
from rerank.workflows.ingest import encode
from rerank.workspace import Workspace


@dataclass
class Experiment:
    """Queries that are judged and known, their judgments, and the pipeline that scores their candidates.

    unknown_queries: how many judged queries there is no text of: they can be neither tuned nor measured on.
    """

    workspace: Workspace
    pipeline: Pipeline
    queries: list[Query]
    qrels: Qrels
    unknown_queries: int
    seed: int
    progress: Progress | None
    filters: Sequence[Filter] = ()
    _tables: dict[object, tuple[ScoreTable, ScoringReport]] = field(default_factory=dict)

    @classmethod
    def prepare(
        cls,
        workspace: Workspace,
        signals: Sequence[str],
        queries: Sequence[Query],
        qrels: Qrels,
        retrieve: Iterable[str],
        ignore_categories: bool,
        infer: bool,
        seed: int,
        progress: Progress | None,
        searches: Sequence[SearchTemplate] = (),
        versions: Mapping[str, str] | None = None,
        filters: Sequence[Filter] = (),
    ) -> Experiment:
        """Compute the features that are missing and keep what is judged of the queries.

        searches: the user's own that will find candidates; they are tried before anything is done.
        versions: of the rankers; not named: the newest.
        filters: what the candidates of all others must fulfil.

        Raises InputError when no judged query is known, or a run is of other queries or documents.
        """
        pipeline = workspace.pipeline(signals, retrieve=retrieve, infer_categories=infer, versions=versions)
        by_id = {query.id: query for query in queries}
        known = [by_id[id] for id in sorted(qrels) if id in by_id]
        if ignore_categories:
            known = [replace(query, categories=()) for query in known]
        kept = Qrels((q.id, d, grade) for q in known for d, grade in qrels[q.id].items())
        if not kept:
            what = "no judged query is in the query file" if queries else "there are no queries"
            raise InputError(f"{what}; check that --queries and --qrels belong together")
        check_filters(searches, filters)
        for search in searches:
            tried = check_search(workspace, search, known)
            if len(searches) == 1 and search.kind != "run":
                check_clauses(tried, signals)
        with suppress(WorkspaceError, EngineError):  # busy or read-only: it is computed on the way
            encode(workspace, pipeline.rankers.values(), progress=progress)  # once, not again for every query
        return cls(workspace, pipeline, known, kept, len(qrels) - len(known), seed, progress, filters)

    def table(
        self,
        protocol: Protocol,
        signals: Sequence[str],
        first_stage: str,
        retrieve: Sequence[str] = (),
        *,
        search: SearchTemplate | None = None,
        every_case: bool = False,
        deepest: int = 0,
        cached: bool = False,
    ) -> tuple[ScoreTable, ScoringReport]:
        """Score the candidates of every query, once for all that asks for the same.

        search: the user's own, where ``first_stage`` is ``search``.
        every_case: a row for each case that a query can be in (``rerank.combiners.base.CASES``).
        deepest: the largest N of ``retrieved:N`` that will be asked for. cached: keep it in the workspace.
        """
        # What the first stage finds at a smaller depth is the top of what it finds at a larger one.
        shared = protocol.kind == "retrieved" and not retrieve
        asked = Protocol(protocol.kind, max(deepest, protocol.count)) if shared else protocol
        key = asked, tuple(signals), first_stage, tuple(retrieve), search, every_case
        if key not in self._tables:
            request = TableRequest(
                queries=self.queries,
                qrels=self.qrels,
                signals=signals,
                first_stage=first_stage,
                protocol=asked,
                retrieve=retrieve,
                search=search,
                filters=self.filters,
                every_case=every_case,
                seed=self.seed,
            )
            cache = self.workspace.folder / "cache" if cached else None
            table, report = score_table(self.pipeline, request, cache=cache, progress=self.progress)
            self._tables[key] = table, replace(report, unknown_queries=self.unknown_queries)
        table, report = self._tables[key]
        if asked != protocol:
            table = top(table, first_stage, protocol.count)
            report = replace(report, candidate_recall={first_stage: candidate_recall(table, self.qrels)})
        return table, report


def check_search(workspace: Workspace, search: SearchTemplate, queries: Sequence[Query]) -> SearchTemplate:
    """Return a search of the user's own as it is now, after trying it on the first of the queries.

    Raises InputError for a run of other queries or documents, and for a template with a field that no query
    has, and whatever :meth:`Engine.check_template` does.
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
    found = workspace.engine.check_template(search, queries[0])
    check_brought(found, queries)
    return found
