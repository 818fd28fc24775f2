"""The claims of Yih, Toutanova, Platt, Meek (2011)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from running import results
from tables import Claim, Paper, Table, mean, p_text, shown
from verdicts import NO_DATA, NOT_RUN, Difference, all_of, difference, untested

ORDER = ("cllsi", "lsi", "cca", "opca", "s2net")
BASELINE = "input vectors"
"""Cosine of the vectors that S2Net projects. The paper calls it TFIDF."""


def _p(found: Mapping[str, Any], better: str, than: str) -> float:
    return float(next(t["p"] for t in found["tests"] if (t["better"], t["than"]) == (better, than)))


def _dimensions(found: Mapping[str, Any]) -> list[Claim]:
    mrr, command = found["mrr"], found["command"]
    dims = list(mrr["s2net"])
    others = [name for name in ORDER if name != "s2net"]
    p = _p(found, "s2net", "opca")
    gaps = {k: mrr["s2net"][k] - mrr["opca"][k] for k in dims}
    p_opca = _p(found, "opca", "cca")

    def above(name: str, rest: Sequence[str], p: float) -> str:
        """Return the verdict over all dimensions. p: the largest p-value."""
        return all_of(difference([mrr[name][k] - max(mrr[r][k] for r in rest)], [p]).above() for k in dims)

    rises = [mrr[name][a] < mrr[name][b] for name in ORDER for a, b in pairwise(dims)]
    fewer = next((k for k in dims if mrr["s2net"][k] >= mrr["opca"][dims[-1]]), None)
    of = f"{found['collection']}"
    return [
        Claim(
            "S2Net is above all other methods at every dimension",
            "4.1, figure 2",
            above("s2net", others, p),
            f"{of}: figure 2 below (p at most {p_text(p)})",
            command,
        ),
        Claim(
            "OPCA is the best of the others",
            "1, 4.1",
            above("opca", [name for name in others if name != "opca"], p_opca),
            f"{of}: above CCA, LSI and CL-LSI at every dimension; p against CCA at most 0.005, except at 500:"
            f" {p_text(p_opca)}",
            command,
        ),
        Claim(
            "The gap is especially large at low dimensions",
            "4.1, figure 2",
            untested(gaps[dims[0]] > gaps[dims[-1]]),
            f"{of}: S2Net above OPCA by {', '.join(f'{gap:.4f}' for gap in gaps.values())}",
            command,
        ),
        Claim(
            "S2Net at 500 dimensions is as good as OPCA at 2,000",
            "1, 4.1",
            untested(fewer is not None and int(fewer) < int(dims[-1])),
            f"{of}: 2,000 was not run; S2Net at {fewer} has {mrr['s2net'][fewer]:.4f}, OPCA at"
            f" {int(dims[-1]):,} {mrr['opca'][dims[-1]]:.4f}"
            if fewer
            else "",
            command,
        ),
        Claim(
            "Higher dimensions usually lead to better results",
            "4.1",
            untested(sum(rises) > len(rises) / 2),
            f"{of}: {sum(rises)} of {len(rises)} steps to the next dimension rise",
            command,
        ),
    ]


def _unprojected(found: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return the claim on S2Net against its input vectors, at each dimension."""
    rows = [(row["dim"], "random", row["mrr"], row["p"]) for row in found["s2net"]]
    rows += [(step["dim"], step["init"], step["mrr"], step["p"]) for step in _projected(steps)]
    tested = {dim for dim, *_ in rows}
    rows += [
        (step["dim"], step["init"], step["mrr"], None)
        for step in steps
        if step["table"] == "starts" and step["dim"] not in tested
    ]
    figures = ", ".join(
        f"k = {dim:,} from {init}: {mrr:.4f} ({'not tested' if p is None else f'p {p_text(p)}'})"
        for dim, init, mrr, p in sorted(rows, key=lambda row: row[:2])
    )
    return [
        Claim(
            "S2Net is above the cosine of the vectors that it projects, at every k",
            "not in the paper",
            all_of(difference([mrr - found["mrr"]], [p]).above() for _, _, mrr, p in rows),
            f"{found['collection']}: MRR {BASELINE} {found['mrr']:.4f}; {figures}",
            found["command"],
        )
    ]


