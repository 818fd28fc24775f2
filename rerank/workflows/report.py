"""The HTML report of an evaluation."""

from __future__ import annotations

import os
from inspect import signature
from typing import Any

from rerank.errors import UsageError
from rerank.files import check_output, write_text
from rerank.formats import read_qrels
from rerank.inputs import Judgments, Queries, as_queries
from rerank.rankers.registry import load_object
from rerank.report_page.tables import EvaluationReport
from rerank.workflows.evaluate import evaluate
from rerank.workflows.evaluated import remembered
from rerank.workspace import Workspace

PAGE = "rerank.report_page.page:evaluation_page"
PAGE_MARK = 'name="generator" content="rerank"'
"""Text in every page. Other existing files are not replaced."""
KEPT = 10
"""Hits per ranking on the page."""


def report(
    workspace: Workspace,
    name: str | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    queries: Queries | None = None,
    qrels: Judgments | None = None,
    **how: Any,
) -> EvaluationReport:
    """Repeat the last evaluation, write its page, and return the numbers.

    name: a stack. Default: the evaluated stacks, or the active one.
    out: Default: ``report.html`` in the workspace. queries, qrels, how: replace settings of :func:`evaluate`.

    Raises UsageError without an evaluation or queries, or if ``out`` is another kind of file, WorkspaceError
    for an unknown stack.

    >>> import tempfile
    >>> from rerank import Document, Qrels, Query, Workspace, evaluate
    >>> folder = tempfile.mkdtemp()
    >>> workspace = Workspace.create(folder + "/ws", lang="en")
    >>> workspace.engine.write([Document("wolf", text="a wolf hunts"), Document("fox", text="a fox")]).added
    2
    >>> queries, qrels = [Query("q1", "wolf")], Qrels([("q1", "wolf", 1)])
    >>> row = evaluate(workspace, ["bm25"], queries=queries, qrels=qrels).rows()[0]
    >>> report(workspace, out=folder + "/page.html").rows()[0] == row
    True
    """
    out = workspace.folder / "report.html" if out is None else out
    check_output(out, PAGE_MARK)
    if name is not None:
        workspace.stack(name)  # raises before the long work
    last = remembered(workspace)
    if "queries" not in last and (queries is None or qrels is None):
        raise UsageError(f"nothing was evaluated in {workspace.folder} yet; give --queries and --qrels")
    queries = as_queries(last["queries"] if queries is None else queries)
    conflicts = last.get("conflicts", "refuse")
    split = ""
    if qrels is None:
        qrels, split = read_qrels(last["qrels"], conflicts=conflicts), os.path.basename(last["qrels"])
    takes = signature(evaluate).parameters.keys() - {"workspace", "stacks", "queries", "qrels"}
    settings = {key: value for key, value in last.items() if key in takes} | how
    stacks = (name,) if name is not None else last.get("stacks", (workspace.default_stack,))
    evaluation = evaluate(workspace, stacks, queries=queries, qrels=qrels, **{"keep": KEPT, **settings})
    write_text(out, load_object(PAGE)(workspace, evaluation, queries, split), follow=True)
    return evaluation
