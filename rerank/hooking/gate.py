"""The last gate before every search is reranked: judged queries, searched plainly and through the hook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rerank.errors import EngineError, InputError, UsageError, action_hint, setting_hint
from rerank.evaluation.measures import evaluate_runs
from rerank.evaluation.significance import compare
from rerank.formats.templates import check_brought
from rerank.hooking.base import Hook
from rerank.hooking.plugin import EXT, PluginHook
from rerank.records import Qrels, Query, SearchTemplate
from rerank.results import Report


@dataclass
class Gate(Report):
    """What the hook makes of the searches that production sends.

    measure:  what is compared, over ``queries`` judged queries; plain, hooked: its means.
    p:        of the paired randomization test; wins, losses: queries that the hook makes better, or worse.
    outcomes: what became of the searches, with the reason: ``reranked``, ``passed: sort``, ...
    weights:  those that were taken, for which case of queries, and for how many ``searches``.
    """

    pipeline: str
    template: str
    measure: str
    queries: int
    plain: float
    hooked: float
    p: float
    wins: int
    losses: int
    outcomes: dict[str, int] = field(default_factory=dict)
    weights: list[dict[str, Any]] = field(default_factory=list)


def gate(
    hook: Hook,
    search: SearchTemplate,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    count: int = 10,
    seed: int = 0,
) -> Gate:
    """Make each judged query's search as a client does, without the hook and through it, and compare.

    count: hits of a page, and the cut-off of nDCG.

    Raises EngineError where there is no pipeline, InputError where no query is judged, UsageError for a run
    and for the stock route, which reranks no plain search.
    """
    if not isinstance(hook, PluginHook) or search.kind == "run":
        raise UsageError(
            f"only a search through the plugin is made as any client's; give {setting_hint('template')} and"
            f" {setting_hint('route', 'plugin')}"
        )
    config = hook.config()
    if config is None:
        made = action_hint("hook", "install", route=hook.route)
        raise EngineError(f"there is no pipeline {hook.name!r}; {made} makes it")
    judged = [query for query in queries if qrels.relevant(query.id)]
    if not judged:
        raise InputError(
            f"no query has a relevant document; check that {setting_hint('queries')} and"
            f" {setting_hint('qrels')} belong together"
        )
    templates = hook.engine.templates
    search = templates.check(search, judged[0])
    check_brought(search, judged)
    runs: dict[str, dict[str, list[str]]] = {"plain": {}, "hooked": {}}
    outcomes: Counter[str] = Counter()
    taken: Counter[tuple[tuple[str, str], ...]] = Counter()
    for query in judged:
        body = templates.body(search, query)
        runs["plain"][query.id] = _ids(hook.search(templates.asked(body, count)))
        ext = {**body.get("ext", {}), EXT: {**body.get("ext", {}).get(EXT, {}), "explain": True}}
        shown = {name: value for name, value in body.items() if name != "search_pipeline"}
        answer = hook.search({**shown, "size": count, "ext": ext}, search_pipeline=hook.name)
        runs["hooked"][query.id] = _ids(answer)
        about = answer.get("ext", {}).get(EXT, {})
        reason = f": {about['reason']}" if about.get("reason") else ""
        outcomes[f"{about.get('outcome', 'unknown')}{reason}"] += 1
        if about.get("weights"):
            taken[tuple(about["weights"].items())] += 1
    measure = f"nDCG@{count}"
    kept = Qrels((query.id, d, grade) for query in judged for d, grade in qrels[query.id].items())
    evaluation = evaluate_runs(runs, kept, [measure])
    (found,) = compare(evaluation, "plain", seed=seed)
    return Gate(
        pipeline=hook.name,
        template=str(search),
        measure=measure,
        queries=len(judged),
        plain=evaluation.mean("plain", measure),
        hooked=evaluation.mean("hooked", measure),
        p=found.p,
        wins=found.wins,
        losses=found.losses,
        outcomes=dict(outcomes.most_common()),
        weights=[{**dict(those), "searches": n} for those, n in taken.most_common()],
    )


def _ids(answer: Mapping[str, Any]) -> list[str]:
    return [hit["_id"] for hit in answer["hits"]["hits"]]
