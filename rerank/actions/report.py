"""Report: an evaluation, or what a trained ranker has learned, as a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from inspect import signature
from typing import Any

from rerank.actions.evaluate import EvaluationReport, evaluate
from rerank.actions.evaluated import remembered
from rerank.arguments import checked
from rerank.errors import UsageError, setting_hint
from rerank.files import write_text
from rerank.formats import read_qrels, read_queries
from rerank.rankers.registry import family, imported, maker
from rerank.records import Qrels, Query
from rerank.workspace import Workspace

PAGE = "rerank.reports.evaluation.page:evaluation_page"
KEPT = 10
"""Hits of each ranking on the page."""


@checked
def report(
    workspace: Workspace,
    name: str | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    queries: Sequence[Query] | None = None,
    qrels: Qrels | None = None,
    **how: Any,
) -> Any:
    """Write a page on an evaluation, or on what a ranker has learned; return its numbers.

    name: None, or a stack: the page is on an evaluation, which is made as the last one of this workspace,
        but for the queries and judgements that are given and the arguments of :func:`evaluate` in ``how``.
        A trained ``dense`` or ``concept``: it is by the function that its family registers, whose arguments
        ``how`` has (:func:`rerank.reports.dense.report.report_dense`).
    out: where it goes; None: ``report.html``, or ``NAME.html`` of a ranker.

    Raises UsageError where nothing was evaluated and no queries are given.

    >>> import tempfile
    >>> from rerank import Document, Qrels, Query, Workspace, evaluate
    >>> folder = tempfile.mkdtemp()
    >>> workspace = Workspace.create(folder + "/ws", lang="en")
    >>> workspace.engine.ingest([Document("wolf", text="a wolf hunts"), Document("fox", text="a fox")]).added
    2
    >>> queries, qrels = [Query("q1", "wolf")], Qrels([("q1", "wolf", 1)])
    >>> row = evaluate(workspace, ["bm25"], queries=queries, qrels=qrels).rows()[0]
    >>> report(workspace, out=folder + "/page.html").rows()[0] == row
    True
    """
    trained = name is not None and name in workspace.trained()
    of = family(workspace.kind(name)[0]) if trained and name else maker(name) if name else None
    if name is not None and of is not None and of.report:
        workspace.kind(name)  # refuses one that is not trained
        return imported(of.report)(workspace, name, f"{name}.html" if out is None else out, **how)
    return _of_an_evaluation(workspace, name, out or "report.html", queries, qrels, how)


def _of_an_evaluation(
    workspace: Workspace,
    name: str | None,
    out: str | os.PathLike[str],
    queries: Sequence[Query] | None,
    qrels: Qrels | None,
    how: dict[str, Any],
) -> EvaluationReport:
    if name is not None:
        workspace.stack(name)  # refuses what is none, before the long work
    last = remembered(workspace)
    if "queries" not in last and (queries is None or qrels is None):
        raise UsageError(
            f"nothing was evaluated in {workspace.folder} yet; give {setting_hint('queries')} and"
            f" {setting_hint('qrels')}"
        )
    queries = read_queries(last["queries"]) if queries is None else queries
    conflicts = last.get("conflicts", "refuse")
    split = ""
    if qrels is None:
        qrels, split = read_qrels(last["qrels"], conflicts=conflicts), os.path.basename(last["qrels"])
    takes = signature(evaluate).parameters.keys() - {"workspace", "stacks", "queries", "qrels"}
    settings = {key: value for key, value in last.items() if key in takes} | how
    stacks = (name,) if name is not None else last.get("stacks", (workspace.default_stack,))
    found = evaluate(workspace, stacks, queries=queries, qrels=qrels, **{"keep": KEPT, **settings})
    write_text(out, imported(PAGE)(workspace, found, queries, split), follow=True)
    return found
