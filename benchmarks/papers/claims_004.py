"""The claims of Ma, Song, Hu, Li, Zhang, King (2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from running import results
from tables import Claim, Paper, Table, mean, p_text, shown
from verdicts import NO_DATA, Difference, all_of, difference, untested

MEASURES = ("accuracy", "F1", "AUC")
NAMES = {
    "tfidf": "tf-idf with a threshold",
    "paper": "graph-component",
    "paper+objective=classifier": "classifier",
    "gc_nce=false": "without GC-NCE",
    "moco=false": "without momentum contrast",
    "hops=2": "with sampled pairs, k = 2",
    "hops=3": "with sampled pairs, k = 3",
    "hops=2, ratio=4": "with twice as many sampled pairs, k = 2",
}
THEIRS = {
    "WORD, BERT, the paper": {"classifier": (76.85, 76.12, 84.86), "graph-component": (77.83, 77.59, 85.86)},
    "CNSE, BERT, the paper": {"classifier": (83.97, 81.67, 92.10), "graph-component": (85.79, 84.18, 92.96)},
    "CNSS, BERT, the paper": {"classifier": (90.63, 91.09, 97.07), "graph-component": (93.67, 93.78, 98.37)},
}
"""Values of table 2, times 100."""

Step = Mapping[str, Any]


def _rows(step: Step) -> dict[str, Mapping[str, Any]]:
    return {row["how"]: row for row in step["rows"]}


def _difference(step: Step, how: str, measure: str) -> Difference:
    """Return the difference of a way of training and ``step["against"]``."""
    rows = _rows(step)
    values = [mean(rows[name]["measures"][measure]) for name in (how, step["against"])]
    return difference([values[0] - values[1]], [rows[how]["p"].get(measure)], values[1])


def _figures(step: Step, gaps: Mapping[str, Difference]) -> str:
    parts = [
        f"{measure} {gap.mean:+.4f}" + (f" (p {p_text(gap.p)})" if gap.p is not None else "")
        for measure, gap in gaps.items()
    ]
    return f"{step['collection']}, {step['setting']}: {', '.join(parts)}; {step['seeds']} seeds"


def _compared(says: str, where: str, found: Sequence[tuple[Step, str]], above: bool = True) -> list[Claim]:
    """Return one claim per setting, on the difference of two ways of training."""
    claims: list[Claim] = []
    for step, how in found:
        gaps = {measure: _difference(step, how, measure) for measure in MEASURES}
        judged = all_of(gap.above() if above else gap.below() for gap in gaps.values())
        claims.append(
            Claim("the same" if claims else says, where, judged, _figures(step, gaps), step["command"])
        )
    return claims


def _order(says: str, where: str, step: Step, high: str, low: str) -> Claim:
    """Return a claim on two ways of training without a test between them."""
    rows = _rows(step)
    values = {how: [mean(rows[how]["measures"][measure]) for measure in MEASURES] for how in (high, low)}
    figures = ", ".join(f"{NAMES[how]} {values[how][0]:.4f}" for how in (high, low))
    right = all(a > b for a, b in zip(values[high], values[low]))
    return Claim(
        says,
        where,
        untested(right),
        f"{step['collection']}: accuracy {figures}",
        step["command"],
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [shown(row["measures"][measure]) for measure in MEASURES]


def _table(steps: Sequence[Step]) -> Table:
    rows = [
        [f"{step['collection']}, {step['setting']}", NAMES.get(how, how), *_cells(row)]
        for step in steps
        for how, row in _rows(step).items()
    ]
    return Table("Table 2: the graph against the plain classifier", ["", "", *MEASURES], rows, _NOTE)


def _short_table(steps: Sequence[Step]) -> Table:
    """Return a table with one row per setting: accuracy and AUC of tf-idf, classifier and graph."""
    shown_measures = ("accuracy", "AUC")
    rows = [
        [f"*{name}*", *_triples(["", ""], *([f"{of[how][i] / 100:.3f}" for i in (0, 2)] for how in of))]
        for name, of in THEIRS.items()
    ]
    for step in steps:
        by = {NAMES.get(how, how): row for how, row in _rows(step).items()}
        each = [
            [shown(by[how]["measures"][m], 3) for m in shown_measures] if how in by else ["", ""]
            for how in (NAMES["tfidf"], "classifier", "graph-component")
        ]
        rows.append([f"{step['collection']}, {step['setting']}", *_triples(*each)])
    head = [f"{measure}: {how}" for measure in shown_measures for how in ("tf-idf", "classifier", "graph")]
    return Table("Table 2: the graph against the plain classifier", ["", *head], rows, _NOTE)


def _triples(*each: Sequence[str]) -> list[str]:
    """Return all accuracies, then all AUCs."""
    return [one[i] for i in range(2) for one in each]


_NOTE = (
    "Means over seeds; the threshold is the one of the best accuracy on dev. p: the larger one of a paired"
    " t-test over seeds and a paired randomization test over test pairs."
)


def paper() -> Paper:
    """Return claims and tables from the existing results."""
    steps = results("004")
    by = {step["step"]: step for step in steps}
    main = [step for step in steps if step["table"] == "table 2"]
    main.sort(key=lambda step: (step["collection"] != "ecbplus", step["step"] != "ecbplus-whole"))
    parts, sampled = by["ecbplus-parts"], by["ecbplus-sampled"]
    trained = [(step, how) for step in main for how in ("graph-component", "paper") if how in _rows(step)]
    return Paper(
        "004: relatedness by graph components",
        "Y. Ma, Z. Song, X. Hu, J. Li, Y. Zhang, I. King: Graph Component Contrastive Learning for Concept"
        " Relatedness Estimation. AAAI 2023. How the code differs:"
        " [concept](concept.md#differences-to-the-paper). The paper has one run of each.",
        [
            *_compared("Training on the graph is above the plain classifier", "4.3, table 2", trained),
            *_compared(
                "Without GC-NCE it is worse", "4.4, table 3", [(parts, "gc_nce=false")], above=False
            ),
            *_compared(
                "Without momentum contrast it is worse", "4.4, table 3", [(parts, "moco=false")], above=False
            ),
            _order("GC-NCE gives more than momentum contrast", "4.4, table 3", parts, "moco=false",
                   "gc_nce=false"),
            *_compared(
                "Pairs sampled from the graph (k = 2) add to the contrasts (two of three collections)",
                "4.3, table 2",
                [(sampled, "hops=2")],
            ),
            _order("and k = 3 is worse than k = 2", "4.5, table 4", sampled, "hops=2", "hops=3"),
            _order("and more sampled pairs are worse", "4.5, table 4", sampled, "hops=2", "hops=2, ratio=4"),
            Claim("On WORD, CNSE and CNSS, with BERT, RoBERTa and XLNet, above graph networks",
                  "4.3, table 2", NO_DATA, "neither the collections nor these models are available"),
        ],
        [
            _table(main),
            Table(
                "Tables 3 and 4: parts of the loss, and sampled pairs",
                ["", *MEASURES],
                [
                    [f"{step['setting']}: {NAMES.get(how, how)}", *_cells(row)]
                    for step in (parts, sampled)
                    for how, row in _rows(step).items()
                ],
            ),
        ],
        results=steps,
        page=[_short_table(main)],
    )  # fmt: skip
