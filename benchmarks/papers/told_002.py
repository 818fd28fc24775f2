"""What is told of Yih, Toutanova, Platt, Meek (2011)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from running import results
from telling import FAILS, HOLDS, NO_DATA, NOT_RUN, Claim, Paper, Table, mean, p_text, shown, verdict

ORDER = ("cllsi", "lsi", "cca", "opca", "s2net")


def _p(found: Mapping[str, Any], better: str, than: str) -> float:
    return float(next(t["p"] for t in found["tests"] if (t["better"], t["than"]) == (better, than)))


def _dimensions(found: Mapping[str, Any]) -> list[Claim]:
    mrr, command = found["mrr"], found["command"]
    dims = list(mrr["s2net"])
    others = [name for name in ORDER if name != "s2net"]
    best = all(mrr["s2net"][k] > max(mrr[name][k] for name in others) for k in dims)
    p = _p(found, "s2net", "opca")
    gaps = {k: mrr["s2net"][k] - mrr["opca"][k] for k in dims}
    level = all(mrr["opca"][k] > max(mrr[name][k] for name in others if name != "opca") for k in dims)
    p_opca = _p(found, "opca", "cca")
    rises = [mrr[name][a] < mrr[name][b] for name in ORDER for a, b in pairwise(dims)]
    fewer = next((k for k in dims if mrr["s2net"][k] >= mrr["opca"][dims[-1]]), None)
    of = f"{found['collection']}, one run"
    return [
        Claim(
            "S2Net is above all other methods at every dimension",
            "4.1, figure 2",
            verdict(best, p),
            f"{of}: MRR {_line(mrr['s2net'])}; OPCA {_line(mrr['opca'])} (p at most {p_text(p)})",
            command,
        ),
        Claim(
            "OPCA is the best of the others",
            "1, 4.1",
            verdict(level, p_opca),
            f"{of}: above CCA, LSI and CL-LSI at every dimension; p against CCA at most 0.006, but for 500:"
            f" {p_text(p_opca)}",
            command,
        ),
        Claim(
            "The gap is especially large at low dimensions",
            "4.1, figure 2",
            HOLDS if gaps[dims[0]] > gaps[dims[-1]] else FAILS,
            f"{of}: S2Net above OPCA by {_line(gaps)}; not tested",
            command,
        ),
        Claim(
            "S2Net needs a fourth of the dimensions: at 500 as good as OPCA at 2,000",
            "1, 4.1",
            HOLDS if fewer and int(fewer) * 4 <= int(dims[-1]) else FAILS,
            f"{of}: S2Net at {fewer} has {mrr['s2net'][fewer]:.4f}, OPCA at {int(dims[-1]):,}"
            f" {mrr['opca'][dims[-1]]:.4f}; not tested"
            if fewer
            else "",
            command,
        ),
        Claim(
            "Higher dimensions usually lead to better results",
            "4.1",
            HOLDS if sum(rises) > len(rises) / 2 else FAILS,
            f"{of}: {sum(rises)} of {len(rises)} steps to the next dimension rise",
            command,
        ),
    ]


def _line(values: Mapping[str, float]) -> str:
    return ", ".join(f"k = {int(k):,}: {value:.4f}" for k, value in values.items())


def _options(found: Mapping[str, Any]) -> list[Claim]:
    dev, command = found["dev"], found["command"]
    of = f"{found['collection']}, {found['pairs']:,} queries, k = {found['dim']}, one run"
    gammas = [dev[name] for name in ("default", "gamma 5", "gamma 20")]
    return [
        Claim(
            "OPCA is the best start, CL-LSI and random gain less (k = 1,000)",
            "4.1, footnote 2",
            HOLDS if dev["from opca"] > max(dev["from cllsi"], dev["from random"], dev["default"]) else FAILS,
            f"{of}: dev NDCG from OPCA {dev['from opca']:.4f}, CL-LSI {dev['from cllsi']:.4f}, random"
            f" {dev['from random']:.4f}, but from LSI, which the paper does not try, {dev['default']:.4f};"
            " at k = 1,000 not run yet",
            command,
        ),
        Claim(
            "gamma makes no difference as long as it is large enough",
            "3.2",
            HOLDS if max(gammas) - min(gammas) < 0.005 else FAILS,
            f"{of}: dev NDCG {gammas[1]:.4f} at 5, {gammas[0]:.4f} at 10, {gammas[2]:.4f} at 20; not tested",
            command,
        ),
        Claim(
            "Early stopping is better than staying near the start",
            "3.2",
            HOLDS if dev["default"] > max(dev["beta 0.00001"], dev["beta 0.0001"]) else FAILS,
            f"{of}: dev NDCG {dev['default']:.4f}; with beta {dev['beta 0.00001']:.4f} and"
            f" {dev['beta 0.0001']:.4f}; not tested",
            command,
        ),
    ]


def _one_language(found: Mapping[str, Any]) -> list[Claim]:
    claims = []
    for number, row in enumerate(found["rows"]):
        p = f" (p {row['p']:.2g})" if row["p"] is not None else ""
        claims.append(
            Claim(
                "In one language S2Net alone is above tf-idf" if not number else "the same",
                "4.2, table 2",
                verdict(row["s2net"] > row["tfidf"], row["p"]),
                f"{row['collection']}, {row['queries']} queries: NDCG {row['s2net']:.4f}, tf-idf"
                f" {row['tfidf']:.4f}{p}; both together {row['stack']:.4f}",
                found["command"],
            )
        )
    return claims


def _by_size(steps: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, list[Mapping[str, Any]]]]:
    """Collection -> train queries -> the runs of all seeds."""
    found: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for step in steps:
        found.setdefault(step["collection"], {}).setdefault(step["pairs"], []).append(step)
    return {name: dict(sorted(sizes.items())) for name, sizes in found.items()}


def _sizes(steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    says, where = "It learns from many examples: the more pairs, the better", "4.3"
    if not steps:
        return [Claim(says, where, NOT_RUN, "`002.py` has the steps: 500 to all pairs")]
    claims = []
    for name, sizes in _by_size(steps).items():
        reached = [mean([run["mrr"] for run in runs]) for runs in sizes.values()]
        rising = all(a < b for a, b in pairwise(reached))
        figures = ", ".join(f"{size:,}: {value:.4f}" for size, value in zip(sizes, reached))
        first = next(iter(sizes.values()))
        claims.append(
            Claim(
                "the same" if claims else says,
                where,
                (HOLDS if rising else FAILS) if len(reached) > 1 else NOT_RUN,
                f"{name}, k = {first[0]['dim']}, MRR of both directions by train queries: {figures}; seeds:"
                f" {len(first)}, not tested",
                first[-1]["command"],
            )
        )
    return claims


def _filters(steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    says = "Told apart by their labels, S2Net's documents are above tf-idf's in AUC and NDCG"
    where = "4.2, table 2"
    if not steps:
        return [Claim(says, where, NOT_RUN, "mirrored on grades: `002.py --filter` has the steps")]
    claims = []
    for step in steps:
        rows, ways = step["ways"], [way for way in step["ways"] if way.startswith("s2net")]
        p = {(test["stack"], test["measure"]): test["p"] for test in step["tests"]}
        base = rows["tf-idf"]
        for way in ways:
            right = all(rows[way][measure] > base[measure] for measure in base)
            figures = ", ".join(
                f"{measure} {rows[way][measure]:.4f}, tf-idf {base[measure]:.4f}"
                f" (p {p_text(p[way, measure])})"
                for measure in base
            )
            claims.append(
                Claim(
                    "the same" if claims else says,
                    where,
                    verdict(right, max(p[way, measure] for measure in base)),
                    f"{step['collection']}, grade 2 against grade 1, {step['queries']:,} queries, k ="
                    f" {step['dim']}, {way}: {figures}; one run",
                    step["command"],
                )
            )
        above = [way for way in ("lsi", "opca") if all(rows[way][m] > base[m] for m in base)]
        claims.append(
            Claim(
                "and the other projections are below",
                where,
                FAILS if above else HOLDS,
                f"{step['collection']}: "
                + ", ".join(f"{way} AUC {rows[way]['AUC(rel=2)']:.4f}" for way in ("lsi", "opca"))
                + f", tf-idf {base['AUC(rel=2)']:.4f}; p "
                + ", ".join(p_text(p[way, "AUC(rel=2)"]) for way in ("lsi", "opca")),
                step["command"],
            )
        )
    return claims


def _extra(steps: Sequence[Mapping[str, Any]]) -> list[Table]:
    tables = []
    for step in (one for one in steps if one["table"] == "second task"):
        measures = list(step["ways"]["tf-idf"])
        rows = [[way, *(f"{found[m]:.4f}" for m in measures)] for way, found in step["ways"].items()]
        note = (
            f"{step['pairs']:,} train queries, k = {step['dim']}; one run; {step['queries']:,} test queries."
        )
        title = f"The second task, mirrored: grade 2 against grade 1, {step['collection']}"
        tables.append(Table(title, ["", *measures], rows, note))
    hard: dict[str, list[Mapping[str, Any]]] = {}
    for step in (one for one in steps if one["table"] == "hard negatives"):
        hard.setdefault(step["collection"], []).append(step)
    for name, of in hard.items():
        of.sort(key=lambda step: step["hard"])
        rows = [[str(s["hard"]), f"{s['dev']:.4f}", f"{s['mrr']:.4f}", f"{s['top1']:.4f}"] for s in of]
        note = (
            f"{of[0]['pairs']:,} train queries, k = {of[0]['dim']}, from LSI, one run each. Not in the paper."
        )
        head = ["nearest wrong documents", "dev NDCG", "MRR", "top-1"]
        tables.append(Table(f"Hard negatives, {name}", head, rows, note))
    return tables


def told() -> Paper:
    """Everything, from the results that there are."""
    steps = results("002")
    by = {step["step"]: step for step in steps}
    dimensions, options = by["debian.de-dimensions"], by["debian.de-options"]
    dims = list(dimensions["mrr"]["s2net"])
    rows = [
        [name, *(f"{dimensions['mrr'][name][k]:.4f} / {dimensions['top1'][name][k]:.4f}" for k in dims)]
        for name in ORDER
    ]
    starts = [[name, f"{value:.4f}", f"{options['mrr'][name]:.4f}"] for name, value in options["dev"].items()]
    sizes = [step for step in steps if step["table"] == "training size"]
    return Paper(
        "002: S2Net and the projections",
        "W. Yih, K. Toutanova, J. C. Platt, C. Meek: Learning Discriminative Projections for Text"
        " Similarity Measures."
        " CoNLL 2011. How ours differs: [projections](rankers.md#projections). Of its figures the text"
        " that we have"
        " names three: at k = 1,000 MRR is 0.7660 for OPCA, 0.7745 for S2Net from CL-LSI and 0.7855"
        " from OPCA (dev).",
        [
            *_dimensions(dimensions),
            *_options(options),
            *_sizes(sizes),
            *_one_language(by["one-language"]),
            Claim(
                "On English and Spanish Wikipedia, against JPLSA and CPLSA too",
                "4.1, table 1",
                NO_DATA,
                "neither the collection nor those methods are here; debian stands for it",
            ),
            Claim(
                "As a filter of advertisements, only S2Net is above tf-idf in AUC and NDCG",
                "4.2, tables 2 and 3, figure 3",
                NO_DATA,
                "no labelled query-advertisement pairs are here, nor judgements of 0 in any of the"
                " collections; grades stand for them",
            ),
            *_filters([step for step in steps if step["table"] == "second task"]),
        ],
        [
            Table(
                f"Figure 2: over dimensions, {dimensions['collection']}, MRR / top-1, means of both"
                f" directions",
                ["", *(f"k = {int(k):,}" for k in dims)],
                rows,
                f"{dimensions['pairs']:,} train pairs, {dimensions['test_pairs']:,} test pairs; tf-idf"
                f" {dimensions['tfidf']['mrr']:.4f}. {dimensions['note']}",
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
                    f"By train queries, {name}, both directions",
                    ["train queries", "MRR", "top-1"],
                    [
                        [f"{size:,}", *(shown([run[key] for run in runs]) for key in ("mrr", "top1"))]
                        for size, runs in of.items()
                    ],
                )
                for name, of in _by_size(sizes).items()
            ),
            *_extra(steps),
        ],
        results=steps,
    )
