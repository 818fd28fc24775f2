"""What is told of Raman, Shah, Veloso (2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from running import results
from telling import NO_DATA, NOT_RUN, Claim, Paper, Table, mean, p_text, shown, verdict

_THEIRS = (
    ("*Scholarly, the paper*", "SentBERT, no structure", "0.268", "0.317"),
    ("*Scholarly, the paper*", "BERT, structure and semantics", "0.283", "0.351"),
    ("*arXivCS, the paper*", "SentBERT, no structure", "0.215", "0.262"),
    ("*arXivCS, the paper*", "BERT, structure and semantics", "0.225", "0.284"),
    ("*ACL-ARC, the paper*", "SentBERT, no structure", "0.140", "0.179"),
    ("*ACL-ARC, the paper*", "BERT, structure and semantics", "0.143", "0.197"),
)


def _p(found: Any) -> tuple[float, str]:
    """A p-value and how it is written; of some only a bound was kept."""
    if isinstance(found, Mapping):
        return float(found["below"]) / 2, f"<{found['below']:g}"
    return float(found), p_text(float(found))


def _links(found: Mapping[str, Any]) -> list[Claim]:
    claims = []
    for row in found["rows"]:
        for measure in ("R@5", "R@10"):
            before, after = row["untrained"][measure][0], row["trained"][measure][0]
            p, text = _p(row["p"][measure])
            claims.append(
                Claim(
                    "Training on the structure finds more of a document's links"
                    if not claims
                    else "the same",
                    "4.3, table 2",
                    verdict(after > before, p),
                    f"{row['collection']}, {row['start']}, {row['objective']}: {measure} {before:.4f}"
                    f" to {after:.4f}"
                    f" ({100 * (after / before - 1):+.0f} %, p {text})",
                    row["command"] if measure == "R@5" else "",
                )
            )
    return claims


_PAIRS = (
    (
        "Structure and semantics together are above structure alone (gamma 0)",
        "4.5, figure 8",
        "quintuplet",
        "structure",
    ),
    ("and above semantics alone (gamma 1)", "4.5, figure 8", "quintuplet", "semantics"),
    (
        "Margins that shrink with the level are above one margin",
        "4.4, figure 7",
        "quintuplet",
        "fixed-margin",
    ),
    ("Five inputs are above a triplet", "1, 3.3", "quintuplet", "triplet"),
    ("Levels are above drawing any neighbour", "3.2", "quintuplet", "quintuplet+positives=row"),
)


def _ablations(
    steps: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]]:
    """(Collection, start) -> way of training -> the runs of all seeds."""
    found: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for step in steps:
        if step["table"] == "ablations":
            of = found.setdefault((step["collection"], step["start"]), {})
            of.setdefault(step["how"], []).append(step)
    return found


def _compared(steps: Sequence[Mapping[str, Any]]) -> list[Claim]:
    claims = []
    for says, where, way, other in _PAIRS:
        there = False
        for (collection, start), ways in _ablations(steps).items():
            if {way, other} <= {*ways}:
                reached = [mean([run["R@5"]["trained"] for run in ways[one]]) for one in (way, other)]
                claims.append(
                    Claim(
                        "the same" if there else says,
                        where,
                        verdict(reached[0] > reached[1]),
                        f"{collection}, {start}: R@5 {reached[0]:.4f}, {other} {reached[1]:.4f}; seeds:"
                        f" {len(ways[other])}, not tested",
                        ways[other][0]["command"],
                    )
                )
                there = True
        if not there:
            claims.append(Claim(says, where, NOT_RUN, f"`{other}` beside `{way}`: `000.py` has the steps"))
    return claims


def _ablation_tables(steps: Sequence[Mapping[str, Any]]) -> list[Table]:
    tables = []
    for (collection, start), ways in _ablations(steps).items():
        rows = []
        first = next(iter(ways.values()))
        cells = [shown([run[measure]["untrained"] for run in first]) for measure in ("R@5", "R@10")]
        rows.append(["untrained", *cells, "", ""])
        for how, runs in ways.items():
            cells = [shown([run[measure]["trained"] for run in runs]) for measure in ("R@5", "R@10")]
            worst = [p_text(max(run[measure]["p"] for run in runs)) for measure in ("R@5", "R@10")]
            rows.append([how, *cells, *worst])
        head = ["", "R@5", "R@10", "p (R@5)", "p (R@10)"]
        note = "p: against the untrained encoder, over documents; the largest over the seeds, not corrected."
        tables.append(Table(f"Ablations, {collection}, {start}", head, rows, note))
    return tables


def told() -> Paper:
    """Everything, from the results that there are."""
    steps = results("000")
    links = next(step for step in steps if step["step"] == "links")
    rows = [list(row) for row in _THEIRS]
    for row in links["rows"]:
        for which, name in (("untrained", "untrained"), ("trained", row["objective"])):
            cells = ["{:.4f} ± {:.4f}".format(*row[which][measure]) for measure in ("R@5", "R@10")]
            rows.append([f"{row['collection']}, {row['start']}", name, *cells])
    return Paper(
        "000: an encoder that learns from links",
        "N. Raman, S. Shah, M. Veloso: Structure and Semantics Preserving Document Representations."
        " 2021. How ours differs:"
        " [dense encoders](dense.md#where-it-deviates-from-the-paper-and-why). Its queries are"
        " sentences around a"
        " citation; ours are documents that look for those they are linked with, so the figures are not"
        " the same task.",
        [
            *_links(links),
            Claim("The paper's loss (quintuplet) from a strong encoder, whole", "4.2",
                  NOT_RUN, "MiniLM whole by `--preset paper`, three seeds"),
            *_compared(steps),
            Claim("The semantic margin may lie anywhere between 0.5 and 1.5", "4.5, figure 9", NOT_RUN),
            Claim("A sentence of a document still finds it after training (self-prediction)", "4.3,"
                                                                                              " table"
                                                                                              " 3", NOT_RUN),
            Claim("Citation contexts find the cited document", "4.3, table 2", NOT_RUN,
                  "eLife's full texts have them; no script yet"),
            Claim("Distances of linked and of unrelated documents come apart", "4.4, figure 5", NOT_RUN,
                  "`rerank report dense` draws it for a ranker of yours"),
            Claim("Documents of a subgraph lie together on a map", "4.4, figure 6", NOT_RUN,
                  "`rerank report dense` draws a map, by category"),
            Claim("Above SentBERT, SGC, Word2Vec and language-model fine-tuning; SciBERT is the best start",
                  "4.3, tables 1 to 3", NO_DATA, "SciDocs, Scholarly, arXivCS, ACL-ARC and those models"
                                                 " are not here"),
        ],
        [
            Table("Table 2: held-out links", ["", "", "R@5", "R@10"], rows, links["note"]),
            *_ablation_tables(steps),
        ],
        results=steps,
    )  # fmt: skip
