"""Compare runs of any system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rerank.errors import UsageError
from rerank.evaluation.measures import MEASURES, check_measures
from rerank.inputs import Judgments, Run, as_list, as_qrels, as_run
from rerank.report_page.tables import EvaluationReport

PROTOCOL = "runs"


@dataclass
class RunsReport(EvaluationReport):
    """An evaluation of runs. empty: run -> judged queries without documents."""

    empty: dict[str, int] = field(default_factory=dict)


def compare(
    runs: Mapping[str, Run], qrels: Judgments, *, measures: Sequence[str] = (), seed: int = 0
) -> RunsReport:
    """Measure runs and compare them with the first one.

    runs: name -> query -> document ids, best first, or (id, score) pairs.
    measures: Default: ``MEASURES``; the first is compared.

    Raises UsageError for a single run.

    >>> from rerank import Qrels
    >>> qrels = Qrels([("q1", "a", 1), ("q2", "b", 1)])
    >>> compare({"old": {"q1": ["b", "a"]}, "new": {"q1": ["a"], "q2": ["b"]}}, qrels, measures=["RR"])
    protocol  stack      RR   delta  p_holm
    --------  -----  ------  ------  ------
    runs      old    0.2500
    runs      new    1.0000  0.7500  0.5000
    """
    if not isinstance(runs, Mapping) or len(runs) < 2:
        raise UsageError("give two or more runs (in Python, a mapping of names to runs)")
    baseline, measures = next(iter(runs)), as_list(measures)
    rankings = {name: as_run(name, run) for name, run in runs.items()}
    by = list(check_measures(measures)) if measures else [MEASURES[0]]
    report = RunsReport(baseline=baseline, compared=by)
    report.empty = dict(report.measure(PROTOCOL, rankings, as_qrels(qrels), measures or MEASURES, seed).empty)
    return report
