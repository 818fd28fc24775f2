"""Report: what a trained ranker has learned, as a page."""

from __future__ import annotations

import os
from typing import Any

from rerank.errors import NotTrainedError, UsageError, action_hint
from rerank.rankers.registry import families, family, imported
from rerank.workspace import Workspace


def report(
    workspace: Workspace, name: str | None = None, out: str | os.PathLike[str] | None = None, **how: Any
) -> Any:
    """Write the page on a trained ranker, by the function that its family registers; return its numbers.

    name: None: the only one there that has a page. out: where it goes; None: ``NAME.html``. how: settings of
    the page, see :func:`rerank.reports.dense.report.report_dense`.

    Raises NotTrainedError where there is none.

    >>> import tempfile
    >>> from rerank import Document, RerankError, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> try:
    ...     report(workspace)
    ... except RerankError as error:
    ...     print(str(error).split(": ")[1])
    no ranker that has a report is trained; train one with train(dense)
    """
    makers = {one: family(workspace.kind(one)[0]) for one in workspace.trained()}
    with_report = [one for one, of in makers.items() if of.report]
    if name is None:
        if not with_report:
            able = [ranker for one in families().values() if one.report for ranker in one.rankers]
            raise NotTrainedError(
                f"{workspace.folder}: no ranker that has a report is trained; train one with"
                f" {action_hint('train', *able[:1])}"
            )
        if len(with_report) > 1:
            raise UsageError(f"name one of {', '.join(with_report)}: each has a report of its own")
        (name,) = with_report
    kind = workspace.kind(name)[0]
    place = family(kind).report
    if place is None:
        also = f"; there are reports of {', '.join(with_report)}" if with_report else ""
        raise UsageError(f"{name}, of the family {kind}, has no report{also}")
    return imported(place)(workspace, name, f"{name}.html" if out is None else out, **how)
