"""The claims of Raman, Shah, Veloso (2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from running import results
from tables import Claim, Paper, Table, mean, p_text, shown
from verdicts import NO_DATA, NOT_RUN, NOTHING_LEARNED, SIGNIFICANT, Difference, all_of, difference, untested

_THEIRS = (
    ("*Scholarly, SentBERT and BERT, the paper*", "0.268", "0.283", "0.317", "0.351"),
    ("*arXivCS, SentBERT and BERT, the paper*", "0.215", "0.225", "0.262", "0.284"),
    ("*ACL-ARC, SentBERT and BERT, the paper*", "0.140", "0.143", "0.179", "0.197"),
)
LINKS = "Training on the structure finds more of a document's links"
NAMES = {
    "success@1": "links: success@1",
    "R@5": "R@5",
    "R@10": "R@10",
    "apart": "a link nearer than another",
    "near": "linked among ten nearest",
    "contexts success@1": "contexts: success@1",
    "contexts R@5": "R@5",
    "contexts R@10": "R@10",
    "self success@1": "self: success@1",
    "headings": "headings: F1",
}
"""Measure -> column head. F1 is the mean over the documents."""
PASSAGES = {"best 2": "best 2", "best 5": "best 5", "sum 5": "best 5, not divided by the weights"}
"""Score by all passages of a document (fragments.py) -> column head."""
PAPER = "best 5"
"""The score of ``--preset paper``."""
LINKED, SENTENCES = ("R@5", "R@10"), ("contexts R@5", "contexts R@10", "self success@1")
Step = Mapping[str, Any]
Runs = dict[tuple[str, str], dict[str, list[Step]]]
"""(Collection, start) -> way of training -> runs of all seeds."""


def _p(found: Any) -> tuple[float, str]:
    """Return a p-value and its text. Some results contain only an upper bound."""
    if isinstance(found, Mapping):
        return float(found["below"]), f"<{found['below']:g}"
    return float(found), p_text(float(found))


def _links(found: Step) -> list[Claim]:
    claims = []
    for row in found["rows"]:
        for measure in ("R@5", "R@10"):
            before, after = row["untrained"][measure][0], row["trained"][measure][0]
            p, text = _p(row["p"][measure])
            claims.append(
                Claim(
                    LINKS if not claims else "the same",
                    "4.3, table 2",
                    difference([after - before], [p]).above(),
                    f"{row['collection']}, {row['start']}, {row['objective']}: {measure} {before:.4f}"
                    f" to {after:.4f} ({100 * (after / before - 1):+.0f} %, p {text})",
                    row["command"] if measure == "R@5" else "",
                )
            )
    return claims


def _runs(steps: Sequence[Step]) -> Runs:
    found: Runs = {}
    for step in steps:
        if step["table"] == "encoders":
            found.setdefault((step["collection"], step["start"]), {}).setdefault(step["how"], []).append(step)
    return found


def _of(runs: Sequence[Step], measure: str, which: str = "trained") -> list[float]:
    return [run["measures"][measure][which] for run in runs if measure in run["measures"]]


def _difference(runs: Sequence[Step], measure: str) -> Difference:
    """Return the difference of trained and untrained."""
    found = [run["measures"][measure] for run in runs if measure in run["measures"]]
    return difference([one["trained"] - one["untrained"] for one in found], [one["p"] for one in found])


def _against(
    runs: Sequence[Step], others: Sequence[Step], measure: str, test: str = "p_quintuplet"
) -> Difference:
    """Return the difference of ``quintuplet`` and another way of training, per seed.

    test: key of the p-value in the results of ``others``.
    """
    ours = {run["seed"]: run["measures"][measure]["trained"] for run in runs}
    found = [(run["seed"], run["measures"][measure]) for run in others]
    deltas = [ours[seed] - one["trained"] for seed, one in found]
    return difference(deltas, [one.get(test) for _, one in found])


def _learned(runs: Sequence[Step]) -> bool:
    """Return whether any seed kept a training step. Otherwise the encoder is the untrained one."""
    return any(run["kept"] for run in runs)


def _start(start: str) -> str:
    """Return a start in words.

    >>> _start("minilm:2:top1"), _start("minilm:6")
    ('MiniLM, lower 2 layers (1 learns)', 'MiniLM, 6 layers')
    """
    model, layers, *rest = start.split(":")
    name = {"minilm": "MiniLM"}.get(model, model)
    words = f"{name}, {layers} layers" if layers == "6" else f"{name}, lower {layers} layers"
    top = next((one.removeprefix("top") for one in rest if one.startswith("top")), None)
    return f"{words} ({top} learn{'s' if top == '1' else ''})" if top else words


def _seeds(runs: Sequence[Step]) -> str:
    count = "one seed" if len(runs) == 1 else f"{len(runs)} seeds"
    return count


def _gained(
    says: str,
    where: str,
    of: Runs,
    ways: Sequence[str],
    measures: Sequence[str],
    missing: str,
    *,
    keeps: bool = False,
) -> list[Claim]:
    """Return claims on trained against untrained. keeps: the claim is only that the measure does not drop."""
    claims: list[Claim] = []
    for (collection, start), found in of.items():
        for way in ways:
            for measure in measures:
                values = _of(found.get(way, ()), measure)
                if not values:
                    continue
                before, after = mean(_of(found[way], measure, "untrained")), mean(values)
                change = _difference(found[way], measure)
                verdict = change.keeps() if keeps else change.above()
                tested = f"p {p_text(change.p)}, " if change.p is not None else ""
                if not _learned(found[way]):
                    verdict, tested = NOTHING_LEARNED, ""
                claims.append(
                    Claim(
                        "the same" if claims else says,
                        where,
                        verdict,
                        f"{collection}, {_start(start)}, {way}: {_short(measure)} {before:.4f} to"
                        f" {after:.4f} ({tested}n {found[way][0]['measures'][measure]['n']:,});"
                        f" {_seeds(found[way])}",
                        found[way][0]["command"],
                    )
                )
    return claims or [Claim(says, where, NOT_RUN, missing)]


def _short(measure: str) -> str:
    """Return the last word of a measure, and the score by all passages.

    >>> _short("contexts R@5"), _short("best 5 R@5")
    ('R@5', 'best 5 R@5')
    """
    *score, last = measure.split(" ")
    return f"{' '.join(score)} {last}" if " ".join(score[:2]) in PASSAGES else last


_PAIRS = (
    ("Structure and semantics together are above structure only (gamma 0)", "4.5, figure 8", "structure"),
    ("and above semantics only (gamma 1)", "4.5, figure 8", "semantics"),
    ("Margins that shrink with the level are above one margin", "4.4, figure 7", "fixed-margin"),
    ("Five inputs are above a triplet", "1, 3.3", "triplet"),
    ("Levels are above drawing any neighbor", "3.2", "quintuplet+positives=row"),
    ("PageRank is above the order by hops (not in the paper)", "3.2", "quintuplet+neighbors=hops"),
)


def _compared(of: Runs, measure: str = "R@10") -> list[Claim]:
    claims = []
    for says, where, other in _PAIRS:
        there = False
        for (collection, start), ways in of.items():
            if {"quintuplet", other} <= {*ways}:
                seeds = {run["seed"] for run in ways[other]}
                ours = [run for run in ways["quintuplet"] if run["seed"] in seeds]
                reached = [mean(_of(runs, measure)) for runs in (ours, ways[other])]
                gap = _against(ours, ways[other], measure)
                learned = _learned(ours) and _learned(ways[other])
                text = f"{collection}, {_start(start)}: {measure} {reached[0]:.4f}, {other} {reached[1]:.4f}"
                claim = _tested("the same" if there else says, where, gap, text, ways[other])
                claims.append(claim if learned else replace(claim, verdict=NOTHING_LEARNED))
                there = True
        if not there:
            claims.append(
                Claim(says, where, NOT_RUN, f"`{other}` beside `quintuplet`: `000.py` has the steps")
            )
    return claims


_MARGINS = {
    "quintuplet": 0.5,
    "quintuplet+semantic_margin=1.0": 1.0,
    "quintuplet+semantic_margin=1.5": 1.5,
    "quintuplet+semantic_margin=4.0": 4.0,
}


def _margins(of: Runs, measure: str = "R@10") -> list[Claim]:
    says, where = "The semantic margin may lie anywhere between 0.5 and 1.5", "4.5, figure 9"
    claims = []
    for (collection, start), ways in of.items():
        inside = {size: ways[way] for way, size in _MARGINS.items() if way in ways}
        if not {0.5, 1.5} <= {*inside}:
            continue
        others = [runs for size, runs in inside.items() if 0.5 < size <= 1.5]
        gaps = [_against(inside[0.5], runs, measure) for runs in others]
        figures = ", ".join(f"{size:g}: {mean(_of(runs, measure)):.4f}" for size, runs in inside.items())
        p = ", ".join(p_text(gap.p) for gap in gaps if gap.p is not None)
        claims.append(
            Claim(
                "the same" if claims else says,
                where,
                all_of(gap.equal() for gap in gaps),
                f"{collection}, {_start(start)}: {measure} {figures} (p of those up to 1.5 against 0.5: {p});"
                f" {_seeds(inside[1.5])}",
                inside[1.5][0]["command"],
            )
        )
    return claims or [Claim(says, where, NOT_RUN, "`000.py` has the steps")]


def _encoders(ways: Mapping[str, list[Step]]) -> list[tuple[str, list[Step], str]]:
    """Return (way, runs, key of the value) of the encoders measured by all passages, the untrained first."""
    there = {way: runs for way, runs in ways.items() if f"{PAPER} R@5" in runs[0]["measures"]}
    if not there:
        return []
    found = [(way, runs, "trained") for way, runs in there.items() if way != "untrained"]
    return [("untrained", max(there.values(), key=len), "untrained"), *found]


def _tested(says: str, where: str, gap: Difference, text: str, runs: Sequence[Step]) -> Claim:
    """Return the claim of a difference above 0."""
    p = "not tested" if gap.p is None else f"p {p_text(gap.p)}"
    return Claim(says, where, gap.above(), f"{text} ({p}); {_seeds(runs)}", runs[0]["command"])


def _by_all_passages(of: Runs, says: str, searches: Sequence[str]) -> list[Claim]:
    """Return claims that all passages of a document find more than its first passage."""
    claims: list[Claim] = []
    for (collection, start), ways in of.items():
        for way, runs, which in _encoders(ways):
            test = "p_first" if which == "trained" else "p_first_untrained"
            for measure in (one for one in searches if one in runs[0]["measures"]):
                first, every = (_of(runs, one, which) for one in (measure, f"{PAPER} {measure}"))
                ps = [run["measures"][f"{PAPER} {measure}"][test] for run in runs]
                gap = difference([b - a for a, b in zip(first, every, strict=True)], ps)
                figures = f"{way}: {measure} {mean(first):.4f} to {mean(every):.4f}"
                text = f"{collection}, {_start(start)}, {figures}"
                claims.append(_tested("the same" if claims else says, "3.4", gap, text, runs))
    return claims


def _above_language_model(of: Runs, measure: str = "R@10") -> list[Claim]:
    """Return claims on the loss of the paper against language model training with as many steps."""
    says, where = "Above language-model training with as many steps", "4.3, tables 1 and 2"
    claims: list[Claim] = []
    for (collection, start), ways in of.items():
        for way, runs in ways.items():
            seeds = {run["seed"] for run in runs if way.startswith("lm")}
            ours = [run for run in ways.get(way.replace("lm", "paper", 1), ()) if run["seed"] in seeds]
            for score in ("", f"{PAPER} ") if ours else ():
                one = f"{score}{measure}"
                gap = _against(ours, runs, one, "p_paper")
                values = [mean(_of(some, one)) for some in (ours, runs)]
                text = f"{collection}, {_start(start)}, {way}: {one} {values[0]:.4f}, {values[1]:.4f}"
                claims.append(_tested("the same" if claims else says, where, gap, text, runs))
    return claims or [Claim(says, where, NOT_RUN, "`lm`: `000.py` has the steps")]


def _ways(of: Runs, preset: str) -> list[str]:
    """Return all ways of training with a preset, for example ``paper`` and ``paper+epochs=6``."""
    return list(dict.fromkeys(way for ways in of.values() for way in ways if way.split("+")[0] == preset))


def _passages_tables(of: Runs) -> list[Table]:
    """Return tables of search by all passages."""
    tables = []
    for (collection, start), ways in of.items():
        rows = [
            [
                f"{way}, {measure}",
                *(shown(_of(runs, one, which)) for one in (measure, *(f"{s} {measure}" for s in PASSAGES))),
                _seeds(runs),
            ]
            for measure in LINKED + SENTENCES
            for way, runs, which in _encoders(ways)
            if measure in runs[0]["measures"]
        ]
        if rows:
            title = f"Search by all passages, {collection}, {_start(start)}"
            note = (
                "Passages of 64 tokens that overlap by half. A query is the first passage of a document or a"
                " sentence."
            )
            tables.append(Table(title, ["", "first passage", *PASSAGES.values(), "seeds"], rows, note))
    return tables


def _tables(of: Runs) -> list[Table]:
    tables = []
    for (collection, start), ways in of.items():
        first = max(ways.values(), key=len)
        measures = [one for one in NAMES if one in first[0]["measures"]]
        rows = [["untrained", *(shown(_of(first, one, "untrained")) for one in measures)]]
        for how, runs in ways.items():
            if how == "untrained":
                continue
            rows.append([how, *(f"{shown(_of(runs, one))}{_mark(runs, one)}" for one in measures)])
        n = first[0]["measures"]
        note = (
            "An asterisk: p < 0.05 against the untrained encoder, mean over seeds, without a correction for"
            f" several tests. {n['R@5']['n']:,} documents look for their held-out links"
        )
        if "self success@1" in n:
            note += (
                f", {n['contexts R@5']['n']:,} sentences for the article that they cite,"
                f" {n['self success@1']['n']:,} sentences for their own article"
            )
        tables.append(
            Table(
                f"Ways of training, {collection}, {_start(start)}",
                ["", *(NAMES[m] for m in measures)],
                rows,
                f"{note}.",
            )
        )
    return tables


def _mark(runs: Sequence[Step], measure: str) -> str:
    p = _difference(runs, measure).p if any(measure in run["measures"] for run in runs) else None
    return " *" if p is not None and p < SIGNIFICANT else ""


_BASELINES = {"word2vec": "the mean of word vectors", "sgc": "tf-idf smoothed over links (SGC)"}


def _baselines(steps: Sequence[Step]) -> dict[tuple[str, str], list[Step]]:
    """Return (collection, baseline) -> runs of all seeds."""
    found: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        if step["table"] == "baselines":
            found.setdefault((step["collection"], step["how"]), []).append(step)
    return found


def _above_baselines(steps: Sequence[Step], of: Runs) -> list[Claim]:
    """Return claims on the best encoder of a collection against the baselines.

    They have no p-value: the results of the baselines contain no values per document.
    """
    claims: list[Claim] = []
    for (collection, how), runs in _baselines(steps).items():
        theirs = mean([run["measures"]["R@10"]["value"] for run in runs])
        reached = {
            f"{_start(start)}, {way}": mean(_of(found[way], "R@10"))
            for (name, start), found in of.items()
            for way in found
            if name == collection and start == "minilm:6" and _of(found[way], "R@10")
        }
        if not reached:
            continue
        best = max(reached, key=lambda way: reached[way])
        claims.append(
            Claim(
                "the same" if claims else "Above Word2Vec and SGC",
                "4.3, table 1",
                untested(reached[best] > theirs),
                f"{collection}, R@10: {best} {reached[best]:.4f}, {_BASELINES[how]} {theirs:.4f};"
                f" {_seeds(runs)}",
                runs[0]["command"],
            )
        )
    return claims


def paper() -> Paper:
    """Return claims and tables from the existing results."""
    steps = results("000")
    links = next(step for step in steps if step["step"] == "links")
    rows = [list(row) for row in _THEIRS]
    for row in links["rows"]:
        cells = [
            "{:.4f} ± {:.4f}".format(*row[which][measure])
            for measure in ("R@5", "R@10")
            for which in ("untrained", "trained")
        ]
        rows.append([f"{row['collection']}, {row['start']}, {row['objective']}", *cells])
    for (collection, how), runs in _baselines(steps).items():
        each = [[run["measures"][measure]["value"] for run in runs] for measure in ("R@5", "R@10")]
        rows.append([f"{collection}, {_BASELINES[how]}", "", shown(each[0]), "", shown(each[1])])
    of, ours, both = _runs(steps), ("quintuplet", "contrastive"), ("R@5", "R@10")
    ways = (*ours, *_ways(of, "paper"))
    return Paper(
        "000: an encoder that learns from links",
        "N. Raman, S. Shah, M. Veloso: Structure and Semantics Preserving Document Representations. 2021. How"
        " the code differs: [dense encoders](dense.md#differences-to-the-paper). In the paper"
        " a query is a sentence around a citation (here: `contexts`); in the rows on links it is a document."
        " If all six layers learn, the contrastive loss finds many more links, the paper's loss fewer than"
        " before. *paper* and *lm* (masked language model): batches of 24, passages of 64 tokens, not 128.",
        [
            *_links(links),
            *(
                replace(one, says="the same")
                for one in _gained(LINKS, "4.3, table 2", of, ours, both, "")
                if one.verdict != NOT_RUN
            ),
            *_gained(
                "The paper's loss and settings (`--preset paper`)",
                "4.2, 4.3",
                of,
                _ways(of, "paper"),
                both,
                "`paper`: `000.py` has the steps",
            ),
            *(
                replace(one, says="the same")
                for one in _gained(
                    "", "3.4", of, _ways(of, "paper"), (f"{PAPER} R@5", f"{PAPER} R@10"), ""
                )
                if one.verdict != NOT_RUN
            ),
            *_gained(
                "Language-model training finds more than the untrained encoder",
                "4.3, tables 1 and 2",
                of, _ways(of, "lm"), (*both, f"{PAPER} R@5", f"{PAPER} R@10"), "`lm`: `000.py` has the steps",
            ),
            *_above_language_model(of),
            *_by_all_passages(of, "All passages (equation 6) find more links than the first one", LINKED),
            *_by_all_passages(of, "and more articles by their contexts and sentences", SENTENCES),
            *_gained(
                "Citation contexts find the cited document",
                "4.3, table 2",
                of, ways, ("contexts R@5", "contexts R@10"), "`000.py --collections elife` has the steps",
            ),
            *_gained(
                "A sentence of a document still finds it after training (self-prediction)",
                "4.3, table 3",
                of, ways, ("self success@1",), "`000.py --collections elife` has the steps", keeps=True,
            ),
            *_compared(of),
            *_margins(of),
            *_gained(
                "Linked documents are nearer than unrelated ones (held-out links)",
                "4.4, figure 5",
                of, ways, ("apart",), "`000.py` has the steps",
            ),
            *_gained(
                "Documents of a subgraph are close: more of the ten nearest are linked (training links)",
                "4.4, figure 6",
                of, ways, ("near",), "`000.py` has the steps",
            ),
            *_gained(
                "The vector keeps the topic of a document: headings by a linear SVM (not in the paper)",
                "",
                of, ours, ("headings",), "`000.py` has the steps", keeps=True,
            ),
            *_above_baselines(steps, of),
            Claim("Above SentBERT; SciBERT is the best start",
                  "4.3, tables 1 to 3", NO_DATA, "SciDocs, Scholarly, arXivCS, ACL-ARC and those models"
                                                 " are not available"),
        ],
        [
            Table(
                "Table 2: held-out links",
                ["", "R@5 untrained", "R@5 trained", "R@10 untrained", "R@10 trained"],
                rows,
                links["note"],
            ),
            *_passages_tables(of),
            *_tables(of),
        ],
        results=steps,
    )  # fmt: skip