def _projected(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [step for step in steps if step["table"] == "projected"]


def _labels(steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return claims on the second task at larger dimensions, from the start of the paper."""
    claims = []
    for step in _projected(steps):
        both = {name: (one["s2net"], one["input"], one["p"]) for name, one in step["second"].items()}
        pooled = step["pooled"]
        both["pooled AUC"] = pooled["auc"], pooled["input"], pooled["p"]
        figures = ", ".join(
            f"{name} {ours:.4f}, {BASELINE} {theirs:.4f} (p {p_text(p)})"
            for name, (ours, theirs, p) in both.items()
        )
        claims.append(
            Claim(
                f"The same at k = {step['dim']:,}, from {step['init'].upper()}, on all train queries",
                "4.2, table 2",
                all_of(difference([ours - theirs], [p]).above() for ours, theirs, p in both.values()),
                f"{step['collection']}: {figures}",
                step["command"],
            )
        )
    return claims


def _starts(steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return the claim on the starts at the dimension of the paper, from the existing results."""
    by = {step["init"]: step for step in steps if step["table"] == "starts" and step["seed"] == 0}
    if not by:
        return [
            Claim("the same", "4.1, footnote 2", NOT_RUN, "at k = 1,000: `002.py --starts` has the steps")
        ]
    names = {"opca": "OPCA", "cllsi": "CL-LSI", "random": "random"}
    first = next(iter(by.values()))
    figures = ", ".join(
        f"{text} {by[name]['dev']:.4f} (MRR {by[name]['mrr']:.4f})" if name in by else f"{text} not run yet"
        for name, text in names.items()
    )
    others = [by[name] for name in ("cllsi", "random") if name in by]
    best = "opca" in by and all(by["opca"][key] > one[key] for one in others for key in ("dev", "mrr"))
    return [
        Claim(
            "the same",
            "4.1, footnote 2",
            untested(best) if "opca" in by and others else NOT_RUN,
            f"{first['collection']}, {first['pairs']:,} queries, k = {first['dim']:,}: dev NDCG from"
            f" {figures}",
            first["command"],
        )
    ]


def _options(found: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    dev, command = found["dev"], found["command"]
    of = f"{found['collection']}, {found['pairs']:,} queries, k = {found['dim']}"
    gammas = [dev[name] for name in ("default", "gamma 5", "gamma 20")]
    return [
        Claim(
            "OPCA is the best start, CL-LSI and random gain less (k = 1,000)",
            "4.1, footnote 2",
            untested(dev["from opca"] > max(dev["from cllsi"], dev["from random"], dev["default"])),
            f"{of}: dev NDCG from OPCA {dev['from opca']:.4f}, CL-LSI {dev['from cllsi']:.4f}, random"
            f" {dev['from random']:.4f}; from LSI, which the paper does not try, {dev['default']:.4f}",
            command,
        ),
        *_starts(steps),
        Claim(
            "gamma makes no difference if it is large enough",
            "3.2",
            untested(max(gammas) - min(gammas) < 0.005),
            f"{of}: dev NDCG {gammas[1]:.4f} at 5, {gammas[0]:.4f} at 10, {gammas[2]:.4f} at 20",
            command,
        ),
        Claim(
            "Early stopping is better than staying near the start",
            "3.2",
            untested(dev["default"] > max(dev["beta 0.00001"], dev["beta 0.0001"])),
            f"{of}: dev NDCG {dev['default']:.4f}; with beta {dev['beta 0.00001']:.4f} and"
            f" {dev['beta 0.0001']:.4f}",
            command,
        ),
    ]


def _one_language(found: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    claims = []
    for step in (one for one in steps if one["table"] == "one language"):
        values = step["nDCG"]
        claims.append(
            Claim(
                "the same" if claims else "In one language S2Net is above tf-idf",
                "4.2, table 2",
                difference([values["s2net"] - values[BASELINE]], [step["p"][BASELINE]]).above(),
                f"{step['collection']}, {step['queries']} queries: NDCG {values['s2net']:.4f}, {BASELINE}"
                f" {values[BASELINE]:.4f} (p {p_text(step['p'][BASELINE])}), signal `tfidf`"
                f" {values['tfidf']:.4f}",
                step["command"],
            )
        )
    for row in found["rows"]:
        p = f" (p {row['p']:.2g})" if row["p"] is not None else ""
        claims.append(
            Claim(
                "the same" if claims else "In one language S2Net is above tf-idf",
                "4.2, table 2",
                difference([row["s2net"] - row["tfidf"]], [row["p"]]).above(),
                f"{row['collection']}, {row['queries']} queries: NDCG {row['s2net']:.4f}, signal `tfidf`"
                f" {row['tfidf']:.4f}{p}; both together {row['stack']:.4f}",
                row.get("command", found["command"]),
            )
        )
    return claims


Seeds = list[Mapping[str, Any]]
"""Runs that differ only in their seed."""


def _by(
    steps: Sequence[Mapping[str, Any]], tables: Sequence[str], rows: str
) -> dict[tuple[Any, ...], dict[int, Seeds]]:
    """Return values of the fields ``tables`` -> value of the field ``rows``, sorted -> runs of all seeds."""
    found: dict[tuple[Any, ...], dict[int, Seeds]] = {}
    for step in steps:
        key = tuple(step[name] for name in tables)
        found.setdefault(key, {}).setdefault(step[rows], []).append(step)
    return {key: dict(sorted(of.items())) for key, of in sorted(found.items())}


def _by_size(steps: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], dict[int, Seeds]]:
    """Return (collection, dimension) -> number of train queries -> runs of all seeds."""
    return _by(steps, ("collection", "dim"), "pairs")


def _sizes(steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    says, where = "More pairs are better", "4.3"
    if not steps:
        return [Claim(says, where, NOT_RUN, "`002.py` has the steps: 500 to all pairs")]
    claims = []
    for (name, dim), sizes in _by_size(steps).items():
        reached = [mean([run["mrr"] for run in runs]) for runs in sizes.values()]
        rising = all(a < b for a, b in pairwise(reached))
        figures = ", ".join(f"{size:,}: {value:.4f}" for size, value in zip(sizes, reached))
        first = next(iter(sizes.values()))
        claims.append(
            Claim(
                "the same" if claims else says,
                where,
                untested(rising) if len(reached) > 1 else NOT_RUN,
                f"{name}, k = {dim}, MRR of both directions by train queries: {figures}; seeds: {len(first)}",
                first[-1]["command"],
            )
        )
    return claims


AUC_FROM = 300
"""Smallest k at which the paper claims a better AUC."""


def _filters(steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    says = "S2Net separates labels better than TFIDF, in NDCG at every k and in AUC from k = 300"
    where = "4.2, tables 2 and 3"
    if not steps:
        return [Claim(says, where, NOT_RUN, "mirrored on grades: `002.py --filter` has the steps")]
    claims = []
    for (name, dim, _), runs in _second_tasks(steps).items():
        rows = {way: _means(runs, way) for way in runs[0]["ways"]}
        base = rows[BASELINE]
        gaps = {
            (way, measure): _difference(runs, way, measure)
            for way in rows
            if way != BASELINE
            for measure in base
        }
        for way in (one for one in rows if one.startswith("s2net")):
            figures = ", ".join(
                f"{measure} {rows[way][measure]:.4f}, {BASELINE} {base[measure]:.4f}"
                f" (p {_p_text(gaps[way, measure])})"
                for measure in base
            )
            claims.append(
                Claim(
                    "the same" if claims else says,
                    where,
                    all_of(
                        gaps[way, measure].above() for measure in base if dim >= AUC_FROM or measure == "nDCG"
                    ),
                    f"{name}, grade 2 against grade 1, {runs[0]['queries']:,} queries, k = {dim}, {way}:"
                    f" {figures}; {_runs_of(runs)}",
                    runs[-1]["command"],
                )
            )
        claims.append(
            Claim(
                "and the other projections are below",
                where,
                all_of(gaps[way, measure].below() for way in ("lsi", "opca") for measure in base),
                f"{name}: "
                + ", ".join(f"{way} AUC {rows[way]['AUC(rel=2)']:.4f}" for way in ("lsi", "opca"))
                + f", {BASELINE} {base['AUC(rel=2)']:.4f}; p "
                + ", ".join(_p_text(gaps[way, "AUC(rel=2)"]) for way in ("lsi", "opca")),
                runs[-1]["command"],
            )
        )
    return claims


def _second_tasks(steps: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], Seeds]:
    """Return (collection, dimension, number of train queries) -> runs of all seeds."""
    second = [step for step in steps if step["table"] == "second task"]
    by = _by(second, ("collection", "dim", "pairs"), "queries")
    return {key: runs for key, of in by.items() for runs in of.values()}


def _means(runs: Seeds, way: str) -> dict[str, float]:
    return {measure: mean([run["ways"][way][measure] for run in runs]) for measure in runs[0]["ways"][way]}


def _difference(runs: Seeds, way: str, measure: str) -> Difference:
    """Return the difference of a way of ranking and the input vectors of S2Net."""
    deltas = [run["ways"][way][measure] - run["ways"][BASELINE][measure] for run in runs]
    tests = [{(one["stack"], one["measure"]): one["p"] for one in run["tests"]} for run in runs]
    baseline = _means(runs, BASELINE)[measure]
    return difference(deltas, [test.get((way, measure)) for test in tests], baseline)


def _p_text(gap: Difference) -> str:
    return "not tested" if gap.p is None else p_text(gap.p)


def _runs_of(runs: Seeds) -> str:
    return f"seeds: {len(runs)}" if len(runs) > 1 else "one run"


def _extra(steps: Sequence[Mapping[str, Any]]) -> list[Table]:
    tables = []
    for (name, dim, pairs), runs in _second_tasks(steps).items():
        first = runs[0]
        measures = list(first["ways"][BASELINE])
        rows = [
            [way, *(shown([run["ways"][way][measure] for run in runs]) for measure in measures)]
            for way in first["ways"]
        ]
        note = f"{pairs:,} train queries, k = {dim}; {_runs_of(runs)}; {first['queries']:,} test queries."
        title = f"The second task, mirrored: grade 2 against grade 1, {name}"
        tables.append(Table(title, ["", *measures], rows, note))
    return tables


def _mrr(found: Mapping[str, Any], unprojected: Mapping[str, Any]) -> Table:
    """Return the table of figure 2, with the mean reciprocal rank only."""
    mrr = found["mrr"]
    dims = list(mrr["s2net"])
    return Table(
        f"Figure 2: MRR over dimensions, {found['collection']}, both directions",
        ["", *(f"k = {int(k):,}" for k in dims)],
        [
            [BASELINE, *[f"{unprojected['mrr']:.4f}"] * len(dims)],
            *([name, *(f"{mrr[name][k]:.4f}" for k in dims)] for name in ORDER),
        ],
        f"{found['pairs']:,} train pairs, {found['test_pairs']:,} test pairs. *{BASELINE}*: the cosine of the"
        f" vectors of {unprojected['terms']:,} terms that are projected, the TFIDF of the paper. The signal"
        f" `tfidf` of the engine has other terms, and MRR {found['tfidf']['mrr']:.4f}. S2Net from a random"
        " start.",
    )


def paper() -> Paper:
    """Return claims and tables from the existing results."""
    steps = results("002")
    by = {step["step"]: step for step in steps}
    dimensions, options = by["debian.de-dimensions"], by["debian.de-options"]
    dims = list(dimensions["mrr"]["s2net"])
    unprojected = by["debian.de-input-vectors"]
    rows = [
        [BASELINE, *[f"{unprojected['mrr']:.4f} / {unprojected['top1']:.4f}"] * len(dims)],
    ]
    rows += [
        [name, *(f"{dimensions['mrr'][name][k]:.4f} / {dimensions['top1'][name][k]:.4f}" for k in dims)]
        for name in ORDER
    ]
    starts = [[name, f"{value:.4f}", f"{options['mrr'][name]:.4f}"] for name, value in options["dev"].items()]
    sizes = [step for step in steps if step["table"] == "training size"]
    return Paper(
        "002: S2Net and the projections",
        "W. Yih, K. Toutanova, J. C. Platt, C. Meek: Learning Discriminative Projections for Text"
        " Similarity Measures."
        " CoNLL 2011. How the code differs: [projections](rankers.md#projections). Its text"
        " gives three figures: at k = 1,000 (dev) MRR is 0.7660 for OPCA, 0.7745 for S2Net from CL-LSI and"
        " 0.7855 for S2Net from OPCA. One run, unless seeds are given.",
        [
            *_dimensions(dimensions),
            *_unprojected(unprojected, steps),
            *_options(options, steps),
            *_sizes(sizes),
            *_one_language(by["one-language"], steps),
            Claim(
                "On English and Spanish Wikipedia, also against JPLSA and CPLSA",
                "4.1, table 1",
                NO_DATA,
                "neither the collection nor these methods are available",
            ),
            Claim(
                "As a filter of advertisements, only S2Net is above tf-idf in AUC and NDCG",
                "4.2, tables 2 and 3, figure 3",
                NO_DATA,
                "no labeled query-advertisement pairs are available",
            ),
            *_filters([step for step in steps if step["table"] == "second task"]),
            *_labels(steps),
        ],
        [
            Table(
                f"Figure 2: over dimensions, {dimensions['collection']}, MRR / top-1, means of both"
                f" directions",
                ["", *(f"k = {int(k):,}" for k in dims)],
                rows,
                f"{dimensions['pairs']:,} train pairs, {dimensions['test_pairs']:,} test pairs. *{BASELINE}*:"
                f" the cosine of the vectors of {unprojected['terms']:,} terms that are projected. The signal"
                f" `tfidf` of the engine has other terms, and MRR {dimensions['tfidf']['mrr']:.4f}."
                f" {dimensions['note']}",
            ),
            Table(
                f"Starts and options, {options['collection']}, {options['pairs']:,} train queries, k ="
                f" {options['dim']}",
                ["", "dev NDCG", "MRR of test pairs"],
                starts,
                options["note"],
            ),
            *(
                Table(
                    f"By train queries, {name}, k = {dim}, both directions",
                    ["train queries", "MRR", "top-1"],
                    [
                        [f"{size:,}", *(shown([run[key] for run in runs]) for key in ("mrr", "top1"))]
                        for size, runs in of.items()
                    ],
                )
                for (name, dim), of in _by_size(sizes).items()
            ),
            *_extra(steps),
        ],
        results=steps,
        page=[_mrr(dimensions, unprojected)],
    )
